/* One call of a kernel. Its phases run one after the other; the tasks of a phase are divided among the threads of the
 * team (or of the caller's runner), each with scratch of its own. After each phase it is checked that all tasks ran: a
 * runner may be wrong, and a call may be cancelled.
 *
 *     workspace | shared buffers | scratch of worker 0 | of worker 1 | ... |
 */
#include "engine/kernel.h"

#include "ir/interp.h"

#include <stdatomic.h>
#include <string.h>

/* ---- Phases ---- */

static bool is_cancelled(at_phase_job *job) {
    if (!__atomic_load_n(job->cancel, __ATOMIC_RELAXED)) return false;
    atomic_store_explicit(&job->was_cancelled, true, memory_order_relaxed);
    return true;
}

/* Runs task by task: the tasks are not a prefix of all, or the call may be cancelled between two. Returns how many ran.
 */
static int64_t run_singly(at_phase_job *job, int64_t begin, int64_t end, char *scratch) {
    for (int64_t i = begin; i < end; i++) {
        if (job->cancel && is_cancelled(job)) return i - begin;
        const int64_t task = job->part ? at_part_task(job->part, i) : i;
        at_kernel_phase_run(job->phase, job->buffers, job->scalars, task, task + 1, scratch);
    }
    return end - begin;
}

void at_phase_run_range(void *argument, int64_t begin, int64_t end, uint32_t worker) {
    at_phase_job *job = argument;
    if (worker >= job->max_workers) {
        atomic_store(&job->bad_worker, worker);
        return;
    }
    if (begin < 0 || end < begin || end > job->tasks) {
        atomic_store(&job->has_bad_range, true);
        return;
    }
    char *scratch = job->scratch + worker * job->scratch_stride;
    int64_t done = end - begin;
    if (job->part || job->cancel)
        done = run_singly(job, begin, end, scratch);
    else
        at_kernel_phase_run(job->phase, job->buffers, job->scalars, begin, end, scratch);
    if (job->counts) atomic_fetch_add_explicit(&job->done, done, memory_order_release);
}

/* Reports a mistake of the runner or a cancelled call, after a phase. */
static attune_status judge(const at_phase_job *job, uint32_t phase, int64_t tasks, at_error *err) {
    const int64_t done = job->counts ? atomic_load_explicit(&job->done, memory_order_acquire) : tasks;
    const uint32_t bad_worker = atomic_load(&job->bad_worker);
    if (bad_worker)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the runner passed worker %u; max_workers is %u", bad_worker,
                       job->max_workers);
    if (atomic_load(&job->has_bad_range))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "the runner passed a range that is not within the %lld tasks of phase %u", (long long)tasks,
                       phase);
    if (atomic_load(&job->was_cancelled))
        return at_fail(err, ATTUNE_CANCELLED, "the call was cancelled after %lld of the %lld tasks of phase %u",
                       (long long)done, (long long)tasks, phase);
    if (done == tasks) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the runner ran %lld of the %lld tasks of phase %u", (long long)done,
                   (long long)tasks, phase);
}

/* buffers: the parameters, then the shared buffers. */
static attune_status run_phases(const attune_kernel *kernel, const at_run *run, void *const *buffers,
                                const int64_t *plan, char *scratch, at_error *err) {
    const at_run_part *part = run->part;
    const uint32_t begin = part ? part->begin : 0, end = part ? part->end : kernel->num_phases;
    at_phase_job job = {.buffers = buffers,
                        .scalars = run->scalars,
                        .part = part && part->count ? part : NULL,
                        .cancel = run->cancel,
                        .counts = run->cancel || run->team->runner.parallel_for,
                        .scratch = scratch,
                        .scratch_stride = (size_t)kernel->max_scratch,
                        .max_workers = run->team->max_workers};
    for (uint32_t p = begin; p < end; p++) {
        const int64_t tasks = job.part ? part->count : plan[p];
        if (tasks <= 0) continue;
        job.phase = &kernel->phases[p];
        job.tasks = tasks;
        atomic_store_explicit(&job.done, 0, memory_order_relaxed);
        const bool falls = run->heads && !job.part && tasks % run->heads == 0;
        at_team_run(run->team, at_phase_run_range, &job, tasks, run->work, falls ? tasks / run->heads : 0);
        const attune_status status = judge(&job, p, tasks, err);
        if (status) return status;
    }
    return ATTUNE_OK;
}

static attune_status run_in(const attune_context *context, const attune_kernel *kernel, const at_run *run,
                            const int64_t *plan, char *workspace, at_error *err) {
    enum { FEW = 52 };
    _Static_assert((int)FEW >= (int)MHA_NUM_TENSORS, "no call of a problem allocates here");
    const size_t num = run->num_buffers;
    void *few[FEW + AT_MAX_SHARED], **all = few;
    if (!kernel->num_shared && !kernel->tier0) return run_phases(kernel, run, run->buffers, plan, workspace, err);
    if (num > FEW) all = at_alloc(&context->allocator, (num + AT_MAX_SHARED) * sizeof *all);
    if (!all) return at_fail_memory(err, (num + AT_MAX_SHARED) * sizeof *all);
    const size_t offset = at_kernel_buffers(kernel, &(at_given){run->buffers, num, run->scalars}, plan, workspace, all);
    if (run->mask_tiles) all[num + AT_MASK_SHARED] = run->mask_tiles;
    const attune_status status = run_phases(kernel, run, all, plan, workspace + offset, err);
    if (all != few) at_free(&context->allocator, all);
    return status;
}

attune_status at_run_machine_code(attune_context *context, const attune_kernel *kernel, const at_run *run,
                                  at_error *err) {
    int64_t plan[AT_PLAN_WORDS];
    size_t needed;
    attune_status status =
        at_plan_workspace(kernel, at_workers_of(run->team, run->work), run->scalars, plan, &needed, err);
    if (status) return status;
    void *workspace = run->workspace, *own = NULL;
    status = at_workspace_check(workspace, run->workspace_bytes, needed, err);
    if (status) return status;
    if (!workspace && needed) {
        workspace = own = at_spares_take(&context->spares, needed);
        if (!own) return at_fail_memory(err, needed);
    }
    status = run_in(context, kernel, run, plan, workspace, err);
    if (own) at_spares_give(&context->spares, own);
    return status;
}

attune_status at_run_interpreter(const attune_context *context, const ir_kernel *kernel, void *const *buffers,
                                 const int64_t *scalars, at_error *err) {
    const ir_interp_options options = {.shuffle_seed = 1, .allocator = &context->allocator};
    return ir_interpret(kernel, buffers, scalars, &options, err);
}
