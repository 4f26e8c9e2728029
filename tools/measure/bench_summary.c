/* Summarises the samples of a problem: medians, shares of peak and roofline, and whether they can be trusted. */
#include "measure/bench.h"

#include <stdlib.h>
#include <string.h>

/* GFLOP/s are flops in a nanosecond, GB/s bytes in a nanosecond. */
static double compute_us(const bench_entry *e, double peak) { return e->work.flops / peak * 1e-3; }
static double memory_us(const bench_entry *e, double bandwidth) { return e->work.bytes / bandwidth * 1e-3; }
static double roofline_us(const bench_entry *e, double peak, double bandwidth) {
    const double compute = compute_us(e, peak), memory = memory_us(e, bandwidth);
    return compute > memory ? compute : memory;
}

/* From the first to the third quartile, as a share of the median: what half of the sorted numbers stay within. */
static double spread_of(const double *sorted, size_t count, double median) {
    return (sorted[count * 3 / 4] - sorted[count / 4]) / median;
}

/* A probe or a call lasts some milliseconds at most, and another program takes the CPU away for as long. On a busy
 * machine some samples are disturbed and others are not, so they lie far apart, or the best one lies far from the
 * median. Four samples are the fewest that have quartiles. */
static bool are_disturbed(const double *sorted, size_t count, double median) {
    return count >= 4 && spread_of(sorted, count, median) > BENCH_MOST_SPREAD;
}

static void summarise_times(bench_entry *e, double *numbers) {
    memcpy(numbers, e->samples_us, e->count * sizeof *numbers);
    e->median_us = tool_median(numbers, e->count);
    e->min_us = numbers[0];
    e->spread = spread_of(numbers, e->count, e->median_us);
    e->gflops = e->work.flops / e->median_us * 1e-3;
    e->is_busy = are_disturbed(numbers, e->count, e->median_us) ||
                 (e->count >= 4 && e->median_us > BENCH_MOST_SLOWNESS * e->min_us);
}

static void summarise_probes(bench_entry *e, double *numbers) {
    memcpy(numbers, e->peaks, e->count * sizeof *numbers);
    e->peak_gflops = tool_median(numbers, e->count);
    e->is_busy = e->is_busy || are_disturbed(numbers, e->count, e->peak_gflops) ||
                 (e->count >= 4 && numbers[e->count - 1] > BENCH_MOST_SLOWNESS * e->peak_gflops);
    memcpy(numbers, e->bandwidths, e->count * sizeof *numbers);
    e->bandwidth_gbs = tool_median(numbers, e->count);
    e->is_memory_bound = memory_us(e, e->bandwidth_gbs) > compute_us(e, e->peak_gflops);
    e->roofline_gflops = e->work.flops / roofline_us(e, e->peak_gflops, e->bandwidth_gbs) * 1e-3;
}

/* Each sample is compared with the probes around it, and a share is the median of the samples' own. */
static void summarise_shares(bench_entry *e, double *numbers) {
    for (size_t i = 0; i < e->count; i++) numbers[i] = compute_us(e, e->peaks[i]) / e->samples_us[i];
    e->fraction = tool_median(numbers, e->count);
    e->is_busy = e->is_busy || are_disturbed(numbers, e->count, e->fraction);
    for (size_t i = 0; i < e->count; i++) numbers[i] = roofline_us(e, e->peaks[i], e->bandwidths[i]) / e->samples_us[i];
    e->fraction_of_roofline = tool_median(numbers, e->count);
    e->is_busy = e->is_busy || are_disturbed(numbers, e->count, e->fraction_of_roofline);
}

bool bench_summarise(bench_entry *e) {
    double *const numbers = malloc(e->count * sizeof *numbers);
    if (!numbers) {
        tool_error("out of memory");
        return false;
    }
    summarise_times(e, numbers);
    summarise_probes(e, numbers);
    summarise_shares(e, numbers);
    free(numbers);
    return true;
}
