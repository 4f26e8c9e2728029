/* A claim is one atomic addition to the counter of a part. Ranges are a share of what is left, so all threads end at
 * about the same time; falling tasks are renumbered by quarters, and claims stay as they are. */
#define _GNU_SOURCE
#include "threads/job.h"

#include "host/clock.h"
#include "threads/futex.h"

#include <sched.h>

enum { RANGES_PER_WORKER = 8, MOST_PARTS = 64, MANY_TASKS = 16 /* of a worker */ };
enum { RUNNING, AWAITED, FINISHED };

/* ---- Spinning ---- */

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

bool at_spin_while(_Atomic uint32_t *word, uint32_t seen) {
    enum { LOOKS = 32 }; /* between two looks at the clock */
    const int64_t end = at_nanoseconds() + AT_SPIN_NANOSECONDS;
    do {
        for (int i = 0; i < LOOKS; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != seen) return true;
            relax();
        }
    } while (at_nanoseconds() < end);
    return false;
}

/* ---- Jobs ---- */

/* One part for each last-level cache that the workers fill. */
static uint32_t parts_for(int64_t workers, uint32_t cores) {
    if (!cores || workers <= cores) return 1;
    const int64_t parts = (workers - 1) / cores + 1;
    return parts < MOST_PARTS ? (uint32_t)parts : MOST_PARTS;
}

at_job *at_job_new(const attune_allocator *allocator, attune_range_fn *fn, void *argument, int64_t n,
                   uint32_t max_workers, uint32_t cores, int64_t falling) {
    const int64_t workers = n < max_workers ? n : max_workers;
    const uint32_t parts = parts_for(workers, cores);
    at_job *job = at_alloc_aligned(allocator, sizeof *job + parts * sizeof *job->parts, _Alignof(at_job));
    if (!job) return NULL;
    *job = (at_job){.refs = 1, .allocator = *allocator, .fn = fn, .argument = argument, .n = n};
    job->max_workers = (uint32_t)workers;
    job->num_parts = parts;
    job->cores = cores;
    job->falling = falling > 1 && n / MANY_TASKS < workers ? falling : 0;
    const int64_t usual = n / parts, longer = n % parts; /* these have one task more */
    for (int64_t i = 0, begin = 0; i < parts; i++) {
        atomic_store_explicit(&job->parts[i].next, begin, memory_order_relaxed);
        job->parts[i].begin = begin;
        job->parts[i].end = begin += usual + (i < longer);
    }
    atomic_store_explicit(&job->workers, 1, memory_order_relaxed);
    return job;
}

void at_job_hold(at_job *job) { atomic_fetch_add_explicit(&job->refs, 1, memory_order_relaxed); }

void at_job_drop(at_job *job) {
    if (atomic_fetch_sub_explicit(&job->refs, 1, memory_order_acq_rel) > 1) return;
    const attune_allocator allocator = job->allocator;
    at_free(&allocator, job);
}

/* Tasks of the next range: a part of what is left, so towards the end ever fewer, and threads end together. Other
 * threads may claim some meanwhile, and then it is a little long. */
static int64_t next_range(const at_job *job, const at_job_part *part) {
    const int64_t left = part->end - atomic_load_explicit(&part->next, memory_order_relaxed);
    const int64_t workers = (job->max_workers - 1) / job->num_parts + 1, range = left / (workers * RANGES_PER_WORKER);
    return range < 1 ? 1 : range;
}

/* ---- Falling tasks ---- */

/* A quarter of the tasks of each head: those from the number `from` to before `to`. */
typedef struct quarter {
    int64_t heads, from, to; /* heads: tasks of one */
} quarter;

/* How many tasks of the quarter are before this one. */
static int64_t before(const quarter *q, int64_t task) {
    const int64_t all = q->to - q->from, rest = task % q->heads - q->from;
    return task / q->heads * all + (rest < 0 ? 0 : rest < all ? rest : all);
}

/* Runs those tasks of the quarter that have the numbers from `begin` to before `end` among all of it. */
static void run_of_quarter(const at_job *job, const quarter *q, int64_t begin, int64_t end, uint32_t worker) {
    const int64_t all = q->to - q->from;
    while (begin < end) {
        const int64_t at = begin % all, most = end - begin, run = all - at < most ? all - at : most;
        const int64_t task = begin / all * q->heads + q->from + at;
        job->fn(job->argument, task, task + run, worker);
        begin += run;
    }
}

/* The tasks of a part that are from `begin` to before `end` when it goes by quarters. */
static void run_falling(const at_job *job, const at_job_part *part, int64_t begin, int64_t end, uint32_t worker) {
    enum { QUARTERS = 4 };
    int64_t done = part->begin;
    for (int i = 0; i < QUARTERS; i++) {
        const quarter q = {job->falling, job->falling * i / QUARTERS, job->falling * (i + 1) / QUARTERS};
        const int64_t first = before(&q, part->begin), count = before(&q, part->end) - first;
        const int64_t from = begin > done ? begin : done, to = end < done + count ? end : done + count;
        if (from < to) run_of_quarter(job, &q, first + from - done, first + to - done, worker);
        done += count;
    }
}

/* Claims ranges of a part until none is left. Returns how many tasks these were. */
static int64_t work_on(at_job *job, at_job_part *part, uint32_t worker) {
    int64_t finished = 0;
    for (;;) {
        const int64_t range = next_range(job, part);
        const int64_t begin = atomic_fetch_add_explicit(&part->next, range, memory_order_relaxed);
        if (begin >= part->end) return finished;
        const int64_t end = part->end - begin > range ? begin + range : part->end;
        if (job->falling)
            run_falling(job, part, begin, end, worker);
        else
            job->fn(job->argument, begin, end, worker);
        finished += end - begin;
    }
}

/* The part of the last-level cache of this thread's CPU. Linux gives neighbouring numbers to the CPUs of a cache, and
 * second threads of their cores the numbers after all first ones. A wrong guess costs locality and nothing else. */
static uint32_t part_here(const at_job *job) {
    if (job->num_parts == 1) return 0;
    const int cpu = sched_getcpu();
    return cpu < 0 ? 0 : (uint32_t)cpu / job->cores % job->num_parts;
}

/* Its own part first, then the others. The thread that finishes the last task wakes the caller, if it sleeps. */
static void work(at_job *job, uint32_t worker) {
    const uint32_t first = part_here(job);
    int64_t finished = 0;
    for (uint32_t i = 0; i < job->num_parts; i++)
        finished += work_on(job, &job->parts[(first + i) % job->num_parts], worker);
    if (!finished) return;
    if (atomic_fetch_add_explicit(&job->done, finished, memory_order_acq_rel) + finished < job->n) return;
    if (atomic_exchange_explicit(&job->state, FINISHED, memory_order_acq_rel) == AWAITED) at_futex_wake(&job->state, 1);
}

void at_job_help(at_job *job) {
    if (!at_job_wants_help(job)) return;
    const uint32_t worker = atomic_fetch_add_explicit(&job->workers, 1, memory_order_relaxed);
    if (worker < job->max_workers) work(job, worker);
}

void at_job_work(at_job *job) { work(job, 0); }

void at_job_wait(at_job *job) {
    if (atomic_load_explicit(&job->state, memory_order_acquire) == FINISHED) return;
    if (at_spin_while(&job->state, RUNNING)) return;
    uint32_t running = RUNNING;
    atomic_compare_exchange_strong_explicit(&job->state, &running, AWAITED, memory_order_acq_rel, memory_order_acquire);
    while (atomic_load_explicit(&job->state, memory_order_acquire) != FINISHED) at_futex_wait(&job->state, AWAITED);
}
