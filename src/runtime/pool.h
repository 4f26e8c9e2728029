/* The threads of a context: a good neighbour of those that the process has already.
 *
 * They are started when the first run can use them, sleep when there is nothing to do, after spinning for at most
 * AT_SPIN_NANOSECONDS, take none of the host's signals, and end with the context. A run never waits for one of them to
 * come: it begins at once, and what helpers have not begun the caller does itself (runtime/job.h). Runs share the
 * threads.
 *
 * Helpers are not always worth having. To wake one takes as long as a short run: so only long runs wake any, and those
 * that follow another one so soon that a thread which is awake would still be spinning. And where other processes take
 * a helper's CPU in the middle of a range, the caller waits for milliseconds: once that has happened, runs stay on
 * their caller's thread for a while, and twice as long each time that it happens again soon. */
#ifndef ATTUNE_RUNTIME_POOL_H
#define ATTUNE_RUNTIME_POOL_H

#include "runtime/job.h"

#include <pthread.h>
#include <sched.h>

/* How much there is to do in a run, in operations of an instruction set with wide vectors, which does about 100 of them
 * in a nanosecond. AT_LONG_WORK is worth waking threads for. */
enum { AT_LONG_WORK = 20 * 1000 * 1000 };

typedef struct at_pool {
    const attune_allocator *allocator;
    uint32_t max_threads; /* beside the callers */
    cpu_set_t cpus;       /* of whoever made the context, for the threads */
    bool has_cpus;

    pthread_mutex_t mutex; /* guards the list */
    at_job *jobs;          /* that may have ranges to give, the oldest first */

    pthread_mutex_t starting; /* guards these; never taken together with the mutex above, except around fork() */
    pthread_t *threads;
    int64_t refused_at; /* when the system last had no thread to give; 0: never. In nanoseconds, as all times */

    _Atomic uint32_t num_threads, wanted;   /* started, and how many the runs so far could use */
    _Atomic int64_t ended_at;               /* the last run */
    _Atomic int64_t alone_until, alone_for; /* what crowded CPUs led to */
    _Alignas(64) _Atomic uint32_t posted;   /* a futex: changes with each job */
    _Atomic uint32_t sleepers;
    _Atomic bool is_ending;
} at_pool;

/* num_workers: threads that a run may have, the caller among them. */
void at_pool_init(at_pool *pool, const attune_allocator *allocator, uint32_t num_workers);

/* No run may be under way. Ends and joins the threads. */
void at_pool_free(at_pool *pool);

/* Equals fn(argument, 0, n, 0); at most max_workers threads, the caller among them, take part. */
void at_pool_run(at_pool *pool, attune_range_fn *fn, void *argument, int64_t n, uint32_t max_workers, double work);

/* Around fork(): locks; unlocks in the parent; in the child makes it a pool without threads and jobs. */
void at_pool_before_fork(at_pool *pool);
void at_pool_after_fork(at_pool *pool, bool is_child);

#endif
