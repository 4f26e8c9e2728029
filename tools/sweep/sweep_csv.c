/* Columns are the fields that any of the problems has, then what was measured, then the machine; a field that a
 * problem does not have is an empty cell. */
#include "sweep/sweep_csv.h"

#include <stdint.h>
#include <string.h>

static const char *const measured[] = {
    "sizes",
    "engine",
    "threads",
    "median_us",
    "min_us",
    "spread",
    "measurements",
    "gflops",
    "peak_gflops",
    "peak_dtype",
    "footprint_bytes",
    "fraction_of_peak",
    "bandwidth_gbs",
    "workspace_bytes",
    "bound",
    "roofline_gflops",
    "fraction_of_roofline",
    "problem",
    "schedule",
};
static const char *const machine[] = {"cpu_description", "machine", "isa", "llvm", "version"};
enum { MEASURED = sizeof measured / sizeof *measured, MACHINE = sizeof machine / sizeof *machine };

static void put_text(const char *text) {
    if (!text[strcspn(text, ",\"\r\n")]) {
        fputs(text, stdout);
        return;
    }
    putchar('"');
    for (; *text; text++) {
        if (*text == '"') putchar('"');
        putchar(*text);
    }
    putchar('"');
}

/* One cell, after a comma unless it is the first of its row. */
static void put(const json_t *value, bool is_first) {
    if (!is_first) putchar(',');
    if (json_is_string(value))
        put_text(json_string_value(value));
    else if (json_is_integer(value))
        printf("%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        printf("%.6g", json_real_value(value));
}

/* The names of all fields of these problems as keys of an object, in the order in which they appear first. */
static json_t *columns_of(const json_t *results) {
    json_t *const columns = json_object();
    bool good = columns != NULL;
    for (size_t i = 0; good && i < json_array_size(results); i++)
        good = json_object_update_missing(columns, json_object_get(json_array_get(results, i), "fields")) == 0;
    if (good) return columns;
    json_decref(columns);
    tool_error("out of memory");
    return NULL;
}

static void put_heading(json_t *columns) {
    const char *name, *between = "";
    json_t *value;
    json_object_foreach(columns, name, value) {
        fputs(between, stdout);
        put_text(name);
        between = ",";
    }
    for (size_t i = 0; i < MEASURED; i++) printf(",%s", measured[i]);
    for (size_t i = 0; i < MACHINE; i++) printf(",%s", machine[i]);
    putchar('\n');
}

static void put_row(json_t *columns, const json_t *result, const json_t *header) {
    const json_t *const fields = json_object_get(result, "fields");
    const char *name;
    json_t *value;
    bool is_first = true;
    json_object_foreach(columns, name, value) {
        put(json_object_get(fields, name), is_first);
        is_first = false;
    }
    for (size_t i = 0; i < MEASURED; i++) put(json_object_get(result, measured[i]), false);
    for (size_t i = 0; i < MACHINE; i++) put(json_object_get(header, machine[i]), false);
    putchar('\n');
}

bool sweep_print_results_csv(const json_t *results, const json_t *header) {
    json_t *const columns = columns_of(results);
    if (!columns) return false;
    put_heading(columns);
    for (size_t i = 0; i < json_array_size(results); i++) {
        const json_t *const result = json_array_get(results, i), *const own = json_object_get(result, "header");
        put_row(columns, result, own ? own : header);
    }
    json_decref(columns);
    return true;
}

bool sweep_print_csv(const manifest *list, const sweep_file *file) {
    json_t *const results = json_array();
    bool good = results != NULL;
    for (size_t i = 0; good && i < list->count; i++) {
        json_t *const result = (json_t *)(uintptr_t)sweep_file_find(file, &list->kernels[i].problem);
        good = !result || json_array_append(results, result) == 0;
    }
    if (!good) tool_error("out of memory");
    good = good && sweep_print_results_csv(results, json_object_get(file->root, "header"));
    json_decref(results);
    return good;
}
