/* Making and running kernels. */
#ifndef ATTUNE_ENGINE_KERNEL_H
#define ATTUNE_ENGINE_KERNEL_H

#include "call/call_debug.h"
#include "call/workspace.h"
#include "engine/context.h"

/* The kernel of an operation other than attention, with a reference for the caller: from memory, else from disk, else
 * compiled. schedule: NULL, or an explicit one that was checked. */
attune_status at_kernel_get(attune_context *context, at_operation operation, const mha_schedule *schedule,
                            attune_kernel **kernel, at_error *err);

/* The same, for a caller that gives the kernel the arguments of a general one if it is that (is_general). */
attune_status at_kernel_get_general(attune_context *context, at_operation operation, attune_kernel **kernel,
                                    at_error *err);

/* Parses and checks a caller's schedule. NULL is no schedule, and leaves *wish alone. */
attune_status at_wish(const attune_context *context, const attune_problem *canonical, const char *text,
                      mha_schedule *wish, at_error *err);

/* As at_kernel_get, for attention: canonicalises the problem, and parses the schedule. hash: NULL, or the hash of the
 * raw key by which the memory cache also finds the kernel from now on. Disables cancellation (pthread_cancel), as other
 * threads would wait forever for the kernel of a cancelled one. */
attune_status at_kernel_find_or_make(attune_context *context, const attune_problem *problem, const char *schedule,
                                     const uint64_t *hash, attune_kernel **kernel, at_error *err);

/* A kernel of attention that needs no compile and waits for none: from memory, a bundle, the disk, another tuning class
 * or tier 0. may_prepare: also one of the virtual machine, whose program takes 2 ms to make. Strict mode
 * refuses tier 0 and the virtual machine: ATTUNE_NOT_CACHED. */
attune_status at_kernel_at_once(attune_context *context, const attune_problem *problem, bool may_prepare,
                                attune_kernel **kernel, at_error *err);

/* For the memory cache: frees a kernel that has no reference and can no longer be found. */
void at_kernel_destroy(at_cache_node *node);
void at_kernel_evicted(const at_cache_node *node);

/* Whether a kernel is what attune_compile would give, and no fallback. */
bool at_kernel_is_own(const attune_kernel *kernel);

/* Builds, schedules and lowers the loop IR of a problem. built->schedule becomes the schedule used: `wish`, or the
 * chosen one if that is NULL. */
typedef struct at_built {
    mha_schedule schedule;
    ir_kernel *scheduled, *lowered;
} at_built;
attune_status at_build(attune_context *context, at_arena *arena, at_operation operation, const mha_schedule *wish,
                       at_built *built, at_error *err);

/* The same, but without a schedule it uses that of the cached kernel. So the interpreter and the listings show the
 * kernel that runs, even if a faster schedule was tuned since. */
attune_status at_build_as_cached(attune_context *context, at_arena *arena, at_operation operation,
                                 const mha_schedule *wish, at_built *built, at_error *err);

/* One stage of a kernel, as attune_emit gives it. */
attune_status at_emit_stage(attune_context *context, const ir_kernel *scheduled, const ir_kernel *lowered,
                            attune_stage stage, void **data, size_t *bytes, at_error *err);

/* Builds and compiles a problem: gives the image, in a block of the allocator, and its IR. */
attune_status at_build_image(attune_context *context, at_arena *arena, at_operation operation, const mha_schedule *wish,
                             at_built *built, void **image, size_t *bytes, at_error *err);

/* A kernel from an image, or one for the interpreter (image NULL). It has one reference. */
attune_status at_kernel_new(attune_context *context, const void *image, size_t image_bytes, const char *name,
                            attune_kernel **kernel, at_error *err);

/* A kernel of the virtual machine, which needs no code (src/vm). It has one reference. Names and the problem are to be
 * filled in by the caller, as for all of these. */
attune_status at_kernel_from_vm(attune_context *context, const ir_kernel *lowered, attune_kernel **kernel,
                                at_error *err);

/* A kernel without its code, whose members are zero. It has one reference. */
attune_status at_kernel_blank(attune_context *context, uint32_t num_phases, attune_kernel **kernel, at_error *err);

/* A kernel whose code is part of the program. It has one reference. */
attune_status at_kernel_from_bundle(attune_context *context, const at_bundle_code *code, attune_kernel **kernel,
                                    at_error *err);

/* Keeps the IR in `arena`, and lists its parameters. The kernel then owns its memory, and the caller's arena is empty.
 */
attune_status at_kernel_keep_ir(attune_kernel *kernel, at_arena *arena, ir_kernel *lowered, at_error *err);

/* A kernel with this schedule that is in no cache, with its IR. End it with at_kernel_destroy(&kernel->node). */
attune_status at_kernel_make_uncached(attune_context *context, at_operation operation, const mha_schedule *schedule,
                                      attune_kernel **kernel, at_error *err);

/* Makes attune_compile without a schedule give the kernel of this schedule, by writing it to the disk cache, which must
 * be on. */
attune_status at_kernel_replace(attune_context *context, at_operation operation, const mha_schedule *schedule,
                                at_error *err);

/* The schedule of the disk cache's kernel for a problem without a schedule; false: there is none. */
bool at_kernel_on_disk(attune_context *context, at_operation operation, mha_schedule *schedule);

/* at_code_size and at_code_place_shared for a kernel. */
static inline at_code_shape at_shape_of(const attune_kernel *kernel) {
    return (at_code_shape){kernel->num_phases, kernel->num_shared, kernel->max_scratch};
}
/* Inserts the tensors that the code has and the problem lacks before the code's own shared buffers. */
size_t at_signature_added(const at_signature *signature);
void at_kernel_plan_added(const attune_kernel *kernel, const int64_t *scalars, int64_t plan[AT_PLAN_WORDS]);
static inline void at_kernel_plan(const attune_kernel *kernel, const int64_t *scalars, int64_t plan[AT_PLAN_WORDS]) {
    if (kernel->vm)
        at_vm_plan(kernel->vm, scalars, plan);
    else
        kernel->plan(scalars, plan);
    if (__builtin_expect(kernel->signature.is_of_other, 0)) at_kernel_plan_added(kernel, scalars, plan);
}
/* Whether it has phases, whose tasks threads share. The interpreter runs a call as a whole. */
static inline bool at_kernel_has_phases(const attune_kernel *kernel) {
    return kernel->engine != ATTUNE_ENGINE_INTERPRETER;
}
static inline attune_status at_plan_workspace(const attune_kernel *kernel, uint32_t max_workers, const int64_t *scalars,
                                              int64_t plan[AT_PLAN_WORDS], size_t *bytes, at_error *err) {
    const at_code_shape shape = at_shape_of(kernel);
    at_kernel_plan(kernel, scalars, plan);
    return at_code_size(&shape, max_workers, plan, bytes, err);
}
static inline size_t at_place_shared(const attune_kernel *kernel, const int64_t *plan, void *workspace, void **shared) {
    const at_code_shape shape = at_shape_of(kernel);
    return at_code_place_shared(&shape, plan, workspace, shared);
}

/* For attention: whether the last phase merges chunks of keys, and whether later rows, which attend to more keys, are
 * computed first. */
bool at_kernel_merges(const attune_kernel *kernel);
bool at_kernel_falls(const attune_kernel *kernel);

/* The caller's `count` buffers and the scalars. */
typedef struct at_given {
    void *const *buffers;
    size_t count;
    const int64_t *scalars;
} at_given;

/* All buffers of a call's code, in its order, with its shared ones, which are placed in the workspace. Returns the
 * bytes of these. all: room for AT_MOST_BUFFERS; it may be given->buffers, unless the code is of another problem. */
enum { AT_MOST_BUFFERS = MHA_NUM_TENSORS + AT_MAX_SHARED };
size_t at_kernel_buffers(const attune_kernel *kernel, const at_given *given, const int64_t *plan, void *workspace,
                         void **all);

/* The work of a call in the pool's unit (threads/pool.h). Narrow vectors take four times as long. */
static inline double at_work_of(double flops, const at_target *target) {
    return target->vector_bytes < 32 ? 4 * flops : flops;
}

/* Some tasks of the phases [begin, end): runs of `run` tasks, `step` apart within a run; a run begins `leap` tasks
 * after the one before. `count`: how many tasks that are; 0: all tasks. */
typedef struct at_run_part {
    uint32_t begin, end;
    int64_t first, step, run, leap, count;
} at_run_part;

static inline int64_t at_part_task(const at_run_part *part, int64_t number) {
    return part->first + number / part->run * part->leap + number % part->run * part->step;
}

/* One run on checked arguments. */
typedef struct at_run {
    void *const *buffers; /* the parameters */
    size_t num_buffers;
    const int64_t *scalars;
    void *workspace; /* NULL: allocated for the call */
    size_t workspace_bytes;
    double work;             /* as at_work_of gives it */
    const at_team *team;     /* who works */
    const int *cancel;       /* NULL, or a flag that ends the run */
    int64_t heads;           /* whose tasks get shorter, from the first to the last of each; 0: all are alike */
    const at_run_part *part; /* NULL: everything */
    void *mask_tiles;        /* NULL, or the caller's table of what mask_mod hides (api/block_mask.h) */
} at_run;
attune_status at_run_machine_code(attune_context *context, const attune_kernel *kernel, const at_run *run,
                                  at_error *err);

/* One phase of a call: the data that its ranges share. */
typedef struct at_phase_job {
    const at_kernel_phase *phase;
    void *const *buffers;
    const int64_t *scalars;
    const at_run_part *part; /* NULL: the tasks begin with the first */
    const int *cancel;
    char *scratch;
    size_t scratch_stride;
    int64_t tasks;
    uint32_t max_workers;
    _Atomic uint32_t bad_worker; /* a worker number from a runner that is not below max_workers, or 0 */
    _Atomic bool has_bad_range;  /* a runner passed a range beyond the tasks */
    _Atomic bool was_cancelled;
    bool counts;          /* count finished tasks: attune's own loops do not need it, and threads would wait for it */
    _Atomic int64_t done; /* tasks */
} at_phase_job;

/* Where the table of what mask_mod hides is (attend/shared/mask_table.h): which phase makes it, and which of the shared
 * buffers it is. */
enum { AT_MASK_PHASE = 0, AT_MASK_SHARED = 0 };

/* An attune_range_fn; `argument` is the at_phase_job. */
void at_phase_run_range(void *argument, int64_t begin, int64_t end, uint32_t worker);

/* The first checks of attune_run and attune_call_begin. */
static inline attune_status at_check_run(const attune_context *context, const attune_kernel *kernel,
                                         const attune_arguments *arguments, at_error *err) {
    if (__builtin_expect(!context || !kernel || !arguments, 0))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the call was given no %s",
                       !context  ? "context"
                       : !kernel ? "kernel"
                                 : "arguments");
    if (at_kernel_is_attention(kernel)) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                   "a kernel of attune_ir_compile or attune_description_compile is run by attune_ir_run");
}

/* The checks that a context with `check` makes of a call, before anything is written. */
static inline attune_status at_call_check(const attune_context *context, const at_signature *signature,
                                          const at_call *call, at_error *err) {
    if (__builtin_expect(!context->checks, 1)) return ATTUNE_OK;
    return at_call_debug(&context->allocator, signature, call, err);
}

/* Runs the interpreter, with tasks in shuffled order, so that results which depend on the order are found. */
attune_status at_run_interpreter(const attune_context *context, const ir_kernel *kernel, void *const *buffers,
                                 const int64_t *scalars, at_error *err);

#endif
