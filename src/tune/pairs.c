#include "tune/pairs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Standard errors on either side. Hundreds of candidates are compared, so one in a hundred must not win by luck. */
static const double WIDTH = 3.5;
/* Who is dropped although it is a little faster is no great loss; pairs that decide what does not matter are one. */
static const double WIDTH_TO_LOSE = 1, WORTH = 0.99;
/* A median's standard error is 1.2533 times a mean's; the median distance from it is 1 / 1.4826 standard deviations. */
static const double MEDIAN_ERROR = 1.2533, MAD_TO_DEVIATION = 1.4826;
/* Nobody's clock is steadier than this. */
static const double LEAST_ERROR = 2e-4;

static int by_value(const void *x, const void *y) {
    const double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

static double median(double *values, size_t count) {
    qsort(values, count, sizeof *values, by_value);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static tune_ratio interval(const tune_pairs *pairs, double errors) {
    double values[TUNE_MAX_PAIRS];
    const size_t n = pairs->count;
    if (!n) return (tune_ratio){1, 0, INFINITY};
    memcpy(values, pairs->logs, n * sizeof *values);
    const double centre = median(values, n);
    if (n < 3) return (tune_ratio){exp(centre), 0, INFINITY};
    for (size_t i = 0; i < n; i++) values[i] = fabs(pairs->logs[i] - centre);
    double error = MEDIAN_ERROR * MAD_TO_DEVIATION * median(values, n) / sqrt((double)n);
    if (error < LEAST_ERROR) error = LEAST_ERROR;
    /* Few pairs tell little of their spread: Student's factor, roughly. */
    const double width = errors * (1 + 4.0 / (double)n);
    return (tune_ratio){exp(centre), exp(centre - width * error), exp(centre + width * error)};
}

tune_ratio tune_pairs_ratio(const tune_pairs *pairs) { return interval(pairs, WIDTH); }

static double smallest(const tune_pairs *pairs) {
    double least = pairs->logs[0];
    for (size_t i = 1; i < pairs->count; i++) least = fmin(least, pairs->logs[i]);
    return least;
}

tune_verdict tune_pairs_judge(const tune_pairs *pairs) {
    const double first_limit = log(1.6), later_limit = log(1.03);
    const size_t n = pairs->count;
    if (n == 0) return TUNE_GO_ON;
    if (smallest(pairs) > (n == 1 ? first_limit : later_limit)) return TUNE_SLOWER;
    if (n < 3) return TUNE_GO_ON;
    if (n >= TUNE_ENOUGH_TO_WIN && interval(pairs, WIDTH).high < 1) return TUNE_FASTER;
    if (n == TUNE_MAX_PAIRS || interval(pairs, WIDTH_TO_LOSE).low > WORTH) return TUNE_SLOWER;
    return TUNE_GO_ON;
}
