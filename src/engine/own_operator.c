/* The operators of a context are a linked list that only grows, so that a look-up needs no lock. */
#include "engine/own_operator.h"

#include "host/clock.h"

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

static attune_status add(attune_context *context, const attune_operator_options *options, at_general_fn *find_general,
                         attune_operator **out, at_error *err) {
    attune_operator *op = at_alloc(&context->allocator, sizeof *op);
    if (!op) return at_fail_memory(err, sizeof *op);
    if (!at_own_init(&op->own, options, &context->allocator, err)) op->own.find_general = find_general;
    if (err->status || insert(context, op, err))
        free_operator(&context->allocator, op);
    else
        *out = op;
    return err->status;
}

/* The names of attune's own operators, and the words by which texts name them. */
static bool is_reserved(const char *name) {
    static const char *const names[] = {"linear_attention", "linear", "causal_conv", "conv", "index", "blocks", "mla"};
    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i])) return true;
    return false;
}

attune_status at_operator_add(attune_context *context, const attune_operator_options *options, attune_operator **out,
                              at_error *err) {
    if (is_reserved(options->name))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the name %s is reserved for attune's own operator",
                       options->name);
    return add(context, options, NULL, out, err);
}

static attune_operator *find_build(attune_context *context, const attune_operator_options *options) {
    attune_operator *op = atomic_load(&context->operators);
    while (op && op->own.build != options->build) op = op->next;
    return op;
}

attune_status at_operator_of(attune_context *context, const attune_operator_options *options,
                             at_general_fn *find_general, attune_operator **op, at_error *err) {
    *op = find_build(context, options);
    if (*op || !add(context, options, find_general, op, err)) return ATTUNE_OK;
    if (!(*op = find_build(context, options))) return err->status; /* or another thread was faster */
    *err = (at_error){0};
    return ATTUNE_OK;
}

/* ---- Its schedules ---- */

attune_status at_operator_schedule(const attune_operator *op, const char *problem, const int32_t *numbers,
                                   mha_schedule *schedule, at_error *err) {
    const attune_status status = at_own_check_problem(&op->own, problem, err);
    if (status || !numbers) return status;
    *schedule = (mha_schedule){0};
    memcpy(at_own_numbers(schedule), numbers, op->own.num_choices * sizeof *numbers);
    return op->own.row.schedule_check(at_own_operation(&op->own, problem), schedule, op->context->target, err);
}

/* ---- Attune's own operators ---- */

static void give_back(const attune_operator *op, attune_kernel *kernel) {
    at_cache_node_release(&op->context->memory, &kernel->node);
}

/* Whether it takes the place of none, or of a fallback. */
static bool keep(at_kept_kernel *kept, attune_kernel *had, int64_t again_at, attune_kernel *kernel) {
    if (had && !at_kernel_is_own(kernel)) {
        atomic_compare_exchange_strong(&kept->made_again_at, &again_at, kernel->node.made_again_at);
        return false;
    }
    attune_kernel *expected = had;
    if (!atomic_compare_exchange_strong(&kept->now, &expected, kernel)) return false; /* another thread was faster */
    if (had) kept->before = had; /* another thread may have replaced a first kernel by now */
    atomic_store(&kept->made_again_at, kernel->node.made_again_at);
    return true;
}

attune_status at_operator_kernel(attune_operator *op, const char *problem, at_kept_kernel *kept, attune_kernel **kernel,
                                 at_error *err) {
    attune_kernel *const had = atomic_load(&kept->now), *made;
    const int64_t again_at = atomic_load(&kept->made_again_at);
    *kernel = had;
    if (had && (at_kernel_is_own(had) || !again_at || at_nanoseconds() < again_at)) return ATTUNE_OK;
    if (at_operator_schedule(op, problem, NULL, NULL, err) ||
        at_kernel_get_general(op->context, at_own_operation(&op->own, problem), &made, err)) {
        if (!had) return err->status;
        at_error_clear(err);
        return ATTUNE_OK;
    }
    if (!keep(kept, had, again_at, made)) give_back(op, made);
    *kernel = atomic_load(&kept->now);
    return ATTUNE_OK;
}

void at_operator_release(at_kept_kernel *kept) {
    attune_kernel_release(kept->before);
    attune_kernel_release(atomic_load(&kept->now));
}

attune_status at_operator_team(const attune_context *context, const attune_runner *runner, uint32_t max_threads,
                               at_team *team, at_error *err) {
    *team = context->team;
    if (runner) {
        team->pool = NULL;
        if (at_runner_take(runner, &team->runner, err)) return err->status;
        team->max_workers = team->runner.max_workers;
    }
    if (max_threads && max_threads < team->max_workers && !team->runner.parallel_for) team->max_workers = max_threads;
    return ATTUNE_OK;
}

attune_status at_operator_run(const attune_kernel *kernel, const at_run *run, bool is_interpreted, at_error *err) {
    if (is_interpreted || !at_kernel_has_phases(kernel))
        return at_run_interpreter(kernel->context, kernel->ir->kernel, run->buffers, run->scalars, err);
    return at_run_machine_code(kernel->context, kernel, run, err);
}
