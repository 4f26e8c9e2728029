/* Plays the library's sharing of tasks through with the length of each task, and says when each thread would be
 * done. */
#include "explain/explain_tasks.h"

#include "common/tool.h"
#include "schedule_fields.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- Sharing ---- */

enum { MOST_PARTS = 64 };

/* Tasks that the threads of one third cache take first: those from `next` to before `end` are left. */
typedef struct task_part {
    int64_t next, end;
} task_part;

/* The tasks of a phase as the library's src/threads/job.c keeps them. */
typedef struct task_pool {
    uint32_t threads, cores, num_parts; /* cores: that share a third cache; 0: all */
    int64_t workers;
    task_part parts[MOST_PARTS];
} task_pool;

static task_pool pool_of(int64_t count, uint32_t threads, uint32_t cores) {
    task_pool pool = {.threads = threads, .cores = cores, .workers = count < threads ? count : threads};
    const int64_t caches = cores ? (pool.workers + cores - 1) / cores : 1;
    pool.num_parts = (uint32_t)(caches < MOST_PARTS ? caches : MOST_PARTS);
    int64_t begin = 0;
    for (uint32_t i = 0; i < pool.num_parts; i++) {
        pool.parts[i].next = begin;
        pool.parts[i].end = begin += count / pool.num_parts + (i < count % pool.num_parts);
    }
    return pool;
}

/* The part that a thread takes its next range from: that of its cache, or the next one that has tasks; NULL: none. */
static task_part *part_for(task_pool *pool, size_t thread) {
    const size_t own = pool->cores ? thread / pool->cores : 0;
    for (uint32_t i = 0; i < pool->num_parts; i++) {
        task_part *part = &pool->parts[(own + i) % pool->num_parts];
        if (part->next < part->end) return part;
    }
    return NULL;
}

static int64_t range_of(const task_pool *pool, const task_part *part) {
    enum { RANGES_PER_WORKER = 8 };
    const int64_t workers = (pool->workers - 1) / pool->num_parts + 1;
    const int64_t range = (part->end - part->next) / (workers * RANGES_PER_WORKER);
    return range < 1 ? 1 : range;
}

static size_t earliest(const double *free_at, int64_t threads) {
    size_t first = 0;
    for (size_t t = 1; t < (size_t)threads; t++)
        if (free_at[t] < free_at[first]) first = t;
    return first;
}

/* The tasks in the order in which parts give them out. */
static void put_in_order(const double *lengths, const task_pool *pool, int64_t falling, double *ordered) {
    enum { MANY_TASKS = 16, QUARTERS = 4 };
    const int64_t count = pool->parts[pool->num_parts - 1].end;
    const bool by_quarters = falling > 1 && count / MANY_TASKS < pool->workers;
    int64_t next = 0;
    for (uint32_t p = 0; p < pool->num_parts; p++)
        for (int64_t q = 0; q < (by_quarters ? QUARTERS : 1); q++)
            for (int64_t i = pool->parts[p].next; i < pool->parts[p].end; i++) {
                const int64_t at = by_quarters ? i % falling : 0;
                const bool is_later = by_quarters && at >= falling * (q + 1) / QUARTERS;
                if (!is_later && (!by_quarters || at >= falling * q / QUARTERS)) ordered[next++] = lengths[i];
            }
}

/* How threads share tasks. */
typedef struct task_shares {
    int64_t most; /* tasks of the thread that gets most of them */
    double end;   /* when the last one is done */
    double idle;  /* the share of the threads' time until then in which they have nothing to do */
} task_shares;

/* Hands the ranges out one by one. free_at and taken: zeros, of each thread. */
static task_shares hand_out(const double *lengths, task_pool *pool, double *free_at, int64_t *taken) {
    task_shares shares = {0};
    double all = 0;
    for (;;) {
        const size_t thread = earliest(free_at, pool->workers);
        task_part *part = part_for(pool, thread);
        if (!part) break;
        for (int64_t left = range_of(pool, part); left > 0; left--, part->next++, taken[thread]++) {
            free_at[thread] += lengths[part->next];
            all += lengths[part->next];
        }
        if (free_at[thread] > shares.end) shares.end = free_at[thread];
        if (taken[thread] > shares.most) shares.most = taken[thread];
    }
    shares.idle = shares.end > 0 ? 1 - all / (shares.end * pool->threads) : 0;
    return shares;
}

/* `threads` take tasks of these lengths as attune's pool hands them out: in ranges, in their order, those of a part for
 * each third cache first, which `cores` of them share (0: all); and by quarters, where a head has `falling` tasks, each
 * shorter than the one before (0: they are alike). */
static task_shares share(const double *lengths, int64_t count, uint32_t threads, uint32_t cores, int64_t falling) {
    task_shares shares = {0};
    double *const free_at = calloc(threads, sizeof *free_at);
    int64_t *const taken = calloc(threads, sizeof *taken);
    double *const ordered = calloc((size_t)count + 1, sizeof *ordered);
    if (free_at && taken && ordered && count > 0) {
        task_pool pool = pool_of(count, threads, cores);
        put_in_order(lengths, &pool, falling, ordered);
        shares = hand_out(ordered, &pool, free_at, taken);
    }
    free(ordered);
    free(free_at);
    free(taken);
    return shares;
}

/* Cores that share a third cache, by the description of the machine; 0: all. */
static uint32_t cores_of_cache(const attune_context *context) {
    static const char name[] = "l3_cores=";
    attune_machine_info info = {.struct_size = sizeof info};
    if (attune_get_machine_info(context, &info) != ATTUNE_OK) return 0;
    const char *at = strstr(info.machine_description, name);
    return at ? (uint32_t)strtoul(at + strlen(name), NULL, 10) : 0;
}

/* ---- Measuring ---- */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Runs each task of the phase; keeps the shortest time that it has had. */
static bool time_tasks(attune_call *call, uint32_t phase, double *lengths, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const double begun = now();
        if (attune_call_execute(call, phase, i, i + 1, 0) != ATTUNE_OK) return false;
        const double taken = now() - begun;
        if (lengths[i] <= 0 || taken < lengths[i]) lengths[i] = taken;
    }
    return true;
}

/* The tasks of a phase. */
typedef struct task_times {
    int64_t count;
    double *lengths;
} task_times;

/* One call, task by task. */
static bool time_call(attune_context *context, const attune_kernel *kernel, const attune_arguments *arguments,
                      uint32_t threads, const task_times *times) {
    attune_call *call;
    bool good = attune_call_begin(context, kernel, arguments, threads, &call) == ATTUNE_OK;
    if (!good) return false;
    for (uint32_t p = 0; good && p < attune_call_num_phases(call); p++)
        good = time_tasks(call, p, times[p].lengths, times[p].count);
    return attune_call_end(call) == ATTUNE_OK && good;
}

/* ---- The report ---- */

static void summarise(task_report *r, const task_times *phase, double *all, double *ends) {
    double seconds = 0;
    if (!phase->count) return;
    for (int64_t i = 0; i < phase->count; i++) seconds += phase->lengths[i];
    const int64_t falling = r->heads && phase->count % r->heads == 0 ? phase->count / r->heads : 0;
    const task_shares shares = share(phase->lengths, phase->count, r->threads, r->cores, falling);
    *all += seconds;
    *ends += shares.end;
    if (r->num_phases < TASKS_PHASES)
        r->phases[r->num_phases] = (phase_tasks){
            .tasks = phase->count, .most = shares.most, .seconds = r->is_measured ? seconds : 0, .idle = shares.idle};
    r->num_phases++;
}

static bool count_tasks(const attune_call *call, uint32_t phases, task_times *times) {
    for (uint32_t p = 0; p < phases; p++) {
        times[p].count = attune_call_num_tasks(call, p);
        times[p].lengths = calloc((size_t)times[p].count + 1, sizeof *times[p].lengths);
        if (!times[p].lengths) return false;
    }
    return true;
}

static void fill_report(task_report *r, uint32_t phases, task_times *times) {
    double all = 0, ends = 0;
    for (uint32_t p = 0; p < phases; p++) {
        for (int64_t i = 0; !r->is_measured && i < times[p].count; i++) times[p].lengths[i] = 1;
        summarise(r, &times[p], &all, &ends);
    }
    r->has_idle = ends > 0 && (r->is_measured || r->num_phases == 1);
    r->idle = r->has_idle ? 1 - all / (ends * r->threads) : 0;
    if (r->num_phases > TASKS_PHASES) r->num_phases = TASKS_PHASES;
}

static bool look_at_call(attune_context *context, const attune_kernel *kernel, const attune_arguments *arguments,
                         task_report *r) {
    enum { TIMES = 5 };
    attune_call *call;
    if (attune_call_begin(context, kernel, arguments, r->threads, &call) != ATTUNE_OK) return false;
    const uint32_t phases = attune_call_num_phases(call);
    task_times *const times = calloc((size_t)phases + 1, sizeof *times);
    bool good = times && count_tasks(call, phases, times);
    attune_call_end(call); /* which says that nothing was executed */
    for (int i = 0; good && r->is_measured && i < TIMES; i++)
        good = time_call(context, kernel, arguments, r->threads, times);
    if (good) fill_report(r, phases, times);
    for (uint32_t p = 0; times && p < phases; p++) free(times[p].lengths);
    free(times);
    return good;
}

/* Tasks of a head become shorter under causality if a task has rows of one head; the library decides it the same way.
 */
static int64_t falling_heads(const attune_problem *problem, const attune_kernel *kernel) {
    attune_problem p = *problem;
    attune_kernel_info info = {.struct_size = sizeof info};
    problem_fill_defaults(&p);
    mha_schedule schedule = {0};
    if (attune_kernel_get_info(kernel, &info) != ATTUNE_OK || mha_schedule_parse(info.schedule, &schedule, NULL) ||
        schedule.strategy != MHA_Q_LANES)
        return 0;
    return p.op == ATTUNE_ATTENTION && p.is_causal ? p.batch * p.num_kv_heads : 0;
}

bool tasks_find(attune_context *context, const attune_problem *problem, const char *schedule, const call_sizes *sizes,
                uint32_t threads, bool measured, task_report *report) {
    tensors t;
    attune_arguments arguments;
    attune_kernel *kernel = NULL;
    const call_sizes settled = sizes_settled(sizes, problem);
    *report = (task_report){.threads = threads, .cores = cores_of_cache(context), .is_measured = measured};
    /* The library looks at the head of packed weights when a call begins. */
    const bool is_unread = !measured && problem->op != ATTUNE_MHA && !problem->embed_dim;
    if (!(is_unread ? tensors_create_unread(&t, problem, &settled) : tensors_create_sized(&t, problem, &settled)))
        return false;
    t.fills_up = true;
    bool good = tensors_fill(&t, INPUT_ORDINARY, 1);
    if (good) {
        tensors_arguments(&t, &arguments);
        good = attune_compile(context, problem, schedule, &kernel) == ATTUNE_OK;
        if (good) report->heads = falling_heads(problem, kernel);
        good = good && look_at_call(context, kernel, &arguments, report);
        if (!good) tool_library_error("looking at tasks");
    }
    attune_kernel_release(kernel);
    tensors_free(&t);
    return good;
}
