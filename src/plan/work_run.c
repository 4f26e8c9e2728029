/* Running a list of work: each stage is a parallel loop whose threads claim tasks of the list, one after the other. */
#include "plan/work.h"

#include <stdatomic.h>
#include <string.h>

typedef struct list_run {
    const pl_work *work;
    void *buffers[PL_NUM_KINDS][AT_MOST_BUFFERS]; /* of each part: tensors, then its shared buffers */
    char *scratch;
    size_t scratch_stride;
    uint32_t max_workers;
    const int *cancel;
    const pl_segment *first; /* of the stage */
    int64_t tasks;           /* of the stage */
    int64_t slots;           /* of the loop over threads */
    _Atomic uint32_t bad_worker;
    _Atomic bool was_cancelled, has_bad_range;
    _Atomic int64_t slots_done;
    _Alignas(64) _Atomic int64_t next; /* the first task that is not claimed */
    _Alignas(64) _Atomic int64_t done;
} list_run;

static bool is_cancelled(list_run *run) {
    if (!run->cancel || !__atomic_load_n(run->cancel, __ATOMIC_RELAXED)) return false;
    atomic_store_explicit(&run->was_cancelled, true, memory_order_relaxed);
    return true;
}

/* Tasks `from` to before `to` of a segment, counted from its own first one. Returns how many were run. */
static int64_t run_tasks(list_run *run, const pl_segment *s, int64_t from, int64_t to, char *scratch) {
    const pl_part *const part = &run->work->parts[s->part];
    const at_kernel_phase *const phase = &part->of.kernel->phases[s->phase];
    void *const *const buffers = run->buffers[s->part];
    for (int64_t at = from; at < to;) {
        const int64_t in_run = at % s->run;
        int64_t count = s->run == s->leap ? to - at : s->run - in_run;
        if (count > to - at) count = to - at;
        if (is_cancelled(run)) return at - from;
        if (run->cancel) count = 1;
        const int64_t task = s->first + at / s->run * s->leap + in_run;
        at_kernel_phase_run(phase, buffers, part->settled.scalars, task, task + count, scratch);
        at += count;
    }
    return to - from;
}

/* Claims tasks until there are none. */
static void work_on(list_run *run, uint32_t worker) {
    char *const scratch = run->scratch + worker * run->scratch_stride;
    const pl_segment *segment = run->first;
    int64_t task = atomic_load_explicit(&run->next, memory_order_relaxed), finished = 0;
    while (task < run->tasks && !is_cancelled(run)) {
        segment = pl_segment_at(segment, task);
        const int64_t count = pl_tasks_at_once(segment, task, run->max_workers);
        if (!atomic_compare_exchange_weak_explicit(&run->next, &task, task + count, memory_order_relaxed,
                                                   memory_order_relaxed))
            continue;
        finished += run_tasks(run, segment, task - segment->begin, task - segment->begin + count, scratch);
        task = atomic_load_explicit(&run->next, memory_order_relaxed);
    }
    atomic_fetch_add_explicit(&run->done, finished, memory_order_release);
}

/* One range of the loop over threads. Every range takes tasks from the whole list. So it does not matter how the host
 * cuts the loop, and a thread that never starts is not missed. */
static void run_range(void *argument, int64_t begin, int64_t end, uint32_t worker) {
    list_run *const run = argument;
    if (worker >= run->max_workers) {
        atomic_store(&run->bad_worker, worker);
    } else if (begin < 0 || end < begin || end > run->slots) {
        atomic_store(&run->has_bad_range, true);
    } else if (begin < end) {
        work_on(run, worker);
        atomic_fetch_add_explicit(&run->slots_done, end - begin, memory_order_release);
    }
}

static attune_status judge(const list_run *run, uint32_t stage, at_error *err) {
    const int64_t done = atomic_load_explicit(&run->done, memory_order_acquire);
    const uint32_t bad_worker = atomic_load(&run->bad_worker);
    if (bad_worker)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the runner passed worker %u; max_workers is %u", bad_worker,
                       run->max_workers);
    if (atomic_load(&run->was_cancelled))
        return at_fail(err, ATTUNE_CANCELLED, "the call was cancelled after %lld of the %lld tasks of phase %u",
                       (long long)done, (long long)run->tasks, stage);
    if (atomic_load(&run->has_bad_range))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the runner passed a range beyond the %lld of its loop",
                       (long long)run->slots);
    const int64_t slots = atomic_load_explicit(&run->slots_done, memory_order_acquire);
    if (done == run->tasks && slots == run->slots) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the runner ran %lld of the %lld of its loop over phase %u",
                   (long long)slots, (long long)run->slots, stage);
}

/* Shared buffers of all parts, then the scratch of each worker. */
static void place(list_run *run, void *const *buffers, char *workspace) {
    const pl_work *const work = run->work;
    const size_t count = work->plan->signature.count;
    for (uint32_t i = 0; i < work->num_parts; i++) {
        const attune_kernel *const kernel = work->parts[i].of.kernel;
        const at_given given = {buffers, count, work->parts[i].settled.scalars};
        workspace += at_kernel_buffers(kernel, &given, work->parts[i].plan, workspace, run->buffers[i]);
        if (kernel->max_scratch > run->scratch_stride) run->scratch_stride = (size_t)kernel->max_scratch;
    }
    run->scratch = workspace;
}

attune_status pl_work_run(const pl_work *work, void *const *buffers, const at_team *team, double flops,
                          const int *cancel, void *workspace, at_error *err) {
    list_run run = {.work = work, .cancel = cancel, .max_workers = at_workers_of(team, flops)};
    double all = 0;
    place(&run, buffers, workspace);
    for (uint32_t stage = 0; stage < work->num_stages; stage++) all += pl_stage_cost(work, stage);
    for (uint32_t stage = 0; stage < work->num_stages; stage++) {
        run.first = work->segments + work->stage_begin[stage];
        run.tasks = pl_stage_tasks(work, stage);
        if (!run.tasks) continue;
        atomic_store_explicit(&run.next, 0, memory_order_relaxed);
        atomic_store_explicit(&run.done, 0, memory_order_relaxed);
        atomic_store_explicit(&run.slots_done, 0, memory_order_relaxed);
        run.slots = run.tasks < run.max_workers ? run.tasks : run.max_workers;
        /* Appending a few rows or merging a few chunks takes less time than waking a thread. */
        at_team_run(team, run_range, &run, run.slots, flops * pl_stage_cost(work, stage) / all, 0);
        if (judge(&run, stage, err)) return err->status;
    }
    return ATTUNE_OK;
}
