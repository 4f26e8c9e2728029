#include "engine/own_operator.h"

#include <string.h>

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

attune_status at_operator_add(attune_context *context, const attune_operator_options *options, attune_operator **out,
                              at_error *err) {
    attune_operator *op = at_alloc(&context->allocator, sizeof *op);
    if (!op) return at_fail_memory(err, sizeof *op);
    if (at_own_init(&op->own, options, &context->allocator, err) || insert(context, op, err))
        free_operator(&context->allocator, op);
    else
        *out = op;
    return err->status;
}

static attune_operator *find_build(attune_context *context, const attune_operator_options *options) {
    attune_operator *op = atomic_load(&context->operators);
    while (op && op->own.build != options->build) op = op->next;
    return op;
}

attune_status at_operator_of(attune_context *context, const attune_operator_options *options, attune_operator **op,
                             at_error *err) {
    *op = find_build(context, options);
    if (*op || !at_operator_add(context, options, op, err)) return ATTUNE_OK;
    if (!(*op = find_build(context, options))) return err->status; /* or another thread was faster */
    *err = (at_error){0};
    return ATTUNE_OK;
}

/* ---- Its schedules ---- */

attune_status at_operator_schedule(const attune_operator *op, const char *problem, const int32_t *numbers,
                                   attune_schedule *schedule, at_error *err) {
    const attune_status status = at_own_check_problem(&op->own, problem, err);
    if (status || !numbers) return status;
    *schedule = (attune_schedule)ATTUNE_SCHEDULE_INIT;
    memcpy(at_own_numbers(schedule), numbers, op->own.num_choices * sizeof *numbers);
    return op->own.row.schedule_check(at_own_operation(&op->own, problem), schedule, op->context->target, err);
}
