/* A line is a name, a problem and a schedule, of which the first and the last may be missing; one of linear attention
 * stands for several kernels. */
#include "common/manifest.h"

#include "common/input.h"
#include "error.h"
#include "schedule_fields.h"

#include <stdlib.h>
#include <string.h>

static bool grow(manifest *list) {
    if (list->count < list->capacity) return true;
    const size_t capacity = list->capacity ? 2 * list->capacity : 16;
    manifest_kernel *const more = realloc(list->kernels, capacity * sizeof *more);
    if (!more) return false;
    list->kernels = more;
    list->capacity = capacity;
    return true;
}

static void refuse(const char *text, const char *file, int line, const char *why) {
    if (line)
        tool_error("%s, line %d: %.200s: %s", file, line, text, why);
    else
        tool_error("%.200s: %s", text, why);
}

void manifest_free_kernel(manifest_kernel *wanted) {
    free(wanted->name);
    free(wanted->text);
    free(wanted->schedule);
}

static bool keep(manifest *list, manifest_kernel *wanted, const char *name, const char *problem, const char *schedule) {
    wanted->name = name ? strdup(name) : NULL;
    wanted->text = strdup(problem);
    wanted->schedule = schedule ? strdup(schedule) : NULL;
    if (wanted->text && (wanted->name || !name) && (wanted->schedule || !schedule)) {
        list->kernels[list->count++] = *wanted;
        return true;
    }
    manifest_free_kernel(wanted);
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

/* A kernel of a description, or false after a message. Of several each gets a name of its own, "gdn_few". */
static bool add_kernel(manifest *list, const manifest_kernel *like, const char *name, const char *text, size_t number,
                       size_t count) {
    char kernel[ATTUNE_DESCRIPTION_BYTES], all[160];
    manifest_kernel wanted = *like;
    wanted.is_described = true;
    if (attune_description_kernel(text, number, kernel, sizeof kernel, NULL)) return tool_library_error(NULL), false;
    const char *const own = strstr(kernel, ",kernel=");
    snprintf(all, sizeof all, "%s%s%s", name ? name : "", count > 1 ? "_" : "", count > 1 ? own + 8 : "");
    if (grow(list)) return keep(list, &wanted, name ? all : NULL, kernel, NULL);
    tool_error("out of memory");
    return false;
}

/* *count: how many kernels the description has; 0: it is none, but a problem. */
static bool add_described(manifest *list, const manifest_kernel *like, const char *name, const char *text,
                          const char *schedule, const char *file, size_t *count) {
    const char *why = NULL;
    if (attune_description_kernel(text, 0, NULL, 0, count)) why = attune_last_message();
    if (!why && *count && list->only_attention && file) return list->left_out++, true;
    if (!why && *count && list->only_attention)
        why = "only attention is possible here; attune run measures a step of other operators";
    if (!why && *count && schedule) why = "a description has no schedule";
    if (why) return refuse(text, file, like->line, why), false;
    for (size_t i = 0; i < *count; i++)
        if (!add_kernel(list, like, name, text, i, *count)) return false;
    return true;
}

static bool add_problem(manifest *list, manifest_kernel *wanted, const char *name, const char *problem,
                        const char *schedule, const char *file) {
    mha_schedule fields = {0}; /* only whether they can be read: the rest needs a context */
    at_error error = {0};
    bool is_good = attune_problem_parse(&wanted->problem, problem) == ATTUNE_OK &&
                   attune_problem_check(&wanted->problem) == ATTUNE_OK;
    if (is_good && schedule) is_good = mha_schedule_parse(schedule, &fields, &error) == ATTUNE_OK;
    if (!is_good) refuse(problem, file, wanted->line, error.status ? error.message : attune_last_message());
    return is_good && keep(list, wanted, name, problem, schedule);
}

bool manifest_add(manifest *list, const char *given, const char *file, int line) {
    manifest_kernel wanted = {.problem = ATTUNE_PROBLEM_INIT, .line = line};
    char *const text = grow(list) ? strdup(given) : NULL;
    size_t described;
    if (!text) {
        tool_error("out of memory");
        return false;
    }
    char *bar = find_bar(text);
    if (bar) *bar++ = '\0';
    char *rest = text;
    const char *const name = take_name(&rest);
    const char *const problem = tool_trimmed(rest), *const schedule = bar ? tool_trimmed(bar) : NULL;
    bool is_good = add_described(list, &wanted, name, problem, schedule, file, &described);
    if (is_good && !described) is_good = add_problem(list, &wanted, name, problem, schedule, file);
    free(text);
    return is_good;
}

attune_status manifest_compile(attune_context *context, const manifest_kernel *wanted, attune_kernel **kernel) {
    return wanted->is_described ? attune_description_compile(context, wanted->text, kernel)
                                : attune_compile(context, &wanted->problem, wanted->schedule, kernel);
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
    for (size_t i = 0; i < list->count; i++) manifest_free_kernel(&list->kernels[i]);
    free(list->kernels);
    *list = (manifest){0};
}
