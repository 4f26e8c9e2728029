#include "runtime/kernel.h"

#include "ir/eval.h"
#include "ir/interp.h"

#include <stdatomic.h>
#include <string.h>

enum { ALIGN = AT_SPARE_ALIGN };

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

size_t at_place_shared(const attune_kernel *kernel, const int64_t *plan, void *workspace, void **shared) {
    size_t offset = 0;
    for (uint32_t s = 0; s < kernel->num_shared; s++) {
        shared[s] = (char *)workspace + offset;
        add_aligned(&offset, (uint64_t)plan[kernel->num_phases + s]);
    }
    return offset;
}

/* ---- Phases ---- */

typedef struct phase_job {
    at_phase_fn *fn;
    void *const *buffers;
    const int64_t *scalars;
    char *scratch;
    size_t scratch_stride;
    const at_run_part *part; /* NULL: the tasks are those from the first on */
    uint32_t max_workers;
    _Atomic uint32_t bad_worker; /* a number beyond max_workers that parallel_for passed, else 0 */
} phase_job;

static void run_range(void *argument, int64_t begin, int64_t end, uint32_t worker) {
    phase_job *job = argument;
    if (worker >= job->max_workers) {
        atomic_store(&job->bad_worker, worker);
        return;
    }
    const uint32_t saved = ir_fpenv_enter();
    char *scratch = job->scratch + worker * job->scratch_stride;
    if (!job->part) job->fn(job->buffers, job->scalars, begin, end, scratch);
    for (int64_t i = begin; job->part && i < end; i++) {
        const int64_t task = at_part_task(job->part, i);
        job->fn(job->buffers, job->scalars, task, task + 1, scratch);
    }
    ir_fpenv_leave(saved);
}

static void run_phase(attune_context *context, phase_job *job, bool small, int64_t tasks) {
    if (tasks == 1 || context->max_workers == 1) {
        run_range(job, 0, tasks, 0);
    } else if (context->parallel_for) {
        context->parallel_for(context->parallel_user, run_range, job, tasks);
    } else if (small) {
        run_range(job, 0, tasks, 0);
    } else {
        at_pool_run(&context->pool, run_range, job, tasks);
    }
}

/* buffers: the parameters and then the shared buffers. */
static attune_status run_phases(attune_context *context, const attune_kernel *kernel, const at_run *run,
                                void *const *buffers, const int64_t *plan, char *scratch, at_error *err) {
    const at_run_part *part = run->part;
    const uint32_t begin = part ? part->begin : 0, end = part ? part->end : kernel->num_phases;
    phase_job job = {.buffers = buffers,
                     .scalars = run->scalars,
                     .part = part && part->count ? part : NULL,
                     .scratch = scratch,
                     .scratch_stride = (size_t)kernel->max_scratch,
                     .max_workers = context->max_workers};
    for (uint32_t p = begin; p < end; p++) {
        const int64_t tasks = job.part ? part->count : plan[p];
        if (tasks <= 0) continue;
        job.fn = kernel->phases[p].run;
        run_phase(context, &job, run->small, tasks);
        const uint32_t bad_worker = atomic_load(&job.bad_worker);
        if (bad_worker)
            return at_fail(err, ATTUNE_INVALID_ARGUMENT, "parallel_for passed worker %u; max_workers is %u", bad_worker,
                           context->max_workers);
    }
    return ATTUNE_OK;
}

static attune_status run_in(attune_context *context, const attune_kernel *kernel, const at_run *run,
                            const int64_t *plan, char *workspace, at_error *err) {
    enum { FEW = 32 };
    _Static_assert((int)FEW >= (int)MHA_NUM_TENSORS, "no call of a problem allocates here");
    const size_t num = run->num_buffers;
    void *few[FEW + AT_MAX_SHARED], **all = few;
    if (!kernel->num_shared) return run_phases(context, kernel, run, run->buffers, plan, workspace, err);
    if (num > FEW) all = at_alloc(&context->allocator, (num + AT_MAX_SHARED) * sizeof *all);
    if (!all) return at_fail_memory(err, (num + AT_MAX_SHARED) * sizeof *all);
    memcpy(all, run->buffers, num * sizeof *all);
    const size_t offset = at_place_shared(kernel, plan, workspace, all + num);
    const attune_status status = run_phases(context, kernel, run, all, plan, workspace + offset, err);
    if (all != few) at_free(&context->allocator, all);
    return status;
}

attune_status at_run_machine_code(attune_context *context, const attune_kernel *kernel, const at_run *run,
                                  at_error *err) {
    int64_t plan[AT_PLAN_WORDS];
    size_t needed;
    attune_status status = at_plan_workspace(context, kernel, run->scalars, plan, &needed, err);
    if (status) return status;
    void *workspace = run->workspace, *own = NULL;
    if (workspace && (uintptr_t)workspace % ALIGN)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the workspace (%p) is not aligned to %d bytes", workspace, ALIGN);
    if (workspace && run->workspace_bytes < needed)
        return at_fail(err, ATTUNE_WORKSPACE_TOO_SMALL, "the workspace has %zu bytes; this call needs %zu",
                       run->workspace_bytes, needed);
    if (!workspace && needed) {
        workspace = own = at_spares_take(&context->spares, needed);
        if (!own) return at_fail_memory(err, needed);
    }
    status = run_in(context, kernel, run, plan, workspace, err);
    if (own) at_spares_give(&context->spares, own);
    return status;
}

attune_status at_run_interpreter(const attune_context *context, const ir_kernel *kernel, void *const *buffers,
                                 const int64_t *scalars, at_error *err) {
    const ir_interp_options options = {.shuffle_seed = 1, .allocator = &context->allocator};
    return ir_interpret(kernel, buffers, scalars, &options, err);
}

/* ---- Public ---- */

attune_status attune_workspace_size(const attune_context *context, const attune_kernel *kernel,
                                    const attune_arguments *arguments, size_t *bytes) {
    at_error err = {0};
    at_settled settled;
    int64_t plan[AT_PLAN_WORDS];
    if (!context || !kernel || !arguments || !bytes)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_workspace_size was given NULL");
    else if (!kernel->is_mha)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "a kernel of attune_ir_compile takes no attune_arguments");
    else if (at_call_settle(&kernel->signature, arguments, &settled, &err) == ATTUNE_OK) {
        *bytes = 0; /* the interpreter needs none */
        if (kernel->engine == ATTUNE_ENGINE_JIT) at_plan_workspace(context, kernel, settled.scalars, plan, bytes, &err);
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
    } else if (at_call_make(&kernel->signature, arguments, &call, &err) == ATTUNE_OK && !call.settled->is_empty) {
        if (kernel->engine == ATTUNE_ENGINE_JIT) {
            const at_run run = {.buffers = call.buffers,
                                .num_buffers = kernel->signature.count,
                                .scalars = call.settled->scalars,
                                .workspace = arguments->workspace,
                                .workspace_bytes = arguments->workspace_bytes,
                                .small = call.settled->flops < AT_SMALL_FLOPS};
            at_run_machine_code(context, kernel, &run, &err);
        } else {
            at_run_interpreter(context, kernel->ir->kernel, call.buffers, call.settled->scalars, &err);
        }
    }
    return at_report(&err);
}

static attune_status build_and_interpret(attune_context *context, const at_signature *signature,
                                         const attune_schedule *schedule, const at_call *call, at_error *err) {
    at_arena arena;
    at_built built;
    at_arena_init(&arena, &context->allocator);
    attune_status status = at_build_as_cached(context, &arena, &signature->problem, schedule, &built, err);
    if (!status && !call->settled->is_empty)
        status = at_run_interpreter(context, built.lowered, call->buffers, call->settled->scalars, err);
    at_arena_free(&arena);
    return status;
}

attune_status attune_run_interpreted(attune_context *context, const attune_problem *problem,
                                     const attune_schedule *schedule, const attune_arguments *arguments) {
    at_error err = {0};
    attune_problem canonical;
    at_signature signature;
    at_call call;
    if (!context || !problem || !arguments) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_run_interpreted was given NULL");
        return at_report(&err);
    }
    if (mha_canonicalize(problem, &canonical, &err)) return at_report(&err);
    at_signature_init(&signature, &canonical);
    if (at_call_make(&signature, arguments, &call, &err) == ATTUNE_OK)
        build_and_interpret(context, &signature, schedule, &call, &err);
    return at_report(&err);
}
