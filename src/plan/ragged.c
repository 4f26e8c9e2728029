/* Ragged batches: sequences of few queries and sequences of many beside each other. */
#include "plan/plan.h"

#include <string.h>

/* ---- Runs of sequences ---- */

/* Neighbouring sequences of one kind. */
typedef struct run {
    int64_t first, count;
    int64_t longest; /* queries */
    bool is_few;
} run;

/* The run that begins with sequence `first`. Sequences without queries belong to any. */
static run run_from(const attune_plan *plan, const int32_t *cu, int64_t batch, int64_t first) {
    run r = {.first = first};
    for (int64_t b = first; b < batch; b++, r.count++) {
        const int64_t queries = (int64_t)cu[b + 1] - cu[b];
        const bool is_few = queries <= plan->few_rows;
        if (r.longest && queries && is_few != r.is_few) break;
        if (queries > r.longest) {
            r.longest = queries;
            r.is_few = is_few;
        }
    }
    return r;
}

/* The pointer to the tensor's sequence number `first`. */
static void move_pointer(attune_arguments *a, const at_signature *s, size_t i, const at_settled *settled,
                         int64_t first) {
    char *pointer;
    memcpy(&pointer, (char *)a + s->tensors[i].pointer, sizeof pointer);
    if (pointer) pointer += first * settled->strides[i][0] * s->element[i];
    memcpy((char *)a + s->tensors[i].pointer, &pointer, sizeof pointer);
}

/* A bound of the lengths, which counts for all kinds, may be more than the kernel of one takes. */
static void bound_queries(const attune_plan *plan, pl_kind kind, attune_arguments *a) {
    const int64_t most = pl_most_of(plan, kind);
    if (most >= 0 && a->seq_q > most) a->seq_q = most;
}

/* The arguments of a run. Strides are set, because contiguous ones depend on the sizes of the whole batch. */
static void arguments_of_run(const attune_plan *plan, const attune_arguments *whole, const at_settled *settled,
                             const run *r, attune_arguments *a) {
    const at_signature *s = &plan->signature;
    *a = *whole;
    a->batch = r->count;
    bound_queries(plan, pl_kind_of(plan, r->longest), a);
    for (size_t i = 0; i < s->count; i++) {
        const mha_tensor *t = &s->tensors[i];
        if (t->dims[0] == MHA_BATCH || t->dims[0] == MHA_ENTRIES) move_pointer(a, s, i, settled, r->first);
        if (t->has_strides)
            memcpy((char *)a + t->arguments_strides, settled->strides[i], (size_t)t->rank * sizeof(int64_t));
    }
}

static attune_status kernel_of_run(attune_plan *plan, const run *r, pl_kind *kind, attune_kernel **kernel,
                                   at_error *err) {
    *kind = pl_kind_of(plan, r->longest);
    return plan->deadline_us >= 0 ? pl_kernel_for(plan, kind, kernel, err) : pl_kernel(plan, *kind, kernel, err);
}

/* ---- A batch ---- */

/* One call, cut or whole. */
typedef struct batch {
    attune_plan *plan;
    const attune_arguments *arguments;
    const attune_run_options *options;
    const at_settled *settled;
    int64_t num_runs;
    int64_t longest;
} batch;

static void measure(batch *b) {
    const int32_t *cu = b->arguments->cu_seqlens_q;
    for (int64_t at = 0; at < b->arguments->batch; b->num_runs++) {
        const run r = run_from(b->plan, cu, b->arguments->batch, at);
        if (r.longest > b->longest) b->longest = r.longest;
        at += r.count;
    }
}

/* Each run is a call, with checks and threads that join. */
static bool is_worth_cutting(const batch *b) {
    static const double SHORT = 2e6; /* operations, some 20 µs */
    if (!b->plan->may_cut || b->num_runs < 2) return false;
    return b->num_runs <= PL_MOST_SHORT_RUNS || b->settled->flops >= SHORT * (double)b->num_runs;
}

/* Runs the kernels of all runs; or only looks whether they can run: compiles them, and checks the workspace. */
static attune_status for_all_runs(const batch *b, bool only_check, at_error *err) {
    const attune_arguments *whole = b->arguments;
    attune_arguments a;
    attune_kernel *kernel;
    pl_kind kind;
    for (int64_t at = 0; at < whole->batch;) {
        const run r = run_from(b->plan, whole->cu_seqlens_q, whole->batch, at);
        at += r.count;
        arguments_of_run(b->plan, whole, b->settled, &r, &a);
        if (kernel_of_run(b->plan, &r, &kind, &kernel, err)) return err->status;
        if (only_check ? pl_check_kind(b->plan, kind, kernel, &a, b->options, err)
                       : pl_run_kind(b->plan, &kind, kernel, &a, b->options, err))
            return err->status;
        if (!only_check) pl_count(b->plan, kind);
    }
    return ATTUNE_OK;
}

static attune_status run_whole(const batch *b, at_error *err) {
    const run all = {.count = b->arguments->batch, .longest = b->longest, .is_few = b->longest <= b->plan->few_rows};
    attune_kernel *kernel;
    attune_arguments a;
    pl_kind kind;
    arguments_of_run(b->plan, b->arguments, b->settled, &all, &a);
    if (kernel_of_run(b->plan, &all, &kind, &kernel, err) || pl_run_kind(b->plan, &kind, kernel, &a, b->options, err))
        return err->status;
    pl_count(b->plan, kind);
    return ATTUNE_OK;
}

attune_status pl_run_ragged(attune_plan *plan, const attune_arguments *arguments, const attune_run_options *options,
                            at_error *err) {
    at_call call;
    if (at_call_make(&plan->signature, NULL, arguments, &call, err) ||
        at_call_check(plan->context, &plan->signature, &call, err))
        return err->status;
    if (call.settled->is_empty) return ATTUNE_OK;
    batch b = {plan, arguments, options, call.settled, 0, 0};
    measure(&b);
    if (!is_worth_cutting(&b)) return run_whole(&b, err);
    if (for_all_runs(&b, true, err) || for_all_runs(&b, false, err)) return err->status;
    atomic_fetch_add_explicit(&plan->cut_calls, 1, memory_order_relaxed);
    return ATTUNE_OK;
}

/* ---- Workspace ---- */

attune_status pl_ragged_workspace(attune_plan *plan, const attune_arguments *arguments,
                                  const attune_run_options *options, size_t *bytes, at_error *err) {
    *bytes = 0;
    for (pl_kind kind = PL_ONE; kind < PL_NUM_KINDS; kind++) {
        const bool is_used = kind == PL_ONE ? plan->has_one : kind == PL_MANY || plan->few_rows > 0;
        attune_kernel *kernel;
        attune_arguments a = *arguments;
        size_t needed;
        if (!is_used) continue;
        bound_queries(plan, kind, &a);
        pl_kind used = kind;
        if ((plan->deadline_us >= 0 ? pl_kernel_for(plan, &used, &kernel, err) : pl_kernel(plan, kind, &kernel, err)) ||
            pl_kernel_workspace(plan, kernel, &a, options, &needed, err))
            return err->status;
        if (needed > *bytes) *bytes = needed;
    }
    return ATTUNE_OK;
}
