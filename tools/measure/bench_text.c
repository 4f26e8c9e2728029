/* A row for each problem and schedule; what a busy machine does not allow to say is left out. */
#include "measure/bench_text.h"

#include "common/table.h"

/* On a busy machine only the fastest sample is shown: other programs disturbed it least. */
static void print_speed(table *t, const bench_entry *e) {
    char number[TABLE_NUMBER_BYTES];
    table_cell(t, "%s", e->is_busy ? BENCH_BUSY : table_time(e->median_us, number));
    table_cell(t, "%s", table_time(e->min_us, number));
    if (e->is_busy) {
        table_cell(t, "-");
        table_cell(t, "-");
        return;
    }
    table_cell(t, "%.1f %%", 100 * e->spread);
    table_cell(t, e->gflops < 10 ? "%.3f" : "%.1f", e->gflops);
}

static void print_share(table *t, const bench_entry *e, double share, const char *mark) {
    if (e->is_busy)
        table_cell(t, "-");
    else
        table_cell(t, "%.1f %%%s", 100 * share, mark);
}

static void print_row(table *t, const bench_entry *e) {
    char number[TABLE_NUMBER_BYTES];
    table_cell(t, "%s", e->text);
    print_speed(t, e);
    table_cell(t, "%.1f %s", e->peak_gflops, tool_dtype_name(e->peak_dtype));
    print_share(t, e, e->fraction, bench_is_above_peak(e->fraction) ? " !" : "");
    table_cell(t, "%s", table_bytes((uint64_t)e->work.bytes, number));
    table_cell(t, "%.1f", e->bandwidth_gbs);
    table_cell(t, "%s", e->is_memory_bound ? "memory" : "compute");
    print_share(t, e, e->fraction_of_roofline, "");
    table_cell(t, "%s", e->is_compiled ? table_time(e->cold_compile_ms * 1e3, number) : "-");
    table_cell(t, "%s", e->is_compiled ? table_time(e->warm_disk_us, number) : "-");
    table_cell(t, "%s", e->is_compiled ? table_time(e->memory_hit_ns * 1e-3, number) : "-");
}

void bench_print(const bench_entry *entries, size_t count, const char *const *schedules, size_t num_schedules) {
    static const char *const headers[] = {
        "problem", "median", "min",     "spread",       "GFLOP/s",   "peak",       "of peak",  "touches",
        "GB/s",    "bound",  "of roof", "cold compile", "warm disk", "memory hit", "schedule",
    };
    table *const t = table_create(num_schedules ? "lrrrrrrrrlrrrrr" : "lrrrrrrrrlrrrr", headers);
    for (size_t i = 0; i < count; i++) {
        print_row(t, &entries[i]);
        size_t number = 0;
        while (number < num_schedules && entries[i].wish != schedules[number]) number++;
        if (num_schedules) table_cell(t, "%zu", number + 1);
    }
    table_finish(t, stdout);
}
