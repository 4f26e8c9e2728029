/* The public functions on operators of the user. */
#include "base/fpenv.h"
#include "engine/own_operator.h"

static const at_struct operator_options = {"attune_operator_options", "start from ATTUNE_OPERATOR_OPTIONS_INIT",
                                           sizeof(attune_operator_options), NULL, 56};

attune_status attune_operator_options_init(attune_operator_options *options, size_t struct_size) {
    at_error err = {0};
    at_struct_init(&operator_options, options, struct_size, &err);
    return at_report(&err);
}

attune_status attune_operator_add(attune_context *context, const attune_operator_options *options,
                                  attune_operator **out) {
    AT_DEFAULT_FPENV;
    attune_operator_options whole;
    at_error err = {0};
    if (!context || !options || !out) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_operator_add was given NULL");
        return at_report(&err);
    }
    *out = NULL;
    if (at_copy_in(&operator_options, options, &whole, &err)) return at_report(&err);
    at_operator_add(context, &whole, out, &err);
    return at_report(&err);
}

attune_status attune_operator_compile(attune_operator *op, const char *problem, const int32_t *numbers,
                                      attune_kernel **kernel) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    mha_schedule schedule;
    if (!op || !problem || !kernel) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_operator_compile was given NULL");
        return at_report(&err);
    }
    *kernel = NULL;
    if (!at_operator_schedule(op, problem, numbers, &schedule, &err))
        at_kernel_get(op->context, at_own_operation(&op->own, problem), numbers ? &schedule : NULL, kernel, &err);
    return at_report(&err);
}

attune_status attune_operator_numbers(const attune_kernel *kernel, const int32_t **numbers, size_t *count) {
    at_error err = {0};
    const at_own *const own = kernel ? at_own_of(kernel->op) : NULL;
    if (!own) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "the kernel is not one of attune_operator_compile");
        return at_report(&err);
    }
    if (numbers) *numbers = at_own_numbers_of(&kernel->schedule);
    if (count) *count = own->num_choices;
    return ATTUNE_OK;
}
