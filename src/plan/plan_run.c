/* Running a plan. */
#include "plan/plan.h"

#include "api/api_run.h"
#include "base/fpenv.h"

attune_status pl_kernel_workspace(const attune_plan *plan, const attune_kernel *kernel,
                                  const attune_arguments *arguments, const attune_run_options *options, size_t *bytes,
                                  at_error *err) {
    const attune_status status = attune_workspace_size_with(plan->context, kernel, arguments, options, bytes);
    return status ? at_fail(err, status, "%s", attune_last_message()) : ATTUNE_OK;
}

static attune_status check(const attune_plan *plan, const attune_arguments *arguments, at_error *err) {
    if (__builtin_expect(plan && arguments, 1)) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the call was given no %s", plan ? "arguments" : "plan");
}

attune_status pl_check_lengths(const attune_plan *plan, const attune_arguments *arguments, at_error *err) {
    const at_signature *const s = &plan->signature;
    mha_sizes sizes;
    at_open open;
    at_longest longest;
    attune_arguments known = *arguments;
    /* Lists of keys and angles come with a later call, which gives their sizes. */
    if (s->parameters.has[MHA_NUM_IDS] && known.num_ids == ATTUNE_NOT_SET) known.num_ids = 0;
    if (s->parameters.has[MHA_ROTARY_POSITIONS] && known.rotary_positions == ATTUNE_NOT_SET)
        known.rotary_positions = INT32_MAX;
    if (at_sizes_begin(s, &known, &sizes, &open, err)) return err->status;
    if (s->place[MHA_CAUSAL_OFFSETS] < 0 && s->place[MHA_KV_IDS] < 0)
        return at_tables_check_sequences(s, arguments, &sizes, &longest, err);
    static const mha_tensor_id lists[] = {MHA_CU_SEQLENS_Q, MHA_CU_SEQLENS_KV, MHA_KV_LENS, MHA_BLOCK_TABLE};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const mha_tensor *const tensor = at_signature_tensor(s, lists[i]);
        const void *pointer;
        if (tensor && at_call_pointer(tensor, arguments, &pointer, err)) return err->status;
    }
    return ATTUNE_OK;
}

/* ---- The call ---- */

static attune_status run_special(attune_plan *plan, const pl_special *special, const attune_arguments *a,
                                 const attune_run_options *options, at_error *err) {
    if (at_run_kernel(plan->context, special->kernel, &special->layout, a, options, err)) return err->status;
    atomic_fetch_add_explicit(&plan->special_calls, 1, memory_order_relaxed);
    pl_count_code(plan, special->kernel);
    return ATTUNE_OK;
}

attune_kernel *pl_before(const attune_plan *plan, int number, pl_kind *kind) {
    if (number == 0) return plan->stopgaps[*kind];
    if (!plan->is_background) return NULL;
    *kind = PL_MANY;
    return number == 1 ? plan->kernels[PL_MANY] : plan->stopgaps[PL_MANY];
}

attune_status pl_run_kind(attune_plan *plan, pl_kind *kind, attune_kernel *kernel, const attune_arguments *a,
                          const attune_run_options *options, at_error *err) {
    at_run_kernel(plan->context, kernel, NULL, a, options, err);
    for (int i = 0; i < PL_NUM_BEFORE && err->status == ATTUNE_WORKSPACE_TOO_SMALL; i++) {
        attune_kernel *const other = pl_before(plan, i, kind);
        if (!other || other == kernel) continue;
        at_error_clear(err);
        kernel = other;
        at_run_kernel(plan->context, kernel, NULL, a, options, err);
    }
    if (!err->status) pl_count(plan, *kind, kernel);
    return err->status;
}

static attune_status run_dense(attune_plan *plan, const attune_arguments *a, const attune_run_options *options,
                               at_error *err) {
    pl_kind kind = pl_kind_of(plan, a->seq_q);
    attune_kernel *kernel;
    pl_key key;
    const bool has_key = pl_key_of(plan, a, kind, &key);
    const pl_special *special = has_key ? pl_find_special(plan, &key) : NULL;
    if (special && run_special(plan, special, a, options, err) != ATTUNE_WORKSPACE_TOO_SMALL) return err->status;
    /* The caller may have sized the workspace before this kernel existed. */
    if (special) at_error_clear(err);
    if (pl_kernel_for(plan, &kind, &kernel, err)) return err->status;
    if (pl_run_kind(plan, &kind, kernel, a, options, err)) return err->status;
    if (has_key) pl_count_key(plan, a, kind, &key);
    return ATTUNE_OK;
}

/* The plan may change its kernels at any time, and a block mask fits one schedule. So each kernel makes its table. */
static attune_status run(attune_plan *plan, const attune_arguments *a, const attune_run_options *options,
                         at_error *err) {
    attune_arguments without;
    if (__builtin_expect(a->block_mask != NULL, 0)) {
        without = *a;
        without.block_mask = NULL;
        a = &without;
    }
    if (plan->signature.problem.is_ragged) return pl_run_ragged(plan, a, options, err);
    return run_dense(plan, a, options, err);
}

/* Arguments of another version of the struct. */
static __attribute__((noinline)) attune_status run_other(attune_plan *plan, const attune_arguments *a,
                                                         const attune_run_options *options, at_error *err) {
    attune_arguments whole;
    const at_struct kind = at_arguments_struct(&plan->signature);
    const attune_status status = at_copy_in(&kind, a, &whole, err);
    return status ? status : run(plan, &whole, options, err);
}

attune_status attune_plan_run(attune_plan *plan, const attune_arguments *arguments, const attune_run_options *options) {
    AT_DEFAULT_FPENV;
    at_error err;
    at_error_clear(&err);
    if (!check(plan, arguments, &err)) {
        if (arguments->struct_size == sizeof *arguments)
            run(plan, arguments, options, &err);
        else
            run_other(plan, arguments, options, &err);
    }
    return at_report(&err);
}

/* ---- Workspace ---- */

static attune_status dense_workspace(attune_plan *plan, const attune_arguments *a, const attune_run_options *options,
                                     size_t *bytes, at_error *err) {
    pl_kind kind = pl_kind_of(plan, a->seq_q);
    attune_kernel *kernel;
    pl_key key;
    const pl_special *special = pl_key_of(plan, a, kind, &key) ? pl_find_special(plan, &key) : NULL;
    if (special) return pl_kernel_workspace(plan, special->kernel, a, options, bytes, err);
    if (pl_kernel_for(plan, &kind, &kernel, err)) return err->status;
    return pl_kernel_workspace(plan, kernel, a, options, bytes, err);
}

attune_status attune_plan_workspace_size(attune_plan *plan, const attune_arguments *arguments,
                                         const attune_run_options *options, size_t *bytes) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_arguments whole;
    if (!bytes) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_plan_workspace_size was given no pointer to the size");
    } else if (!check(plan, arguments, &err)) {
        const at_struct kind = at_arguments_struct(&plan->signature);
        if (at_copy_in(&kind, arguments, &whole, &err)) return at_report(&err);
        if (plan->signature.problem.is_ragged)
            pl_ragged_workspace(plan, &whole, options, bytes, &err);
        else
            dense_workspace(plan, &whole, options, bytes, &err);
    }
    return at_report(&err);
}
