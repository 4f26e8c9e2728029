#define _GNU_SOURCE
#include "runtime/pool.h"

#include <pthreadpool.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* pthreadpool is not built for ThreadSanitizer, which therefore does not see that it hands memory from one thread to
 * another, and has to be told. */
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#define HAND_OVER(object) __tsan_release(object)
#define TAKE_OVER(object) __tsan_acquire(object)
#else
#define HAND_OVER(object) ((void)(object))
#define TAKE_OVER(object) ((void)(object))
#endif

enum { MAX_WORKERS = 1024, CHUNKS_PER_WORKER = 8 };

/* ---- Limits ---- */

/* The quota of one cgroup directory in whole CPUs, rounded up; 0: none. */
static uint32_t quota_of(const char *path) {
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    long long quota, period;
    const int fields = fscanf(file, "%lld %lld", &quota, &period); /* "max 100000" gives no field */
    fclose(file);
    return fields == 2 && quota > 0 && period > 0 ? (uint32_t)((quota + period - 1) / period) : 0;
}

/* cgroup v2: the tightest cpu.max from this process's group up to the root. */
static uint32_t cgroup_limit(void) {
    char path[4096] = "", file[4352], line[4096];
    FILE *groups = fopen("/proc/self/cgroup", "re");
    if (!groups) return 0;
    while (fgets(line, sizeof line, groups))
        if (!strncmp(line, "0::", 3)) snprintf(path, sizeof path, "%.*s", (int)strcspn(line + 3, "\n"), line + 3);
    fclose(groups);
    uint32_t limit = 0;
    for (;;) {
        snprintf(file, sizeof file, "/sys/fs/cgroup%s/cpu.max", path);
        const uint32_t quota = quota_of(file);
        if (quota && (!limit || quota < limit)) limit = quota;
        char *slash = strrchr(path, '/');
        if (!slash) return limit;
        *slash = '\0';
    }
}

uint32_t at_pool_default_workers(void) {
    cpu_set_t cpus;
    uint32_t workers = 1;
    if (!sched_getaffinity(0, sizeof cpus, &cpus)) {
        workers = (uint32_t)CPU_COUNT(&cpus);
    } else { /* more CPUs than the set has room for */
        const long online = sysconf(_SC_NPROCESSORS_ONLN);
        if (online > 0) workers = (uint32_t)online;
    }
    const uint32_t limit = workers > 1 ? cgroup_limit() : 0;
    if (limit && limit < workers) workers = limit;
    if (workers > MAX_WORKERS) workers = MAX_WORKERS;
    return workers ? workers : 1;
}

/* ---- Running ---- */

void at_pool_init(at_pool *pool, uint32_t num_workers) {
    *pool = (at_pool){.num_workers = num_workers};
    pthread_mutex_init(&pool->busy, NULL);
}

void at_pool_free(at_pool *pool) {
    if (pool->threads && pool->owner == (long)getpid()) pthreadpool_destroy(pool->threads);
    pthread_mutex_destroy(&pool->busy);
}

/* One run: its workers take chunks of the range until none is left. */
typedef struct pool_job {
    attune_range_fn *fn;
    void *argument;
    int64_t n, chunk;
    _Atomic int64_t next;
} pool_job;

static void work(void *user, size_t worker) {
    pool_job *job = user;
    TAKE_OVER(job);
    for (;;) {
        const int64_t begin = atomic_fetch_add_explicit(&job->next, job->chunk, memory_order_relaxed);
        if (begin >= job->n) break;
        const int64_t end = job->n - begin > job->chunk ? begin + job->chunk : job->n;
        job->fn(job->argument, begin, end, (uint32_t)worker);
    }
    HAND_OVER(job);
}

static void *wait_for(void *mutex) {
    pthread_mutex_lock(mutex);
    pthread_mutex_unlock(mutex);
    return NULL;
}

/* How many of the workers can have a thread at once, the caller among them. pthreadpool would wait for ever for one
 * that a limit on processes or memory did not let it make, so they are tried first. */
static uint32_t workers_to_be_had(uint32_t wanted) {
    pthread_t threads[MAX_WORKERS];
    pthread_mutex_t end = PTHREAD_MUTEX_INITIALIZER;
    uint32_t made = 0;
    pthread_mutex_lock(&end);
    while (made + 1 < wanted && made < MAX_WORKERS && !pthread_create(&threads[made], NULL, wait_for, &end)) made++;
    pthread_mutex_unlock(&end);
    for (uint32_t i = 0; i < made; i++) pthread_join(threads[i], NULL);
    return made + 1;
}

static bool have_threads(at_pool *pool) {
    if (pool->threads && pool->owner != (long)getpid()) pool->threads = NULL;
    if (!pool->threads) {
        const uint32_t workers = workers_to_be_had(pool->num_workers);
        if (workers == 1) return false;
        pool->threads = pthreadpool_create(workers);
        pool->owner = (long)getpid();
    }
    return pool->threads != NULL;
}

void at_pool_run(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    at_pool *pool = user;
    if (pool->num_workers == 1 || n == 1 || pthread_mutex_trylock(&pool->busy)) {
        fn(argument, 0, n, 0);
        return;
    }
    if (!have_threads(pool)) {
        pthread_mutex_unlock(&pool->busy);
        fn(argument, 0, n, 0);
        return;
    }
    const int64_t workers = n < pool->num_workers ? n : pool->num_workers;
    pool_job job = {.fn = fn, .argument = argument, .n = n, .chunk = n / (workers * CHUNKS_PER_WORKER)};
    if (job.chunk < 1) job.chunk = 1;
    HAND_OVER(&job);
    pthreadpool_parallelize_1d(pool->threads, work, &job, (size_t)workers, 0);
    TAKE_OVER(&job);
    pthread_mutex_unlock(&pool->busy);
}
