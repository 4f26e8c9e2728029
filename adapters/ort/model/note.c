/* A note is text, a line for each name, and is read by searching for the name: so older notes may lack lines, and newer
 * ones have more. */
#include "note.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char first_line[] = "attune context 1\n";

/* ---- Writing ---- */

__attribute__((format(printf, 2, 3))) static void put(note *n, const char *format, ...) {
    va_list list;
    const size_t room = n->length < NOTE_BYTES ? NOTE_BYTES - n->length : 0;
    va_start(list, format);
    const int length = vsnprintf(room ? n->text + n->length : NULL, room, format, list);
    va_end(list);
    n->length += length < 0 ? NOTE_BYTES : (size_t)length;
}

void note_begin(note *n) {
    n->length = 0;
    put(n, "%s", first_line);
}

void note_put(note *n, const char *name, const int64_t *values, size_t count) {
    put(n, "%s:", name);
    for (size_t i = 0; i < count; i++) put(n, " %lld", (long long)values[i]);
    put(n, "\n");
}

/* As bits, so that it does not depend on the locale. */
void note_put_real(note *n, const char *name, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    note_put(n, name, &(int64_t){bits}, 1);
}

void note_put_text(note *n, const char *name, const char *text) {
    put(n, "%s: ", name);
    for (; *text; text++) put(n, "%c", iscntrl((unsigned char)*text) ? ' ' : *text);
    put(n, "\n");
}

/* ---- Reading ---- */

bool note_is_right(const note *n) {
    return n->length < NOTE_BYTES && strlen(n->text) == n->length &&
           !strncmp(n->text, first_line, strlen(first_line)) && n->text[n->length - 1] == '\n';
}

/* The text after the name; NULL: there is no such line. */
static const char *find(const note *n, const char *name) {
    const size_t length = strlen(name);
    for (const char *line = n->text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (!strncmp(line, name, length) && line[length] == ':') return line + length + 1;
    }
    return NULL;
}

size_t note_get(const note *n, const char *name, int64_t *values, size_t capacity) {
    const char *at = find(n, name);
    size_t count = 0;
    for (; at && *at == ' '; count++) {
        char *end;
        errno = 0;
        const long long value = strtoll(at + 1, &end, 10);
        if (count == capacity || errno || end == at + 1) return 0;
        values[count] = value;
        at = end;
    }
    return at && *at == '\n' ? count : 0;
}

bool note_get_real(const note *n, const char *name, float *value) {
    int64_t number;
    if (note_get(n, name, &number, 1) != 1 || number < 0 || number > UINT32_MAX) return false;
    const uint32_t bits = (uint32_t)number;
    memcpy(value, &bits, sizeof *value);
    return true;
}

void note_get_text(const note *n, const char *name, char *text, size_t capacity) {
    const char *const at = find(n, name);
    const size_t length = at && *at == ' ' ? strcspn(at + 1, "\n") : 0;
    snprintf(text, capacity, "%.*s", (int)length, length ? at + 1 : "");
}
