/* Ragged batches: sequences of few queries and sequences of many in one call, by a list of work (work.h). */
#include "plan/plan.h"

#include "base/integers.h"
#include "plan/work.h"

/* ---- By one kernel ---- */

/* A function may read the number of the sequence, and the interpreter has no tasks. Such a batch gets one kernel, that
 * for its longest sequence. */
static attune_status run_whole(attune_plan *plan, const attune_arguments *whole, const at_settled *settled,
                               const attune_run_options *options, at_error *err) {
    int64_t longest = 0;
    for (int64_t b = 0; b < whole->batch; b++)
        longest = max_of(longest, (int64_t)whole->cu_seqlens_q[b + 1] - whole->cu_seqlens_q[b]);
    attune_arguments a = *whole;
    attune_kernel *kernel;
    pl_kind kind = pl_kind_of(plan, longest);
    pl_bound_queries(plan, settled, kind, &a);
    if (plan->deadline_us >= 0 ? pl_kernel_for(plan, &kind, &kernel, err) : pl_kernel(plan, kind, &kernel, err))
        return err->status;
    return pl_run_kind(plan, &kind, kernel, &a, options, err);
}

/* ---- By a list ---- */

/* One call. */
typedef struct batch {
    attune_plan *plan;
    const attune_arguments *arguments;
    const at_call *call;
    const at_run_choice *choice;
    double flops;
} batch;

bool pl_have_phases(const pl_choice choices[PL_NUM_KINDS]) {
    for (pl_kind kind = PL_ONE; kind < PL_NUM_KINDS; kind++)
        if (choices[kind].kernel && !at_kernel_has_phases(choices[kind].kernel)) return false;
    return true;
}

static size_t bytes_of_list(const pl_work *work) {
    const size_t bytes = pl_work_most_segments(work) * sizeof(pl_segment);
    return (bytes + AT_WORKSPACE_ALIGN - 1) / AT_WORKSPACE_ALIGN * AT_WORKSPACE_ALIGN;
}

void pl_work_count(const pl_work *work) {
    attune_plan *const plan = work->plan;
    for (uint32_t i = 0; i < work->num_parts; i++) pl_count(plan, work->parts[i].of.kind, work->parts[i].of.kernel);
    if (work->num_parts > 1) atomic_fetch_add_explicit(&plan->cut_calls, 1, memory_order_relaxed);
}

static attune_status run_in(const batch *b, pl_work *work, char *workspace, at_error *err) {
    const bool for_many = at_workers_of(b->choice->team, b->flops) > 1;
    pl_work_list(work, for_many, (pl_segment *)(void *)workspace);
    workspace += bytes_of_list(work);
    if (pl_work_run(work, b->call->buffers, b->choice->team, b->flops, b->choice->cancel, workspace, err))
        return err->status;
    pl_work_count(work);
    return ATTUNE_OK;
}

/* Not inlined: its large struct must not be on the stack while kernels are compiled. */
static __attribute__((noinline)) attune_status run_chosen(const batch *b, const pl_choice choices[PL_NUM_KINDS],
                                                          at_error *err) {
    at_spares *const spares = &b->plan->context->spares;
    pl_work work;
    size_t needed;
    void *workspace = b->call->workspace, *own = NULL;
    if (pl_work_settle(b->plan, b->arguments, b->call->settled, choices, &work, err) ||
        pl_work_bytes(&work, at_workers_of(b->choice->team, b->flops), &needed, err))
        return err->status;
    needed += bytes_of_list(&work);
    if (at_workspace_check(workspace, b->call->workspace_bytes, needed, err)) return err->status;
    if (!workspace) workspace = own = at_spares_take(spares, needed);
    if (!workspace) return at_fail_memory(err, needed);
    run_in(b, &work, workspace, err);
    if (own) at_spares_give(spares, own);
    return err->status;
}

attune_status pl_run_ragged(attune_plan *plan, const attune_arguments *arguments, const attune_run_options *options,
                            at_error *err) {
    at_call call;
    at_run_choice choice;
    pl_choice choices[PL_NUM_KINDS];
    if (at_run_choose(plan->context, options, &choice, err) ||
        at_call_make(&plan->signature, NULL, arguments, &call, err) ||
        at_call_check(plan->context, &plan->signature, &call, err))
        return err->status;
    if (call.settled->is_empty) return ATTUNE_OK;
    if (!plan->may_cut) return run_whole(plan, arguments, call.settled, options, err);
    const double flops = at_work_of(call.settled->flops, plan->context->target);
    const batch b = {plan, arguments, &call, &choice, flops};
    /* A workspace that was sized for the previous kernels may be too small for better ones. */
    for (int before = 0; before <= PL_NUM_BEFORE; before++) {
        at_error_clear(err);
        if (pl_work_choose(plan, arguments, 0, false, before, choices, err)) return err->status;
        if (!pl_have_phases(choices)) return run_whole(plan, arguments, call.settled, options, err);
        if (run_chosen(&b, choices, err) != ATTUNE_WORKSPACE_TOO_SMALL) return err->status;
    }
    return err->status;
}

/* ---- Workspace ---- */

static __attribute__((noinline)) attune_status bytes_of(attune_plan *plan, const attune_arguments *arguments,
                                                        const at_settled *settled, const at_run_choice *choice,
                                                        const pl_choice choices[PL_NUM_KINDS], size_t *bytes,
                                                        at_error *err) {
    pl_work work;
    const uint32_t workers = at_workers_of(choice->team, at_work_of(settled->flops, plan->context->target));
    if (pl_work_settle(plan, arguments, settled, choices, &work, err) || pl_work_bytes(&work, workers, bytes, err))
        return err->status;
    *bytes += bytes_of_list(&work);
    return ATTUNE_OK;
}

/* The size for the largest of the kernels; a batch that runs as a whole uses one of them. */
static attune_status bytes_of_any(attune_plan *plan, const attune_arguments *arguments, const at_settled *settled,
                                  const attune_run_options *options, const pl_choice choices[PL_NUM_KINDS],
                                  size_t *bytes, at_error *err) {
    for (pl_kind kind = PL_ONE; kind < PL_NUM_KINDS; kind++) {
        if (!choices[kind].kernel) continue;
        attune_arguments a = *arguments;
        size_t needed;
        pl_bound_queries(plan, settled, choices[kind].kind, &a);
        if (pl_kernel_workspace(plan, choices[kind].kernel, &a, options, &needed, err)) return err->status;
        if (needed > *bytes) *bytes = needed;
    }
    return ATTUNE_OK;
}

attune_status pl_ragged_workspace(attune_plan *plan, const attune_arguments *arguments,
                                  const attune_run_options *options, size_t *bytes, at_error *err) {
    at_settled settled;
    at_run_choice choice;
    pl_choice choices[PL_NUM_KINDS];
    *bytes = 0;
    if (at_run_choose(plan->context, options, &choice, err) ||
        at_call_settle(&plan->signature, arguments, &settled, err) ||
        pl_work_choose(plan, arguments, settled.sizes.of[MHA_SEQ_KV], true, 0, choices, err))
        return err->status;
    if (plan->may_cut && pl_have_phases(choices))
        return bytes_of(plan, arguments, &settled, &choice, choices, bytes, err);
    return bytes_of_any(plan, arguments, &settled, options, choices, bytes, err);
}
