/* Which of two kernels is faster, from pairs of timings taken one after the other.
 *
 * The logarithms of the pairs' ratios are compared: other programs slow both sides of a pair down, so a ratio is
 * steadier than a time. Its centre is the median and its spread the median of the distances from it, which a few wild
 * pairs do not move. */
#ifndef ATTUNE_TUNE_PAIRED_TIMES_H
#define ATTUNE_TUNE_PAIRED_TIMES_H

#include <stddef.h>

/* Most comparisons end after TUNE_USUAL_PAIRS at the latest. A comparison goes on if its candidate seems to be faster
 * and noise hides whether it is. */
enum { TUNE_USUAL_PAIRS = 33, TUNE_MAX_PAIRS = 129, TUNE_ENOUGH_TO_WIN = 9 };

typedef struct tune_pairs {
    size_t count;
    double logs[TUNE_MAX_PAIRS]; /* ln(time of the candidate / time of the incumbent) */
} tune_pairs;

/* Estimate and interval of the ratio; with fewer than three pairs the interval is everything. */
typedef struct tune_ratio {
    double ratio, low, high;
} tune_ratio;
tune_ratio tune_pairs_ratio(const tune_pairs *pairs);

/* The standard deviation of the logarithms, without the wild ones. There is one pair at least. */
double tune_pairs_deviation(const tune_pairs *pairs);

typedef enum tune_verdict {
    TUNE_GO_ON,
    TUNE_FASTER, /* after some pairs, the whole interval is below 1 */
    TUNE_SLOWER  /* it is above, or it does not matter any more: too little would be gained */
} tune_verdict;

/* How far the pairs of a search differ, whatever is compared: from the steps between one pair and the next of the same
 * two kernels. */
enum { TUNE_NOISE_STEPS = 256 };
typedef struct tune_noise {
    size_t count; /* of all steps; the latest are kept */
    double steps[TUNE_NOISE_STEPS];
} tune_noise;

/* To be called after each pair. */
void tune_noise_add(tune_noise *noise, const tune_pairs *pairs);

/* The standard deviation of a pair's logarithm; 0: not known yet. */
double tune_noise_of(const tune_noise *noise);

/* The gain that is found nine times in ten where pairs have this standard deviation, if there is time for so many of
 * them: 0.05 for a candidate that takes 0.95 of the time. At most 1. */
double tune_detectable(double deviation, size_t pairs);

/* After each pair: whether more are needed. Hopeless candidates end after a pair or two, those of which nothing much
 * can be expected after a few more; none goes on beyond TUNE_MAX_PAIRS. `deviation` is the noise of the search so far:
 * the more there is of it, the less a few pairs decide. */
tune_verdict tune_pairs_judge(const tune_pairs *pairs, double deviation);

#endif
