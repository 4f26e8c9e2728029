/* Checks what a kernel of the user's loop IR is called with; its own expressions give the sizes of buffers and the
 * tasks of phases. */
#include "call/ir_call.h"

#include "ir/interp.h"

static attune_status check_buffers(const ir_kernel *kernel, void *const *buffers, at_error *err) {
    size_t n = 0;
    for (uint32_t i = 0; i < kernel->num_params; i++) {
        const ir_buffer *buffer = kernel->params[i].buffer;
        if (!buffer) continue;
        const void *pointer = buffers ? buffers[n++] : NULL;
        const size_t align = ir_elem_get((ir_elem)buffer->type.elem)->bytes;
        if (!pointer) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the pointer to %s is NULL", buffer->name);
        if ((uintptr_t)pointer % align)
            return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the pointer to %s (%p) is not aligned to %zu bytes",
                           buffer->name, pointer, align);
    }
    return ATTUNE_OK;
}

static bool has_scalars(const ir_kernel *kernel) {
    for (uint32_t i = 0; i < kernel->num_params; i++)
        if (!kernel->params[i].buffer) return true;
    return false;
}

static attune_status check_scalars(const ir_kernel *kernel, const int64_t *scalars, at_error *err) {
    if (!scalars && has_scalars(kernel))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "@%s takes scalars, but none were given", kernel->name);
    for (uint32_t i = 0; i < kernel->num_assumes; i++) {
        int64_t holds = 0;
        const attune_status status = ir_eval_scalar(kernel, kernel->assumes[i], scalars, &holds, err);
        if (status) return status;
        if (!holds)
            return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the scalars do not fulfil assumption %u of @%s", i + 1,
                           kernel->name);
    }
    return ATTUNE_OK;
}

/* Machine code multiplies without checks, so a product that wraps must be found here, before it becomes a workspace
 * that is too small. */
attune_status at_ir_buffer_bytes(const ir_kernel *kernel, const ir_buffer *buffer, const int64_t *scalars,
                                 int64_t *total, at_error *err) {
    int64_t bytes = ir_elem_get((ir_elem)buffer->type.elem)->bytes;
    bool overflow = false, empty = false;
    for (int d = 0; d < buffer->num_dims; d++) {
        int64_t dim = 0;
        const attune_status status = ir_eval_scalar(kernel, buffer->dims[d], scalars, &dim, err);
        if (status) return status;
        if (dim < 0)
            return at_fail(err, ATTUNE_INVALID_ARGUMENT, "dimension %d of %s in @%s is %lld", d, buffer->name,
                           kernel->name, (long long)dim);
        empty |= dim == 0;
        overflow |= __builtin_mul_overflow(bytes, dim, &bytes);
    }
    *total = empty ? 0 : bytes;
    if (empty || !overflow) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the size of %s in @%s overflows", buffer->name, kernel->name);
}

/* The elements of each buffer and the tasks of each phase. */
static attune_status check_sizes(const ir_kernel *kernel, const int64_t *scalars, at_error *err) {
    for (uint32_t i = 0; i < kernel->num_params + kernel->num_shared; i++) {
        const bool shared = i >= kernel->num_params;
        const ir_buffer *buffer = shared ? kernel->shared[i - kernel->num_params] : kernel->params[i].buffer;
        int64_t bytes;
        const attune_status status = buffer ? at_ir_buffer_bytes(kernel, buffer, scalars, &bytes, err) : ATTUNE_OK;
        if (status) return status;
    }
    for (const ir_phase *phase = kernel->phases; phase; phase = phase->next) {
        int64_t tasks = 1, hi = 0;
        for (int l = 0; l < phase->num_loops; l++) {
            const attune_status status = ir_eval_scalar(kernel, phase->loops[l].hi, scalars, &hi, err);
            if (status) return status;
            if (__builtin_mul_overflow(tasks, hi > 0 ? hi : 0, &tasks))
                return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the number of tasks of a phase of @%s overflows",
                               kernel->name);
        }
    }
    return ATTUNE_OK;
}

attune_status at_ir_check_call(const ir_kernel *kernel, void *const *buffers, const int64_t *scalars, at_error *err) {
    attune_status status = check_buffers(kernel, buffers, err);
    if (!status) status = check_scalars(kernel, scalars, err);
    return status ? status : check_sizes(kernel, scalars, err);
}
