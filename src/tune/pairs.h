/* Which of two kernels is faster, from pairs of timings taken one after the other.
 *
 * What is looked at is the logarithm of each pair's ratio: other programs slow both sides of a pair down, so that it is
 * steadier than either. Its centre is the median and its spread the median of the distances from it, which a few wild
 * pairs do not move. */
#ifndef ATTUNE_TUNE_PAIRS_H
#define ATTUNE_TUNE_PAIRS_H

#include <stddef.h>

enum { TUNE_MAX_PAIRS = 33, TUNE_ENOUGH_TO_WIN = 9 };

typedef struct tune_pairs {
    size_t count;
    double logs[TUNE_MAX_PAIRS]; /* ln(time of the candidate / time of the incumbent) */
} tune_pairs;

/* Estimate and interval of the ratio; with fewer than three pairs the interval is everything. */
typedef struct tune_ratio {
    double ratio, low, high;
} tune_ratio;
tune_ratio tune_pairs_ratio(const tune_pairs *pairs);

typedef enum tune_verdict {
    TUNE_GO_ON,
    TUNE_FASTER, /* after some pairs, the whole interval is below 1 */
    TUNE_SLOWER  /* it is above, or it does not matter any more: too little would be gained */
} tune_verdict;

/* After each pair: whether more are needed. Hopeless candidates end after a pair or two, those of which nothing much
 * can be expected after a few more; none goes on beyond TUNE_MAX_PAIRS. */
tune_verdict tune_pairs_judge(const tune_pairs *pairs);

#endif
