/* The threads of a context, and the loops that they help with. */
#define _GNU_SOURCE
#include "host/clock.h"
#include "threads/pool.h"
#include "threads/team.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORKERS = 16, TASKS = 1000 };
#define LONG AT_LONG_WORK

static atomic_int threads_left = 1 << 20;

/* Takes the place of libc's: fails as under a limit on processes, which root would not feel. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    if (atomic_fetch_sub(&threads_left, 1) <= 0) {
        atomic_fetch_add(&threads_left, 1);
        return EAGAIN;
    }
    return real(thread, attributes, start, argument);
}

static int threads_of_process(void) {
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (const struct dirent *item; (item = readdir(tasks));) count += item->d_name[0] != '.';
    closedir(tasks);
    return count;
}

static void pause_shortly(void) { usleep(1000); }

/* A thread that was joined may be listed for a moment still. */
static void assert_threads(int expected) {
    for (int i = 0; i < 5000 && threads_of_process() != expected; i++) pause_shortly();
    assert_int_equal(threads_of_process(), expected);
}

/* Those that are there now, when the joined ones have gone; a sanitizer may have one of its own. */
static int settled_threads(void) {
    int last = 0, now = threads_of_process();
    for (int same = 0; same < 20; same = now == last ? same + 1 : 0) {
        last = now;
        pause_shortly();
        now = threads_of_process();
    }
    return now;
}

/* ---- Every task once ---- */

typedef struct tally {
    atomic_int done[TASKS], running[WORKERS];
    atomic_int clashes, bad_workers;
} tally;

static void count(void *argument, int64_t begin, int64_t end, uint32_t worker) {
    tally *t = argument;
    if (worker >= WORKERS) {
        atomic_fetch_add(&t->bad_workers, 1);
        return;
    }
    if (atomic_fetch_add(&t->running[worker], 1)) atomic_fetch_add(&t->clashes, 1);
    for (int64_t i = begin; i < end; i++) atomic_fetch_add(&t->done[i], 1);
    atomic_fetch_sub(&t->running[worker], 1);
}

static void assert_tally(tally *t, int times) {
    assert_int_equal(atomic_load(&t->clashes), 0);
    assert_int_equal(atomic_load(&t->bad_workers), 0);
    for (int i = 0; i < TASKS; i++) assert_int_equal(atomic_load(&t->done[i]), times);
}

static void all_tasks_run_with(int threads) {
    static tally t;
    at_pool pool;
    memset(&t, 0, sizeof t);
    atomic_store(&threads_left, threads);
    at_pool_init(&pool, at_default_allocator(), WORKERS);
    alarm(60); /* ends the test where it would hang */
    for (int run = 0; run < 20; run++)
        at_pool_run(&pool, count, &t, TASKS, run % 3 ? WORKERS : 3, run % 2 ? LONG : 1, 0);
    alarm(0);
    at_pool_free(&pool);
    assert_tally(&t, 20);
    atomic_store(&threads_left, 1 << 20);
}

static void every_number_of_threads_does(void **state) {
    (void)state;
    all_tasks_run_with(0);
    all_tasks_run_with(1);
    all_tasks_run_with(WORKERS / 2);
    all_tasks_run_with(10 * WORKERS);
}

typedef struct caller {
    at_pool *pool;
    tally t;
    pthread_t thread;
} caller;

static void *call_often(void *argument) {
    caller *c = argument;
    for (int run = 0; run < 50; run++) at_pool_run(c->pool, count, &c->t, TASKS, WORKERS, LONG, 0);
    return NULL;
}

static void several_callers_share_the_threads(void **state) {
    (void)state;
    enum { CALLERS = 4 };
    static caller callers[CALLERS];
    at_pool pool;
    at_pool_init(&pool, at_default_allocator(), WORKERS);
    for (int i = 0; i < CALLERS; i++) {
        callers[i] = (caller){.pool = &pool};
        assert_int_equal(pthread_create(&callers[i].thread, NULL, call_often, &callers[i]), 0);
    }
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(callers[i].thread, NULL);
        assert_tally(&callers[i].t, 50);
    }
    assert_in_range(atomic_load(&pool.num_threads), 0, WORKERS - 1);
    at_pool_free(&pool);
}

/* ---- Threads as neighbours ---- */

typedef struct meeting {
    atomic_int helpers, other_signals;
} meeting;

/* By an instruction of the thread itself, where the host's handler must see it. */
static bool is_caused(int s) {
    return s == SIGSEGV || s == SIGBUS || s == SIGFPE || s == SIGILL || s == SIGTRAP || s == SIGSYS;
}

/* Goes on until a helper has come, which the first loops need not see. */
static void meet(void *argument, int64_t begin, int64_t end, uint32_t worker) {
    meeting *m = argument;
    (void)begin, (void)end;
    if (!worker) {
        pause_shortly();
        return;
    }
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    for (int s = 1; s < 32; s++)
        if (s != SIGKILL && s != SIGSTOP && sigismember(&blocked, s) == is_caused(s)) m->other_signals++;
    m->helpers++;
}

static void threads_come_late_sleep_and_go(void **state) {
    (void)state;
    at_pool pool;
    meeting m = {0};
    const int before = settled_threads();
    at_pool_init(&pool, at_default_allocator(), 3);
    assert_int_equal(threads_of_process(), before); /* none before a run needs one */
    at_pool_run(&pool, meet, &m, 1, 3, LONG, 0);
    assert_int_equal(threads_of_process(), before);
    for (int run = 0; run < 5000 && !m.helpers; run++) at_pool_run(&pool, meet, &m, 64, 3, LONG, 0);
    assert_true(m.helpers > 0);
    assert_int_equal(m.other_signals, 0);
    for (int i = 0; i < 5000 && atomic_load(&pool.sleepers) != pool.num_threads; i++) pause_shortly();
    assert_int_equal(atomic_load(&pool.sleepers), pool.num_threads);
    at_pool_free(&pool);
    assert_threads(before);
}

static void a_refused_thread_is_asked_for_again(void **state) {
    (void)state;
    at_pool pool;
    meeting m = {0};
    at_pool_init(&pool, at_default_allocator(), 2);
    atomic_store(&threads_left, 0);
    at_pool_run(&pool, meet, &m, 4, 2, LONG, 0);
    assert_int_equal(pool.num_threads, 0);
    atomic_store(&threads_left, 1 << 20);
    pool.refused_at = 1; /* long ago */
    for (int run = 0; run < 5000 && !m.helpers; run++) at_pool_run(&pool, meet, &m, 16, 2, LONG, 0);
    assert_int_equal(pool.num_threads, 1);
    assert_true(m.helpers > 0);
    at_pool_free(&pool);
}

/* ---- fork ---- */

/* ThreadSanitizer has no threads in a child of a process that had some, and AddressSanitizer's malloc (gcc 12) waits
 * there for locks that vanished threads hold. */
static void a_child_has_a_pool_of_its_own(void **state) {
    (void)state;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    skip();
#endif
    static tally t;
    at_pool pool;
    memset(&t, 0, sizeof t);
    at_pool_init(&pool, at_default_allocator(), 4);
    at_pool_run(&pool, count, &t, TASKS, 4, LONG, 0);
    at_pool_before_fork(&pool);
    const pid_t child = fork();
    at_pool_after_fork(&pool, child == 0);
    if (child == 0) {
        alarm(60);
        if (atomic_load(&pool.num_threads)) _exit(2);
        at_pool_run(&pool, count, &t, TASKS, 4, LONG, 0);
        for (int i = 0; i < TASKS; i++)
            if (atomic_load(&t.done[i]) != 2) _exit(1);
        at_pool_free(&pool);
        _exit(0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    at_pool_run(&pool, count, &t, TASKS, 4, LONG, 0);
    assert_tally(&t, 2);
    at_pool_free(&pool);
}

/* ---- Loops and their helpers ---- */

static atomic_int live;

static void *counted_alloc(void *user, size_t bytes, size_t align) {
    (void)user;
    live++;
    return at_alloc_aligned(NULL, bytes, align);
}

static void counted_free(void *user, void *pointer) {
    (void)user;
    live--;
    at_free(NULL, pointer);
}

static const attune_allocator counted = {counted_alloc, counted_free, NULL};

/* A pool that only records the tasks that it is given. */
typedef struct late_pool {
    attune_task_fn *tasks[WORKERS];
    void *arguments[WORKERS];
    int count, most;
} late_pool;

static int write_down(void *user, attune_task_fn *task, void *argument) {
    late_pool *p = user;
    if (p->count == p->most) return 1;
    p->tasks[p->count] = task;
    p->arguments[p->count++] = argument;
    return 0;
}

static void a_helper_that_is_late_finds_nothing(void **state) {
    (void)state;
    static tally t;
    late_pool late = {.most = 5};
    const at_team team = {.runner = {.submit = write_down, .user = &late}, .allocator = &counted, .max_workers = 8};
    memset(&t, 0, sizeof t);
    at_team_run(&team, count, &t, TASKS, LONG, 0);
    assert_tally(&t, 1);
    assert_int_equal(late.count, 5); /* the sixth was refused, and the seventh not asked for */
    assert_int_equal(live, 1);
    for (int i = 0; i < late.count; i++) late.tasks[i](late.arguments[i]);
    assert_tally(&t, 1);
    assert_int_equal(live, 0);
}

/* The caller returns when the ranges that have begun are finished, and not before. */
typedef struct slow_range {
    atomic_int begun, may_end, ended, by_caller;
} slow_range;

static void slow(void *argument, int64_t begin, int64_t end, uint32_t worker) {
    slow_range *s = argument;
    (void)begin, (void)end;
    if (!worker) {
        for (int i = 0; i < 10000 && !s->begun; i++) pause_shortly();
        s->by_caller++;
        s->may_end = 1;
        return;
    }
    if (s->begun++) return;
    for (int i = 0; i < 10000 && !s->may_end; i++) pause_shortly();
    for (int i = 0; i < 20; i++) pause_shortly(); /* the caller has gone to sleep */
    s->ended = 1;
}

static void begun_ranges_are_waited_for(void **state) {
    (void)state;
    at_pool pool;
    int helped = 0;
    at_pool_init(&pool, at_default_allocator(), 2);
    for (int run = 0; run < 50 && helped < 3; run++) {
        slow_range s = {0};
        pool.alone_until = 0; /* slow helpers are under test */
        at_pool_run(&pool, slow, &s, 2, 2, LONG, 0);
        assert_int_equal(s.ended, s.begun != 0);
        helped += s.ended;
    }
    assert_int_equal(helped, 3);
    at_pool_free(&pool);
}

/* ---- Whether helpers are worth having ---- */

static void sleep_a_task(void *argument, int64_t begin, int64_t end, uint32_t worker) {
    atomic_int *helped = argument;
    usleep((unsigned)(end - begin) * 200);
    if (worker) atomic_fetch_add(helped, 1);
}

static void wait_for_sleepers(at_pool *pool) {
    for (int i = 0; i < 5000 && atomic_load(&pool->sleepers) != atomic_load(&pool->num_threads); i++) pause_shortly();
    assert_int_equal(atomic_load(&pool->sleepers), atomic_load(&pool->num_threads));
}

static void short_runs_wake_nobody(void **state) {
    (void)state;
    at_pool pool;
    atomic_int helped = 0;
    at_pool_init(&pool, at_default_allocator(), 3);
    at_pool_run(&pool, sleep_a_task, &helped, 10, 3, LONG / 2, 0);
    assert_int_equal(atomic_load(&pool.num_threads), 0);
    for (int i = 0; i < 500 && !helped; i++) at_pool_run(&pool, sleep_a_task, &helped, 10, 3, LONG, 0);
    assert_true(helped > 0);
    wait_for_sleepers(&pool);
    usleep(10000); /* long after the last run */
    const int before = helped;
    const uint32_t posted = atomic_load(&pool.posted);
    at_pool_run(&pool, sleep_a_task, &helped, 10, 3, LONG / 2, 0);
    assert_int_equal(helped, before);
    assert_int_equal(atomic_load(&pool.posted), posted);
    /* A call that follows at once wakes them: threads that are awake would still be spinning. The last run ends in the
     * future, because this thread may have to wait for a processor. */
    pool.ended_at = INT64_MAX;
    at_pool_run(&pool, sleep_a_task, &helped, 10, 3, LONG / 2, 0);
    assert_int_not_equal(atomic_load(&pool.posted), posted);
    wait_for_sleepers(&pool);
    const int slept = helped;
    for (int i = 0; i < 500 && helped == slept; i++) at_pool_run(&pool, sleep_a_task, &helped, 10, 3, LONG, 0);
    assert_true(helped > slept);
    at_pool_free(&pool);
}

/* A helper that is away for long in the middle of a range, as on a crowded CPU. */
static void dawdle(void *argument, int64_t begin, int64_t end, uint32_t worker) {
    atomic_int *helped = argument;
    (void)begin, (void)end;
    if (!worker) {
        usleep(1000);
        return;
    }
    atomic_fetch_add(helped, 1);
    usleep(60000);
}

static void after_a_crowd_runs_stay_alone(void **state) {
    (void)state;
    at_pool pool;
    atomic_int helped = 0;
    at_pool_init(&pool, at_default_allocator(), 2);
    /* If this thread has to wait for a processor, the helper may be done first. */
    for (int i = 0; i < 500 && !pool.alone_for; i++) at_pool_run(&pool, dawdle, &helped, 4, 2, LONG, 0);
    assert_true(pool.alone_until > pool.ended_at + 2 * 1000000);
    assert_int_equal(pool.alone_for, 4 * 1000000);
    const int before = helped;
    pool.alone_until = INT64_MAX;
    at_pool_run(&pool, dawdle, &helped, 4, 2, LONG, 0);
    assert_int_equal(helped, before);
    for (int i = 0; i < 500 && pool.alone_for < 8 * 1000000; i++) { /* the next time so soon it is for longer */
        pool.alone_until = at_nanoseconds();
        at_pool_run(&pool, dawdle, &helped, 4, 2, LONG, 0);
    }
    assert_int_equal(pool.alone_for, 8 * 1000000);
    at_pool_free(&pool);
}

/* A job that has all its workers is not offered to other threads, which help elsewhere or sleep. */
static void full_jobs_are_left_alone(void **state) {
    (void)state;
    at_job *job = at_job_new(at_default_allocator(), count, NULL, 100, 2, 0, 0);
    assert_non_null(job);
    assert_true(at_job_wants_help(job));
    atomic_store(&job->workers, 2);
    assert_false(at_job_wants_help(job));
    at_job_help(job);
    assert_int_equal(atomic_load(&job->workers), 2); /* no number is given out, however often threads ask */
    assert_int_equal(atomic_load(&job->parts[0].next), 0);
    at_job_drop(job);
}

/* A thread that claims the last range, a long one, would let all others wait. */
typedef struct ranges {
    int64_t end, longest, last;
    bool gets_longer;
} ranges;

static void note_range(void *argument, int64_t begin, int64_t end, uint32_t worker) {
    ranges *seen = argument;
    (void)worker;
    assert_int_equal(begin, seen->end);
    seen->gets_longer = seen->gets_longer || (begin && end - begin > seen->last);
    seen->last = end - begin;
    if (seen->last > seen->longest) seen->longest = seen->last;
    seen->end = end;
}

static void ranges_get_shorter(void **state) {
    static const struct {
        int64_t n, longest;
        uint32_t workers;
    } cases[] = {{1000, 31, 4}, {1024, 2, 64}, {1000000, 62500, 2}, {20, 1, 64}, {100, 12, 1}};
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        ranges seen = {0};
        at_job *job = at_job_new(at_default_allocator(), note_range, &seen, cases[c].n, cases[c].workers, 0, 0);
        assert_non_null(job);
        at_job_work(job);
        assert_int_equal(seen.end, cases[c].n);
        assert_int_equal(seen.longest, cases[c].longest);
        assert_int_equal(seen.last, 1);
        assert_false(seen.gets_longer);
        at_job_drop(job);
    }
}

/* Where several third caches are, each has a part of the tasks, and whoever comes first does all parts. */
static void count_each(void *argument, int64_t begin, int64_t end, uint32_t worker) {
    atomic_int *times = argument;
    (void)worker;
    for (int64_t i = begin; i < end; i++) atomic_fetch_add(&times[i], 1);
}

static void parts_cover_all_tasks(void **state) {
    enum { MOST = 300 };
    static const struct {
        uint32_t workers, cores, parts;
        int64_t n;
    } cases[] = {{64, 8, 8, 300},  {64, 0, 1, 300}, {8, 8, 1, 300},    {9, 8, 2, 300}, {64, 8, 1, 3},
                 {64, 24, 3, 100}, {64, 1, 64, 64}, {200, 1, 64, 300}, {64, 1, 7, 7},  {2, 1, 2, 3}};
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        atomic_int times[MOST] = {0};
        at_job *job =
            at_job_new(at_default_allocator(), count_each, times, cases[c].n, cases[c].workers, cases[c].cores, 0);
        assert_non_null(job);
        assert_int_equal(job->num_parts, cases[c].parts);
        for (uint32_t i = 0; i < job->num_parts; i++) {
            const int64_t begin = atomic_load(&job->parts[i].next), tasks = job->parts[i].end - begin;
            assert_int_equal(begin, i ? job->parts[i - 1].end : 0);
            assert_true(tasks >= cases[c].n / job->num_parts && tasks <= cases[c].n / job->num_parts + 1);
        }
        assert_int_equal(job->parts[job->num_parts - 1].end, cases[c].n);
        assert_true(at_job_wants_help(job));
        at_job_work(job);
        at_job_wait(job);
        assert_false(at_job_wants_help(job));
        for (int64_t i = 0; i < cases[c].n; i++) assert_int_equal(atomic_load(&times[i]), 1);
        at_job_drop(job);
    }
}

/* The order in which a lone worker gets tasks. */
typedef struct sequence {
    int count;
    int64_t task[400];
} sequence;

static void note_tasks(void *argument, int64_t begin, int64_t end, uint32_t worker) {
    sequence *seen = argument;
    (void)worker;
    for (int64_t i = begin; i < end; i++) seen->task[seen->count++] = i;
}

/* Where tasks fall, a part gives out the first quarter of all its heads, then the second one; each task once. */
static void falling_tasks_go_by_quarters(void **state) {
    static const struct {
        uint32_t workers, cores;
        int64_t n, falling;
    } cases[] = {{64, 8, 396, 44}, {64, 0, 396, 44}, {64, 8, 156, 13}, {7, 2, 30, 3}, {9, 4, 24, 2}, {64, 8, 40, 5}};
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const int64_t falling = cases[c].falling;
        sequence seen = {0};
        int times[400] = {0};
        at_job *job = at_job_new(at_default_allocator(), note_tasks, &seen, cases[c].n, cases[c].workers,
                                 cases[c].cores, falling);
        assert_non_null(job);
        at_job_work(job);
        at_job_wait(job);
        assert_int_equal(seen.count, cases[c].n);
        int jumps = 0; /* to a longer task than the one before: of another head, or another part */
        for (int i = 0; i < seen.count; i++) times[seen.task[i]]++;
        for (int i = 0; i < seen.count; i++) assert_int_equal(times[i], 1);
        for (int i = 1; i < seen.count; i++) {
            const int64_t quarter = (seen.task[i] % falling * 4 + 3) / falling;
            jumps += quarter < (seen.task[i - 1] % falling * 4 + 3) / falling;
        }
        assert_true(jumps < (int)job->num_parts);
        at_job_drop(job);
    }
}

static void parts_are_shared_by_many_threads(void **state) {
    enum { TIMES = 50 };
    static atomic_int times[TASKS];
    at_pool pool;
    (void)state;
    at_pool_init(&pool, at_default_allocator(), 64);
    pool.l3_cores = 4;
    for (int i = 0; i < TIMES; i++) at_pool_run(&pool, count_each, times, TASKS, 64, LONG, 0);
    for (int i = 0; i < TASKS; i++) assert_int_equal(atomic_load(&times[i]), TIMES);
    at_pool_free(&pool);
}

/* The CPUs of the pool's only thread after a run. It looks for the caller's CPU anew. */
static cpu_set_t cpus_after_run(at_pool *pool) {
    cpu_set_t cpus;
    atomic_int times[TASKS] = {0};
    atomic_store(&pool->avoided, -1);
    atomic_store(&pool->avoided_at, 0);
    atomic_store(&pool->alone_until, 0); /* however long the last run waited for its helper */
    do at_pool_run(pool, count_each, times, TASKS, 2, LONG, 0);
    while (!atomic_load(&pool->num_threads));
    assert_int_equal(pthread_getaffinity_np(pool->threads[0], sizeof cpus, &cpus), 0);
    return cpus;
}

static void bind_to(pthread_t thread, int cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    assert_int_equal(pthread_setaffinity_np(thread, sizeof one, &one), 0);
}

/* Threads run where the context was made, not where the first caller is bound, and keep off the caller's CPU. That is
 * on the CPUs of this machine; test_pool_cpus has the rules. */
static void threads_keep_off_the_callers_cpu(void **state) {
    (void)state;
    cpu_set_t all, cpus;
    at_pool pool;
    int first = 0;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    while (!CPU_ISSET(first, &all)) first++;
    at_pool_init(&pool, at_default_allocator(), 2);
    bind_to(pthread_self(), first);
    cpus = cpus_after_run(&pool);
    assert_true(CPU_EQUAL(&cpus, &all) && pool.avoided == -1);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    cpus = cpus_after_run(&pool);
    if (CPU_COUNT(&all) > 1) {
        assert_true(pool.avoided >= 0 && !CPU_ISSET(pool.avoided, &cpus));
        assert_int_equal(CPU_COUNT(&cpus), CPU_COUNT(&all) - 1);
    } else {
        assert_true(CPU_EQUAL(&cpus, &all));
    }
    at_pool_free(&pool);
}

/* Also where that is what the pool would have chosen at another time. */
static void threads_that_somebody_binds_stay_there(void **state) {
    (void)state;
    cpu_set_t all;
    at_pool pool;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    if (CPU_COUNT(&all) < 2) skip();
    at_pool_init(&pool, at_default_allocator(), 2);
    cpus_after_run(&pool);
    const int chosen = pool.avoided;
    bind_to(pool.threads[0], chosen);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all)) continue;
        bind_to(pthread_self(), cpu); /* moves the caller there */
        assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
        const cpu_set_t cpus = cpus_after_run(&pool);
        assert_true(CPU_COUNT(&cpus) == 1 && CPU_ISSET(chosen, &cpus));
    }
    at_pool_free(&pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_of_threads_does),
        cmocka_unit_test(several_callers_share_the_threads),
        cmocka_unit_test(threads_come_late_sleep_and_go),
        cmocka_unit_test(a_refused_thread_is_asked_for_again),
        cmocka_unit_test(a_child_has_a_pool_of_its_own),
        cmocka_unit_test(a_helper_that_is_late_finds_nothing),
        cmocka_unit_test(begun_ranges_are_waited_for),
        cmocka_unit_test(short_runs_wake_nobody),
        cmocka_unit_test(after_a_crowd_runs_stay_alone),
        cmocka_unit_test(full_jobs_are_left_alone),
        cmocka_unit_test(ranges_get_shorter),
        cmocka_unit_test(parts_cover_all_tasks),
        cmocka_unit_test(falling_tasks_go_by_quarters),
        cmocka_unit_test(parts_are_shared_by_many_threads),
        cmocka_unit_test(threads_keep_off_the_callers_cpu),
        cmocka_unit_test(threads_that_somebody_binds_stay_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
