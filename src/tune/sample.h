/* Chooses the tasks that represent a phase when a kernel is timed.
 *
 * The tasks of a phase's innermost loop belong together, a unit: the rows of a head, the rows that one group of weights
 * is multiplied by. They read the same keys or weights, which the first task brings into a cache; the last may have
 * less to do; under a causal mask they become cheaper one by one. So whole units are timed where one is not too long,
 * and otherwise its first task, its last one, and some from between; if even a task takes long, only the latter. */
#ifndef ATTUNE_TUNE_SAMPLE_H
#define ATTUNE_TUNE_SAMPLE_H

#include "engine/kernel.h"

typedef struct tune_phase {
    int64_t units, tasks; /* tasks: of a unit */
    bool are_alike;       /* units take equally long */
    bool are_level;       /* and so do tasks, except for those at the ends of a unit */
} tune_phase;

/* To be run and timed one after the other; the times, each times its factor, add up to that of the phase. The first may
 * have the factor 0: tasks that leave the core as those before the sample do, having run the same code. */
enum { TUNE_MAX_PARTS = 4 };
typedef struct tune_sample {
    int count;
    at_run_part parts[TUNE_MAX_PARTS];
    double factors[TUNE_MAX_PARTS];
} tune_sample;

/* About `share` of the phase's tasks, of which there is one at least, by so many threads. Of units that are alike the
 * next turn takes the next ones: a call finds each unit's data where the units before have left it, and so does a
 * sample. */
tune_sample tune_sample_of(const tune_phase *phase, double share, int64_t turn, int64_t threads);

#endif
