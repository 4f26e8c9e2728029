#include "runtime/kernel.h"

#include "ir/eval.h"
#include "ir/interp.h"

#include <stdatomic.h>
#include <string.h>

enum { ALIGN = 64 };

/* ---- Workspace: the shared buffers, each aligned, then one scratch for each worker ---- */

static bool add_aligned(size_t *total, uint64_t bytes) {
    uint64_t sum;
    if (__builtin_add_overflow((uint64_t)*total, bytes, &sum) || sum > PTRDIFF_MAX - ALIGN) return false;
    *total = (size_t)((sum + ALIGN - 1) & ~(uint64_t)(ALIGN - 1));
    return true;
}

static uint32_t workers_needed(const attune_context *context, const attune_kernel *kernel, const int64_t *plan) {
    for (uint32_t p = 0; p < kernel->num_phases; p++)
        if (plan[p] > 1) return context->max_workers;
    return 1;
}

attune_status at_plan_workspace(const attune_context *context, const attune_kernel *kernel, const int64_t *scalars,
                                int64_t plan[AT_PLAN_WORDS], size_t *bytes, at_error *err) {
    kernel->plan(scalars, plan);
    size_t total = 0;
    bool fits = true;
    for (uint32_t s = 0; s < kernel->num_shared; s++) {
        const int64_t shared = plan[kernel->num_phases + s];
        fits = fits && shared >= 0 && add_aligned(&total, (uint64_t)shared);
    }
    uint64_t scratch;
    fits = fits && !__builtin_mul_overflow(kernel->max_scratch, workers_needed(context, kernel, plan), &scratch) &&
           add_aligned(&total, scratch);
    if (!fits) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the workspace of these sizes exceeds the address space");
    *bytes = total;
    return ATTUNE_OK;
}

/* ---- Phases ---- */

typedef struct phase_job {
    at_phase_fn *run;
    void *const *buffers;
    const int64_t *scalars;
    char *scratch;
    size_t scratch_stride;
    uint32_t max_workers;
    atomic_bool bad_worker;
} phase_job;

static void run_range(void *argument, int64_t begin, int64_t end, uint32_t worker) {
    phase_job *job = argument;
    if (worker >= job->max_workers) {
        atomic_store(&job->bad_worker, true);
        return;
    }
    const uint32_t saved = ir_fpenv_enter();
    job->run(job->buffers, job->scalars, begin, end, job->scratch + worker * job->scratch_stride);
    ir_fpenv_leave(saved);
}

static void run_phase(attune_context *context, phase_job *job, int64_t tasks) {
    if (tasks == 1 || context->max_workers == 1) {
        run_range(job, 0, tasks, 0);
    } else if (context->parallel_for) {
        context->parallel_for(context->parallel_user, run_range, job, tasks);
    } else {
        at_pool_run(&context->pool, run_range, job, tasks);
    }
}

static attune_status run_phases(attune_context *context, const attune_kernel *kernel, void *const *buffers,
                                const int64_t *scalars, const int64_t *plan, char *scratch, at_error *err) {
    phase_job job = {.buffers = buffers,
                     .scalars = scalars,
                     .scratch = scratch,
                     .scratch_stride = (size_t)kernel->max_scratch,
                     .max_workers = context->max_workers};
    for (uint32_t p = 0; p < kernel->num_phases; p++) {
        if (plan[p] <= 0) continue;
        job.run = kernel->phases[p].run;
        run_phase(context, &job, plan[p]);
        if (atomic_load(&job.bad_worker))
            return at_fail(err, ATTUNE_INVALID_ARGUMENT, "parallel_for passed a worker number beyond max_workers = %u",
                           context->max_workers);
    }
    return ATTUNE_OK;
}

/* The pointers that a phase takes: the parameters, then the shared buffers at the start of the workspace. */
static attune_status run_in(attune_context *context, const attune_kernel *kernel, void *const *buffers,
                            size_t num_buffers, const int64_t *scalars, const int64_t *plan, char *workspace,
                            at_error *err) {
    enum { FEW = 16 };
    void *few[FEW + AT_MAX_SHARED], **all = few;
    if (!kernel->num_shared) return run_phases(context, kernel, buffers, scalars, plan, workspace, err);
    if (num_buffers > FEW) all = at_alloc(&context->allocator, (num_buffers + AT_MAX_SHARED) * sizeof *all);
    if (!all) return at_fail_memory(err, (num_buffers + AT_MAX_SHARED) * sizeof *all);
    memcpy(all, buffers, num_buffers * sizeof *all);
    size_t offset = 0;
    for (uint32_t s = 0; s < kernel->num_shared; s++) {
        all[num_buffers + s] = workspace + offset;
        add_aligned(&offset, (uint64_t)plan[kernel->num_phases + s]);
    }
    const attune_status status = run_phases(context, kernel, all, scalars, plan, workspace + offset, err);
    if (all != few) at_free(&context->allocator, all);
    return status;
}

attune_status at_run_machine_code(attune_context *context, const attune_kernel *kernel, void *const *buffers,
                                  size_t num_buffers, const int64_t *scalars, void *workspace, size_t workspace_bytes,
                                  at_error *err) {
    int64_t plan[AT_PLAN_WORDS];
    size_t needed;
    attune_status status = at_plan_workspace(context, kernel, scalars, plan, &needed, err);
    if (status) return status;
    if (workspace && (uintptr_t)workspace % ALIGN)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the workspace (%p) is not aligned to %d bytes", workspace, ALIGN);
    if (workspace && workspace_bytes < needed)
        return at_fail(err, ATTUNE_WORKSPACE_TOO_SMALL, "the workspace has %zu bytes; this call needs %zu",
                       workspace_bytes, needed);
    void *own = NULL;
    if (!workspace && needed) {
        workspace = own = at_alloc_aligned(&context->allocator, needed, ALIGN);
        if (!own) return at_fail_memory(err, needed);
    }
    status = run_in(context, kernel, buffers, num_buffers, scalars, plan, workspace, err);
    at_free(&context->allocator, own);
    return status;
}

/* ---- Public ---- */

attune_status attune_workspace_size(const attune_context *context, const attune_kernel *kernel,
                                    const attune_arguments *arguments, size_t *bytes) {
    at_error err = {0};
    at_call call;
    attune_problem actual;
    int64_t plan[AT_PLAN_WORDS];
    if (!context || !kernel || !arguments || !bytes)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_workspace_size was given NULL");
    else if (!kernel->is_mha)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "a kernel of attune_ir_compile takes no attune_arguments");
    else if (at_call_sizes(&kernel->problem, arguments, &call, &actual, &err) == ATTUNE_OK) {
        *bytes = 0; /* the interpreter needs none */
        if (kernel->engine == ATTUNE_ENGINE_JIT) at_plan_workspace(context, kernel, call.scalars, plan, bytes, &err);
    }
    return at_report(&err);
}

attune_status attune_run(attune_context *context, const attune_kernel *kernel, const attune_arguments *arguments) {
    at_error err;
    at_call call;
    at_error_clear(&err);
    if (!context || !kernel || !arguments) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_run was given no %s",
                !context  ? "context"
                : !kernel ? "kernel"
                          : "arguments");
    } else if (!kernel->is_mha) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "a kernel of attune_ir_compile is run by attune_ir_run");
    } else if (at_call_make(&kernel->problem, arguments, &call, &err) == ATTUNE_OK) {
        if (kernel->engine == ATTUNE_ENGINE_JIT) {
            at_run_machine_code(context, kernel, call.buffers, call.num_buffers, call.scalars, arguments->workspace,
                                arguments->workspace_bytes, &err);
        } else {
            const ir_interp_options options = {.allocator = &context->allocator};
            ir_interpret(kernel->ir->kernel, call.buffers, call.scalars, &options, &err);
        }
    }
    return at_report(&err);
}

attune_status attune_run_interpreted(attune_context *context, const attune_problem *problem,
                                     const attune_schedule *schedule, const attune_arguments *arguments) {
    at_error err = {0};
    attune_problem canonical;
    at_call call;
    if (!context || !problem || !arguments) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_run_interpreted was given NULL");
        return at_report(&err);
    }
    if (mha_canonicalize(problem, &canonical, &err) || at_call_make(&canonical, arguments, &call, &err))
        return at_report(&err);
    at_arena arena;
    at_arena_init(&arena, &context->allocator);
    at_built built;
    if (at_build_problem(context, &arena, &canonical, schedule, &built, &err) == ATTUNE_OK) {
        const ir_interp_options options = {.allocator = &context->allocator};
        ir_interpret(built.lowered, call.buffers, call.scalars, &options, &err);
    }
    at_arena_free(&arena);
    return at_report(&err);
}
