/* Columns are the keys that differ, then time, speed and shares; what all have in common is said above. */
#include "sweep/sweep_table.h"

#include "measure/bench.h"
#include "common/table.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const char *const measured[] = {"median", "spread", "GFLOP/s", "of peak", "bound", "of roof"};
enum { MEASURED = sizeof measured / sizeof *measured };

static double number_of(const json_t *result, const char *key) {
    return json_number_value(json_object_get(result, key));
}

static void print_heading(const sweep_keys *keys, const sweep_file *file) {
    const json_t *const root = file->root, *const header = json_object_get(root, "header");
    const long long threads = json_integer_value(json_object_get(header, "threads"));
    const char *const sizes = json_string_value(json_object_get(root, "sizes"));
    char *const same = sweep_keys_text(keys, 0, false, SIZE_MAX);
    printf("%s, %s, %s, %lld thread%s, LLVM %s, attune %s%s\n",
           json_string_value(json_object_get(header, "cpu_description")),
           json_string_value(json_object_get(header, "machine")), json_string_value(json_object_get(header, "isa")),
           threads, threads == 1 ? "" : "s", json_string_value(json_object_get(header, "llvm")),
           json_string_value(json_object_get(header, "version")),
           json_is_true(json_object_get(root, "cold_data")) ? "; data out of the caches" : "");
    if (*sizes) printf("run-time sizes: %s\n", sizes);
    if (same && *same) printf("all have %s\n", same);
    printf("\n");
    free(same);
}

static void add_row(table *t, const sweep_keys *keys, size_t problem, const json_t *r) {
    const double gflops = number_of(r, "gflops");
    char number[TABLE_NUMBER_BYTES];
    for (size_t key = 0; key < keys->count; key++) {
        const char *const value = sweep_keys_value(keys, problem, key);
        if (keys->varies[key]) table_cell(t, "%s", value ? value : "-");
    }
    table_cell(t, "%s", table_time(number_of(r, "median_us"), number));
    table_cell(t, "%.1f %%", 100 * number_of(r, "spread"));
    table_cell(t, gflops < 10 ? "%.3f" : "%.1f", gflops);
    const double share = number_of(r, "fraction_of_peak");
    table_cell(t, "%.1f %%%s", 100 * share, bench_is_above_peak(share) ? " !" : "");
    table_cell(t, "%s", json_string_value(json_object_get(r, "bound")));
    table_cell(t, "%.1f %%", 100 * number_of(r, "fraction_of_roofline"));
}

void sweep_print_table(const sweep_keys *keys, const manifest *list, const sweep_file *file) {
    char *const alignments = calloc(keys->count + MEASURED + 1, 1);
    const char **const headers = calloc(keys->count + MEASURED, sizeof *headers);
    table *t = NULL;
    size_t columns = 0;
    if (alignments && headers) {
        for (size_t key = 0; key < keys->count; key++)
            if (keys->varies[key]) headers[columns++] = keys->names[key];
        memset(alignments, 'r', columns + MEASURED);
        memcpy(headers + columns, measured, sizeof measured);
        alignments[columns + MEASURED - 2] = 'l'; /* bound */
        t = table_create(alignments, headers);
    }
    if (!t) tool_error("out of memory");
    if (t) print_heading(keys, file);
    for (size_t p = 0; t && p < list->count; p++) {
        const json_t *const result = sweep_file_find(file, &list->kernels[p].problem);
        if (result) add_row(t, keys, p, result);
    }
    table_finish(t, stdout);
    free(alignments);
    free(headers);
}
