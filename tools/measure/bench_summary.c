/* Summarises the samples of a problem: medians, shares of peak and roofline, and whether they can be trusted. */
#include "measure/bench.h"

#include <stdlib.h>
#include <string.h>

/* GFLOP/s are flops in a nanosecond, GB/s bytes in a nanosecond. */
static double compute_us(const bench_case *c, double peak) { return c->work.flops / peak * 1e-3; }
static double memory_us(const bench_case *c, double bandwidth) { return c->work.bytes / bandwidth * 1e-3; }
static double roofline_us(const bench_case *c, double peak, double bandwidth) {
    const double compute = compute_us(c, peak), memory = memory_us(c, bandwidth);
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

static void summarise_times(bench_case *c, double *numbers) {
    memcpy(numbers, c->samples_us, c->count * sizeof *numbers);
    c->median_us = tool_median(numbers, c->count);
    c->min_us = numbers[0];
    c->spread = spread_of(numbers, c->count, c->median_us);
    c->gflops = c->work.flops / c->median_us * 1e-3;
    c->is_busy = are_disturbed(numbers, c->count, c->median_us) ||
                 (c->count >= 4 && c->median_us > BENCH_MOST_SLOWNESS * c->min_us);
}

static void summarise_probes(bench_case *c, double *numbers) {
    memcpy(numbers, c->peaks, c->count * sizeof *numbers);
    c->peak_gflops = tool_median(numbers, c->count);
    c->is_busy = c->is_busy || are_disturbed(numbers, c->count, c->peak_gflops) ||
                 (c->count >= 4 && numbers[c->count - 1] > BENCH_MOST_SLOWNESS * c->peak_gflops);
    memcpy(numbers, c->bandwidths, c->count * sizeof *numbers);
    c->bandwidth_gbs = tool_median(numbers, c->count);
    c->is_memory_bound = memory_us(c, c->bandwidth_gbs) > compute_us(c, c->peak_gflops);
    c->roofline_gflops = c->work.flops / roofline_us(c, c->peak_gflops, c->bandwidth_gbs) * 1e-3;
}

/* Each sample is compared with the probes around it, and a share is the median of the samples' own. */
static void summarise_shares(bench_case *c, double *numbers) {
    for (size_t i = 0; i < c->count; i++) numbers[i] = compute_us(c, c->peaks[i]) / c->samples_us[i];
    c->fraction = tool_median(numbers, c->count);
    c->is_busy = c->is_busy || are_disturbed(numbers, c->count, c->fraction);
    for (size_t i = 0; i < c->count; i++) numbers[i] = roofline_us(c, c->peaks[i], c->bandwidths[i]) / c->samples_us[i];
    c->fraction_of_roofline = tool_median(numbers, c->count);
    c->is_busy = c->is_busy || are_disturbed(numbers, c->count, c->fraction_of_roofline);
}

bool bench_summarise(bench_case *c) {
    double *const numbers = malloc(c->count * sizeof *numbers);
    if (!numbers) {
        tool_error("out of memory");
        return false;
    }
    summarise_times(c, numbers);
    summarise_probes(c, numbers);
    summarise_shares(c, numbers);
    free(numbers);
    return true;
}
