/* The public functions on operators of the user. */
#include "runtime/own_operator.h"

#include "base/fpenv.h"

#include <string.h>

static const at_struct operator_options = {"attune_operator_options", "start from ATTUNE_OPERATOR_OPTIONS_INIT",
                                           sizeof(attune_operator_options), NULL, 56};

attune_status attune_operator_options_init(attune_operator_options *options, size_t struct_size) {
    at_error err = {0};
    at_struct_init(&operator_options, options, struct_size, &err);
    return at_report(&err);
}

/* ---- The operators of a context: a list that only grows, without a lock ---- */

static attune_status find_name(const char *name, const attune_operator *list, at_error *err) {
    bool is_taken = !strcmp(name, at_attention.name) || !strcmp(name, at_written_ir.name);
    for (; list && !is_taken; list = list->next) is_taken = !strcmp(name, list->own.name);
    return is_taken ? at_fail(err, ATTUNE_INVALID_ARGUMENT, "the name %s is in use by another operator", name)
                    : ATTUNE_OK;
}

static attune_status insert(attune_context *context, attune_operator *op, at_error *err) {
    op->context = context;
    op->next = atomic_load(&context->operators);
    do {
        if (find_name(op->own.name, op->next, err)) return err->status;
    } while (!atomic_compare_exchange_weak(&context->operators, &op->next, op));
    return ATTUNE_OK;
}

static void free_operator(const attune_allocator *allocator, attune_operator *op) {
    at_own_free(&op->own);
    at_free(allocator, op);
}

void at_operators_free(attune_context *context) {
    for (attune_operator *op = atomic_load(&context->operators), *next; op; op = next) {
        next = op->next;
        free_operator(&context->allocator, op);
    }
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
    attune_operator *op = at_alloc(&context->allocator, sizeof *op);
    if (!op) {
        at_fail_memory(&err, sizeof *op);
        return at_report(&err);
    }
    if (at_own_init(&op->own, &whole, &context->allocator, &err) || insert(context, op, &err))
        free_operator(&context->allocator, op);
    else
        *out = op;
    return at_report(&err);
}

/* ---- Kernels ---- */

attune_status at_operator_schedule(const attune_operator *op, const char *problem, const int32_t *numbers,
                                   attune_schedule *schedule, at_error *err) {
    const attune_status status = at_own_check_problem(&op->own, problem, err);
    if (status || !numbers) return status;
    *schedule = (attune_schedule)ATTUNE_SCHEDULE_INIT;
    memcpy(at_own_numbers(schedule), numbers, op->own.num_choices * sizeof *numbers);
    return op->own.row.schedule_check(at_own_operation(&op->own, problem), schedule, op->context->target, err);
}

attune_status attune_operator_compile(attune_operator *op, const char *problem, const int32_t *numbers,
                                      attune_kernel **kernel) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_schedule schedule;
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
