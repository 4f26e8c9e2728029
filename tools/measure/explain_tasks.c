#include "measure/explain_tasks.h"

#include "common/tool.h"

#include <stdlib.h>
#include <time.h>

/* ---- Sharing ---- */

/* As in the library's src/runtime/job.c. */
static int64_t range_of(int64_t count, uint32_t threads) {
    enum { RANGES_PER_WORKER = 8 };
    const int64_t workers = count < threads ? count : threads, range = count / (workers * RANGES_PER_WORKER);
    return range < 1 ? 1 : range;
}

static size_t earliest(const double *free_at, uint32_t threads) {
    size_t first = 0;
    for (size_t t = 1; t < threads; t++)
        if (free_at[t] < free_at[first]) first = t;
    return first;
}

double tasks_idle(const double *lengths, int64_t count, uint32_t threads, double *end) {
    double *const free_at = calloc(threads, sizeof *free_at);
    double all = 0;
    *end = 0;
    if (!free_at || count < 1) {
        free(free_at);
        return 0;
    }
    const int64_t range = range_of(count, threads);
    for (int64_t begin = 0; begin < count; begin += range) {
        const size_t thread = earliest(free_at, threads);
        for (int64_t i = begin; i < count && i < begin + range; i++) {
            free_at[thread] += lengths[i];
            all += lengths[i];
        }
        if (free_at[thread] > *end) *end = free_at[thread];
    }
    free(free_at);
    return *end > 0 ? 1 - all / (*end * threads) : 0;
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

/* One call, task by task. */
static bool time_call(attune_context *context, const attune_kernel *kernel, const attune_arguments *arguments,
                      uint32_t threads, double *const lengths[]) {
    attune_call *call;
    bool good = attune_call_begin(context, kernel, arguments, threads, &call) == ATTUNE_OK;
    if (!good) return false;
    for (uint32_t p = 0; good && p < attune_call_num_phases(call); p++)
        good = time_tasks(call, p, lengths[p], attune_call_num_tasks(call, p));
    return attune_call_end(call) == ATTUNE_OK && good;
}

/* ---- The report ---- */

static void summarise(task_report *r, uint32_t phase, const double *lengths, int64_t tasks, double *all, double *ends) {
    double end, seconds = 0;
    if (!tasks) return;
    for (int64_t i = 0; i < tasks; i++) seconds += lengths[i];
    const double idle = tasks_idle(lengths, tasks, r->threads, &end);
    *all += seconds;
    *ends += end;
    if (phase >= TASKS_PHASES) return;
    r->phases[r->num_phases++] = (phase_tasks){
        .tasks = tasks, .waves = (tasks - 1) / r->threads + 1, .seconds = r->is_measured ? seconds : 0, .idle = idle};
}

static bool fill_report(attune_context *context, const attune_kernel *kernel, const attune_arguments *arguments,
                        task_report *r) {
    enum { TIMES = 5, MOST_PHASES = 64 };
    double *lengths[MOST_PHASES] = {0}, all = 0, ends = 0;
    int64_t tasks[MOST_PHASES] = {0};
    attune_call *call;
    bool good = attune_call_begin(context, kernel, arguments, r->threads, &call) == ATTUNE_OK;
    if (!good) return false;
    const uint32_t phases = attune_call_num_phases(call);
    for (uint32_t p = 0; p < phases && p < MOST_PHASES; p++) {
        tasks[p] = attune_call_num_tasks(call, p);
        lengths[p] = calloc((size_t)tasks[p] + 1, sizeof *lengths[p]);
        good = good && lengths[p];
    }
    attune_call_end(call); /* which says that nothing was executed */
    for (int i = 0; good && r->is_measured && i < TIMES; i++)
        good = time_call(context, kernel, arguments, r->threads, lengths);
    for (uint32_t p = 0; good && p < phases && p < MOST_PHASES; p++) {
        for (int64_t i = 0; !r->is_measured && i < tasks[p]; i++) lengths[p][i] = 1;
        summarise(r, p, lengths[p], tasks[p], &all, &ends);
    }
    r->idle = ends > 0 ? 1 - all / (ends * r->threads) : 0;
    for (uint32_t p = 0; p < phases && p < MOST_PHASES; p++) free(lengths[p]);
    return good;
}

bool tasks_find(attune_context *context, const attune_problem *problem, const attune_schedule *schedule,
                const call_sizes *sizes, uint32_t threads, bool measured, task_report *report) {
    tensors t;
    attune_arguments arguments;
    attune_kernel *kernel = NULL;
    const call_sizes settled = sizes_settled(sizes, problem);
    *report = (task_report){.threads = threads, .is_measured = measured};
    if (!tensors_create_sized(&t, problem, &settled)) return false;
    t.fills_up = true;
    bool good = tensors_fill(&t, INPUT_ORDINARY, 1);
    if (good) {
        tensors_arguments(&t, &arguments);
        good = attune_compile(context, problem, schedule, &kernel) == ATTUNE_OK &&
               fill_report(context, kernel, &arguments, report);
        if (!good) tool_library_error("looking at tasks");
    }
    attune_kernel_release(kernel);
    tensors_free(&t);
    return good;
}
