#define _GNU_SOURCE
#include "pictures/labels.h"

#include "common/input.h"
#include "common/tool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- UTF-8 ---- */

/* Bytes of the character at `text`, or 0 if it is none: too long a form, a surrogate, beyond U+10FFFF, cut off. */
static size_t character(const unsigned char *text, uint32_t *code) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const size_t bytes = text[0] < 0x80             ? 1
                         : (text[0] & 0xe0) == 0xc0 ? 2
                         : (text[0] & 0xf0) == 0xe0 ? 3
                         : (text[0] & 0xf8) == 0xf0 ? 4
                                                    : 0;
    if (!bytes) return 0;
    *code = bytes == 1 ? text[0] : text[0] & (0x7fu >> bytes);
    for (size_t i = 1; i < bytes; i++) {
        if ((text[i] & 0xc0) != 0x80) return 0;
        *code = *code << 6 | (text[i] & 0x3f);
    }
    return *code < least[bytes] || *code > 0x10ffff || (*code >= 0xd800 && *code < 0xe000) ? 0 : bytes;
}

/* Pictures cannot show them, and XML may not hold them. */
static bool is_control(uint32_t code) {
    return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0xfffe || code == 0xffff;
}

char *labels_clean(const char *text) {
    static const char replacement[] = "\xef\xbf\xbd";
    char *const clean = malloc(3 * strlen(text) + 1), *to = clean;
    for (const unsigned char *from = (const unsigned char *)text; clean && *from;) {
        uint32_t code = 0;
        const size_t bytes = character(from, &code);
        if (!bytes) {
            free(clean);
            return NULL;
        }
        to = is_control(code) ? stpcpy(to, replacement) : (char *)mempcpy(to, from, bytes);
        from += bytes;
    }
    if (clean) *to = '\0';
    return clean;
}

/* ---- Lists ---- */

static bool out_of_memory(void) {
    tool_error("out of memory for labels");
    return false;
}

static bool append(labels *l, const char *label) {
    const char **const grown = realloc(l->list, (l->count + 1) * sizeof *grown);
    if (!grown) return out_of_memory();
    l->list = grown;
    l->list[l->count++] = label;
    return true;
}

void labels_free(labels *l) {
    free(l->list);
    free(l->storage);
    *l = (labels){.count = 0};
}

/* Cuts `text` at separators. Lines may be empty, except the last one; words may not. */
static bool cut(char *text, const char *separators, bool keeps_empty, labels *l) {
    while (*text) {
        const size_t length = strcspn(text, separators);
        const bool is_last = !text[length];
        text[length] = '\0';
        if ((length || keeps_empty) && !append(l, text)) return false;
        if (is_last) break;
        text += length + 1;
    }
    return true;
}

/* Lines end as on any system; a mark of the byte order is no part of the first. */
static char *normalise(char *text) {
    if (strncmp(text, "\xef\xbb\xbf", 3) == 0) text += 3;
    char *to = text;
    for (const char *from = text; *from; from++)
        if (*from != '\r' || from[1] != '\n') *to++ = *from;
    *to = '\0';
    return text;
}

static bool clean_all(const char *option, labels *l) {
    size_t bytes = 0;
    char *to = NULL;
    for (size_t i = 0; i < l->count; i++) bytes += 3 * strlen(l->list[i]) + 1;
    char *const storage = to = malloc(bytes + 1);
    if (!storage) return out_of_memory();
    for (size_t i = 0; i < l->count; i++) {
        char *const clean = labels_clean(l->list[i]);
        if (!clean) {
            tool_error("%s: label %zu is not UTF-8", option, i);
            free(storage);
            return false;
        }
        l->list[i] = to;
        to = stpcpy(to, clean) + 1;
        free(clean);
    }
    free(l->storage);
    l->storage = storage;
    return true;
}

bool labels_read(const char *option, const char *text, labels *l) {
    char message[ATTUNE_MESSAGE_BYTES];
    enum { MOST_BYTES = 16 << 20 };
    struct stat status;
    size_t bytes;
    const bool is_file = strcmp(text, "-") == 0 || (stat(text, &status) == 0 && !S_ISDIR(status.st_mode));
    *l = (labels){.storage = is_file ? tool_read_text(text, "labels", MOST_BYTES, &bytes, message) : strdup(text)};
    if (!l->storage && is_file) {
        tool_error("%s: %s", option, message);
        return false;
    }
    if (!l->storage) return out_of_memory();
    char *const begin = normalise(l->storage);
    const char *const line_end = strchr(begin, '\n');
    const bool has_lines = is_file && line_end && line_end[1];
    if (cut(begin, has_lines ? "\n" : " \t\n\v\f\r", has_lines, l) && clean_all(option, l)) return true;
    labels_free(l);
    return false;
}

bool labels_number(size_t count, const int32_t *ids, labels *l) {
    enum { NUMBER_BYTES = 24 };
    *l = (labels){.list = calloc(count + 1, sizeof *l->list), .storage = malloc(count * NUMBER_BYTES + 1)};
    if (!l->list || !l->storage) {
        labels_free(l);
        return out_of_memory();
    }
    for (; l->count < count; l->count++) {
        char *const to = l->storage + l->count * NUMBER_BYTES;
        snprintf(to, NUMBER_BYTES, "%lld", ids ? (long long)ids[l->count] : (long long)l->count);
        l->list[l->count] = to;
    }
    return true;
}

/* ---- Heads ---- */

static bool parse_number(const char **text, size_t *number) {
    char *end;
    if (**text < '0' || **text > '9') return false;
    errno = 0;
    *number = strtoul(*text, &end, 10);
    *text = end;
    return errno == 0;
}

static bool add_heads(size_t first, size_t last, size_t total, size_t *list, size_t *count) {
    if (last >= total) {
        tool_error("--heads: there is no head %zu; the last one is %zu", last, total - 1);
        return false;
    }
    for (size_t head = first; head <= last; head++) {
        for (size_t i = 0; i < *count; i++)
            if (list[i] == head) {
                tool_error("--heads: head %zu is named twice", head);
                return false;
            }
        list[(*count)++] = head;
    }
    return true;
}

bool labels_parse_heads(const char *text, size_t total, size_t **list, size_t *count) {
    const char *at = text;
    size_t first, last;
    *count = 0;
    *list = malloc((total + 1) * sizeof **list);
    if (!*list) return out_of_memory();
    for (;; at++) {
        if (!parse_number(&at, &first)) break;
        last = first;
        if (*at == '-') {
            at++;
            if (!parse_number(&at, &last) || last < first) break;
        }
        if (*at && *at != ',') break;
        if (!add_heads(first, last, total, *list, count)) goto failed;
        if (!*at) return true;
    }
    tool_error("--heads: '%s' is not a list of heads such as 0,3-5", text);
failed:
    free(*list);
    *list = NULL;
    return false;
}
