/* A call whose parts are executed by threads of the host that are running already. */
#include "api/api_run.h"
#include "api/block_mask.h"
#include "call/ir_call.h"

#include "base/fpenv.h"

#include <string.h>

struct attune_call {
    attune_context *context;
    const attune_kernel *kernel;
    at_call call; /* of a problem's kernel */
    uint32_t num_phases, max_workers;
    void *own;      /* workspace that attune allocated, or NULL */
    void **buffers; /* parameters, then shared ones; they lie after the phases, and so do copied scalars */
    const int64_t *scalars;
    size_t num_buffers;
    int64_t plan[AT_PLAN_WORDS];
    at_phase_job phases[]; /* one for each */
};

/* ---- Beginning ---- */

static attune_status check_workers(attune_call **out, const char *function, uint32_t max_workers, at_error *err) {
    if (!out) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s was given no pointer to the call", function);
    *out = NULL;
    if (max_workers >= 1 && max_workers <= AT_MOST_WORKERS) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "max_workers is %u; it must be from 1 to %d", max_workers,
                   AT_MOST_WORKERS);
}

static attune_call *new_call(attune_context *context, const attune_kernel *kernel, uint32_t max_workers,
                             size_t num_buffers, size_t num_scalars, at_error *err) {
    const uint32_t num_phases = at_kernel_has_phases(kernel) ? kernel->num_phases : 1;
    const size_t head = sizeof(attune_call) + num_phases * sizeof(at_phase_job);
    const size_t bytes = head + (num_buffers + AT_MAX_SHARED) * sizeof(void *) + num_scalars * sizeof(int64_t);
    attune_call *call = at_alloc_aligned(&context->allocator, bytes, 64);
    if (!call) {
        at_fail_memory(err, bytes);
        return NULL;
    }
    call->context = context;
    call->kernel = kernel;
    call->num_phases = num_phases;
    call->max_workers = max_workers;
    call->own = NULL;
    call->num_buffers = num_buffers;
    call->buffers = (void **)(void *)((char *)call + head);
    return call;
}

static void free_call(attune_call *call) {
    if (call->own) at_spares_give(&call->context->spares, call->own);
    at_free(&call->context->allocator, call);
}

/* The workspace, and the data that the ranges of each phase share. */
static attune_status prepare_code(attune_call *call, char *workspace, size_t workspace_bytes, at_error *err) {
    const attune_kernel *kernel = call->kernel;
    size_t needed;
    void *mask_tiles = NULL;
    attune_status status = at_plan_workspace(kernel, call->max_workers, call->scalars, call->plan, &needed, err);
    if (!status && at_kernel_is_attention(kernel))
        status = at_block_mask_take(kernel, &call->call, call->plan, &mask_tiles, err);
    if (!status) status = at_workspace_check(workspace, workspace_bytes, needed, err);
    if (status) return status;
    if (!workspace && needed) {
        workspace = call->own = at_spares_take(&call->context->spares, needed);
        if (!workspace) return at_fail_memory(err, needed);
    }
    const at_given given = {kernel->tier0 ? call->call.buffers : call->buffers, call->num_buffers, call->scalars};
    char *scratch = workspace + at_kernel_buffers(kernel, &given, call->plan, workspace, call->buffers);
    if (mask_tiles) {
        call->buffers[call->num_buffers + AT_MASK_SHARED] = mask_tiles;
        call->plan[AT_MASK_PHASE] = 0;
    }
    for (uint32_t p = 0; p < call->num_phases; p++)
        call->phases[p] = (at_phase_job){.phase = &kernel->phases[p],
                                         .buffers = call->buffers,
                                         .scalars = call->scalars,
                                         .scratch = scratch,
                                         .scratch_stride = (size_t)kernel->max_scratch,
                                         .tasks = call->plan[p],
                                         .counts = true,
                                         .max_workers = call->max_workers};
    return ATTUNE_OK;
}

static attune_status prepare(attune_call *call, char *workspace, size_t workspace_bytes, at_error *err) {
    if (at_kernel_has_phases(call->kernel)) return prepare_code(call, workspace, workspace_bytes, err);
    call->plan[0] = 1; /* the interpreter is one task */
    call->phases[0] = (at_phase_job){.max_workers = call->max_workers};
    return ATTUNE_OK;
}

static attune_status prepare_arguments(attune_call *call, const attune_arguments *arguments, at_error *err) {
    const at_signature *const signature = &call->kernel->signature;
    attune_status status = at_call_make(signature, NULL, arguments, &call->call, err);
    if (!status) status = at_call_check(call->context, signature, &call->call, err);
    if (status) return status;
    memcpy(call->buffers, call->call.buffers, signature->count * sizeof *call->buffers);
    call->scalars = call->call.settled->scalars;
    if (!call->call.settled->is_empty) return prepare(call, call->call.workspace, call->call.workspace_bytes, err);
    call->num_phases = 0;
    return ATTUNE_OK;
}

attune_status attune_call_begin(attune_context *context, const attune_kernel *kernel, const attune_arguments *arguments,
                                uint32_t max_workers, attune_call **out) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    if (check_workers(out, "attune_call_begin", max_workers, &err) || at_check_run(context, kernel, arguments, &err))
        return at_report(&err);
    const at_signature *const s = &kernel->signature;
    const size_t num_buffers = s->is_of_other ? s->num_taken : s->count;
    attune_call *call = new_call(context, kernel, max_workers, num_buffers, 0, &err);
    if (call && prepare_arguments(call, arguments, &err) == ATTUNE_OK) {
        *out = call;
        return ATTUNE_OK;
    }
    if (call) free_call(call);
    return at_report(&err);
}

attune_status attune_ir_call_begin(attune_context *context, const attune_kernel *kernel, void *const *buffers,
                                   const int64_t *scalars, uint32_t max_workers, attune_call **out) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    if (check_workers(out, "attune_ir_call_begin", max_workers, &err)) return at_report(&err);
    if (!context) at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_ir_call_begin was given no context");
    if (err.status || at_ir_check_kernel(kernel, &err) || at_ir_check_call(kernel->ir->kernel, buffers, scalars, &err))
        return at_report(&err);
    const size_t num_buffers = kernel->ir->num_buffers, num_scalars = kernel->ir->num_scalars;
    attune_call *call = new_call(context, kernel, max_workers, num_buffers, num_scalars, &err);
    if (!call) return at_report(&err);
    if (num_buffers) memcpy(call->buffers, buffers, num_buffers * sizeof *buffers);
    void *const copied = call->buffers + num_buffers + AT_MAX_SHARED;
    if (num_scalars) memcpy(copied, scalars, num_scalars * sizeof *scalars);
    call->scalars = copied;
    if (prepare(call, NULL, 0, &err) == ATTUNE_OK) {
        *out = call;
        return ATTUNE_OK;
    }
    free_call(call);
    return at_report(&err);
}

/* ---- Executing ---- */

uint32_t attune_call_num_phases(const attune_call *call) { return call ? call->num_phases : 0; }

int64_t attune_call_num_tasks(const attune_call *call, uint32_t phase) {
    if (!call || phase >= call->num_phases || call->plan[phase] < 0) return 0;
    return call->plan[phase];
}

static int64_t tasks_done(attune_call *call, uint32_t phase) {
    return atomic_load_explicit(&call->phases[phase].done, memory_order_acquire);
}

static attune_status check_part(attune_call *call, uint32_t phase, int64_t begin, int64_t end, uint32_t worker,
                                at_error *err) {
    if (phase >= call->num_phases)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "phase is %u; this call has %u phases, numbered from 0", phase,
                       call->num_phases);
    const int64_t tasks = attune_call_num_tasks(call, phase);
    if (begin < 0 || end < begin || end > tasks)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "the range from %lld to %lld is not within the %lld tasks of phase %u", (long long)begin,
                       (long long)end, (long long)tasks, phase);
    if (worker >= call->max_workers)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "worker is %u; max_workers is %u", worker, call->max_workers);
    for (uint32_t p = 0; p < phase; p++)
        if (tasks_done(call, p) != attune_call_num_tasks(call, p))
            return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                           "phase %u cannot begin yet: %lld of the %lld tasks of phase %u are done", phase,
                           (long long)tasks_done(call, p), (long long)attune_call_num_tasks(call, p), p);
    return ATTUNE_OK;
}

static attune_status interpret(attune_call *call, int64_t begin, int64_t end, at_error *err) {
    if (begin == end) return ATTUNE_OK;
    const attune_status status =
        at_run_interpreter(call->context, call->kernel->ir->kernel, call->buffers, call->scalars, err);
    if (!status) atomic_fetch_add(&call->phases[0].done, 1);
    return status;
}

attune_status attune_call_execute(attune_call *call, uint32_t phase, int64_t begin, int64_t end, uint32_t worker) {
    AT_DEFAULT_FPENV;
    at_error err;
    at_error_clear(&err);
    if (!call)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_call_execute was given NULL");
    else if (check_part(call, phase, begin, end, worker, &err) == ATTUNE_OK) {
        if (!at_kernel_has_phases(call->kernel))
            interpret(call, begin, end, &err);
        else if (begin < end)
            at_phase_run_range(&call->phases[phase], begin, end, worker);
    }
    return at_report(&err);
}

/* ---- Ending ---- */

attune_status attune_call_end(attune_call *call) {
    at_error err = {0};
    if (!call) return ATTUNE_OK;
    for (uint32_t p = 0; p < call->num_phases && !err.status; p++)
        if (tasks_done(call, p) != attune_call_num_tasks(call, p))
            at_fail(&err, ATTUNE_INVALID_ARGUMENT, "%lld tasks of phase %u were executed; it has %lld",
                    (long long)tasks_done(call, p), p, (long long)attune_call_num_tasks(call, p));
    free_call(call);
    return at_report(&err);
}
