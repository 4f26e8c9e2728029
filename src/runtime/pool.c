#define _GNU_SOURCE
#include "runtime/pool.h"

#include "runtime/futex.h"

#include <signal.h>
#include <time.h>

static const int64_t RETRY_NANOSECONDS = 1000000000; /* after the system refused a thread */

void at_pool_init(at_pool *pool, const attune_allocator *allocator, uint32_t num_workers) {
    *pool = (at_pool){.allocator = allocator, .max_threads = num_workers - 1};
    pthread_mutex_init(&pool->mutex, NULL);
}

void at_pool_free(at_pool *pool) {
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->is_ending, true);
    pthread_mutex_unlock(&pool->mutex);
    atomic_fetch_add(&pool->posted, 1);
    at_futex_wake(&pool->posted, UINT32_MAX);
    /* No thread starts another one any more, so the number stands. */
    for (uint32_t i = 0; i < pool->num_threads; i++) pthread_join(pool->threads[i], NULL);
    at_free(pool->allocator, pool->threads);
    pthread_mutex_destroy(&pool->mutex);
}

/* ---- Threads ---- */

/* The oldest job that has something to do, held; NULL: there is none. */
static at_job *take_job(at_pool *pool) {
    pthread_mutex_lock(&pool->mutex);
    at_job *job = pool->jobs;
    while (job && !at_job_is_open(job)) job = job->following;
    if (job) at_job_hold(job);
    pthread_mutex_unlock(&pool->mutex);
    return job;
}

/* Spins for a little while, then sleeps until a job is posted that was not there at `seen`. */
static void wait_for_job(at_pool *pool, uint32_t seen) {
    if (at_spin_while(&pool->posted, seen)) return;
    /* Sequentially consistent, as in post: either that sees the sleeper, or this sees the job. */
    atomic_fetch_add(&pool->sleepers, 1);
    if (atomic_load(&pool->posted) == seen) at_futex_wait(&pool->posted, seen);
    atomic_fetch_sub(&pool->sleepers, 1);
}

static void start_another(at_pool *pool);

static void *help(void *user) {
    at_pool *pool = user;
    start_another(pool);
    for (;;) {
        const uint32_t seen = atomic_load(&pool->posted);
        at_job *job = take_job(pool);
        if (job) {
            at_job_help(job);
            at_job_drop(job);
        } else {
            if (atomic_load(&pool->is_ending)) return NULL;
            wait_for_job(pool, seen);
        }
    }
}

static int64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* The host's signals are for its own threads. Kernels hardly use the stack: what is large lies in the workspace. */
static int create_thread(at_pool *pool, pthread_t *thread) {
    enum { STACK_BYTES = 1 << 20 };
    pthread_attr_t attributes;
    sigset_t all, before;
    int failure = pthread_attr_init(&attributes);
    if (failure) return failure;
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failure = pthread_create(thread, &attributes, help, pool);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return failure;
}

/* Whether a thread is wanted and can be tried for; called with the mutex. */
static bool may_start(at_pool *pool) {
    if (atomic_load(&pool->is_ending) || pool->num_threads >= pool->wanted) return false;
    if (pool->refused_at && nanoseconds() - pool->refused_at < RETRY_NANOSECONDS) return false;
    if (!pool->threads) pool->threads = at_alloc(pool->allocator, pool->max_threads * sizeof *pool->threads);
    return pool->threads != NULL;
}

/* One at a time: each thread starts the next, so that a caller pays for the first only. The mutex is held while a
 * thread is made, so that at_pool_free and fork() see it whole. */
static void start_another(at_pool *pool) {
    pthread_mutex_lock(&pool->mutex);
    if (may_start(pool)) {
        if (create_thread(pool, &pool->threads[pool->num_threads]))
            pool->refused_at = nanoseconds();
        else
            pool->num_threads++;
    }
    pthread_mutex_unlock(&pool->mutex);
}

/* ---- Runs ---- */

/* Lists the job and wakes whom it can use. */
static void post(at_pool *pool, at_job *job) {
    const uint32_t helpers = job->max_workers - 1;
    pthread_mutex_lock(&pool->mutex);
    at_job **end = &pool->jobs;
    while (*end) end = &(*end)->following;
    *end = job;
    if (helpers > pool->wanted) pool->wanted = helpers;
    const bool starts = pool->num_threads < pool->wanted;
    pthread_mutex_unlock(&pool->mutex);
    atomic_fetch_add(&pool->posted, 1);
    if (atomic_load(&pool->sleepers)) at_futex_wake(&pool->posted, helpers);
    if (starts) start_another(pool);
}

static void withdraw(at_pool *pool, at_job *job) {
    pthread_mutex_lock(&pool->mutex);
    at_job **link = &pool->jobs;
    while (*link && *link != job) link = &(*link)->following;
    if (*link) *link = job->following; /* else this is a child that was forked meanwhile */
    pthread_mutex_unlock(&pool->mutex);
}

void at_pool_run(at_pool *pool, attune_range_fn *fn, void *argument, int64_t n, uint32_t max_workers) {
    const uint32_t most = max_workers <= pool->max_threads ? max_workers : pool->max_threads + 1;
    at_job *job = most > 1 && n > 1 ? at_job_new(pool->allocator, fn, argument, n, most) : NULL;
    if (!job) {
        fn(argument, 0, n, 0);
        return;
    }
    post(pool, job);
    at_job_finish(job);
    withdraw(pool, job);
    at_job_drop(job);
}

/* ---- fork() ---- */

void at_pool_before_fork(at_pool *pool) { pthread_mutex_lock(&pool->mutex); }

/* The child has none of the threads, and nobody waits for the jobs that the parent's other threads had begun. */
void at_pool_after_fork(at_pool *pool, bool is_child) {
    if (is_child) {
        pool->jobs = NULL;
        pool->num_threads = pool->wanted = 0;
        atomic_store(&pool->sleepers, 0);
    }
    pthread_mutex_unlock(&pool->mutex);
}
