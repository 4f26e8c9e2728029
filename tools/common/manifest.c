#include "common/manifest.h"

#include "common/input.h"
#include "error.h"
#include "schedule_fields.h"

#include <stdlib.h>
#include <string.h>

static bool grow(manifest *list) {
    if (list->count < list->capacity) return true;
    const size_t capacity = list->capacity ? 2 * list->capacity : 16;
    manifest_entry *const more = realloc(list->entries, capacity * sizeof *more);
    if (!more) return false;
    list->entries = more;
    list->capacity = capacity;
    return true;
}

static void refuse(const char *text, const char *file, int line, const char *why) {
    if (line)
        tool_error("%s, line %d: %.200s: %s", file, line, text, why);
    else
        tool_error("%.200s: %s", text, why);
}

static void free_entry(manifest_entry *entry) {
    free(entry->name);
    free(entry->text);
    free(entry->schedule);
}

static bool keep(manifest *list, manifest_entry *entry, const char *name, const char *problem, const char *schedule) {
    entry->name = name ? strdup(name) : NULL;
    entry->text = strdup(problem);
    entry->schedule = schedule ? strdup(schedule) : NULL;
    if (entry->text && (entry->name || !name) && (entry->schedule || !schedule)) {
        list->entries[list->count++] = *entry;
        return true;
    }
    free_entry(entry);
    tool_error("out of memory");
    return false;
}

/* The name before a colon, which becomes its end; NULL: the line begins with its problem, which may have colons, too.
 */
static char *take_name(char **text) {
    char *const name = *text, *const colon = name + strcspn(name, ":=");
    if (*colon != ':') return NULL;
    *colon = '\0';
    *text = colon + 1;
    return tool_trimmed(name);
}

/* The bar between problem and schedule; NULL: there is none. Those of functions stand in quotation marks. */
static char *find_bar(char *text) {
    bool quoted = false;
    for (char *at = text; *at; at++) {
        if (*at == '"') quoted = !quoted;
        if (*at == '|' && !quoted) return at;
    }
    return NULL;
}

bool manifest_add(manifest *list, const char *given, const char *file, int line) {
    manifest_entry entry = {.problem = ATTUNE_PROBLEM_INIT, .line = line};
    mha_schedule fields = {0}; /* only whether they can be read: the rest needs a context */
    at_error error = {0};
    char *const text = grow(list) ? strdup(given) : NULL;
    if (!text) {
        tool_error("out of memory");
        return false;
    }
    char *bar = find_bar(text);
    if (bar) *bar++ = '\0';
    char *rest = text;
    const char *const name = take_name(&rest);
    const char *const problem = tool_trimmed(rest), *const schedule = bar ? tool_trimmed(bar) : NULL;
    bool is_good =
        attune_problem_parse(&entry.problem, problem) == ATTUNE_OK && attune_problem_check(&entry.problem) == ATTUNE_OK;
    if (is_good && schedule) is_good = mha_schedule_parse(schedule, &fields, &error) == ATTUNE_OK;
    if (!is_good) refuse(problem, file, line, error.status ? error.message : attune_last_message());
    if (is_good) is_good = keep(list, &entry, name, problem, schedule);
    free(text);
    return is_good;
}

enum { MOST_BYTES = 64 << 20 };

bool manifest_each_line(const char *path, manifest_line_fn *take, void *user) {
    char message[ATTUNE_MESSAGE_BYTES];
    size_t bytes;
    char *const text = tool_read_text(path, "lists of problems", MOST_BYTES, &bytes, message);
    if (!text) {
        tool_error("%s", message);
        return false;
    }
    bool is_good = true;
    int number = 0, taken = 0;
    for (char *line = text, *end; line && is_good; line = end) {
        end = strchr(line, '\n');
        if (end) *end++ = '\0';
        number++;
        line[strcspn(line, "#")] = '\0';
        line = tool_trimmed(line);
        if (!*line) continue;
        is_good = take(user, line, path, number);
        taken++;
    }
    if (!taken) {
        tool_error("%s names no problem", path);
        is_good = false;
    }
    free(text);
    return is_good;
}

static bool add_line(void *user, const char *text, const char *file, int line) {
    return manifest_add(user, text, file, line);
}

bool manifest_add_file(manifest *list, const char *path) { return manifest_each_line(path, add_line, list); }

bool manifest_add_argument(manifest *list, const char *argument) {
    return strchr(argument, '=') ? manifest_add(list, argument, NULL, 0) : manifest_add_file(list, argument);
}

void manifest_free(manifest *list) {
    for (size_t i = 0; i < list->count; i++) free_entry(&list->entries[i]);
    free(list->entries);
    *list = (manifest){0};
}
