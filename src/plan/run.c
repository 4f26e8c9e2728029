/* Running a plan. */
#include "plan/plan.h"

attune_status pl_run_kernel(attune_plan *plan, const attune_kernel *kernel, const attune_arguments *arguments,
                            const attune_run_options *options, at_error *err) {
    const attune_status status = attune_run_with(plan->context, kernel, arguments, options);
    return status ? at_fail(err, status, "%s", attune_last_message()) : ATTUNE_OK;
}

attune_status pl_kernel_workspace(const attune_plan *plan, const attune_kernel *kernel,
                                  const attune_arguments *arguments, const attune_run_options *options, size_t *bytes,
                                  at_error *err) {
    const attune_status status = attune_workspace_size_with(plan->context, kernel, arguments, options, bytes);
    return status ? at_fail(err, status, "%s", attune_last_message()) : ATTUNE_OK;
}

/* ---- Which kernel ---- */

typedef struct pl_choice {
    attune_kernel *kernel;
    pl_kind kind;
    bool is_special;  /* the kernel is one for these lengths */
    bool may_special; /* `lengths` are those of the call */
    pl_lengths lengths;
} pl_choice;

/* Whether the caller's workspace is too small for a kernel that may have been compiled after it was allocated. */
static bool is_too_large(const attune_plan *plan, const attune_kernel *kernel, const attune_arguments *a,
                         const attune_run_options *options) {
    size_t bytes;
    return a->workspace && !attune_workspace_size_with(plan->context, kernel, a, options, &bytes) &&
           bytes > a->workspace_bytes;
}

static attune_status choose(attune_plan *plan, const attune_arguments *a, const attune_run_options *options,
                            bool has_workspace, pl_choice *choice, at_error *err) {
    choice->kind = pl_kind_of(plan, a->seq_q);
    choice->may_special = pl_lengths_of(plan, a, choice->kind, &choice->lengths);
    choice->kernel = choice->may_special ? pl_find_special(plan, &choice->lengths) : NULL;
    choice->is_special = choice->kernel && !(has_workspace && is_too_large(plan, choice->kernel, a, options));
    return choice->is_special ? ATTUNE_OK : pl_kernel(plan, choice->kind, &choice->kernel, err);
}

static attune_status check(const attune_context *context, const attune_plan *plan, const attune_arguments *arguments,
                           at_error *err) {
    if (__builtin_expect(!context || !plan || !arguments, 0))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the call was given no %s",
                       !context ? "context"
                       : !plan  ? "plan"
                                : "arguments");
    if (context == plan->context) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the plan was made by another context");
}

/* ---- The call ---- */

static attune_status run_dense(attune_plan *plan, const attune_arguments *a, const attune_run_options *options,
                               at_error *err) {
    pl_choice choice;
    if (choose(plan, a, options, true, &choice, err) || pl_run_kernel(plan, choice.kernel, a, options, err))
        return err->status;
    if (choice.is_special) {
        atomic_fetch_add_explicit(&plan->special_calls, 1, memory_order_relaxed);
        return ATTUNE_OK;
    }
    pl_count(plan, choice.kind);
    if (choice.may_special) pl_count_lengths(plan, a, &choice.lengths);
    return ATTUNE_OK;
}

static attune_status run(attune_plan *plan, const attune_arguments *a, const attune_run_options *options,
                         at_error *err) {
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

attune_status attune_plan_run(attune_context *context, attune_plan *plan, const attune_arguments *arguments,
                              const attune_run_options *options) {
    at_error err;
    at_error_clear(&err);
    if (!check(context, plan, arguments, &err)) {
        if (arguments->struct_size == sizeof *arguments)
            run(plan, arguments, options, &err);
        else
            run_other(plan, arguments, options, &err);
    }
    return at_report(&err);
}

/* ---- Workspace ---- */

attune_status attune_plan_workspace_size(attune_context *context, attune_plan *plan, const attune_arguments *arguments,
                                         const attune_run_options *options, size_t *bytes) {
    at_error err = {0};
    attune_arguments whole;
    pl_choice choice;
    if (!bytes) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_plan_workspace_size was given no pointer to the size");
    } else if (!check(context, plan, arguments, &err)) {
        const at_struct kind = at_arguments_struct(&plan->signature);
        if (at_copy_in(&kind, arguments, &whole, &err)) return at_report(&err);
        if (plan->signature.problem.is_ragged)
            pl_ragged_workspace(plan, &whole, options, bytes, &err);
        else if (!choose(plan, &whole, options, false, &choice, &err))
            pl_kernel_workspace(plan, choice.kernel, &whole, options, bytes, &err);
    }
    return at_report(&err);
}
