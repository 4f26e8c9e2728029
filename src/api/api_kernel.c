/* The public functions on a kernel: where attune_compile begins. */
#include "base/fpenv.h"
#include "engine/kernel.h"
#include "schedule/schedule.h"

/* A function of its own, so that a hit needs no stack for a message. */
static attune_status compile_slowly(attune_context *context, const attune_problem *problem, const char *schedule,
                                    const uint64_t *hash, attune_kernel **kernel) {
    at_error err = {0};
    at_kernel_find_or_make(context, problem, schedule, hash, kernel, &err);
    return at_report(&err);
}

attune_status attune_compile(attune_context *context, const attune_problem *problem, const char *schedule,
                             attune_kernel **kernel) {
    AT_DEFAULT_FPENV;
    if (__builtin_expect(!context || !problem || !kernel, 0)) {
        at_error err = {0};
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_compile was given no %s",
                !context   ? "context"
                : !problem ? "problem"
                           : "pointer to the kernel");
        return at_report(&err);
    }
    *kernel = NULL;
    const bool is_raw = !schedule && at_is_raw_key(problem);
    const uint64_t hash = is_raw ? at_raw_key_hash(problem) : 0;
    if (__builtin_expect(is_raw, 1)) {
        *kernel = (attune_kernel *)at_memory_cache_find(&context->memory, problem, hash);
        if (*kernel) return ATTUNE_OK;
    }
    return compile_slowly(context, problem, schedule, is_raw ? &hash : NULL, kernel);
}

void attune_kernel_release(attune_kernel *kernel) {
    if (kernel) at_cache_node_release(&kernel->context->memory, &kernel->node);
}

attune_status attune_kernel_get_info(const attune_kernel *kernel, attune_kernel_info *info) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    if (!kernel || !info) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_kernel_get_info was given NULL");
        return at_report(&err);
    }
    attune_kernel_info full = {
        .engine = kernel->engine,
        .origin = kernel->origin,
        .isa = kernel->target->name,
        .num_phases = kernel->num_phases,
        .code_bytes = kernel->code_bytes,
        .scratch_bytes = kernel->max_scratch,
        .compile_ms = kernel->compile_ms,
        .arithmetic = kernel->arithmetic,
        .machine = kernel->tuning_class,
    };
    if (at_kernel_is_attention(kernel)) mha_schedule_print(&kernel->schedule, full.schedule, sizeof full.schedule);
    if (kernel->op) at_key_name(&kernel->node.key, full.key);
    at_copy_out(info, &full, sizeof full, "attune_kernel_info", &err);
    return at_report(&err);
}

attune_status attune_emit(attune_context *context, const attune_problem *problem, const char *schedule,
                          attune_stage stage, void **data, size_t *bytes) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_problem canonical;
    mha_schedule wish;
    if (!context || !problem || !data || !bytes) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_emit was given NULL");
        return at_report(&err);
    }
    *data = NULL;
    *bytes = 0;
    if (mha_canonicalize(problem, &canonical, &err) || at_wish(context, &canonical, schedule, &wish, &err))
        return at_report(&err);
    at_arena arena;
    at_built built;
    at_arena_init(&arena, &context->allocator);
    if (at_build_as_cached(context, &arena, at_attention_of(&canonical), schedule ? &wish : NULL, &built, &err) ==
        ATTUNE_OK)
        at_emit_stage(context, built.scheduled, built.lowered, stage, data, bytes, &err);
    at_arena_free(&arena);
    return at_report(&err);
}

void attune_free(attune_context *context, void *data) {
    if (context) at_free(&context->allocator, data);
}

attune_status attune_bind_dlpack(attune_arguments *arguments, const attune_kernel *kernel, const char *name,
                                 const attune_dltensor *tensor) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    if (!arguments || !kernel || !name || !tensor)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_bind_dlpack was given NULL");
    else if (!at_kernel_is_attention(kernel))
        at_fail(&err, ATTUNE_INVALID_ARGUMENT,
                "a kernel of attune_ir_compile or attune_description_compile takes no attune_arguments");
    else
        at_bind(&kernel->signature, arguments, name, tensor, &err);
    return at_report(&err);
}

/* ---- Sizes and numbers by name ---- */
