/* Noisy measurements: where the samples of a problem lie far apart, the problem is measured again. */
#ifndef ATTUNE_TOOLS_SWEEP_NOISE_H
#define ATTUNE_TOOLS_SWEEP_NOISE_H

#include <jansson.h>
#include <stdbool.h>

enum { SWEEP_MOST_MEASUREMENTS = 3 };

/* One whole measurement: a result as of bench_result_json. NULL after a message or an interruption. */
typedef json_t *sweep_measure_fn(void *user);

/* The result with the smallest spread of up to SWEEP_MOST_MEASUREMENTS. It stops after the first whose spread is at
 * most `max_spread` (a share; INFINITY: always after one), and after one that failed, which loses none of those before.
 * `before` is the result of an earlier run, which counts as measured already, or NULL. The result tells their number as
 * `measurements`. NULL if the first failed, or when out of memory, after a message. */
json_t *sweep_measure_quietly(sweep_measure_fn *measure, void *user, const json_t *before, double max_spread);

/* Whether a result that tells its measurements is above the limit, and was measured fewer times than it may be. */
bool sweep_is_noisy(const json_t *result, double max_spread);

#endif
