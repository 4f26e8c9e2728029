/* Results are told apart by machine and problem; of two for the same the quieter one stays. */
#define _GNU_SOURCE
#include "sweep/sweep_merge.h"

#include "common/json_output.h"
#include "sweep/sweep_csv.h"
#include "sweep/sweep_file.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_FILES = 4096 };

typedef struct merging {
    const char *output;
    bool json, csv;
    char **paths;
    size_t count;
    json_t **files;
    json_t *index;    /* an object: a machine, a line end and a problem → the result */
    json_t *machines; /* an object: a machine → the array of its results, in the order of the files */
    size_t repeated;  /* results that gave way to a quieter one */
} merging;

static const struct argp_option options[] = {
    {"output", 'o', "FILE", 0, "Write JSON here; may be one of the files", 0},
    {"csv", TOOL_KEY_CSV, NULL, 0, "Print CSV: a row for each result, with its machine", 0},
    {"json", TOOL_KEY_JSON, NULL, 0, "Print JSON", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state) {
    merging *const m = state->input;
    switch (key) {
    case 'o': m->output = argument; return 0;
    case TOOL_KEY_JSON: m->json = true; return 0;
    case TOOL_KEY_CSV: m->csv = true; return 0;
    case ARGP_KEY_ARGS:
        m->paths = state->argv + state->next;
        m->count = (size_t)(state->argc - state->next);
        return 0;
    case ARGP_KEY_END:
        if (!m->count) argp_error(state, "files of sweeps are needed");
        if (m->count > MOST_FILES) argp_error(state, "at most %d files can be merged at once", MOST_FILES);
        if (m->json && m->csv) argp_error(state, "--json and --csv both want standard output");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* ---- Reading ---- */

static json_t *read_file(const char *path) {
    json_t *const file = json_read(path, "results of sweeps", "sweep");
    if (file && sweep_file_is_whole(path, file)) return file;
    json_decref(file);
    return NULL;
}

static bool read_all(merging *m) {
    m->files = calloc(m->count, sizeof *m->files);
    m->index = json_object();
    m->machines = json_object();
    if (!m->files || !m->index || !m->machines) {
        tool_error("out of memory");
        return false;
    }
    for (size_t i = 0; i < m->count; i++) {
        m->files[i] = read_file(m->paths[i]);
        if (!m->files[i] || !sweep_file_is_comparable(m->paths[0], m->files[0], m->paths[i], m->files[i])) return false;
    }
    return true;
}

/* ---- Merging ---- */

static double spread_of(const json_t *result) { return json_number_value(json_object_get(result, "spread")); }

/* Takes in a result of a machine. Of two for one problem the quieter one stays, in the place of the first. */
static bool add(merging *m, const char *machine, json_t *result) {
    char *name = NULL;
    if (asprintf(&name, "%s\n%s", machine, json_string_value(json_object_get(result, "problem"))) < 0) return false;
    json_t *const known = json_object_get(m->index, name), *of_machine = json_object_get(m->machines, machine);
    bool good = true;
    if (known) {
        m->repeated++;
        if (spread_of(result) < spread_of(known))
            good = json_object_clear(known) == 0 && !json_object_update(known, result);
    } else {
        json_t *const copy = json_copy(result);
        if (!of_machine && json_object_set_new(m->machines, machine, json_array()) == 0)
            of_machine = json_object_get(m->machines, machine);
        good = copy && of_machine && json_array_append(of_machine, copy) == 0 &&
               json_object_set(m->index, name, copy) == 0;
        json_decref(copy);
    }
    free(name);
    return good;
}

static bool add_row(merging *m, const json_t *file, size_t row) {
    json_t *const result = json_copy(json_array_get(json_object_get(file, "results"), row));
    if (result && !json_object_get(result, "header"))
        json_object_set(result, "header", json_object_get(file, "header"));
    char *const machine = result ? sweep_file_machine(json_object_get(result, "header")) : NULL;
    const bool good = machine && add(m, machine, result);
    if (!good) tool_error("out of memory");
    free(machine);
    json_decref(result);
    return good;
}

/* A row of each file in turn: problems of shards come back in the order of their grid. */
static bool add_all(merging *m) {
    bool good = true, is_more = true;
    for (size_t row = 0; good && is_more; row++) {
        is_more = false;
        for (size_t i = 0; good && i < m->count; i++) {
            if (row >= json_array_size(json_object_get(m->files[i], "results"))) continue;
            is_more = true;
            good = add_row(m, m->files[i], row);
        }
    }
    return good;
}

/* The members that all headers have in common, and the last date. */
static bool common_header(json_t *header, const json_t *other) {
    const char *name;
    json_t *value;
    void *next;
    json_object_foreach_safe(header, next, name, value) {
        const json_t *const there = json_object_get(other, name);
        if (strcmp(name, "date") == 0) {
            const char *const date = json_string_value(there), *const last = json_string_value(value);
            if (date && last && strcmp(date, last) > 0 && json_object_set_new(header, name, json_string(date)))
                return false;
        } else if (!there || !json_equal(value, there)) {
            json_object_del(header, name);
        }
    }
    return true;
}

static bool add_cache(json_t *sum, const json_t *other) {
    static const char *const names[] = {"hits", "misses", "compile_ms"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *const a = json_object_get(sum, names[i]), *const b = json_object_get(other, names[i]);
        json_t *const both = json_is_integer(a) ? json_integer(json_integer_value(a) + json_integer_value(b))
                                                : json_real(json_number_value(a) + json_number_value(b));
        if (json_object_set_new(sum, names[i], both)) return false;
    }
    return true;
}

/* The document; NULL when out of memory. */
static json_t *document(const merging *m) {
    json_t *const whole = json_copy(m->files[0]), *const results = json_array();
    json_t *const header = json_copy(json_object_get(m->files[0], "header"));
    json_t *const cache = json_copy(json_object_get(m->files[0], "cache"));
    bool good = whole && results && header && cache;
    const char *machine;
    json_t *of_machine;
    for (size_t i = 1; good && i < m->count; i++)
        good = common_header(header, json_object_get(m->files[i], "header")) &&
               add_cache(cache, json_object_get(m->files[i], "cache"));
    json_object_foreach(m->machines, machine, of_machine) good = good && json_array_extend(results, of_machine) == 0;
    good = good && json_object_set(whole, "header", header) == 0 && json_object_set(whole, "cache", cache) == 0 &&
           json_object_set(whole, "results", results) == 0;
    json_decref(header);
    json_decref(cache);
    json_decref(results);
    if (good) return whole;
    json_decref(whole);
    tool_error("out of memory");
    return NULL;
}

/* ---- Showing ---- */

static const char *text_of(const json_t *header, const char *name) {
    const char *const text = json_string_value(json_object_get(header, name));
    return text ? text : "?";
}

static void print_machines(const merging *m) {
    const char *machine;
    json_t *results;
    json_object_foreach(m->machines, machine, results) {
        const json_t *const header = json_object_get(json_array_get(results, 0), "header");
        const size_t count = json_array_size(results);
        printf("%zu problem%s on %s, %s, %s, attune %s\n", count, count == 1 ? "" : "s",
               text_of(header, "cpu_description"), text_of(header, "machine"), text_of(header, "isa"),
               text_of(header, "version"));
    }
    if (m->repeated)
        printf("%zu more result%s of the same problems and machines; the quietest were kept\n", m->repeated,
               m->repeated == 1 ? "" : "s");
}

static bool write_output(const char *path, const json_t *whole) {
    char message[ATTUNE_MESSAGE_BYTES];
    char *const text = json_file_text(whole);
    const bool good = text && tool_write_file(path, text, strlen(text), "\n", 1, message);
    if (!good) tool_error("%s", text ? message : "out of memory");
    free(text);
    return good;
}

static int merge(merging *m) {
    json_t *const whole = read_all(m) && add_all(m) ? document(m) : NULL;
    int code = whole && (!m->output || write_output(m->output, whole)) ? TOOL_OK : TOOL_FAILED;
    if (code == TOOL_OK && m->csv)
        code = sweep_print_results_csv(json_object_get(whole, "results"), NULL) ? tool_finish(TOOL_OK) : TOOL_FAILED;
    else if (code == TOOL_OK && m->json)
        code = tool_print_json(json_incref(whole));
    else if (code == TOOL_OK)
        print_machines(m), code = tool_finish(TOOL_OK);
    json_decref(whole);
    return code;
}

int sweep_merge(int argc, char **argv) {
    static const struct argp argp = {
        options,
        parse,
        "FILE...",
        "Makes one file of those that several sweeps wrote with -o: shards of a grid, or the same grid on several "
        "machines. Each result gets the header of its file, which names the machine; results of other machines are "
        "kept apart. Of two results of a problem and a machine the one with the smaller spread is kept. Files of "
        "other settings are refused.",
        NULL,
        NULL,
        NULL};
    merging m = {0};
    tool_parse(&argp, argc, argv, &m);
    const int code = merge(&m);
    for (size_t i = 0; m.files && i < m.count; i++) json_decref(m.files[i]);
    free(m.files);
    json_decref(m.index);
    json_decref(m.machines);
    return code;
}
