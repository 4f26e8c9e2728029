/* The buffers of a run: their addresses, their sizes, and which elements have been written. */
#include "ir/interp/interp_internal.h"

int64_t interp_size(interp *run, const ir_expr *expr) {
    int64_t value = 0;
    const attune_status status = ir_eval_scalar(run->kernel, expr, run->scalars, &value, run->err);
    if (status != ATTUNE_OK) longjmp(run->escape, 1);
    return value;
}

static uint8_t log2_of(uint32_t bytes) { return (uint8_t)__builtin_ctz(bytes); }

static uint32_t bytes_of_unit(const ir_buffer *buffer) {
    return buffer->space == IR_TILES ? IR_TILE_ROWS * IR_TILE_ROW_BYTES : interp_bytes(buffer->type);
}

/* Row-major strides; none can overflow if the count does not. */
static void bind_dims(interp *run, interp_memory *m) {
    const ir_buffer *buffer = m->buffer;
    m->count = 1;
    bool empty = false;
    for (int d = 0; d < buffer->num_dims; d++) {
        m->dims[d] = interp_size(run, buffer->dims[d]);
        if (m->dims[d] < 0)
            interp_fail(run, ATTUNE_INVALID_ARGUMENT, "dimension %d of %s in @%s is %lld", d, buffer->name,
                        run->kernel->name, (long long)m->dims[d]);
        empty |= m->dims[d] == 0;
    }
    for (int d = buffer->num_dims - 1; d >= 0; d--) {
        m->strides[d] = m->count;
        if (__builtin_mul_overflow(m->count, empty ? 1 : m->dims[d], &m->count) || m->count > INT64_MAX >> m->shift)
            interp_fail(run, ATTUNE_INVALID_ARGUMENT, "the size of %s in @%s overflows", buffer->name,
                        run->kernel->name);
    }
    if (empty) m->count = 0;
}

/* The caller's strides; the offset of every element in bytes must fit into 64 bits. */
static void bind_strides(interp *run, interp_memory *m) {
    int64_t reach = 0;
    bool overflow = false;
    for (int d = 0; d < m->buffer->num_dims; d++) {
        m->strides[d] = interp_size(run, m->buffer->strides[d]);
        int64_t span, distance = m->strides[d];
        if (distance < 0) overflow |= __builtin_sub_overflow(0, distance, &distance);
        overflow |= __builtin_mul_overflow(distance, m->dims[d] > 0 ? m->dims[d] - 1 : 0, &span);
        overflow |= __builtin_add_overflow(reach, span, &reach);
    }
    if (overflow || reach > INT64_MAX >> m->shift)
        interp_fail(run, ATTUNE_INVALID_ARGUMENT, "the strides of %s in @%s overflow", m->buffer->name,
                    run->kernel->name);
}

void interp_bind_param(interp *run, const ir_buffer *buffer, void *data) {
    interp_memory *m = &run->memories[buffer->id];
    const uint32_t bytes = ir_elem_get((ir_elem)buffer->type.elem)->bytes;
    *m = (interp_memory){.buffer = buffer, .in_scope = true, .data = data, .shift = log2_of(bytes)};
    bind_dims(run, m);
    if (buffer->num_dims && buffer->strides[0]) bind_strides(run, m);
    if (!data && m->count)
        interp_fail(run, ATTUNE_INVALID_ARGUMENT, "%s of @%s is NULL", buffer->name, run->kernel->name);
    if ((uintptr_t)data % bytes)
        interp_fail(run, ATTUNE_INVALID_ARGUMENT, "%s of @%s is not aligned to its elements", buffer->name,
                    run->kernel->name);
}

void interp_allocate(interp *run, const ir_buffer *buffer) {
    interp_memory *m = &run->memories[buffer->id];
    *m = (interp_memory){.buffer = buffer, .in_scope = true, .shift = log2_of(bytes_of_unit(buffer)), .generation = 1};
    bind_dims(run, m);
    const size_t bytes = (size_t)m->count << m->shift;
    m->data = at_alloc_aligned(run->allocator, bytes, 64);
    m->shadow = m->data ? at_alloc(run->allocator, (size_t)m->count) : NULL;
    if (!m->shadow) {
        at_free(run->allocator, m->data);
        at_fail_memory(run->err, bytes);
        longjmp(run->escape, 1);
    }
}

void interp_forget(interp_memory *memory) {
    if (++memory->generation) return;
    memset(memory->shadow, 0, (size_t)memory->count);
    memory->generation = 1;
}

void interp_free_memories(interp *run) {
    if (!run->memories) return;
    for (uint32_t b = 0; b < run->kernel->num_buffers; b++) {
        const interp_memory *m = &run->memories[b];
        if (!m->shadow) continue; /* the caller's */
        at_free(run->allocator, m->data);
        at_free(run->allocator, m->shadow);
    }
}
