/* A row for each problem and schedule; what a busy machine does not allow to say is left out. */
#include "measure/bench_text.h"

#include "common/table.h"

/* On a busy machine only the fastest sample is shown: other programs disturbed it least. */
static void print_speed(table *t, const bench_case *c) {
    char number[TABLE_NUMBER_BYTES];
    table_cell(t, "%s", c->is_busy ? BENCH_BUSY : table_time(c->median_us, number));
    table_cell(t, "%s", table_time(c->min_us, number));
    if (c->is_busy) {
        table_cell(t, "-");
        table_cell(t, "-");
        return;
    }
    table_cell(t, "%.1f %%", 100 * c->spread);
    table_cell(t, c->gflops < 10 ? "%.3f" : "%.1f", c->gflops);
}

static void print_share(table *t, const bench_case *c, double share, const char *mark) {
    if (c->is_busy)
        table_cell(t, "-");
    else
        table_cell(t, "%.1f %%%s", 100 * share, mark);
}

static void print_row(table *t, const bench_case *c) {
    char number[TABLE_NUMBER_BYTES];
    table_cell(t, "%s", c->text);
    print_speed(t, c);
    table_cell(t, "%.1f %s", c->peak_gflops, tool_dtype_name(c->peak_dtype));
    print_share(t, c, c->fraction, bench_is_above_peak(c->fraction) ? " !" : "");
    table_cell(t, "%s", table_bytes((uint64_t)c->work.bytes, number));
    table_cell(t, "%.1f", c->bandwidth_gbs);
    table_cell(t, "%s", c->is_memory_bound ? "memory" : "compute");
    print_share(t, c, c->fraction_of_roofline, "");
    table_cell(t, "%s", c->is_compiled ? table_time(c->cold_compile_ms * 1e3, number) : "-");
    table_cell(t, "%s", c->is_compiled ? table_time(c->warm_disk_us, number) : "-");
    table_cell(t, "%s", c->is_compiled ? table_time(c->memory_hit_ns * 1e-3, number) : "-");
}

void bench_print(const bench_case *cases, size_t count, const char *const *schedules, size_t num_schedules) {
    static const char *const headers[] = {
        "problem", "median", "min",     "spread",       "GFLOP/s",   "peak",       "of peak",  "touches",
        "GB/s",    "bound",  "of roof", "cold compile", "warm disk", "memory hit", "schedule",
    };
    table *const t = table_create(num_schedules ? "lrrrrrrrrlrrrrr" : "lrrrrrrrrlrrrr", headers);
    for (size_t i = 0; i < count; i++) {
        print_row(t, &cases[i]);
        size_t number = 0;
        while (number < num_schedules && cases[i].wish != schedules[number]) number++;
        if (num_schedules) table_cell(t, "%zu", number + 1);
    }
    table_finish(t, stdout);
}
