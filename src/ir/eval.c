/* Defines the arithmetic operators: first each operator on one lane, then loops over lanes. Those are instantiated for
 * the usual lane counts, so that the C compiler vectorises them. */
#include "ir/eval.h"

#include <math.h>
#include <string.h>

#define LANE static inline __attribute__((always_inline))

/* ---- One lane ---- */

#define INFIX_LANE(name, R, T, op)                                                                                     \
    LANE R name##_##T(T x, T y) { return (R)(x op y); }

#define FLOAT_LANES(T, U, SIGN, MAGIC, FABS, COPYSIGN, SQRT)                                                           \
    LANE U bits_##T(T x) {                                                                                             \
        U bits;                                                                                                        \
        memcpy(&bits, &x, sizeof bits);                                                                                \
        return bits;                                                                                                   \
    }                                                                                                                  \
    LANE T from_bits_##T(U bits) {                                                                                     \
        T x;                                                                                                           \
        memcpy(&x, &bits, sizeof x);                                                                                   \
        return x;                                                                                                      \
    }                                                                                                                  \
    LANE T neg_##T(T x) { return from_bits_##T(bits_##T(x) ^ (SIGN)); }                                                \
    LANE T abs_##T(T x) { return from_bits_##T(bits_##T(x) & ~(SIGN)); }                                               \
    LANE T sqrt_##T(T x) { return SQRT(x); }                                                                           \
    /* Adding and subtracting a power of two so large that no fraction bits are left rounds half to even. */           \
    LANE T rint_##T(T x) {                                                                                             \
        const T a = FABS(x), rounded = (a + (MAGIC)) - (MAGIC);                                                        \
        return COPYSIGN(a < (MAGIC) ? rounded : a, x);                                                                 \
    }                                                                                                                  \
    INFIX_LANE(add, T, T, +)                                                                                           \
    INFIX_LANE(sub, T, T, -)                                                                                           \
    INFIX_LANE(mul, T, T, *)                                                                                           \
    INFIX_LANE(div, T, T, /)

FLOAT_LANES(float, uint32_t, UINT32_C(1) << 31, 0x1p23f, fabsf, copysignf, sqrtf)
FLOAT_LANES(double, uint64_t, UINT64_C(1) << 63, 0x1p52, fabs, copysign, sqrt)

/* Signed integers wrap, so they are computed as unsigned. Division by zero, which the verifier rejects, gives 0. */
#define INT_LANES(T, U)                                                                                                \
    LANE T neg_##T(T x) { return (T)(0 - (U)x); }                                                                      \
    LANE T abs_##T(T x) { return x < 0 ? neg_##T(x) : x; }                                                             \
    LANE T not_##T(T x) { return ~x; }                                                                                 \
    LANE T add_##T(T x, T y) { return (T)((U)x + (U)y); }                                                              \
    LANE T sub_##T(T x, T y) { return (T)((U)x - (U)y); }                                                              \
    LANE T mul_##T(T x, T y) { return (T)((U)x * (U)y); }                                                              \
    LANE T div_##T(T x, T y) {                                                                                         \
        if (y == 0) return 0;                                                                                          \
        if (y == -1) return neg_##T(x);                                                                                \
        return x / y - (x % y != 0 && (x < 0) != (y < 0));                                                             \
    }                                                                                                                  \
    LANE T mod_##T(T x, T y) {                                                                                         \
        if (y == 0 || y == -1) return 0;                                                                               \
        const T r = x % y;                                                                                             \
        return r != 0 && (r < 0) != (y < 0) ? r + y : r;                                                               \
    }                                                                                                                  \
    LANE T shl_##T(T x, T y) { return (T)((U)x << ((U)y & (8 * sizeof(T) - 1))); }                                     \
    LANE T shr_##T(T x, T y) { return x >> ((U)y & (8 * sizeof(T) - 1)); }                                             \
    INFIX_LANE(and, T, T, &)                                                                                           \
    INFIX_LANE(or, T, T, |)                                                                                            \
    INFIX_LANE(xor, T, T, ^)

INT_LANES(int32_t, uint32_t)
INT_LANES(int64_t, uint64_t)

LANE uint8_t not_uint8_t(uint8_t x) { return x ^ 1; }
INFIX_LANE(and, uint8_t, uint8_t, &)
INFIX_LANE(or, uint8_t, uint8_t, |)
INFIX_LANE(xor, uint8_t, uint8_t, ^)

#define ORDER_LANES(T)                                                                                                 \
    LANE T min_##T(T x, T y) { return x < y ? x : y; }                                                                 \
    LANE T max_##T(T x, T y) { return x > y ? x : y; }                                                                 \
    INFIX_LANE(lt, uint8_t, T, <)                                                                                      \
    INFIX_LANE(le, uint8_t, T, <=)                                                                                     \
    INFIX_LANE(gt, uint8_t, T, >)                                                                                      \
    INFIX_LANE(ge, uint8_t, T, >=)
#define EQUAL_LANES(T)                                                                                                 \
    INFIX_LANE(eq, uint8_t, T, ==)                                                                                     \
    INFIX_LANE(ne, uint8_t, T, !=)

ORDER_LANES(float)
ORDER_LANES(double)
ORDER_LANES(int32_t)
ORDER_LANES(int64_t)
EQUAL_LANES(float)
EQUAL_LANES(double)
EQUAL_LANES(int32_t)
EQUAL_LANES(int64_t)
EQUAL_LANES(uint8_t)

/* x * 2^floor(y), rounded once, with the special cases of vscalefps: an infinite y decides even against a quiet
 * NaN in x, but not against the other infinity or zero (inf * 2^-inf and 0 * 2^inf are NaN). */
#define LDEXP_SPECIAL(x, y, quiet)                                                                                     \
    if (isnan(x)) return quiet && isinf(y) ? (y > 0 ? y : 0) : x;                                                      \
    if (isnan(y)) return y;                                                                                            \
    if (isinf(x) || x == 0) return isinf(y) && (y > 0) == (x == 0) ? (y - y) : x;

/* In double the product is exact for any exponent that does not over- or underflow float by far. */
LANE float ldexp_float(float x, float y) {
    LDEXP_SPECIAL(x, y, (bits_float(x) >> 22 & 1))
    const float n = y < -300 ? -300 : y > 300 ? 300 : floorf(y);
    return (float)ldexp((double)x, (int)n);
}

LANE double ldexp_double(double x, double y) {
    LDEXP_SPECIAL(x, y, (bits_double(x) >> 51 & 1))
    const double n = y < -2200 ? -2200 : y > 2200 ? 2200 : floor(y);
    return ldexp(x, (int)n);
}

/* ---- Loops over lanes ---- */

#define LANES_OF(name, suffix, attributes, R, T, EXPR)                                                                 \
    attributes static void name##_##suffix##_lanes(void *restrict out, const void *xs, const void *ys, const void *zs, \
                                                   int lanes) {                                                        \
        R *restrict o = out;                                                                                           \
        const T *x = xs, *y = ys, *z = zs;                                                                             \
        (void)y, (void)z;                                                                                              \
        switch (lanes) {                                                                                               \
        case 4:                                                                                                        \
            for (int l = 0; l < 4; l++) o[l] = EXPR;                                                                   \
            break;                                                                                                     \
        case 8:                                                                                                        \
            for (int l = 0; l < 8; l++) o[l] = EXPR;                                                                   \
            break;                                                                                                     \
        case 16:                                                                                                       \
            for (int l = 0; l < 16; l++) o[l] = EXPR;                                                                  \
            break;                                                                                                     \
        default:                                                                                                       \
            for (int l = 0; l < lanes; l++) o[l] = EXPR;                                                               \
            break;                                                                                                     \
        }                                                                                                              \
    }

#define UNARY(name, T)   LANES_OF(name, T, , T, T, name##_##T(x[l]))
#define BINARY(name, T)  LANES_OF(name, T, , T, T, name##_##T(x[l], y[l]))
#define COMPARE(name, T) LANES_OF(name, T, , uint8_t, T, name##_##T(x[l], y[l]))

/* clang-format off */
#define NUMBER_EVALUATORS(T)                                                                                           \
    UNARY(neg, T) UNARY(abs, T)                                                                                        \
    BINARY(add, T) BINARY(sub, T) BINARY(mul, T) BINARY(div, T) BINARY(min, T) BINARY(max, T)                          \
    COMPARE(eq, T) COMPARE(ne, T) COMPARE(lt, T) COMPARE(le, T) COMPARE(gt, T) COMPARE(ge, T)
#define FLOAT_EVALUATORS(T) NUMBER_EVALUATORS(T) UNARY(sqrt, T) UNARY(rint, T) BINARY(ldexp, T)
#define INT_EVALUATORS(T)                                                                                              \
    NUMBER_EVALUATORS(T) UNARY(not, T)                                                                                 \
    BINARY(mod, T) BINARY(and, T) BINARY(or, T) BINARY(xor, T) BINARY(shl, T) BINARY(shr, T)
/* clang-format on */

FLOAT_EVALUATORS(float)
FLOAT_EVALUATORS(double)
INT_EVALUATORS(int32_t)
INT_EVALUATORS(int64_t)
UNARY(not, uint8_t)
BINARY(and, uint8_t)
BINARY(or, uint8_t)
BINARY(xor, uint8_t)
COMPARE(eq, uint8_t)
COMPARE(ne, uint8_t)

LANES_OF(fma, float, , float, float, fmaf(x[l], y[l], z[l]))
LANES_OF(fma, double, , double, double, fma(x[l], y[l], z[l]))
#if defined(__x86_64__)
#define WITH_FMA __attribute__((target("avx2,fma")))
LANES_OF(hardware_fma, float, WITH_FMA, float, float, __builtin_fmaf(x[l], y[l], z[l]))
LANES_OF(hardware_fma, double, WITH_FMA, double, double, __builtin_fma(x[l], y[l], z[l]))
#endif

/* Select moves bits, so one function serves all elements of a size, whatever type the memory was written as. */
#define SELECT(T, bytes)                                                                                               \
    typedef T __attribute__((may_alias)) bits##bytes;                                                                  \
    static void select_##bytes(void *restrict out, const void *cs, const void *ys, const void *zs, int lanes) {        \
        bits##bytes *restrict o = out;                                                                                 \
        const uint8_t *c = cs;                                                                                         \
        const bits##bytes *y = ys, *z = zs;                                                                            \
        for (int l = 0; l < lanes; l++) o[l] = c[l] ? y[l] : z[l];                                                     \
    }
SELECT(uint8_t, 1)
SELECT(uint16_t, 2)
SELECT(uint32_t, 4)
SELECT(uint64_t, 8)

/* The bf16 dot instruction treats denormal inputs and results as zeros of their sign. */
LANE float flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
LANE float flushed_bf16(uint16_t x) { return flush(from_bits_float((uint32_t)x << 16)); }

/* A result counts as denormal if it is less than 2^-126 after rounding to 24 bits. fmaf rounds to 23 bits there, which
 * rounds more results up to 2^-126. The sum in f64, where products of bf16 are exact in 16 bits, tells them apart. */
LANE float flushed_fma(float x, float y, float sum) {
    const double exact = (double)x * (double)y + (double)sum;
    const float result = fmaf(x, y, sum);
    return fabs(exact) < 0x1p-126 - 0x1p-151 ? copysignf(0, result) : result;
}

static void dot2_lanes(void *restrict out, const void *xs, const void *ys, const void *accs, int lanes) {
    const uint16_t *x = xs, *y = ys;
    const float *acc = accs;
    float *o = out;
    for (int l = 0; l < lanes; l++) {
        const float odd = flushed_fma(flushed_bf16(x[2 * l + 1]), flushed_bf16(y[2 * l + 1]), flush(acc[l]));
        o[l] = flushed_fma(flushed_bf16(x[2 * l]), flushed_bf16(y[2 * l]), odd);
    }
}

/* An element of the sum, in the order of the instruction: it sums the first and the second elements of the pairs
 * separately. */
static float tile_element(float sum, const uint16_t *left, const uint16_t (*right)[32], int column) {
    float part[2] = {0, 0};
    for (int k = 0; k < 32; k++) {
        const uint16_t factor = right[k / 2][2 * column + k % 2];
        part[k % 2] = flushed_fma(flushed_bf16(left[k]), flushed_bf16(factor), part[k % 2]);
    }
    return flush(flush(sum) + flush(part[0] + part[1]));
}

void ir_eval_tile_dot2(float sum[IR_TILE_ROWS][16], const uint16_t left[IR_TILE_ROWS][32],
                       const uint16_t right[IR_TILE_ROWS][32]) {
    for (int r = 0; r < IR_TILE_ROWS; r++)
        for (int c = 0; c < 16; c++) sum[r][c] = tile_element(sum[r][c], left[r], right, c);
}

/* The upper half of an f32, rounded half to even; denormals are zeros of their sign, NaNs quiet. */
LANE uint16_t rounded_bf16(float x) {
    const uint32_t bits = bits_float(flush(x));
    return (uint16_t)(x != x ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void pack2_lanes(void *restrict out, const void *evens, const void *odds, const void *none, int lanes) {
    const float *even = evens, *odd = odds;
    uint16_t *o = out;
    (void)none;
    for (int l = 0; l < lanes / 2; l++) {
        o[2 * l] = rounded_bf16(even[l]);
        o[2 * l + 1] = rounded_bf16(odd[l]);
    }
}

/* The four products and their sum fit into i32. The sum with the accumulator wraps. */
static void dot4_lanes(void *restrict out, const void *xs, const void *ys, const void *accs, int lanes) {
    const uint8_t *x = xs;
    const int8_t *y = ys;
    const uint32_t *acc = accs;
    uint32_t *o = out;
    for (int l = 0; l < lanes; l++) {
        int32_t sum = 0;
        for (int i = 4 * l; i < 4 * l + 4; i++) sum += x[i] * y[i];
        o[l] = acc[l] + (uint32_t)sum;
    }
}

/* lanes is a power of two. */
#define LOOKUP_LANES(name, type)                                                                                       \
    static void name(void *restrict out, const void *lows, const void *highs, const void *indices, int lanes) {        \
        const type *low = lows, *high = highs, *index = indices;                                                       \
        type *o = out;                                                                                                 \
        for (int l = 0; l < lanes; l++) {                                                                              \
            const int place = (int)(index[l] & (type)(2 * lanes - 1));                                                 \
            o[l] = place < lanes ? low[place] : high[place - lanes];                                                   \
        }                                                                                                              \
    }
LOOKUP_LANES(lookup_bytes, uint8_t)
LOOKUP_LANES(lookup_words, uint32_t)

/* ---- The table ---- */

#define NUMBERS(OP, name)                                                                                              \
    [IR_##OP] = {[IR_F64] = name##_double_lanes,                                                                       \
                 [IR_F32] = name##_float_lanes,                                                                        \
                 [IR_I32] = name##_int32_t_lanes,                                                                      \
                 [IR_I64] = name##_int64_t_lanes,                                                                      \
                 [IR_IDX] = name##_int64_t_lanes}
#define FLOATS(OP, name) [IR_##OP] = {[IR_F64] = name##_double_lanes, [IR_F32] = name##_float_lanes}
#define INTS(OP, name)                                                                                                 \
    [IR_##OP] = {[IR_I32] = name##_int32_t_lanes, [IR_I64] = name##_int64_t_lanes, [IR_IDX] = name##_int64_t_lanes}
#define BITS(OP, name)                                                                                                 \
    [IR_##OP] = {[IR_I32] = name##_int32_t_lanes,                                                                      \
                 [IR_I64] = name##_int64_t_lanes,                                                                      \
                 [IR_IDX] = name##_int64_t_lanes,                                                                      \
                 [IR_BOOL] = name##_uint8_t_lanes}
#define ALL(OP, name)                                                                                                  \
    [IR_##OP] = {[IR_F64] = name##_double_lanes,  [IR_F32] = name##_float_lanes,   [IR_I32] = name##_int32_t_lanes,    \
                 [IR_I64] = name##_int64_t_lanes, [IR_IDX] = name##_int64_t_lanes, [IR_BOOL] = name##_uint8_t_lanes}

static ir_eval_fn *const evaluators[IR_OP_COUNT][IR_ELEM_COUNT] = {
    NUMBERS(NEG, neg),
    NUMBERS(ABS, abs),
    BITS(NOT, not),
    FLOATS(SQRT, sqrt),
    FLOATS(RINT, rint),
    NUMBERS(ADD, add),
    NUMBERS(SUB, sub),
    NUMBERS(MUL, mul),
    NUMBERS(DIV, div),
    INTS(MOD, mod),
    NUMBERS(MIN, min),
    NUMBERS(MAX, max),
    BITS(AND, and),
    BITS(OR, or),
    BITS(XOR, xor),
    INTS(SHL, shl),
    INTS(SHR, shr),
    ALL(EQ, eq),
    ALL(NE, ne),
    NUMBERS(LT, lt),
    NUMBERS(LE, le),
    NUMBERS(GT, gt),
    NUMBERS(GE, ge),
    FLOATS(FMA, fma),
    FLOATS(LDEXP, ldexp),
    [IR_DOT2] = {[IR_F32] = dot2_lanes},
    [IR_PACK2] = {[IR_F32] = pack2_lanes},
    [IR_DOT4] = {[IR_I32] = dot4_lanes},
    [IR_LOOKUP] = {[IR_I8] = lookup_bytes, [IR_F32] = lookup_words},
    [IR_SELECT] = {[IR_F64] = select_8,
                   [IR_F32] = select_4,
                   [IR_F16] = select_2,
                   [IR_BF16] = select_2,
                   [IR_F8] = select_1,
                   [IR_I8] = select_1,
                   [IR_I32] = select_4,
                   [IR_I64] = select_8,
                   [IR_IDX] = select_8,
                   [IR_BOOL] = select_1},
};

ir_eval_fn *ir_eval_get(ir_op op, ir_elem elem) {
    if ((unsigned)op >= IR_OP_COUNT || (unsigned)elem >= IR_ELEM_COUNT) return NULL;
#if defined(__x86_64__)
    if (op == IR_FMA && __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2")) {
        if (elem == IR_F32) return hardware_fma_float_lanes;
        if (elem == IR_F64) return hardware_fma_double_lanes;
    }
#endif
    return evaluators[op][elem];
}
