/* libgomp is found in the process and called by GOMP_parallel, the function that gcc compiles a parallel region to. A
 * parallel region is a loop of attune's, whose ranges its threads take one after the other. How long the caller waits
 * at the end shows whether a thread had lost its CPU. */
#define _GNU_SOURCE
#include "runner.h"

#include "common/loop.h"

#include <dlfcn.h>
#include <pthread.h>
#include <time.h>

typedef void gomp_parallel(void (*fn)(void *), void *data, unsigned num_threads, unsigned flags);

static gomp_parallel *parallel; /* NULL: the process has no libgomp */

static void find_openmp(void) {
    void *const library = dlopen("libgomp.so.1", RTLD_LAZY | RTLD_NOLOAD);
    void *const found = library ? dlsym(library, "GOMP_parallel") : NULL;
    __builtin_memcpy(&parallel, &found, sizeof parallel);
}

static gomp_parallel *openmp(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_openmp);
    return parallel;
}

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- On the host's threads ---- */

typedef struct team {
    int64_t threads;
    bool is_late; /* the caller waited long at the end of a region */
} team;

typedef struct region {
    common_loop loop;
    atomic_uint workers; /* threads that have begun; the next one gets this number */
    pthread_t caller;
    int64_t ended; /* when no ranges were left for the caller */
} region;

static void work(void *user) {
    region *const r = user;
    common_loop_work(&r->loop, atomic_fetch_add(&r->workers, 1));
    if (pthread_equal(pthread_self(), r->caller)) r->ended = now();
}

/* Any number of threads completes the loop, because no range is reserved for a thread. */
static void parallel_for(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    enum { LEAST_WAIT_NS = 300000 };
    team *const t = user;
    const int64_t workers = n < t->threads ? n : t->threads;
    if (workers <= 1) {
        fn(argument, 0, n, 0);
        return;
    }
    region r = {.caller = pthread_self()};
    common_loop_init(&r.loop, fn, argument, n, workers);
    const int64_t began = now();
    openmp()(work, &r, (unsigned)workers, 0);
    const int64_t waited = now() - r.ended;
    if (waited > LEAST_WAIT_NS && 2 * waited > r.ended - began) t->is_late = true;
}

attune_status runner_run(runner *s, const common_plan *plan, const attune_arguments *arguments, const char **message) {
    enum { MOST_LATE = 3, POOL_CALLS = 300 };
    const unsigned threads = (unsigned)s->n_threads;
    if (threads <= 1 || !openmp() || s->pool_calls) {
        if (s->pool_calls) s->pool_calls--;
        return common_plan_run(plan, arguments, NULL, threads, message);
    }
    team t = {.threads = threads};
    const attune_runner of_team = {
        .struct_size = sizeof of_team, .parallel_for = parallel_for, .user = &t, .max_workers = threads};
    const attune_status status = common_plan_run(plan, arguments, &of_team, 0, message);
    s->late_calls = t.is_late ? s->late_calls + 1 : 0;
    if (s->late_calls >= MOST_LATE) s->pool_calls = POOL_CALLS, s->late_calls = 0;
    return status;
}

void runner_loop(const runner *s, attune_range_fn *fn, void *argument, int64_t n) {
    team t = {.threads = openmp() && !s->pool_calls ? s->n_threads : 1};
    parallel_for(&t, fn, argument, n);
}
