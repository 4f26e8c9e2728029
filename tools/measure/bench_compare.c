/* Files become columns and problems rows. Beside each time stands its share of what that machine allows, as times of
 * two machines say little. */
#include "measure/bench_compare.h"

#include "common/json_output.h"
#include "common/table.h"
#include "measure/bench.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_FILES = 16 };

typedef struct comparison {
    char **paths;
    size_t count;
    json_t *files[MOST_FILES];
    json_t *problems; /* an array of texts, in the order of the first file that has each */
    bool json;
} comparison;

static const struct argp_option options[] = {
    {"json", TOOL_KEY_JSON, NULL, 0, "Print JSON", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state) {
    comparison *const c = state->input;
    (void)argument;
    switch (key) {
    case TOOL_KEY_JSON: c->json = true; return 0;
    case ARGP_KEY_ARGS:
        c->paths = state->argv + state->next;
        c->count = (size_t)(state->argc - state->next);
        return 0;
    case ARGP_KEY_END:
        if (!c->count) argp_error(state, "files of `attune bench --report` are needed");
        if (c->count > MOST_FILES) argp_error(state, "at most %d files fit beside each other", MOST_FILES);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* ---- Reading ---- */

static const json_t *header_of(const json_t *file) { return json_object_get(file, "header"); }

static const char *text_of(const json_t *object, const char *name) {
    const char *const text = json_string_value(json_object_get(object, name));
    return text ? text : "?";
}

/* The result of a problem under the chosen schedule, which is the first one; NULL: the file has none. */
static const json_t *result_of(const json_t *file, const char *problem) {
    size_t i;
    json_t *result;
    json_array_foreach(json_object_get(file, "results"), i,
                       result) if (strcmp(text_of(result, "problem"), problem) == 0) return result;
    return NULL;
}

/* Whether it is what `attune bench` writes; false after a message. */
static bool is_bench(const char *path, const json_t *file) {
    const json_t *const results = json_object_get(file, "results");
    const json_int_t schema = json_integer_value(json_object_get(file, "schema"));
    size_t i;
    json_t *result;
    if (schema != JSON_SCHEMA || !json_is_object(header_of(file)) || !json_array_size(results)) {
        tool_error("%s: no results of `attune bench`, schema %d", path, JSON_SCHEMA);
        return false;
    }
    json_array_foreach(results, i, result) {
        if (json_is_string(json_object_get(result, "problem")) && json_is_number(json_object_get(result, "median_us")))
            continue;
        tool_error("%s: result %zu lacks its problem or its median_us", path, i + 1);
        return false;
    }
    return true;
}

static json_t *read_file(const char *path) {
    json_t *const file = json_read(path, "results of attune bench", "JSON");
    if (file && is_bench(path, file)) return file;
    json_decref(file);
    return NULL;
}

static bool is_known(const json_t *problems, const char *text) {
    size_t i;
    json_t *problem;
    json_array_foreach(problems, i, problem) if (strcmp(json_string_value(problem), text) == 0) return true;
    return false;
}

static bool read_all(comparison *c) {
    c->problems = json_array();
    for (size_t f = 0; f < c->count; f++) {
        size_t i;
        json_t *result;
        c->files[f] = read_file(c->paths[f]);
        if (!c->files[f]) return false;
        json_array_foreach(json_object_get(c->files[f], "results"), i,
                           result) if (!is_known(c->problems, text_of(result, "problem")))
            json_array_append(c->problems, json_object_get(result, "problem"));
    }
    return true;
}

/* ---- Showing ---- */

static const char *share(const json_t *result, char text[TABLE_NUMBER_BYTES]) {
    const json_t *const fraction = json_object_get(result, "fraction_of_roofline");
    if (!json_is_number(fraction)) return "-";
    snprintf(text, TABLE_NUMBER_BYTES, "%.0f %%", 100 * json_number_value(fraction));
    return text;
}

/* A letter for each file, and under it time and share of the roofline. */
static int print_text(const comparison *c) {
    enum { COLUMNS = 1 + 2 * MOST_FILES };
    char alignments[COLUMNS + 1] = "l", titles[MOST_FILES][2], number[TABLE_NUMBER_BYTES];
    const char *headers[COLUMNS] = {"problem"};
    for (size_t f = 0; f < c->count; f++) {
        const json_t *const header = header_of(c->files[f]);
        const long long threads = (long long)json_integer_value(json_object_get(header, "threads"));
        titles[f][0] = (char)('A' + f), titles[f][1] = '\0';
        headers[1 + 2 * f] = titles[f], headers[2 + 2 * f] = "of roof";
        strcat(alignments, "rr");
        printf("%s  %s, %s, %s, %lld thread%s, attune %s\n", titles[f], text_of(header, "cpu_description"),
               text_of(header, "machine"), text_of(header, "isa"), threads, threads == 1 ? "" : "s",
               text_of(header, "version"));
    }
    printf("\n");
    table *const t = table_create(alignments, headers);
    size_t i;
    json_t *problem;
    json_array_foreach(c->problems, i, problem) {
        table_cell(t, "%s", json_string_value(problem));
        for (size_t f = 0; f < c->count; f++) {
            const json_t *const result = result_of(c->files[f], json_string_value(problem));
            const json_t *const median = json_object_get(result, "median_us");
            const bool is_busy = json_is_true(json_object_get(result, "is_busy"));
            table_cell(t, "%s", is_busy ? BENCH_BUSY : result ? table_time(json_number_value(median), number) : "-");
            table_cell(t, "%s", share(result, number));
        }
    }
    table_finish(t, stdout);
    return tool_finish(TOOL_OK);
}

static int print_json(const comparison *c) {
    json_t *const files = json_array(), *const rows = json_array();
    for (size_t f = 0; f < c->count; f++)
        json_array_append_new(
            files, json_pack("{s:o, s:O}", "file", tool_json_text(c->paths[f]), "header", header_of(c->files[f])));
    size_t i;
    json_t *problem;
    json_array_foreach(c->problems, i, problem) {
        json_t *const results = json_array();
        for (size_t f = 0; f < c->count; f++) {
            const json_t *const result = result_of(c->files[f], json_string_value(problem));
            json_array_append_new(results, result ? json_deep_copy(result) : json_null());
        }
        json_array_append_new(rows, json_pack("{s:O, s:o}", "problem", problem, "results", results));
    }
    attune_context *context = NULL;
    if (attune_context_create(NULL, &context) != ATTUNE_OK) {
        json_decref(files);
        json_decref(rows);
        return tool_library_error(NULL);
    }
    const int code = json_print_for(context, 0, json_pack("{s:o, s:o}", "files", files, "problems", rows));
    attune_context_destroy(context);
    return code;
}

int bench_compare(int argc, char **argv) {
    static const struct argp argp = {
        options,
        parse,
        "FILE...",
        "Shows results of `attune bench --report` or `-o` beside each other: for each file the median time of a call, "
        "and the share of what that machine's peak and bandwidth allow.",
        NULL,
        NULL,
        NULL};
    comparison c = {0};
    tool_parse(&argp, argc, argv, &c);
    const int code = read_all(&c) ? c.json ? print_json(&c) : print_text(&c) : TOOL_FAILED;
    for (size_t f = 0; f < c.count; f++) json_decref(c.files[f]);
    json_decref(c.problems);
    return code;
}
