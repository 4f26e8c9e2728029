/* Runs calls on the host's OpenMP threads or on attune's own. */
#ifndef ATTUNE_GGML_RUNNER_H
#define ATTUNE_GGML_RUNNER_H

#include "common/plans.h"

/* The threads of one backend, whose number its host sets. */
typedef struct runner {
    int n_threads;
    uint32_t pool_calls; /* left before the host's OpenMP is tried again */
    uint32_t late_calls; /* consecutive calls on the host's OpenMP that waited for a thread */
} runner;

/* Runs a call on threads->n_threads threads. If ggml uses GNU's OpenMP, its threads are spinning when a node begins, so
 * the call runs on those. If other processes take their CPUs, OpenMP's barrier waits for these threads (16 ms was
 * seen). After a few such calls attune's own threads compute for a while: a call waits only for tasks that are running.
 */
attune_status runner_run(runner *threads, const common_plan *plan, const attune_arguments *arguments,
                         const char **message);

/* Calls fn for ranges that cover [0, n), on the host's OpenMP threads if there are some, else on this thread. */
void runner_loop(const runner *threads, attune_range_fn *fn, void *argument, int64_t n);

#endif
