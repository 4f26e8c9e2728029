/* The threads of a context: a good neighbour of those that the process has already.
 *
 * They are started when the first call can use them, sleep when there is nothing to do, after spinning for at most
 * AT_SPIN_MICROSECONDS, take no signals, and end with the context. A run never waits for one of them to come: it begins
 * at once, and what helpers have not begun the caller does itself (runtime/job.h). Several runs share the threads. */
#ifndef ATTUNE_RUNTIME_POOL_H
#define ATTUNE_RUNTIME_POOL_H

#include "runtime/job.h"

#include <pthread.h>

typedef struct at_pool {
    const attune_allocator *allocator;
    uint32_t max_threads;  /* beside the callers */
    pthread_mutex_t mutex; /* guards all below that is not atomic */
    at_job *jobs;          /* that may have ranges to give, the oldest first */
    pthread_t *threads;
    uint32_t num_threads, wanted;         /* started, and how many the jobs so far could use */
    int64_t refused_at;                   /* when the system last had no thread to give, in nanoseconds; 0: never */
    _Alignas(64) _Atomic uint32_t posted; /* a futex: changes with each job */
    _Atomic uint32_t sleepers;
    _Atomic bool is_ending;
} at_pool;

/* num_workers: threads that a run may have, the caller among them. */
void at_pool_init(at_pool *pool, const attune_allocator *allocator, uint32_t num_workers);

/* No run may be under way. Ends and joins the threads. */
void at_pool_free(at_pool *pool);

/* Equals fn(argument, 0, n, 0); at most max_workers threads, the caller among them, take part. */
void at_pool_run(at_pool *pool, attune_range_fn *fn, void *argument, int64_t n, uint32_t max_workers);

/* Around fork(): locks; unlocks in the parent; in the child makes it a pool without threads and jobs. */
void at_pool_before_fork(at_pool *pool);
void at_pool_after_fork(at_pool *pool, bool is_child);

#endif
