/* Runs a parallel loop of attune on an engine's threads, for engines that run a function once for each index of a
 * range. */
#ifndef ATTUNE_COMMON_LOOP_H
#define ATTUNE_COMMON_LOOP_H

#include "attune.h"

#include <stdatomic.h>

typedef struct common_loop {
    attune_range_fn *fn;
    void *argument;
    int64_t n, grain;
    atomic_int_fast64_t next;
} common_loop;

void common_loop_init(common_loop *l, attune_range_fn *fn, void *argument, int64_t n, int64_t workers);

/* Runs the work of one index, which is the worker number. The engine runs each index once, so no two threads have the
 * same number at the same time. Ranges of tasks are claimed one by one, because causal tasks differ in length; an index
 * that starts late may find nothing to do. */
void common_loop_work(common_loop *l, uint32_t worker);

#endif
