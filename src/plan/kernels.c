/* The kernels of a plan, one for each range of numbers of queries. */
#include "host/clock.h"
#include "plan/plan.h"

#include "problem/problem.h"
#include "schedule/schedule.h"
#include "threads/job.h"

/* The schedule for up to so many queries; 0: for any number. */
static mha_schedule schedule_for(const attune_plan *plan, int64_t queries) {
    attune_problem p = plan->signature.problem;
    mha_schedule schedule;
    p.seq_q = ATTUNE_DYNAMIC;
    if (queries) p.max_seq_q = queries;
    mha_choose(mha_read(&p), plan->context->target, &plan->context->machine_class.description, &schedule);
    return schedule;
}

/* Whether d-lanes, the strategy for few rows, is chosen for up to so many queries. */
static bool is_few(const attune_plan *plan, int64_t queries) {
    return schedule_for(plan, queries).strategy == MHA_D_LANES;
}

/* A register tile computes all its rows, even if a sequence has fewer: 20 rows take twice as long in a tile of 64 as in
 * one of 32. So for up to SOME queries, as in verification and short chunks, there is a kernel for each height of tile
 * below that for many queries. Of more than two heights the highest two are used. */
static void settle_some(attune_plan *plan, int64_t most) {
    enum { MOST = 16 };
    const mha_schedule many = schedule_for(plan, 0);
    int32_t height = 0;
    for (int64_t queries = plan->few_rows + 1; queries <= MOST && queries < most; queries++) {
        const mha_schedule s = schedule_for(plan, queries);
        if (s.strategy != MHA_Q_LANES || s.score_row_vectors >= many.score_row_vectors) break;
        if (s.score_row_vectors != height && plan->most[PL_MORE]) plan->most[PL_SOME] = plan->most[PL_MORE];
        const bool is_first = !height || (s.score_row_vectors == height && !plan->most[PL_MORE]);
        plan->most[is_first ? PL_SOME : PL_MORE] = queries;
        height = s.score_row_vectors;
    }
}

/* A kernel for a few queries has tiles of as many rows as it may get. It also computes calls of one query well, unless
 * these have fewer rows than such a tile. */
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
    /* For one query, the plan uses the kernel that attune_compile would give, whatever its strategy. */
    if (attends && plan->is_open[PL_SEQ_Q] && !plan->few_rows) plan->few_rows = 1;
    plan->most[PL_FEW] = plan->few_rows;
    plan->most[PL_MANY] = -1;
    if (plan->is_open[PL_SEQ_Q] && plan->few_rows > 1 && p->num_heads / p->num_kv_heads < ROWS_OF_TILE)
        plan->most[PL_ONE] = 1;
    /* The table of what a mask function hides is made for the whole batch. */
    plan->may_cut = p->is_ragged && p->op == ATTUNE_ATTENTION && !mha_has_functions(p) && !p->kv_ids;
    const bool has_cache = p->op == ATTUNE_ATTENTION && p->has_kv_lens && !p->kv_ids;
    if ((plan->may_cut || has_cache) && plan->is_open[PL_SEQ_Q]) settle_some(plan, most);
    bool has_open = false;
    for (int i = 0; i < PL_NUM_LENGTHS; i++) has_open = has_open || plan->is_open[i];
    /* Short masks have their own number of columns, which would be one more open length. */
    plan->is_complete = p->is_ragged || p->short_masks || !has_open || !plan->options.max_specialised;
}

pl_kind pl_kind_of(const attune_plan *plan, int64_t queries) {
    if (!plan->is_open[PL_SEQ_Q])
        return plan->few_rows && plan->signature.problem.seq_q <= plan->few_rows ? PL_FEW : PL_MANY;
    if (queries < 0) return PL_MANY;
    /* A call without queries needs a kernel for a variable number of them. Where one query is the most, the number is
     * fixed. */
    pl_kind kind = queries == 1 ? PL_ONE : PL_FEW;
    const int64_t room = queries || plan->signature.problem.is_ragged ? queries : 2;
    while (kind < PL_MANY && room > plan->most[kind]) kind++;
    return kind;
}

/* The problem of a kind: at most that many queries. If that is one, the number is fixed; but a ragged batch may have
 * sequences without queries. */
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

/* The problem of a kind's kernel. */
static attune_problem problem_of(const attune_plan *plan, pl_kind kind) {
    attune_problem p = plan->signature.problem;
    if (plan->is_open[PL_SEQ_Q] && kind != PL_MANY) limit_queries(&p, plan->most[kind]);
    return p;
}

/* Adds a kernel to the plan. false: another thread has added one, which *kernel becomes. */
static bool publish(_Atomic(attune_kernel *) *place, attune_kernel **kernel) {
    attune_kernel *none = NULL;
    if (atomic_compare_exchange_strong(place, &none, *kernel)) return true;
    attune_kernel_release(*kernel);
    *kernel = none;
    return false;
}

static bool is_time(const attune_plan *plan, pl_kind kind) {
    const int64_t next = atomic_load_explicit(&plan->next_try[kind], memory_order_relaxed);
    return !next || (next != PL_NEVER && at_nanoseconds() >= next);
}

/* Whether the kernel is a fallback because of a failure that may pass. */
static bool settle_next_try(attune_plan *plan, pl_kind kind, const attune_kernel *kernel) {
    if (!kernel->node.made_again_at) return false;
    plan->next_try[kind] = kernel->node.made_again_at;
    return true;
}

attune_status pl_kernel(attune_plan *plan, pl_kind kind, attune_kernel **kernel, at_error *err) {
    *kernel = atomic_load_explicit(&plan->kernels[kind], memory_order_acquire);
    if (*kernel) return ATTUNE_OK;
    *kernel = atomic_load_explicit(&plan->stopgaps[kind], memory_order_acquire);
    if (*kernel && plan->deadline_us < 0 && !is_time(plan, kind)) return ATTUNE_OK;
    const attune_problem p = problem_of(plan, kind);
    const attune_status status = attune_compile(plan->context, &p, NULL, kernel);
    if (status) return at_fail(err, status, "%s", attune_last_message());
    if (settle_next_try(plan, kind, *kernel)) {
        publish(&plan->stopgaps[kind], kernel);
        return ATTUNE_OK;
    }
    if (publish(&plan->kernels[kind], kernel) && plan->is_background) pl_tell_swap(plan, *kernel, &p);
    return ATTUNE_OK;
}

attune_status pl_replace_stopgap(attune_plan *plan, pl_kind kind) {
    const attune_problem p = problem_of(plan, kind);
    attune_kernel *kernel;
    const attune_status status = attune_compile(plan->context, &p, NULL, &kernel);
    if (status) {
        plan->next_try[kind] = PL_NEVER;
        return status;
    }
    const bool is_own = at_kernel_is_own(kernel);
    if (settle_next_try(plan, kind, kernel) || !is_own) {
        if (!kernel->node.made_again_at) plan->next_try[kind] = PL_NEVER;
        publish(&plan->stopgaps[kind], &kernel);
        return ATTUNE_CODEGEN_MISSING;
    }
    if (publish(&plan->kernels[kind], &kernel)) pl_tell_swap(plan, kernel, &p);
    return ATTUNE_OK;
}

/* ---- While it is not there ---- */

/* Submits a job that makes the kernel, once. */
static void ask_for(attune_plan *plan, pl_kind kind) {
    if (!is_time(plan, kind) || !pl_begin(plan)) return;
    plan->job_is_special = false;
    plan->job_kind = kind;
    plan->awaited = (int32_t)kind + 1;
    pl_submit(plan);
}

/* Waits only for a job that makes this kernel. The plan has one job, which may take long for something else. */
static void wait_for(attune_plan *plan, pl_kind kind) {
    if (plan->deadline_us > 0 && plan->awaited == (int32_t)kind + 1)
        at_background_wait_for(&plan->context->background, &plan->job, plan->deadline_us);
}

/* Finds a kernel without compiling. If it equals what a compile would give, the plan keeps it. */
static void find_stopgap(attune_plan *plan, pl_kind kind, bool may_prepare) {
    const attune_problem p = problem_of(plan, kind);
    attune_kernel *kernel;
    if (at_kernel_at_once(plan->context, &p, may_prepare, &kernel, NULL)) return;
    publish(at_kernel_is_own(kernel) ? &plan->kernels[kind] : &plan->stopgaps[kind], &kernel);
}

/* Making a program for the virtual machine takes some 2 ms. So all calls share the program for many queries, which
 * computes any number. */
void pl_find_stopgaps(attune_plan *plan) {
    const bool is_open = plan->is_open[PL_SEQ_Q];
    find_stopgap(plan, is_open ? PL_MANY : pl_kind_of(plan, 0), true);
    for (pl_kind kind = PL_ONE; is_open && kind < PL_MANY; kind++)
        if (plan->most[kind]) find_stopgap(plan, kind, false);
}

/* The best kernel that exists; *kind becomes its kind. Machine code comes before the virtual machine, and then the
 * kernel for this kind before the one for many queries. NULL: there is none. */
static attune_kernel *best_kernel(const attune_plan *plan, pl_kind *kind) {
    attune_kernel *const own = atomic_load_explicit(&plan->stopgaps[*kind], memory_order_acquire);
    if ((own && own->engine == ATTUNE_ENGINE_JIT) || !plan->is_open[PL_SEQ_Q]) return own;
    attune_kernel *many = atomic_load_explicit(&plan->kernels[PL_MANY], memory_order_acquire);
    if (!many && !own) many = atomic_load_explicit(&plan->stopgaps[PL_MANY], memory_order_acquire);
    if (!many) return own;
    *kind = PL_MANY;
    return many;
}

static attune_status kernel_by_deadline(attune_plan *plan, pl_kind *kind, attune_kernel **kernel, at_error *err) {
    const pl_kind wanted = *kind;
    if (!best_kernel(plan, kind)) return pl_kernel(plan, wanted, kernel, err); /* strict mode: it fails */
    ask_for(plan, wanted);
    wait_for(plan, wanted);
    *kind = wanted;
    *kernel = atomic_load_explicit(&plan->kernels[wanted], memory_order_acquire);
    if (!*kernel) *kernel = best_kernel(plan, kind);
    return ATTUNE_OK;
}

attune_status pl_kernel_for(attune_plan *plan, pl_kind *kind, attune_kernel **kernel, at_error *err) {
    const pl_kind wanted = *kind;
    *kernel = atomic_load_explicit(&plan->kernels[wanted], memory_order_acquire);
    if (*kernel) return ATTUNE_OK;
    if (plan->deadline_us >= 0) return kernel_by_deadline(plan, kind, kernel, err);
    const bool may_stand_in =
        plan->options.background && wanted != PL_MANY && plan->is_open[PL_SEQ_Q] && plan->kernels[PL_MANY];
    if (!may_stand_in) return pl_kernel(plan, wanted, kernel, err);
    *kind = PL_MANY;
    ask_for(plan, wanted);
    return pl_kernel(plan, PL_MANY, kernel, err);
}
