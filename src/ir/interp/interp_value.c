/* Evaluates expressions other than loads: each function evaluates its operands, applies an evaluator of ir/eval.h to
 * their lanes, and returns the address of the result. */
#include "ir/interp/interp_internal.h"

#include <string.h>

/* Copies bits, whatever type the memory was written as. */
typedef uint16_t __attribute__((may_alias)) bits2;
typedef uint32_t __attribute__((may_alias)) bits4;
typedef uint64_t __attribute__((may_alias)) bits8;

const void *interp_eval_unary(const interp_value *value) {
    value->fn(value->out, interp_eval(value->args[0]), NULL, NULL, value->type.lanes);
    return value->out;
}

const void *interp_eval_binary(const interp_value *value) {
    const void *x = interp_eval(value->args[0]);
    value->fn(value->out, x, interp_eval(value->args[1]), NULL, value->type.lanes);
    return value->out;
}

const void *interp_eval_ternary(const interp_value *value) {
    const void *x = interp_eval(value->args[0]), *y = interp_eval(value->args[1]);
    value->fn(value->out, x, y, interp_eval(value->args[2]), value->type.lanes);
    return value->out;
}

const void *interp_eval_divide(const interp_value *value) {
    const void *x = interp_eval(value->args[0]), *y = interp_eval(value->args[1]);
    for (int l = 0; l < value->type.lanes; l++) {
        const int64_t divisor = value->type.elem == IR_I32 ? ((const int32_t *)y)[l] : ((const int64_t *)y)[l];
        if (divisor == 0) interp_check_failed(value->u.run, "division by zero in lane %d", l);
    }
    value->fn(value->out, x, y, NULL, value->type.lanes);
    return value->out;
}

uint64_t interp_affine_rest(const interp_affine *affine) {
    uint64_t sum = 0;
    uint32_t t = 0;
    for (; t < affine->num_vars; t++) sum += (uint64_t)affine->rest[t].scale * (uint64_t)*affine->rest[t].var;
    for (; t < affine->num_rest; t++) {
        const int64_t *computed = interp_eval(affine->rest[t].computed);
        sum += (uint64_t)affine->rest[t].scale * (uint64_t)*computed;
    }
    return sum;
}

const void *interp_eval_affine(const interp_value *value) {
    *(int64_t *)value->out = interp_affine_eval(&value->u.affine);
    return value->out;
}

const void *interp_eval_bitcast(const interp_value *value) { return interp_eval(value->args[0]); }

/* Memory is aligned for the narrow elements, which may be too little for an i32. */
const void *interp_eval_parts(const interp_value *value) {
    memcpy(value->out, interp_eval(value->args[0]), interp_bytes(value->type));
    return value->out;
}

#define SPLAT(name, T, num_lanes)                                                                                      \
    static const void *name(const interp_value *value) {                                                               \
        const T scalar = *(const T *)interp_eval(value->args[0]);                                                      \
        T *out = value->out;                                                                                           \
        for (int l = 0; l < (num_lanes); l++) out[l] = scalar;                                                         \
        return out;                                                                                                    \
    }

SPLAT(splat_1, uint8_t, value->type.lanes)
SPLAT(splat_2, bits2, value->type.lanes)
SPLAT(splat_4, bits4, value->type.lanes)
SPLAT(splat_4x8, bits4, 8)
SPLAT(splat_4x16, bits4, 16)
SPLAT(splat_8, bits8, value->type.lanes)

interp_eval_fn *interp_choose_splat(ir_type type) {
    switch (ir_elem_get((ir_elem)type.elem)->bytes) {
    case 1: return splat_1;
    case 2: return splat_2;
    case 4: return type.lanes == 8 ? splat_4x8 : type.lanes == 16 ? splat_4x16 : splat_4;
    default: return splat_8;
    }
}

const void *interp_eval_ramp(const interp_value *value) {
    const void *base = interp_eval(value->args[0]), *step = interp_eval(value->args[1]);
    if (value->type.elem == IR_I32) {
        uint32_t *out = value->out;
        const uint32_t b = *(const uint32_t *)base, s = *(const uint32_t *)step;
        for (uint32_t l = 0; l < value->type.lanes; l++) out[l] = b + l * s;
    } else {
        uint64_t *out = value->out;
        const uint64_t b = *(const uint64_t *)base, s = *(const uint64_t *)step;
        for (uint64_t l = 0; l < value->type.lanes; l++) out[l] = b + l * s;
    }
    return value->out;
}

#define SHUFFLE(T)                                                                                                     \
    do {                                                                                                               \
        T *out = value->out;                                                                                           \
        for (int l = 0; l < value->type.lanes; l++)                                                                    \
            out[l] = pick[l] < half ? ((const T *)x)[pick[l]] : ((const T *)y)[pick[l] - half];                        \
    } while (0)

const void *interp_eval_shuffle(const interp_value *value) {
    const void *x = interp_eval(value->args[0]), *y = interp_eval(value->args[1]);
    const uint8_t *pick = value->u.pick;
    const int half = value->args[0]->type.lanes;
    switch (ir_elem_get((ir_elem)value->type.elem)->bytes) {
    case 1: SHUFFLE(uint8_t); break;
    case 2: SHUFFLE(bits2); break;
    case 4: SHUFFLE(bits4); break;
    default: SHUFFLE(bits8); break;
    }
    return value->out;
}

const void *interp_eval_truth(const interp_value *value) {
    const uint8_t *x = interp_eval(value->args[0]);
    for (int l = 0; l < value->type.lanes; l++)
        if (x[l] > 1) interp_check_failed(value->u.run, "a bool in memory is %d, neither 0 nor 1", x[l]);
    return x;
}
