/* Defines casts, in two steps: read any element as a double or an int64_t, which represent all values of their kind
 * exactly, and write any element from one of these, with one rounding. */
#include "ir/eval.h"

#include <string.h>

#define LANE static inline __attribute__((always_inline))

/* ---- Narrow floating-point formats, in integer arithmetic ---- */

typedef struct narrow_format {
    int exponent_bits, mantissa_bits;
    bool has_infinity; /* if false, only the all-ones bits are NaN, and overflow gives NaN */
} narrow_format;

static const narrow_format format_f16 = {5, 10, true}, format_bf16 = {8, 7, true}, format_f8 = {4, 3, false};

LANE uint64_t double_bits(double x) {
    uint64_t out;
    memcpy(&out, &x, sizeof out);
    return out;
}

LANE double double_from_bits(uint64_t bits) {
    double out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

LANE uint32_t float_bits(float x) {
    uint32_t out;
    memcpy(&out, &x, sizeof out);
    return out;
}

LANE float float_from_bits(uint32_t bits) {
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

LANE double widen(narrow_format f, uint32_t x) {
    const uint32_t exponent_ones = (1u << f.exponent_bits) - 1, mantissa_ones = (1u << f.mantissa_bits) - 1;
    const uint32_t exponent = x >> f.mantissa_bits & exponent_ones, mantissa = x & mantissa_ones;
    const uint64_t sign = (uint64_t)(x >> (f.exponent_bits + f.mantissa_bits) & 1) << 63;
    const int bias = (int)(exponent_ones >> 1);
    if (exponent == exponent_ones && (f.has_infinity || mantissa == mantissa_ones)) {
        const bool nan = mantissa != 0;
        return double_from_bits(sign | UINT64_C(0x7ff) << 52 | (uint64_t)nan << 51);
    }
    if (exponent == 0) { /* a denormal is its mantissa times the smallest step */
        const double step = double_from_bits((uint64_t)(1023 + 1 - bias - f.mantissa_bits) << 52);
        return double_from_bits(sign | double_bits((double)mantissa * step));
    }
    return double_from_bits(sign | (uint64_t)((int)exponent - bias + 1023) << 52 |
                            (uint64_t)mantissa << (52 - f.mantissa_bits));
}

/* Round to nearest even; denormals are kept. */
LANE uint32_t narrow(narrow_format f, double x) {
    const uint64_t bits = double_bits(x), magnitude = bits & (UINT64_MAX >> 1);
    const uint32_t sign = (uint32_t)(bits >> 63) << (f.exponent_bits + f.mantissa_bits);
    const uint32_t all_ones = (1u << (f.exponent_bits + f.mantissa_bits)) - 1;
    const uint32_t infinity = all_ones >> f.mantissa_bits << f.mantissa_bits;
    const uint32_t overflow = f.has_infinity ? infinity : all_ones;
    const uint32_t nan = f.has_infinity ? infinity | 1u << (f.mantissa_bits - 1) : all_ones;
    if (magnitude > UINT64_C(0x7ff) << 52) return sign | nan;
    const int bias = (1 << (f.exponent_bits - 1)) - 1;
    const int exponent = (int)(magnitude >> 52) - 1023 + bias; /* as the narrow format would write it */
    if (exponent >= 1 << f.exponent_bits) return sign | overflow;
    /* The significand with its implicit one. The shift makes one unit of it one step of the result. */
    const uint64_t significand = (magnitude & (UINT64_MAX >> 12)) | UINT64_C(1) << 52;
    const int shift = 52 - f.mantissa_bits + (exponent >= 1 ? 0 : 1 - exponent);
    if (shift > 54) return sign;
    const uint64_t half = UINT64_C(1) << (shift - 1), rest = significand & (2 * half - 1);
    uint64_t code = significand >> shift;
    code += rest > half || (rest == half && (code & 1));
    /* The implicit one carries into the exponent field, and so does a round-up past the last mantissa. */
    if (exponent >= 1) code += (uint64_t)(exponent - 1) << f.mantissa_bits;
    return sign | (code >= overflow ? overflow : (uint32_t)code);
}

/* ---- Reading and writing each element ---- */

/* An int64_t rounded to odd at double's precision, so that rounding it again rounds only once. */
LANE double odd_double(int64_t x) {
    const bool negative = x < 0;
    uint64_t magnitude = negative ? 0 - (uint64_t)x : (uint64_t)x;
    const uint64_t dropped = magnitude & 0x7ff;
    if (magnitude >> 53) magnitude = (magnitude & ~UINT64_C(0x7ff)) | (uint64_t)(dropped != 0) << 11;
    const double d = (double)magnitude;
    return negative ? -d : d;
}

/* A range test comes first, which is false for NaN, because C's conversion is undefined out of range. */
LANE int64_t truncate(double x, int bits) {
    const double limit = double_from_bits((uint64_t)(1023 + bits - 1) << 52);
    const bool fits = x < limit && (bits == 64 ? x >= -limit : x > -limit - 1);
    return fits ? (int64_t)x : (int64_t)(UINT64_MAX << (bits - 1));
}

LANE double read_f64(double x) { return x; }
LANE double read_f32(float x) { return x; }
LANE double read_f16(uint16_t x) { return widen(format_f16, x); }
LANE double read_bf16(uint16_t x) { return float_from_bits((uint32_t)x << 16); }
LANE double read_f8(uint8_t x) { return widen(format_f8, x); }
LANE int64_t read_i8(int8_t x) { return x; }
LANE int64_t read_i32(int32_t x) { return x; }
LANE int64_t read_i64(int64_t x) { return x; }
LANE int64_t read_idx(int64_t x) { return x; }
LANE int64_t read_boolean(uint8_t x) { return x; }

LANE double double_to_f64(double x) { return x; }
LANE float double_to_f32(double x) { return (float)x; }
LANE uint16_t double_to_f16(double x) { return (uint16_t)narrow(format_f16, x); }
LANE uint16_t double_to_bf16(double x) { return (uint16_t)narrow(format_bf16, x); }
LANE uint8_t double_to_f8(double x) { return (uint8_t)narrow(format_f8, x); }
LANE int8_t double_to_i8(double x) { return (int8_t)truncate(x, 8); }
LANE int32_t double_to_i32(double x) { return (int32_t)truncate(x, 32); }
LANE int64_t double_to_i64(double x) { return truncate(x, 64); }
LANE int64_t double_to_idx(double x) { return truncate(x, 64); }
LANE uint8_t double_to_boolean(double x) { return x != 0; }

LANE double int_to_f64(int64_t x) { return (double)x; }
LANE float int_to_f32(int64_t x) { return (float)x; }
LANE uint16_t int_to_f16(int64_t x) { return double_to_f16(odd_double(x)); }
LANE uint16_t int_to_bf16(int64_t x) { return double_to_bf16(odd_double(x)); }
LANE uint8_t int_to_f8(int64_t x) { return double_to_f8(odd_double(x)); }
LANE int8_t int_to_i8(int64_t x) { return (int8_t)(uint8_t)x; }
LANE int32_t int_to_i32(int64_t x) { return (int32_t)(uint32_t)x; }
LANE int64_t int_to_i64(int64_t x) { return x; }
LANE int64_t int_to_idx(int64_t x) { return x; }
LANE uint8_t int_to_boolean(int64_t x) { return x != 0; }

/* ---- Loops over lanes ---- */

/* M(element, its C type, the kind it is read as) */
/* clang-format off */
#define EACH_ELEM(M, ...)                                                                                              \
    M(f64, double, double, __VA_ARGS__)                                                                                \
    M(f32, float, double, __VA_ARGS__)                                                                                 \
    M(f16, uint16_t, double, __VA_ARGS__)                                                                              \
    M(bf16, uint16_t, double, __VA_ARGS__)                                                                             \
    M(f8, uint8_t, double, __VA_ARGS__)                                                                                \
    M(i8, int8_t, int, __VA_ARGS__)                                                                                    \
    M(i32, int32_t, int, __VA_ARGS__)                                                                                  \
    M(i64, int64_t, int, __VA_ARGS__)                                                                                  \
    M(idx, int64_t, int, __VA_ARGS__)                                                                                  \
    M(boolean, uint8_t, int, __VA_ARGS__)
/* clang-format on */

#define CAST_LOOP(from, F, kind, to, T)                                                                                \
    static void from##_to_##to(void *restrict out, const void *xs, const void *y, const void *z, int lanes) {          \
        T *restrict o = out;                                                                                           \
        const F *x = xs;                                                                                               \
        (void)y, (void)z;                                                                                              \
        for (int l = 0; l < lanes; l++) o[l] = kind##_to_##to(read_##from(x[l]));                                      \
    }
EACH_ELEM(CAST_LOOP, f64, double)
EACH_ELEM(CAST_LOOP, f32, float)
EACH_ELEM(CAST_LOOP, f16, uint16_t)
EACH_ELEM(CAST_LOOP, bf16, uint16_t)
EACH_ELEM(CAST_LOOP, f8, uint8_t)
EACH_ELEM(CAST_LOOP, i8, int8_t)
EACH_ELEM(CAST_LOOP, i32, int32_t)
EACH_ELEM(CAST_LOOP, i64, int64_t)
EACH_ELEM(CAST_LOOP, idx, int64_t)
EACH_ELEM(CAST_LOOP, boolean, uint8_t)

/* f32 to bf16 is common, so it has a fast path: the upper half, rounded by an addition. */
static void f32_to_bf16_fast(void *restrict out, const void *xs, const void *y, const void *z, int lanes) {
    uint16_t *restrict o = out;
    const float *x = xs;
    (void)y, (void)z;
    for (int l = 0; l < lanes; l++) {
        const uint32_t bits = float_bits(x[l]);
        o[l] = (uint16_t)(x[l] != x[l] ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
}

#define CAST_ROW(from, F, kind, to) [IR_ELEM_##from] = from##_to_##to,
enum {
    IR_ELEM_f64 = IR_F64,
    IR_ELEM_f32 = IR_F32,
    IR_ELEM_f16 = IR_F16,
    IR_ELEM_bf16 = IR_BF16,
    IR_ELEM_f8 = IR_F8,
    IR_ELEM_i8 = IR_I8,
    IR_ELEM_i32 = IR_I32,
    IR_ELEM_i64 = IR_I64,
    IR_ELEM_idx = IR_IDX,
    IR_ELEM_boolean = IR_BOOL
};

/* casts[to][from] */
static ir_eval_fn *const casts[IR_ELEM_COUNT][IR_ELEM_COUNT] = {
    [IR_F64] = {EACH_ELEM(CAST_ROW, f64)}, [IR_F32] = {EACH_ELEM(CAST_ROW, f32)},
    [IR_F16] = {EACH_ELEM(CAST_ROW, f16)}, [IR_BF16] = {EACH_ELEM(CAST_ROW, bf16)},
    [IR_F8] = {EACH_ELEM(CAST_ROW, f8)},   [IR_I8] = {EACH_ELEM(CAST_ROW, i8)},
    [IR_I32] = {EACH_ELEM(CAST_ROW, i32)}, [IR_I64] = {EACH_ELEM(CAST_ROW, i64)},
    [IR_IDX] = {EACH_ELEM(CAST_ROW, idx)}, [IR_BOOL] = {EACH_ELEM(CAST_ROW, boolean)},
};

ir_eval_fn *ir_eval_cast(ir_elem from, ir_elem to) {
    if ((unsigned)from >= IR_ELEM_COUNT || (unsigned)to >= IR_ELEM_COUNT) return NULL;
    if (from == IR_F32 && to == IR_BF16) return f32_to_bf16_fast;
    return casts[to][from];
}
