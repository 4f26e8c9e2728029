/* The threads of a context. They leave room for the other threads of the process.
 *
 * They start when the first run can use them. They spin for at most AT_SPIN_NANOSECONDS after their work and then
 * sleep. They take none of the host's signals, and end with the context. A run never waits for one of them: it begins
 * at once, and its caller does all ranges that no helper has begun (threads/job.h). Runs share the threads.
 *
 * Helpers are not always worth having. Waking one takes as long as a short run, so only long runs wake any, and runs
 * that follow another one so soon that a thread still spins. If another process takes a helper's CPU in the middle of a
 * range, the caller waits for milliseconds. After that, runs stay on their caller's thread for a while, and twice as
 * long each time that it happens again soon. */
#ifndef ATTUNE_THREADS_POOL_H
#define ATTUNE_THREADS_POOL_H

#include "threads/job.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

/* The work of a run, in operations of an instruction set with wide vectors, which does about 100 of them in a
 * nanosecond. It is worth waking threads for AT_LONG_WORK. */
enum { AT_LONG_WORK = 20 * 1000 * 1000 };

typedef struct at_pool {
    const attune_allocator *allocator;
    uint32_t max_threads; /* beside the callers */
    uint32_t l3_cores;    /* that share a third cache; 0: all do */
    cpu_set_t cpus;       /* the CPUs of the thread that made the context */
    bool has_cpus;

    pthread_mutex_t mutex; /* guards the list */
    at_job *jobs;          /* jobs that may have ranges to give, the oldest first */

    pthread_mutex_t starting; /* guards the next ones; never taken with the mutex above, except around fork() */
    pthread_t *threads;
    int64_t refused_at;         /* when the system last refused a thread; 0: never. In nanoseconds, as all times */
    cpu_set_t given;            /* the CPUs of the pool's threads: all, or all but their caller's */
    bool is_bound;              /* somebody else has chosen the CPUs of one of them */
    _Atomic int avoided;        /* the CPU that is not given; -1: none */
    _Atomic int64_t avoided_at; /* when it was last looked for */

    _Atomic uint32_t num_threads, wanted;   /* threads that were started, and the most that a run could use */
    _Atomic int64_t ended_at;               /* the last run */
    _Atomic int64_t alone_until, alone_for; /* the state of the rule for crowded CPUs */
    _Alignas(64) _Atomic uint32_t posted;   /* a futex; it changes with each job */
    _Atomic uint32_t sleepers;
    _Atomic bool is_ending;
} at_pool;

/* num_workers: threads that a run may have, its caller included. */
void at_pool_init(at_pool *pool, const attune_allocator *allocator, uint32_t num_workers);

/* No run may be under way. Ends and joins the threads. */
void at_pool_free(at_pool *pool);

/* Equals fn(argument, 0, n, 0), on at most max_workers threads, the caller included. falling: as in an at_job. */
void at_pool_run(at_pool *pool, attune_range_fn *fn, void *argument, int64_t n, uint32_t max_workers, double work,
                 int64_t falling);

/* For the creator of a thread of attune's, which inherits it: the host's signals are for the host's own threads. The
 * exceptions are those that an instruction causes: their handlers must run on the thread that executed it. */
void at_block_signals(sigset_t *before);

/* Around fork(): locks; then unlocks, and makes the child's pool one without threads and jobs. */
void at_pool_before_fork(at_pool *pool);
void at_pool_after_fork(at_pool *pool, bool is_child);

#endif
