/* The kernels of a plan by the number of queries. */
#include "plan/plan.h"

#include "problem/problem.h"
#include "schedule/schedule.h"

/* Whether d-lanes, the strategy for few rows, is chosen for up to so many queries. Where only the run knows the number
 * of keys, it is that of a usual length: with more keys d-lanes would be as good for more rows, with fewer keys it
 * would be worse for these. */
static bool is_few(const attune_plan *plan, int64_t queries) {
    enum { USUAL_KEYS = 512 };
    attune_problem p = plan->signature.problem;
    attune_schedule schedule;
    p.seq_q = ATTUNE_DYNAMIC;
    p.max_seq_q = queries;
    if (p.seq_kv == ATTUNE_DYNAMIC && !p.max_seq_kv) p.max_seq_kv = USUAL_KEYS;
    mha_choose(&p, plan->context->target, &plan->context->machine_class.description, &schedule);
    return schedule.strategy == ATTUNE_D_LANES;
}

/* A kernel for a few queries has tiles of as many rows as it may get. They fit a call of one query as well, unless that
 * has fewer rows than such a tile. */
enum { ROWS_OF_TILE = 4 };

void pl_settle_kinds(attune_plan *plan) {
    enum { MOST = 64 };
    const attune_problem *p = &plan->signature.problem;
    const int64_t most = mha_most_queries(p);
    const bool attends = mha_attends(p);
    plan->is_open[PL_SEQ_Q] = p->seq_q == ATTUNE_DYNAMIC;
    plan->is_open[PL_SEQ_KV] = p->seq_kv == ATTUNE_DYNAMIC && !mha_keys_follow_queries(p);
    plan->is_open[PL_SEQ_NEW] = p->seq_new == ATTUNE_DYNAMIC && !mha_is_self(p);
    plan->is_open[PL_NUM_ROWS] = p->num_rows == ATTUNE_DYNAMIC;
    while (attends && plan->few_rows < MOST && plan->few_rows < most && is_few(plan, plan->few_rows + 1))
        plan->few_rows++;
    /* A call of one query has the kernel of its own that attune_compile would give it, whatever its strategy. */
    if (attends && plan->is_open[PL_SEQ_Q] && !plan->few_rows) plan->few_rows = 1;
    plan->has_one = plan->is_open[PL_SEQ_Q] && plan->few_rows > 1 && p->num_heads / p->num_kv_heads < ROWS_OF_TILE;
    /* Entries have other numbers in a part of the batch, and functions may ask for them. */
    plan->may_cut = p->is_ragged && p->op == ATTUNE_ATTENTION && plan->few_rows > 0 && plan->few_rows < most &&
                    !mha_has_functions(p);
    bool has_open = false;
    for (int i = 0; i < PL_NUM_LENGTHS; i++) has_open = has_open || plan->is_open[i];
    /* Short masks have a number of columns of their own, which would be one more length. */
    plan->is_complete = p->is_ragged || p->short_masks || !has_open || !plan->options.max_specialised;
}

pl_kind pl_kind_of(const attune_plan *plan, int64_t queries) {
    if (!plan->is_open[PL_SEQ_Q])
        return plan->few_rows && plan->signature.problem.seq_q <= plan->few_rows ? PL_FEW : PL_MANY;
    if (queries < 0 || queries > plan->few_rows) return PL_MANY;
    /* A call without queries has no kernel that takes none, unless the few may be fewer. */
    return plan->has_one && queries == 1 ? PL_ONE : PL_FEW;
}

/* The problem of a kind: at most so many queries. Where it is one, the number is fixed; a ragged batch may have entries
 * without queries. */
static void limit_queries(attune_problem *p, int64_t most) {
    if (most > 1 || p->is_ragged) {
        p->max_seq_q = p->max_seq_q && p->max_seq_q < most ? p->max_seq_q : most;
        return;
    }
    p->seq_q = most;
    p->max_seq_q = 0;
    if (mha_keys_follow_queries(p)) p->seq_kv = most;
    if (mha_is_self(p) && p->seq_new) p->seq_new = most;
}

attune_status pl_kernel_for(attune_plan *plan, pl_kind *kind, attune_kernel **kernel, at_error *err) {
    const pl_kind wanted = *kind;
    const bool may_stand_in = plan->options.background && wanted != PL_MANY && !plan->kernels[wanted] &&
                              plan->is_open[PL_SEQ_Q] && plan->kernels[PL_MANY];
    if (!may_stand_in) return pl_kernel(plan, wanted, kernel, err);
    *kind = PL_MANY;
    if (!plan->has_failed[wanted] && pl_begin(plan)) {
        plan->job_is_special = false;
        plan->job_kind = wanted;
        pl_submit(plan);
    }
    return pl_kernel(plan, PL_MANY, kernel, err);
}

/* The problem of a kind's kernel. */
static attune_problem problem_of(const attune_plan *plan, pl_kind kind) {
    attune_problem p = plan->signature.problem;
    if (plan->is_open[PL_SEQ_Q] && kind == PL_ONE) limit_queries(&p, 1);
    if (plan->is_open[PL_SEQ_Q] && kind == PL_FEW) limit_queries(&p, plan->few_rows);
    return p;
}

attune_status pl_kernel(attune_plan *plan, pl_kind kind, attune_kernel **kernel, at_error *err) {
    *kernel = atomic_load_explicit(&plan->kernels[kind], memory_order_acquire);
    if (*kernel) return ATTUNE_OK;
    const attune_problem p = problem_of(plan, kind);
    attune_kernel *made, *none = NULL;
    const attune_status status = attune_compile(plan->context, &p, NULL, &made);
    if (status) return at_fail(err, status, "%s", attune_last_message());
    if (!atomic_compare_exchange_strong(&plan->kernels[kind], &none, made)) {
        attune_kernel_release(made); /* another thread was faster: it is the same kernel */
        made = none;
    } else if (plan->options.background) {
        pl_tell_swap(plan, made, &p);
    }
    *kernel = made;
    return ATTUNE_OK;
}
