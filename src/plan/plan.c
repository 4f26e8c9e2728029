/* Making and ending plans, and their arguments. */
#include "plan/plan.h"

#include "base/fpenv.h"
#include "problem/problem.h"

#include <string.h>

static const attune_plan_options initial = ATTUNE_PLAN_OPTIONS_INIT;
static const at_struct options_struct = {"attune_plan_options", "start from ATTUNE_PLAN_OPTIONS_INIT",
                                         sizeof(attune_plan_options), &initial, sizeof(attune_plan_options)};

attune_status attune_plan_options_init(attune_plan_options *options, size_t struct_size) {
    at_error err = {0};
    at_struct_init(&options_struct, options, struct_size, &err);
    return at_report(&err);
}

static attune_status take_options(const attune_plan_options *given, attune_plan_options *options, at_error *err) {
    enum { MOST_REPEATS = 1000, MOST_GAIN = 1000 };
    *options = initial;
    if (!given) return ATTUNE_OK;
    const attune_status status = at_copy_in(&options_struct, given, options, err);
    if (status) return status;
    if (options->max_specialised > PL_MOST_SPECIALISED)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "max_specialised is %u; it must be from 0 to %d",
                       options->max_specialised, PL_MOST_SPECIALISED);
    if (options->repeats < 1 || options->repeats > MOST_REPEATS)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "repeats is %u; it must be from 1 to %d", options->repeats,
                       MOST_REPEATS);
    if (options->background != 0 && options->background != 1)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "background is %d; it must be 0 or 1", options->background);
    if (options->least_gain > MOST_GAIN)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "least_gain is %u percent; it must be from 0 to %d",
                       options->least_gain, MOST_GAIN);
    if (options->deadline_us < -1 || options->deadline_us > AT_MOST_DEADLINE_US)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "deadline_us is %lld; it must be from -1 (none) to %d",
                       (long long)options->deadline_us, AT_MOST_DEADLINE_US);
    return ATTUNE_OK;
}

/* The environment's deadline applies to programs that set none. With a deadline, only lengths that gain by it are
 * specialised. */
static void settle_deadline(attune_plan *plan) {
    enum { LEAST_GAIN = 10 };
    plan->deadline_us = plan->options.deadline_us >= 0 ? plan->options.deadline_us : plan->context->deadline_us;
    plan->is_background = plan->options.background || plan->deadline_us >= 0;
    if (plan->deadline_us >= 0 && !plan->options.least_gain) plan->options.least_gain = LEAST_GAIN;
}

attune_status attune_plan_create(attune_context *context, const attune_problem *problem,
                                 const attune_plan_options *options, attune_plan **plan) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_problem canonical;
    attune_plan_options whole;
    if (plan) *plan = NULL;
    if (!context || !problem || !plan) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_plan_create was given no %s",
                !context   ? "context"
                : !problem ? "problem"
                           : "pointer to the plan");
        return at_report(&err);
    }
    if (take_options(options, &whole, &err) || mha_canonicalize(problem, &canonical, &err)) return at_report(&err);
    attune_plan *made = at_alloc_aligned(&context->allocator, sizeof *made, 64);
    if (!made) {
        at_fail_memory(&err, sizeof *made);
        return at_report(&err);
    }
    memset(made, 0, sizeof *made);
    made->context = context;
    made->options = whole;
    at_signature_init(&made->signature, &canonical);
    settle_deadline(made);
    pl_settle_kinds(made);
    if (made->deadline_us >= 0) pl_find_stopgaps(made);
    *plan = made;
    return ATTUNE_OK;
}

/* Whether some call needs the kernel of a kind. */
static bool needs(const attune_plan *plan, pl_kind kind) {
    const attune_problem *const p = &plan->signature.problem;
    if (!plan->is_open[PL_SEQ_Q]) return kind == pl_kind_of(plan, p->seq_q);
    return kind == PL_MANY ? plan->few_rows < mha_most_queries(p) : plan->most[kind] != 0;
}

attune_status attune_plan_prepare(attune_plan *plan) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_kernel *kernel;
    if (!plan) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_plan_prepare was given no plan");
        return at_report(&err);
    }
    for (int kind = PL_MANY; kind >= PL_ONE && !err.status; kind--)
        if (needs(plan, (pl_kind)kind)) pl_kernel(plan, (pl_kind)kind, &kernel, &err);
    return at_report(&err);
}

void attune_plan_destroy(attune_plan *plan) {
    AT_DEFAULT_FPENV;
    if (!plan) return;
    attune_context *const context = plan->context;
    at_background_withdraw(&context->background, &plan->job);
    for (int i = 0; i < PL_NUM_KINDS; i++) {
        attune_kernel_release(plan->kernels[i]);
        attune_kernel_release(plan->stopgaps[i]);
    }
    for (uint32_t i = 0; i < plan->num_special; i++) {
        attune_kernel_release(plan->special[i]->kernel);
        at_free(&context->allocator, plan->special[i]);
    }
    at_free(&context->allocator, plan);
}

/* By a deadline, what serves many queries is the fallback for few. */
static bool is_ready(const attune_plan *plan) {
    const bool may_stand_in = plan->deadline_us >= 0;
    const bool has_many = plan->is_open[PL_SEQ_Q] && (plan->kernels[PL_MANY] || plan->stopgaps[PL_MANY]);
    for (pl_kind kind = PL_ONE; kind < PL_NUM_KINDS; kind++) {
        if (!needs(plan, kind) || plan->kernels[kind]) continue;
        if (!may_stand_in || (!plan->stopgaps[kind] && !has_many)) return false;
    }
    return true;
}

attune_status attune_plan_get_info(const attune_plan *plan, attune_plan_info *info) {
    at_error err = {0};
    if (!plan || !info) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_plan_get_info was given NULL");
        return at_report(&err);
    }
    const attune_plan_info full = {
        .few_rows = plan->few_rows,
        .few_kernels = (plan->kernels[PL_ONE] != NULL) + (plan->kernels[PL_FEW] != NULL),
        .many_kernels =
            (plan->kernels[PL_SOME] != NULL) + (plan->kernels[PL_MORE] != NULL) + (plan->kernels[PL_MANY] != NULL),
        .specialised_kernels = plan->num_special,
        .is_ready = is_ready(plan),
        .few_calls = plan->few_calls,
        .many_calls = plan->many_calls,
        .specialised_calls = plan->special_calls,
        .cut_calls = plan->cut_calls,
        .stopgap_calls = plan->stopgap_calls,
        .compiled_calls = plan->compiled_calls,
        .tier0_calls = plan->tier0_calls,
        .vm_calls = plan->vm_calls,
    };
    at_copy_out(info, &full, sizeof full, "attune_plan_info", &err);
    return at_report(&err);
}

/* ---- Arguments ---- */

attune_status attune_plan_arguments_init_sized(const attune_plan *plan, attune_arguments *arguments,
                                               size_t struct_size) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    if (!plan || !arguments) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_plan_arguments_init was given NULL");
    } else {
        const at_struct kind = at_arguments_struct(&plan->signature);
        at_struct_init(&kind, arguments, struct_size, &err);
    }
    return at_report(&err);
}

attune_status attune_plan_bind(const attune_plan *plan, attune_arguments *arguments, const char *name,
                               const attune_dltensor *tensor) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    if (!plan || !arguments || !name || !tensor)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_plan_bind was given NULL");
    else
        at_bind(&plan->signature, arguments, name, tensor, &err);
    return at_report(&err);
}

attune_status attune_plan_set_size(const attune_plan *plan, attune_arguments *arguments, const char *name,
                                   int64_t value) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    if (!plan || !arguments || !name)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_plan_set_size was given NULL");
    else
        at_set_size(&plan->signature, arguments, name, value, &err);
    return at_report(&err);
}

attune_status attune_plan_set_number(const attune_plan *plan, attune_arguments *arguments, const char *name,
                                     double value) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    if (!plan || !arguments || !name)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_plan_set_number was given NULL");
    else
        at_set_number(&plan->signature, arguments, name, value, &err);
    return at_report(&err);
}
