/* Threads of a call. */
#ifndef ATTUNE_GGML_RUNNER_H
#define ATTUNE_GGML_RUNNER_H

#include "common/plans.h"

/* The threads of one backend, whose number its host sets. */
typedef struct runner {
    int n_threads;
    uint32_t pool_calls; /* left before the host's OpenMP is tried again */
    uint32_t late_calls; /* of the host's OpenMP, one after the other, that waited for a thread */
} runner;

/* Runs a call on threads->n_threads threads. A process whose ggml computes by GNU's OpenMP has its threads spinning
 * when a node begins, so the call runs on those. Where other processes take their CPUs, OpenMP's barrier would wait for
 * them (16 ms), so attune's own threads compute for a while: a call by those waits for no thread that has not begun. */
attune_status runner_run(runner *threads, const common_plan *plan, const attune_arguments *arguments,
                         const char **message);

/* fn over ranges that cover [0, n), on the host's OpenMP if it has one, else on this thread. */
void runner_loop(const runner *threads, attune_range_fn *fn, void *argument, int64_t n);

#endif
