/* Jobs are in a list, and a count of posted jobs is the word that threads spin and sleep on. A caller only wakes
 * helpers and starts the first thread, which starts the next, and then works itself. */
#define _GNU_SOURCE
#include "threads/pool.h"

#include "host/clock.h"
#include "threads/futex.h"

#include <errno.h>
#include <signal.h>

static const int64_t MILLISECOND = 1000000;

enum { NONE = -1, AS_IT_IS = -2 }; /* in place of a CPU that helpers keep off */

/* For numbers and times that several threads read, where the order does not matter. */
static int64_t look(const _Atomic int64_t *at) { return atomic_load_explicit(at, memory_order_relaxed); }
static void note(_Atomic int64_t *at, int64_t value) { atomic_store_explicit(at, value, memory_order_relaxed); }

/* The list is locked for some nanoseconds, often by two threads that finish the same job. Sleeping would take longer.
 */
static void init_spinning(pthread_mutex_t *mutex) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ADAPTIVE_NP);
    pthread_mutex_init(mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

void at_pool_init(at_pool *pool, const attune_allocator *allocator, uint32_t num_workers) {
    *pool = (at_pool){.allocator = allocator, .max_threads = num_workers - 1};
    pool->has_cpus = sched_getaffinity(0, sizeof pool->cpus, &pool->cpus) == 0;
    pool->given = pool->cpus;
    pool->avoided = NONE;
    init_spinning(&pool->mutex);
    pthread_mutex_init(&pool->starting, NULL);
}

void at_pool_free(at_pool *pool) {
    pthread_mutex_lock(&pool->starting);
    atomic_store(&pool->is_ending, true); /* no thread starts another one any more, so the number is final */
    pthread_mutex_unlock(&pool->starting);
    atomic_fetch_add(&pool->posted, 1);
    at_futex_wake(&pool->posted, UINT32_MAX);
    for (uint32_t i = 0; i < pool->num_threads; i++) pthread_join(pool->threads[i], NULL);
    at_free(pool->allocator, pool->threads);
    pthread_mutex_destroy(&pool->starting);
    pthread_mutex_destroy(&pool->mutex);
}

/* ---- Threads ---- */

/* The oldest job that wants help, with a reference; NULL: there is none. */
static at_job *take_job(at_pool *pool) {
    pthread_mutex_lock(&pool->mutex);
    at_job *job = pool->jobs;
    while (job && !at_job_wants_help(job)) job = job->following;
    if (job) at_job_hold(job);
    pthread_mutex_unlock(&pool->mutex);
    return job;
}

/* Spins for a little while, then sleeps until a job is posted after the count `seen`. */
static void wait_for_job(at_pool *pool, uint32_t seen) {
    if (at_spin_while(&pool->posted, seen)) return;
    /* Sequentially consistent, as in post(): either post() sees the sleeper, or this sees the job. */
    atomic_fetch_add(&pool->sleepers, 1);
    if (atomic_load(&pool->posted) == seen) at_futex_wait(&pool->posted, seen);
    atomic_fetch_sub(&pool->sleepers, 1);
}

static void start_another(at_pool *pool);

static void *help(void *user) {
    at_pool *pool = user;
    pthread_setname_np(pthread_self(), "attune");
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

void at_block_signals(sigset_t *before) {
    static const int caused[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t blocked;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof caused / sizeof *caused; i++) sigdelset(&blocked, caused[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, before);
}

/* Kernels hardly use the stack, because large memory is in the workspace. A thread may run on all CPUs of the thread
 * that made the context but its caller's, and not only on those that its first caller is bound to. */
static int create_thread(at_pool *pool, pthread_t *thread) {
    enum { STACK_BYTES = 1 << 20 };
    pthread_attr_t attributes;
    sigset_t before;
    int failure = pthread_attr_init(&attributes);
    if (failure) return failure;
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    if (pool->has_cpus) pthread_attr_setaffinity_np(&attributes, sizeof pool->given, &pool->given);
    at_block_signals(&before);
    failure = pthread_create(thread, &attributes, help, pool);
    /* These CPUs have been taken away, or a sandbox lets nobody choose: the thread gets those of its creator. */
    if (failure && failure != EAGAIN && !pthread_attr_setaffinity_np(&attributes, 0, &pool->given))
        failure = pthread_create(thread, &attributes, help, pool);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return failure;
}

/* Whether a thread is wanted and may be started; called with `starting` taken. */
static bool may_start(at_pool *pool) {
    if (atomic_load(&pool->is_ending) || pool->num_threads >= pool->wanted) return false;
    if (pool->refused_at && at_nanoseconds() - pool->refused_at < 1000 * MILLISECOND) return false;
    if (!pool->threads) pool->threads = at_alloc(pool->allocator, pool->max_threads * sizeof *pool->threads);
    return pool->threads != NULL;
}

/* One at a time: each thread starts the next, so that a caller pays only for the first. */
static void start_another(at_pool *pool) {
    pthread_mutex_lock(&pool->starting);
    if (may_start(pool)) {
        if (create_thread(pool, &pool->threads[pool->num_threads]))
            pool->refused_at = at_nanoseconds();
        else
            pool->num_threads++;
    }
    pthread_mutex_unlock(&pool->starting);
}

/* The CPU that helpers keep off. A caller that is bound has chosen its CPUs, so its helpers may use all. But if these
 * are just the helpers' own, somebody may have bound the whole process to them. */
static int cpu_to_avoid(const at_pool *pool, int callers) {
    cpu_set_t its;
    if (pool->is_bound || sched_getaffinity(0, sizeof its, &its)) return AS_IT_IS;
    if (CPU_EQUAL(&its, &pool->cpus)) return CPU_COUNT(&its) > 1 ? callers : NONE;
    return CPU_EQUAL(&its, &pool->given) ? AS_IT_IS : NONE;
}

static void place(at_pool *pool, int avoided) {
    cpu_set_t its, given = pool->cpus;
    if (avoided != NONE) CPU_CLR(avoided, &given);
    for (uint32_t i = 0; i < pool->num_threads; i++)
        pool->is_bound |= pthread_getaffinity_np(pool->threads[i], sizeof its, &its) || !CPU_EQUAL(&its, &pool->given);
    if (pool->is_bound) return;
    for (uint32_t i = 0; i < pool->num_threads; i++) pthread_setaffinity_np(pool->threads[i], sizeof given, &given);
    pool->given = given;
    atomic_store(&pool->avoided, avoided);
}

/* Linux may wake a helper on its caller's CPU, though another one is idle: in a virtual machine it takes an idle CPU
 * for one that the host has taken away. The helper waits there for up to 10 milliseconds. So helpers keep off the CPU
 * that they were last woken from. Callers on several CPUs change it at most once in 10 milliseconds. Once somebody else
 * has chosen the CPUs of a helper, all of them keep what they have. */
static void keep_off_callers_cpu(at_pool *pool, int64_t now) {
    const int cpu = sched_getcpu();
    int64_t last = look(&pool->avoided_at);
    if (!pool->has_cpus || cpu < 0 || cpu == atomic_load(&pool->avoided)) return;
    if (now - last < 10 * MILLISECOND || !atomic_compare_exchange_strong(&pool->avoided_at, &last, now)) return;
    pthread_mutex_lock(&pool->starting);
    const int avoided = cpu_to_avoid(pool, cpu);
    if (avoided != AS_IT_IS && avoided != atomic_load(&pool->avoided)) place(pool, avoided);
    pthread_mutex_unlock(&pool->starting);
}

/* ---- Whether helpers pay ---- */

static bool is_anybody_awake(const at_pool *pool) {
    return atomic_load_explicit(&pool->num_threads, memory_order_relaxed) >
           atomic_load_explicit(&pool->sleepers, memory_order_relaxed);
}

/* The caller finished its part, then waited longer than that part took, and longer than a last range can take. */
static void note_crowding(at_pool *pool, int64_t begun, int64_t worked, int64_t ended) {
    enum { FIRST = 4, LONGEST = 1000, SOON = 300, EXPLAINED = 500 * 1000 };
    if (ended - worked < worked - begun + EXPLAINED) return;
    const int64_t last = look(&pool->alone_for);
    const bool again = last && ended - look(&pool->alone_until) < SOON * MILLISECOND;
    int64_t next = again ? 2 * last : FIRST * MILLISECOND;
    if (next > LONGEST * MILLISECOND) next = LONGEST * MILLISECOND;
    note(&pool->alone_for, next);
    note(&pool->alone_until, ended + next);
}

/* ---- Runs ---- */

/* Lists the job. */
static void post(at_pool *pool, at_job *job) {
    pthread_mutex_lock(&pool->mutex);
    at_job **end = &pool->jobs;
    while (*end) end = &(*end)->following;
    *end = job;
    pthread_mutex_unlock(&pool->mutex);
    atomic_fetch_add(&pool->posted, 1);
}

static void withdraw(at_pool *pool, at_job *job) {
    pthread_mutex_lock(&pool->mutex);
    at_job **link = &pool->jobs;
    while (*link && *link != job) link = &(*link)->following;
    if (*link) *link = job->following; /* else this is a child that was forked in the meantime */
    pthread_mutex_unlock(&pool->mutex);
}

/* Wakes threads that sleep, and starts more if there are too few. */
static void call_helpers(at_pool *pool, uint32_t helpers, int64_t now) {
    if (atomic_load(&pool->sleepers)) at_futex_wake(&pool->posted, helpers);
    keep_off_callers_cpu(pool, now);
    uint32_t wanted = atomic_load(&pool->wanted);
    while (wanted < helpers && !atomic_compare_exchange_weak(&pool->wanted, &wanted, helpers)) {
    }
    if (atomic_load(&pool->num_threads) < helpers) start_another(pool);
}

/* Returns the time at which it ended. */
static int64_t run_with_helpers(at_pool *pool, at_job *job, bool wakes, int64_t begun) {
    post(pool, job);
    if (wakes) call_helpers(pool, job->max_workers - 1, begun);
    at_job_work(job);
    const int64_t worked = at_nanoseconds();
    at_job_wait(job);
    withdraw(pool, job);
    at_job_drop(job);
    const int64_t ended = at_nanoseconds();
    note_crowding(pool, begun, worked, ended);
    return ended;
}

void at_pool_run(at_pool *pool, attune_range_fn *fn, void *argument, int64_t n, uint32_t max_workers, double work,
                 int64_t falling) {
    const int64_t begun = at_nanoseconds();
    const uint32_t workers = max_workers <= pool->max_threads ? max_workers : pool->max_threads + 1;
    const bool wakes = work >= AT_LONG_WORK || begun - look(&pool->ended_at) < AT_SPIN_NANOSECONDS;
    at_job *job = NULL;
    if (workers > 1 && n > 1 && begun >= look(&pool->alone_until) && (wakes || is_anybody_awake(pool)))
        job = at_job_new(pool->allocator, fn, argument, n, workers, pool->l3_cores, falling);
    if (job) {
        note(&pool->ended_at, run_with_helpers(pool, job, wakes, begun));
    } else {
        fn(argument, 0, n, 0);
        note(&pool->ended_at, at_nanoseconds());
    }
}

/* ---- fork() ---- */

void at_pool_before_fork(at_pool *pool) {
    pthread_mutex_lock(&pool->starting);
    pthread_mutex_lock(&pool->mutex);
}

/* The child has none of the threads, and no thread waits for jobs that other threads of the parent had begun. */
void at_pool_after_fork(at_pool *pool, bool is_child) {
    if (is_child) {
        pool->jobs = NULL;
        atomic_store(&pool->num_threads, 0);
        atomic_store(&pool->sleepers, 0);
    }
    pthread_mutex_unlock(&pool->mutex);
    pthread_mutex_unlock(&pool->starting);
}
