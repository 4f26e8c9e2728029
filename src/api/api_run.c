/* The public functions that run a kernel as a whole. */
#include "api/api_run.h"
#include "api/block_mask.h"
#include "base/fpenv.h"
#include "engine/tier0.h"
#include "problem/problem_sight.h"
#include "schedule/schedule.h"

/* ---- Options ---- */

static const at_struct run_options = {"attune_run_options", "start from ATTUNE_RUN_OPTIONS_INIT",
                                      sizeof(attune_run_options), NULL, 32};

attune_status attune_run_options_init(attune_run_options *options, size_t struct_size) {
    at_error err = {0};
    at_struct_init(&run_options, options, struct_size, &err);
    return at_report(&err);
}

attune_status at_run_choose(const attune_context *context, const attune_run_options *given, at_run_choice *choice,
                            at_error *err) {
    /* Member by member: most calls need no other, and a whole struct takes longer to clear. */
    choice->team = &context->team;
    choice->cancel = NULL;
    if (!given) return ATTUNE_OK;
    attune_run_options whole;
    const attune_run_options *const options = &whole;
    attune_status status = at_copy_in(&run_options, given, &whole, err);
    if (status) return status;
    choice->cancel = options->cancel;
    if (!options->runner && !options->max_threads) return ATTUNE_OK;
    at_team *own = &choice->own;
    *own = context->team;
    choice->team = own;
    if (options->runner) {
        own->pool = NULL;
        status = at_runner_take(options->runner, &own->runner, err);
        if (status) return status;
        own->max_workers = own->runner.max_workers;
    }
    if (!options->max_threads) return ATTUNE_OK;
    if (own->runner.parallel_for)
        return at_fail(
            err, ATTUNE_INVALID_ARGUMENT,
            "max_threads is %u; it must be 0, because the runner's parallel_for decides the number of threads",
            options->max_threads);
    if (options->max_threads < own->max_workers) own->max_workers = options->max_threads;
    return ATTUNE_OK;
}

/* ---- Workspace ---- */

attune_status attune_workspace_size_with(const attune_context *context, const attune_kernel *kernel,
                                         const attune_arguments *arguments, const attune_run_options *options,
                                         size_t *bytes) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    at_settled settled;
    at_run_choice choice;
    int64_t plan[AT_PLAN_WORDS];
    if (!context || !kernel || !arguments || !bytes)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_workspace_size was given NULL");
    else if (!at_kernel_is_attention(kernel))
        at_fail(&err, ATTUNE_INVALID_ARGUMENT,
                "a kernel of attune_ir_compile or attune_description_compile takes no attune_arguments");
    else if (at_run_choose(context, options, &choice, &err) == ATTUNE_OK &&
             at_call_settle(&kernel->signature, arguments, &settled, &err) == ATTUNE_OK) {
        *bytes = 0; /* the interpreter needs none */
        if (at_kernel_has_phases(kernel))
            at_plan_workspace(kernel, at_workers_of(choice.team, at_work_of(settled.flops, kernel->target)),
                              settled.scalars, plan, bytes, &err);
    }
    return at_report(&err);
}

attune_status attune_workspace_size(const attune_context *context, const attune_kernel *kernel,
                                    const attune_arguments *arguments, size_t *bytes) {
    return attune_workspace_size_with(context, kernel, arguments, NULL, bytes);
}

/* ---- Running ---- */

/* Tasks of a head get shorter: those of later rows, which attend to more keys, come first. */
static int64_t falling_heads(const attune_kernel *kernel, const mha_sizes *sizes) {
    const attune_problem *const p = &kernel->signature.problem;
    if (p->op != ATTUNE_ATTENTION || kernel->schedule.strategy != MHA_Q_LANES || !at_kernel_falls(kernel)) return 0;
    return sizes->of[MHA_BATCH] * sizes->of[MHA_KV_HEADS];
}

static attune_status run_call(attune_context *context, const attune_kernel *kernel, const at_call *call,
                              const at_run_choice *choice, at_error *err) {
    if (!at_kernel_has_phases(kernel)) {
        if (choice->cancel && __atomic_load_n(choice->cancel, __ATOMIC_RELAXED))
            return at_fail(err, ATTUNE_CANCELLED, "the call was cancelled before the interpreter began");
        void *none;
        if (at_block_mask_take(kernel, call, NULL, &none, err)) return err->status;
        return at_run_interpreter(context, kernel->ir->kernel, call->buffers, call->settled->scalars, err);
    }
    at_run_part after_mask = {.begin = AT_MASK_PHASE + 1, .end = kernel->num_phases};
    at_run run = {.buffers = call->buffers,
                  .num_buffers = kernel->signature.count,
                  .scalars = call->settled->scalars,
                  .workspace = call->workspace,
                  .workspace_bytes = call->workspace_bytes,
                  .work = at_work_of(call->settled->flops, kernel->target),
                  .team = choice->team,
                  .heads = falling_heads(kernel, &call->settled->sizes),
                  .cancel = choice->cancel};
    if (__builtin_expect(call->block_mask != NULL, 0)) {
        int64_t plan[AT_PLAN_WORDS];
        at_kernel_plan(kernel, run.scalars, plan);
        if (at_block_mask_take(kernel, call, plan, &run.mask_tiles, err)) return err->status;
        if (run.mask_tiles) run.part = &after_mask;
    }
    return at_run_machine_code(context, kernel, &run, err);
}

attune_status at_run_kernel(attune_context *context, const attune_kernel *kernel, const at_layout *likely,
                            const attune_arguments *arguments, const attune_run_options *options, at_error *err) {
    at_call call;
    at_run_choice choice;
    if (at_check_run(context, kernel, arguments, err) || at_run_choose(context, options, &choice, err) ||
        at_call_make(&kernel->signature, likely, arguments, &call, err) ||
        at_call_check(context, &kernel->signature, &call, err))
        return err->status;
    return call.settled->is_empty ? ATTUNE_OK : run_call(context, kernel, &call, &choice, err);
}

attune_status attune_run_with(attune_context *context, const attune_kernel *kernel, const attune_arguments *arguments,
                              const attune_run_options *options) {
    AT_DEFAULT_FPENV;
    at_error err;
    at_error_clear(&err);
    at_run_kernel(context, kernel, NULL, arguments, options, &err);
    return at_report(&err);
}

attune_status attune_run(attune_context *context, const attune_kernel *kernel, const attune_arguments *arguments) {
    return attune_run_with(context, kernel, arguments, NULL);
}

/* ---- The interpreter ---- */

/* What the interpreter runs: the kernel of the problem, or the tier-0 kernel that is its fallback. */
typedef struct interpreted {
    attune_problem problem; /* canonical */
    mha_schedule schedule;
    const mha_schedule *wish; /* NULL: as chosen, or cached */
    at_signature signature;
} interpreted;

static void take_problem(attune_context *context, const attune_problem *canonical, const mha_schedule *wish,
                         interpreted *out) {
    at_key key;
    out->problem = *canonical;
    out->wish = wish;
    at_signature_init(&out->signature, canonical);
    if (wish) return;
    at_key_make(&key, at_attention_of(canonical), NULL, &context->machine);
    at_cache_node *node = at_memory_cache_peek(&context->memory, &key);
    const attune_kernel *const kernel = (const attune_kernel *)node;
    if (kernel && kernel->tier0 && !at_tier0_problem(kernel->tier0, &out->problem, NULL)) {
        at_signature_take(&out->signature, &out->problem, kernel->signature.folds_group);
        out->schedule = kernel->schedule;
        out->wish = &out->schedule;
    }
    if (node) at_cache_node_release(&context->memory, node);
}

/* The buffers that the loop IR takes. A tier-0 kernel takes others than the call has. */
static attune_status take_buffers(at_arena *arena, const at_signature *signature, const at_call *call, void **taken,
                                  at_error *err) {
    void *added[AT_NUM_ADDED] = {NULL};
    if (!signature->is_of_other) {
        memcpy(taken, call->buffers, signature->count * sizeof *taken);
        return ATTUNE_OK;
    }
    for (int which = 0; which < AT_NUM_ADDED; which++) {
        if (!signature->adds[which]) continue;
        const int64_t bytes = at_call_added_bytes(signature, (at_added)which, call->settled->scalars);
        added[which] = bytes < 0 ? NULL : at_arena_alloc(arena, (size_t)bytes);
        if (!added[which]) return at_fail_memory(err, bytes < 0 ? SIZE_MAX : (size_t)bytes);
    }
    at_call_taken_buffers(signature, call->buffers, call->settled->scalars, added, taken);
    return ATTUNE_OK;
}

static attune_status build_and_interpret(attune_context *context, const interpreted *what, at_call *call,
                                         at_error *err) {
    at_arena arena;
    at_built built;
    void *buffers[MHA_NUM_TENSORS];
    at_arena_init(&arena, &context->allocator);
    attune_status status =
        at_build_as_cached(context, &arena, at_attention_of(&what->problem), what->wish, &built, err);
    if (!status) status = take_buffers(&arena, &what->signature, call, buffers, err);
    if (!status && !call->settled->is_empty)
        status = at_run_interpreter(context, built.lowered, buffers, call->settled->scalars, err);
    at_arena_free(&arena);
    return status;
}

attune_status attune_run_interpreted(attune_context *context, const attune_problem *problem, const char *schedule,
                                     const attune_arguments *arguments) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_problem canonical;
    mha_schedule wish;
    at_call call;
    if (!context || !problem || !arguments) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_run_interpreted was given NULL");
        return at_report(&err);
    }
    if (mha_canonicalize(problem, &canonical, &err) || at_wish(context, &canonical, schedule, &wish, &err))
        return at_report(&err);
    interpreted *what = at_alloc(&context->allocator, sizeof *what);
    if (!what) {
        at_fail_memory(&err, sizeof *what);
        return at_report(&err);
    }
    take_problem(context, &canonical, schedule ? &wish : NULL, what);
    if (at_call_make(&what->signature, NULL, arguments, &call, &err) == ATTUNE_OK &&
        at_call_check(context, &what->signature, &call, &err) == ATTUNE_OK)
        build_and_interpret(context, what, &call, &err);
    at_free(&context->allocator, what);
    return at_report(&err);
}
