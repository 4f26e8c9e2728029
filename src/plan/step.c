/* The list of work of a step, made once for all layers that run it. */
#include "base/integers.h"
#include "plan/work.h"

#include <string.h>

struct pl_step {
    attune_arguments arguments; /* of the first run; longest lengths are set */
    at_layout layout;
    pl_work one, many; /* the same parts, in the order for one thread and for several */
    _Alignas(64) pl_segment segments[];
};

/* The longest lengths, so that a call's sizes are known without its lists. */
static void set_longest(const attune_plan *plan, const pl_choice choices[PL_NUM_KINDS], attune_arguments *a) {
    int64_t queries = 0, keys = 0;
    for (pl_kind kind = PL_ONE; kind < PL_NUM_KINDS; kind++) {
        queries = max_of(queries, choices[kind].queries);
        keys = max_of(keys, choices[kind].keys);
    }
    if (plan->is_open[PL_SEQ_Q] && a->seq_q == ATTUNE_NOT_SET) a->seq_q = queries;
    if (plan->is_open[PL_SEQ_KV] && a->seq_kv == ATTUNE_NOT_SET) a->seq_kv = keys;
}

static attune_status fill(pl_step *step, attune_plan *plan, const attune_arguments *given,
                          const pl_choice choices[PL_NUM_KINDS], at_error *err) {
    step->arguments = *given;
    if (pl_work_settle(plan, &step->arguments, &step->layout.settled, choices, &step->one, err)) return err->status;
    step->many = step->one;
    pl_work_list(&step->one, false, step->segments);
    pl_work_list(&step->many, true, step->segments + pl_work_most_segments(&step->one));
    return ATTUNE_OK;
}

attune_status pl_step_create(attune_plan *plan, const attune_arguments *given, pl_step **out, at_error *err) {
    const at_signature *const s = &plan->signature;
    const attune_allocator *const allocator = &plan->context->allocator;
    pl_choice choices[PL_NUM_KINDS];
    *out = NULL;
    if (!s->problem.is_ragged || !plan->may_cut || s->place[MHA_CAUSAL_OFFSETS] >= 0) return ATTUNE_OK;
    /* A run may have fewer angles than the step plan assumed. */
    if (s->parameters.has[MHA_ROTARY_POSITIONS] && pl_check_lengths(plan, given, err)) return err->status;
    if (pl_work_choose(plan, given, 0, false, 0, choices, err)) return err->status;
    if (!pl_have_phases(choices)) return ATTUNE_OK;
    /* Every kernel may have as many phases as there may be. */
    uint32_t stages = 0;
    for (pl_kind kind = PL_ONE; kind < PL_NUM_KINDS; kind++)
        if (choices[kind].kernel) stages = (uint32_t)max_of(stages, choices[kind].kernel->num_phases);
    const pl_work like = {.arguments = given, .num_stages = stages};
    const size_t bytes = sizeof(pl_step) + 2 * pl_work_most_segments(&like) * sizeof(pl_segment);
    pl_step *const step = at_alloc_aligned(allocator, bytes, 64);
    if (!step) return at_fail_memory(err, bytes);
    memset(step, 0, sizeof *step);
    step->layout.arguments = *given;
    set_longest(plan, choices, &step->layout.arguments);
    at_layout_settle(s, &step->layout);
    step->layout.has_tables = true;
    if (step->layout.is_settled && !fill(step, plan, given, choices, err)) {
        *out = step;
        return ATTUNE_OK;
    }
    at_free(allocator, step);
    return err->status;
}

void pl_step_destroy(pl_step *step) {
    if (step) at_free(&step->one.plan->context->allocator, step);
}

/* ---- Runs ---- */

static double flops_of(const pl_step *step) {
    return at_work_of(step->layout.settled.flops, step->one.plan->context->target);
}

static attune_status run(const pl_step *step, const at_call *call, const at_run_choice *choice, at_error *err) {
    at_spares *const spares = &step->one.plan->context->spares;
    const double flops = flops_of(step);
    const uint32_t workers = at_workers_of(choice->team, flops);
    const pl_work *const work = workers > 1 ? &step->many : &step->one;
    void *workspace = call->workspace, *own = NULL;
    size_t needed;
    if (pl_work_bytes(work, workers, &needed, err) || at_workspace_check(workspace, call->workspace_bytes, needed, err))
        return err->status;
    if (!workspace && needed) {
        workspace = own = at_spares_take(spares, needed);
        if (!own) return at_fail_memory(err, needed);
    }
    if (!pl_work_run(work, call->buffers, choice->team, flops, choice->cancel, workspace, err)) pl_work_count(work);
    if (own) at_spares_give(spares, own);
    return err->status;
}

attune_status pl_step_run(const pl_step *step, const attune_arguments *arguments, const attune_run_options *options,
                          bool *fits, at_error *err) {
    const attune_plan *const plan = step->one.plan;
    attune_arguments a = *arguments;
    at_call call;
    at_run_choice choice;
    a.seq_q = step->layout.arguments.seq_q;
    a.seq_kv = step->layout.arguments.seq_kv;
    *fits = false;
    if (at_run_choose(plan->context, options, &choice, err) ||
        at_call_make(&plan->signature, &step->layout, &a, &call, err))
        return err->status;
    if (call.settled != &step->layout.settled) return ATTUNE_OK;
    *fits = true;
    if (at_call_check(plan->context, &plan->signature, &call, err)) return err->status;
    return call.settled->is_empty ? ATTUNE_OK : run(step, &call, &choice, err);
}

attune_status pl_step_workspace(const pl_step *step, const attune_run_options *options, size_t *bytes, at_error *err) {
    at_run_choice choice;
    if (at_run_choose(step->one.plan->context, options, &choice, err)) return err->status;
    return pl_work_bytes(&step->one, at_workers_of(choice.team, flops_of(step)), bytes, err);
}
