/* Resolves accesses. An index that is constant and in bounds is added to the address now; each other index becomes an
 * affine sum with its stride, and a limit that keeps all lanes in bounds:
 *
 *     k[2, i + 1, 0]:x8 @ 2     ->     data + 2 * stride[0], and one index: i + 1 < dims[1], times stride[1] */
#include "ir/interp/interp_internal.h"

/* How many lanes run along a dimension: 1 for all but the axis. */
static int64_t extent_of(const interp_access *a, int dim) { return dim == a->source->axis ? a->units : 1; }

static interp_dim compile_dim(interp *run, const interp_access *a, int number) {
    const ir_expr *index = a->source->indices[number];
    interp_dim dim = {.stride = a->memory->strides[number], .number = (uint32_t)number};
    if (index->type.lanes > 1) {
        dim.lanes = interp_compile_value(run, index);
        return dim;
    }
    const int64_t places = a->memory->dims[number] - (a->gather ? 1 : extent_of(a, number)) + 1;
    dim.count = places > 0 ? (uint64_t)places : 0;
    dim.index = interp_compile_affine(run, index);
    return dim;
}

/* A constant index that is in bounds needs no check at run time: it moves the origin. */
static bool fold_dim(interp_access *a, const interp_dim *dim, int64_t *origin) {
    if (a->mask || dim->lanes || !dim->index.is_constant || (uint64_t)dim->index.constant >= dim->count) return false;
    *origin += dim->index.constant * dim->stride;
    return true;
}

const interp_access *interp_compile_access(interp *run, const ir_access *source) {
    const interp_memory *memory = &run->memories[source->buffer->id];
    const ir_buffer *buffer = source->buffer;
    interp_access *a = interp_new(run, sizeof *a + sizeof *a->dims * buffer->num_dims);
    if (!memory->in_scope)
        interp_fail(run, ATTUNE_INVALID_IR, "%s is used outside its scope in @%s", buffer->name, run->kernel->name);
    const bool reg = buffer->space == IR_REG;
    a->run = run;
    a->source = source;
    a->memory = memory;
    a->shift = memory->shift;
    a->units = reg ? 1 : source->lanes;
    for (int d = 0; d < buffer->num_dims; d++) a->gather |= source->indices[d]->type.lanes > 1;
    if (a->units > 1 && !a->gather) {
        if (source->axis >= buffer->num_dims)
            interp_fail(run, ATTUNE_INVALID_IR, "an access to %s has no dimension %d", buffer->name, source->axis);
        a->lane_stride = memory->strides[source->axis];
    }
    if (source->mask) a->mask = interp_compile_value(run, source->mask);
    int64_t origin = 0;
    for (int d = 0; d < buffer->num_dims; d++) {
        const interp_dim dim = compile_dim(run, a, d);
        if (!fold_dim(a, &dim, &origin)) a->dims[a->num_dims++] = dim;
    }
    a->data = memory->data + origin * (INT64_C(1) << a->shift);
    a->shadow = memory->shadow ? memory->shadow + origin : NULL;
    return a;
}
