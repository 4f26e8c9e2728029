/* Kernels that the user wrote in loop IR. */
#include "api/api_run.h"
#include "call/ir_call.h"

#include "base/fpenv.h"
#include "ir/interp.h"
#include "ir/passes.h"
#include "ir/text.h"

#include <string.h>

/* ---- Text in, stages out ---- */

static ir_kernel *parse_and_lower(const attune_context *context, at_arena *arena, const char *text,
                                  ir_observe_fn *observe, void *user, ir_kernel **scheduled, at_error *err) {
    *scheduled = ir_parse(arena, text, strlen(text), err);
    return *scheduled ? ir_lower(*scheduled, context->target, observe, user, err) : NULL;
}

attune_status attune_ir_emit(attune_context *context, const char *text, attune_stage stage, void **data,
                             size_t *bytes) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    if (!context || !text || !data || !bytes) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_ir_emit was given NULL");
        return at_report(&err);
    }
    *data = NULL;
    *bytes = 0;
    at_arena arena;
    at_arena_init(&arena, &context->allocator);
    ir_kernel *scheduled;
    const ir_kernel *lowered = parse_and_lower(context, &arena, text, NULL, NULL, &scheduled, &err);
    if (lowered) at_emit_stage(context, scheduled, lowered, stage, data, bytes, &err);
    at_arena_free(&arena);
    return at_report(&err);
}

typedef struct pass_observer {
    const attune_context *context;
    attune_pass_fn *observe;
    void *user;
    bool first, failed;
} pass_observer;

static void observe_pass(void *user, const char *pass, const ir_kernel *kernel) {
    pass_observer *o = user;
    at_string text;
    at_string_init(&text, &o->context->allocator);
    ir_print(kernel, &text);
    if (text.failed || !text.data)
        o->failed = true;
    else
        o->observe(o->user, o->first ? "parse" : pass, text.data);
    o->first = false;
    at_string_free(&text);
}

attune_status attune_ir_dump_passes(attune_context *context, const char *text, attune_pass_fn *observe, void *user) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    if (!context || !text || !observe) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_ir_dump_passes was given NULL");
        return at_report(&err);
    }
    pass_observer observer = {.context = context, .observe = observe, .user = user, .first = true};
    at_arena arena;
    at_arena_init(&arena, &context->allocator);
    ir_kernel *scheduled;
    parse_and_lower(context, &arena, text, observe_pass, &observer, &scheduled, &err);
    if (observer.failed) at_fail(&err, ATTUNE_OUT_OF_MEMORY, "out of memory while printing a kernel");
    at_arena_free(&arena);
    return at_report(&err);
}

/* ---- Compiling ---- */

attune_status attune_ir_compile(attune_context *context, const char *text, attune_kernel **kernel) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    if (!context || !text || !kernel) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_ir_compile was given NULL");
        return at_report(&err);
    }
    *kernel = NULL;
    at_string canonical;
    at_written written;
    at_string_init(&canonical, &context->allocator);
    if (!at_written_read(text, &canonical, &written, &err))
        at_kernel_get(context, at_written_of(&written), NULL, kernel, &err);
    at_string_free(&canonical);
    return at_report(&err);
}

/* ---- Parameters and shapes ---- */

attune_status at_ir_check_kernel(const attune_kernel *kernel, at_error *err) {
    if (kernel && !at_kernel_is_attention(kernel)) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                   kernel ? "the kernel is not one of attune_ir_compile" : "the kernel is NULL");
}

attune_status attune_ir_parameters(const attune_kernel *kernel, const attune_ir_parameter **parameters, size_t *count) {
    at_error err = {0};
    if (at_ir_check_kernel(kernel, &err)) return at_report(&err);
    if (parameters) *parameters = kernel->ir->parameters;
    if (count) *count = kernel->ir->num_parameters;
    return ATTUNE_OK;
}

attune_status attune_ir_shape(const attune_kernel *kernel, size_t index, const int64_t *scalars, int64_t *dims,
                              size_t *rank) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    if (at_ir_check_kernel(kernel, &err)) return at_report(&err);
    const at_kernel_ir *ir = kernel->ir;
    if (index >= ir->num_parameters || !ir->kernel->params[index].buffer) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "parameter %zu of @%s is not a buffer", index, ir->kernel->name);
    } else if (!dims || !rank || (!scalars && ir->num_scalars)) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_ir_shape was given NULL");
    } else {
        const ir_buffer *buffer = ir->kernel->params[index].buffer;
        *rank = buffer->num_dims;
        for (size_t d = 0; d < buffer->num_dims && !err.status; d++)
            ir_eval_scalar(ir->kernel, buffer->dims[d], scalars, &dims[d], &err);
    }
    return at_report(&err);
}

/* ---- Running ---- */

attune_status attune_ir_run(attune_context *context, const attune_kernel *kernel, attune_engine engine,
                            void *const *buffers, const int64_t *scalars) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    if (!context) at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_ir_run was given no context");
    if (engine != ATTUNE_ENGINE_JIT && engine != ATTUNE_ENGINE_INTERPRETER && engine != ATTUNE_ENGINE_VM)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "engine is %d, which is no attune_engine", (int)engine);
    if (err.status || at_ir_check_kernel(kernel, &err) || at_ir_check_call(kernel->ir->kernel, buffers, scalars, &err))
        return at_report(&err);
    if (engine == ATTUNE_ENGINE_VM && kernel->engine != ATTUNE_ENGINE_VM) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "engine is the virtual machine, but the kernel has machine code");
    } else if (engine != ATTUNE_ENGINE_INTERPRETER && at_kernel_has_phases(kernel)) {
        const at_run run = {.buffers = buffers,
                            .work = AT_LONG_WORK, /* unknown */
                            .num_buffers = kernel->ir->num_buffers,
                            .scalars = scalars,
                            .team = &context->team};
        at_run_machine_code(context, kernel, &run, &err);
    } else {
        at_run_interpreter(context, kernel->ir->kernel, buffers, scalars, &err);
    }
    return at_report(&err);
}
