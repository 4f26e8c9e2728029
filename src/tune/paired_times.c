/* The verdict on a candidate: the confidence interval of the median logarithm of ratios, wide enough for hundreds of
 * comparisons. */
#include "tune/paired_times.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Standard errors on either side. Hundreds of candidates are compared, so one in a hundred must not win by luck. */
static const double WIDTH = 3.5;
/* Dropping a candidate that is a little faster costs little; pairs that decide such a case cost time. */
static const double WIDTH_TO_LOSE = 1, WORTH = 0.99;
/* A median's standard error is 1.2533 times a mean's; the median distance from it is 1 / 1.4826 standard deviations. */
static const double MEDIAN_ERROR = 1.2533, MAD_TO_DEVIATION = 1.4826;
/* No clock is steadier than this. */
static const double LEAST_ERROR = 2e-4;
/* A few pairs may lie close together by chance: their spread counts as this part of the search's at least. */
static const double LEAST_OF_NOISE = 0.5;
/* Standard errors beyond WIDTH at which nine candidates of ten are found, one pair in ten being wild
 * (tests/tune/test_tune.c). Where there is hardly any noise, candidates are dropped that are not expected to gain
 * 1 - WORTH. */
static const double POWER = 4, LEAST_GAIN = 0.02;

static int by_value(const void *x, const void *y) {
    const double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

static double median(double *values, size_t count) {
    qsort(values, count, sizeof *values, by_value);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* Few pairs tell little of their spread: Student's factor, roughly. */
static double for_few(size_t pairs) { return 1 + 4.0 / (double)pairs; }

static double error_of(double deviation, size_t pairs) {
    return fmax(MEDIAN_ERROR * deviation / sqrt((double)pairs), LEAST_ERROR);
}

double tune_pairs_deviation(const tune_pairs *pairs) {
    double values[TUNE_MAX_PAIRS];
    const size_t n = pairs->count;
    memcpy(values, pairs->logs, n * sizeof *values);
    const double centre = median(values, n);
    for (size_t i = 0; i < n; i++) values[i] = fabs(pairs->logs[i] - centre);
    return MAD_TO_DEVIATION * median(values, n);
}

static tune_ratio interval(const tune_pairs *pairs, double errors, double least_deviation) {
    double values[TUNE_MAX_PAIRS];
    const size_t n = pairs->count;
    if (!n) return (tune_ratio){1, 0, INFINITY};
    memcpy(values, pairs->logs, n * sizeof *values);
    const double centre = median(values, n);
    if (n < 3) return (tune_ratio){exp(centre), 0, INFINITY};
    const double deviation = fmax(tune_pairs_deviation(pairs), least_deviation);
    const double width = errors * for_few(n) * error_of(deviation, n);
    return (tune_ratio){exp(centre), exp(centre - width), exp(centre + width)};
}

tune_ratio tune_pairs_ratio(const tune_pairs *pairs) { return interval(pairs, WIDTH, 0); }

void tune_noise_add(tune_noise *noise, const tune_pairs *pairs) {
    const size_t n = pairs->count;
    if (n < 2) return;
    noise->steps[noise->count++ % TUNE_NOISE_STEPS] = fabs(pairs->logs[n - 1] - pairs->logs[n - 2]);
}

double tune_noise_of(const tune_noise *noise) {
    enum { FEWEST = 8 };
    double steps[TUNE_NOISE_STEPS];
    const size_t n = noise->count < TUNE_NOISE_STEPS ? noise->count : TUNE_NOISE_STEPS;
    if (n < FEWEST) return 0;
    memcpy(steps, noise->steps, n * sizeof *steps);
    return MAD_TO_DEVIATION * median(steps, n) / sqrt(2); /* a step is the difference of two */
}

double tune_detectable(double deviation, size_t pairs) {
    if (pairs < TUNE_ENOUGH_TO_WIN) return 1;
    const double gain = 1 - exp(-(WIDTH * for_few(pairs) + POWER) * error_of(deviation, pairs));
    return fmax(gain, LEAST_GAIN);
}

static double smallest(const tune_pairs *pairs) {
    double least = pairs->logs[0];
    for (size_t i = 1; i < pairs->count; i++) least = fmin(least, pairs->logs[i]);
    return least;
}

tune_verdict tune_pairs_judge(const tune_pairs *pairs, double deviation) {
    const double first_limit = fmax(log(1.6), 4 * deviation), later_limit = fmax(log(1.03), 3 * deviation);
    const double least = LEAST_OF_NOISE * deviation;
    const size_t n = pairs->count;
    if (n == 0) return TUNE_GO_ON;
    if (smallest(pairs) > (n == 1 ? first_limit : later_limit)) return TUNE_SLOWER;
    if (n < 3) return TUNE_GO_ON;
    const tune_ratio narrow = interval(pairs, WIDTH_TO_LOSE, least);
    if (n >= TUNE_ENOUGH_TO_WIN && interval(pairs, WIDTH, least).high < 1) return TUNE_FASTER;
    if (n == TUNE_MAX_PAIRS || narrow.low > WORTH || (n >= TUNE_USUAL_PAIRS && narrow.high >= 1)) return TUNE_SLOWER;
    return TUNE_GO_ON;
}
