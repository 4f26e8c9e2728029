/* Loads and stores. Before memory is touched, every index is checked against its dim, and every unit that is read must
 * have been written. A shadow has a byte for each unit of a buffer:
 *
 *     data      [ unit 0 ][ unit 1 ][ unit 2 ] …
 *     shadow    [   g    ][   g    ][   ?    ] …        written if the byte is the buffer's current generation g
 *
 * So an `alloc`, whose elements are unwritten again, only needs another generation. */
#include "ir/interp/interp_internal.h"

typedef uint16_t __attribute__((may_alias)) bits2;
typedef uint32_t __attribute__((may_alias)) bits4;
typedef uint64_t __attribute__((may_alias)) bits8;

static const char *space_name(const ir_buffer *buffer) {
    static const char *const names[] = {"parameter", "shared", "scratch", "reg", "tiles"};
    return names[buffer->space];
}

static _Noreturn void out_of_bounds(const interp_access *a, const interp_dim *dim, int64_t index, int lanes) {
    const long long size = (long long)a->memory->dims[dim->number];
    if (lanes > 1)
        interp_check_failed(a->run, "indices %lld to %lld of dimension %u are outside %s %s, whose size there is %lld",
                            (long long)index, (long long)((uint64_t)index + (uint64_t)lanes - 1), dim->number,
                            space_name(a->memory->buffer), a->memory->buffer->name, size);
    interp_check_failed(a->run, "index %lld of dimension %u is outside %s %s, whose size there is %lld",
                        (long long)index, dim->number, space_name(a->memory->buffer), a->memory->buffer->name, size);
}

static _Noreturn void unwritten(const interp_access *a, const uint8_t *shadow) {
    const interp_memory *m = a->memory;
    interp_check_failed(a->run, "element %lld of %s %s is read but has not been written",
                        (long long)(shadow - m->shadow), space_name(m->buffer), m->buffer->name);
}

/* The offset of lane 0, in units from a->data; all lanes of an unmasked access are then in bounds. */
static inline int64_t locate(const interp_access *a) {
    int64_t offset = 0;
    for (uint32_t d = 0; d < a->num_dims; d++) {
        const interp_dim *dim = &a->dims[d];
        const int64_t index = interp_affine_eval(&dim->index);
        if ((uint64_t)index >= dim->count) out_of_bounds(a, dim, index, dim->number == a->source->axis ? a->units : 1);
        offset += index * dim->stride;
    }
    return offset;
}

/* ---- The shadow ---- */

static inline void check_written(const interp_access *a, const uint8_t *shadow, int units) {
    const uint64_t all = a->memory->generation * UINT64_C(0x0101010101010101);
    int u = 0;
    for (uint64_t eight; u + 8 <= units; u += 8) {
        memcpy(&eight, shadow + u, sizeof eight);
        if (eight != all) break;
    }
    for (; u < units; u++)
        if (shadow[u] != (uint8_t)all) unwritten(a, shadow + u);
}

static inline void set_written(const interp_access *a, uint8_t *shadow, int units) {
    const uint64_t all = a->memory->generation * UINT64_C(0x0101010101010101);
    int u = 0;
    for (; u + 8 <= units; u += 8) memcpy(shadow + u, &all, sizeof all);
    for (; u < units; u++) shadow[u] = (uint8_t)all;
}

/* ---- One unit or lane ---- */

static inline void copy_element(void *to, const void *from, uint8_t shift) {
    switch (shift) {
    case 0: *(uint8_t *)to = *(const uint8_t *)from; break;
    case 1: *(bits2 *)to = *(const bits2 *)from; break;
    case 2: *(bits4 *)to = *(const bits4 *)from; break;
    default: *(bits8 *)to = *(const bits8 *)from; break;
    }
}

/* The offset of one lane of any access. Each index is checked for that lane alone. */
static int64_t locate_lane(const interp_access *a, int lane, const int64_t *const *indices) {
    int64_t offset = 0;
    for (uint32_t d = 0; d < a->num_dims; d++) {
        const interp_dim *dim = &a->dims[d];
        const uint64_t along = !a->gather && dim->number == a->source->axis ? (uint64_t)lane : 0;
        const int64_t index = dim->lanes ? indices[d][lane] : (int64_t)((uint64_t)*indices[d] + along);
        if ((uint64_t)index >= (uint64_t)a->memory->dims[dim->number]) out_of_bounds(a, dim, index, 1);
        offset += index * dim->stride;
    }
    return offset;
}

/* Evaluates all indices of a masked access or gather once; `plain` is storage for the scalar ones. */
static void eval_indices(const interp_access *a, int64_t *plain, const int64_t **indices) {
    for (uint32_t d = 0; d < a->num_dims; d++) {
        if (a->dims[d].lanes) {
            indices[d] = interp_eval(a->dims[d].lanes);
        } else {
            plain[d] = interp_affine_eval(&a->dims[d].index);
            indices[d] = &plain[d];
        }
    }
}

char *interp_lanes(const interp_access *a, int64_t further, bool writes) {
    const int64_t offset = locate(a) + further;
    if (a->shadow && writes) set_written(a, a->shadow + offset, a->units);
    if (a->shadow && !writes) check_written(a, a->shadow + offset, a->units);
    return a->data + ((uint64_t)offset << a->shift);
}

/* ---- Loads ---- */

static const void *load_param(const interp_value *value) {
    const interp_access *a = value->u.access;
    return a->data + ((uint64_t)locate(a) << a->shift);
}

static const void *load_written(const interp_value *value) {
    const interp_access *a = value->u.access;
    const int64_t offset = locate(a);
    check_written(a, a->shadow + offset, a->units);
    return a->data + ((uint64_t)offset << a->shift);
}

/* One unit at a constant place, as all accesses to registers are in lowered IR. */
static const void *load_fixed_unit(const interp_value *value) {
    const interp_access *a = value->u.access;
    if (*a->shadow != a->memory->generation) unwritten(a, a->shadow);
    return a->data;
}

static const void *load_strided(const interp_value *value) {
    const interp_access *a = value->u.access;
    const int64_t offset = locate(a);
    for (int l = 0; l < a->units; l++) {
        const int64_t at = offset + l * a->lane_stride;
        if (a->shadow) check_written(a, a->shadow + at, 1);
        copy_element((char *)value->out + ((size_t)l << a->shift), a->data + at * (INT64_C(1) << a->shift), a->shift);
    }
    return value->out;
}

static const void *load_lanes(const interp_value *value) {
    const interp_access *a = value->u.access;
    const uint8_t *mask = a->mask ? interp_eval(a->mask) : NULL;
    int64_t plain[IR_MAX_DIMS];
    const int64_t *indices[IR_MAX_DIMS];
    eval_indices(a, plain, indices);
    memset(value->out, 0, (size_t)a->units << a->shift);
    for (int l = 0; l < a->units; l++) {
        if (mask && !mask[l]) continue;
        const int64_t at = locate_lane(a, l, indices);
        if (a->shadow) check_written(a, a->shadow + at, 1);
        copy_element((char *)value->out + ((size_t)l << a->shift), a->data + at * (INT64_C(1) << a->shift), a->shift);
    }
    return value->out;
}

interp_eval_fn *interp_choose_load(const interp_access *a) {
    if (a->mask || a->gather) return load_lanes;
    if (a->units > 1 && a->lane_stride != 1) return load_strided;
    if (!a->shadow) return load_param;
    return a->num_dims == 0 && a->units == 1 ? load_fixed_unit : load_written;
}

/* ---- Stores ---- */

/* The value may be a load that returns its memory, which may overlap the memory that is stored to. */
static inline void copy_value(void *to, const void *from, uint32_t bytes) {
    switch (bytes) {
    case 4: memmove(to, from, 4); break;
    case 8: memmove(to, from, 8); break;
    case 32: memmove(to, from, 32); break;
    case 64: memmove(to, from, 64); break;
    default: memmove(to, from, bytes); break;
    }
}

static void store_param(const interp_action *action) {
    const interp_access *a = action->u.store.access;
    const void *from = interp_eval(action->u.store.value);
    copy_value(a->data + ((uint64_t)locate(a) << a->shift), from, action->u.store.bytes);
}

static void store_shadowed(const interp_action *action) {
    const interp_access *a = action->u.store.access;
    const void *from = interp_eval(action->u.store.value);
    const int64_t offset = locate(a);
    set_written(a, a->shadow + offset, a->units);
    copy_value(a->data + ((uint64_t)offset << a->shift), from, action->u.store.bytes);
}

static void store_fixed_unit(const interp_action *action) {
    const interp_access *a = action->u.store.access;
    const void *from = interp_eval(action->u.store.value);
    *a->shadow = a->memory->generation;
    copy_value(a->data, from, action->u.store.bytes);
}

static void store_lane(const interp_access *a, int64_t at, const char *lane) {
    if (a->shadow) set_written(a, a->shadow + at, 1);
    copy_element(a->data + at * (INT64_C(1) << a->shift), lane, a->shift);
}

static void store_strided(const interp_action *action) {
    const interp_access *a = action->u.store.access;
    char lanes[IR_MAX_LANES * 8];
    memcpy(lanes, interp_eval(action->u.store.value), action->u.store.bytes);
    const int64_t offset = locate(a);
    for (int l = 0; l < a->units; l++) store_lane(a, offset + l * a->lane_stride, lanes + ((size_t)l << a->shift));
}

static void store_masked(const interp_action *action) {
    const interp_access *a = action->u.store.access;
    char lanes[IR_MAX_LANES * 8];
    memcpy(lanes, interp_eval(action->u.store.value), action->u.store.bytes);
    uint8_t mask[IR_MAX_LANES];
    memcpy(mask, interp_eval(a->mask), a->units);
    int64_t plain[IR_MAX_DIMS];
    const int64_t *indices[IR_MAX_DIMS];
    eval_indices(a, plain, indices);
    for (int l = 0; l < a->units; l++)
        if (mask[l]) store_lane(a, locate_lane(a, l, indices), lanes + ((size_t)l << a->shift));
}

interp_perform_fn *interp_choose_store(const interp_access *a) {
    if (a->mask) return store_masked;
    if (a->units > 1 && a->lane_stride != 1) return store_strided;
    if (!a->shadow) return store_param;
    return a->num_dims == 0 && a->units == 1 ? store_fixed_unit : store_shadowed;
}
