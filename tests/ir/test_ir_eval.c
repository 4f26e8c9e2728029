/* Every operator on one lane, at every lane count: edge values in tables, random ones against the
 * C library or an exhaustive search. NaN is compared as a class. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "ir/eval.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LANES_BYTES = IR_MAX_LANES * 8 };

/* Operands and result of one lane: floats as the double that holds them, everything else as an integer. */
typedef struct float_case {
    ir_op op;
    double x, y, z, result;
} float_case;

typedef struct int_case {
    ir_op op;
    int64_t x, y, result;
} int_case;

static uint64_t random_state;

static uint64_t random_bits(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

static float float_from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static bool same_float(float x, float y) {
    return isnan(x) || isnan(y) ? isnan(x) && isnan(y) : memcmp(&x, &y, sizeof x) == 0;
}

static bool same_double(double x, double y) {
    return isnan(x) || isnan(y) ? isnan(x) && isnan(y) : memcmp(&x, &y, sizeof x) == 0;
}

static void put(ir_elem elem, void *lanes, int lane, double f, int64_t i) {
    switch (elem) {
    case IR_F64: ((double *)lanes)[lane] = f; break;
    case IR_F32: ((float *)lanes)[lane] = (float)f; break;
    case IR_I32: ((int32_t *)lanes)[lane] = (int32_t)i; break;
    case IR_I64:
    case IR_IDX: ((int64_t *)lanes)[lane] = i; break;
    case IR_F16:
    case IR_BF16: ((uint16_t *)lanes)[lane] = (uint16_t)i; break;
    default: ((uint8_t *)lanes)[lane] = (uint8_t)i; break;
    }
}

static bool is_compare(ir_op op) { return ir_op_get(op)->result == IR_RESULT_CMP; }

/* ---- Floats ---- */

#define DENORMAL 0x1p-149
static const float_case float_cases[] = {
    {IR_NEG, 0.0, 0, 0, -0.0},
    {IR_NEG, -2.5, 0, 0, 2.5},
    {IR_NEG, INFINITY, 0, 0, -INFINITY},
    {IR_NEG, NAN, 0, 0, NAN},
    {IR_ABS, -0.0, 0, 0, 0.0},
    {IR_ABS, -INFINITY, 0, 0, INFINITY},
    {IR_ABS, 3, 0, 0, 3},
    {IR_ABS, NAN, 0, 0, NAN},
    {IR_SQRT, 9, 0, 0, 3},
    {IR_SQRT, -0.0, 0, 0, -0.0},
    {IR_SQRT, -1, 0, 0, NAN},
    {IR_SQRT, INFINITY, 0, 0, INFINITY},
    {IR_RINT, 0.5, 0, 0, 0.0},
    {IR_RINT, 1.5, 0, 0, 2},
    {IR_RINT, 2.5, 0, 0, 2},
    {IR_RINT, -0.5, 0, 0, -0.0},
    {IR_RINT, -3.5, 0, 0, -4},
    {IR_RINT, 0x1p23 - 0.5, 0, 0, 0x1p23},
    {IR_RINT, 0x1p22 + 0.5, 0, 0, 0x1p22},
    {IR_RINT, -INFINITY, 0, 0, -INFINITY},
    {IR_RINT, NAN, 0, 0, NAN},
    {IR_RINT, DENORMAL, 0, 0, 0.0},
    {IR_RINT, 0x1p60, 0, 0, 0x1p60},
    {IR_ADD, 1, 2, 0, 3},
    {IR_ADD, INFINITY, -INFINITY, 0, NAN},
    {IR_ADD, -0.0, 0.0, 0, 0.0},
    {IR_SUB, 1, 2, 0, -1},
    {IR_SUB, 0.0, 0.0, 0, 0.0},
    {IR_MUL, -0.0, 5, 0, -0.0},
    {IR_MUL, 0, INFINITY, 0, NAN},
    {IR_DIV, 1, 0.0, 0, INFINITY},
    {IR_DIV, 1, -0.0, 0, -INFINITY},
    {IR_DIV, 0, 0, 0, NAN},
    {IR_DIV, 7, 2, 0, 3.5},
    /* x > y ? x : y: the second operand wins whenever the comparison is false */
    {IR_MAX, 1, 2, 0, 2},
    {IR_MAX, 2, 1, 0, 2},
    {IR_MAX, NAN, 1, 0, 1},
    {IR_MAX, 1, NAN, 0, NAN},
    {IR_MAX, 0.0, -0.0, 0, -0.0},
    {IR_MAX, -0.0, 0.0, 0, 0.0},
    {IR_MIN, 1, 2, 0, 1},
    {IR_MIN, 2, 1, 0, 1},
    {IR_MIN, NAN, 1, 0, 1},
    {IR_MIN, 1, NAN, 0, NAN},
    {IR_MIN, 0.0, -0.0, 0, -0.0},
    {IR_MIN, -0.0, 0.0, 0, 0.0},
    {IR_EQ, 0.0, -0.0, 0, 1},
    {IR_EQ, NAN, NAN, 0, 0},
    {IR_EQ, 2, 2, 0, 1},
    {IR_EQ, 1, 2, 0, 0},
    {IR_NE, NAN, NAN, 0, 1},
    {IR_NE, NAN, 1, 0, 1},
    {IR_NE, 2, 2, 0, 0},
    {IR_NE, 1, 2, 0, 1},
    {IR_LT, 1, 2, 0, 1},
    {IR_LT, 2, 2, 0, 0},
    {IR_LT, NAN, 2, 0, 0},
    {IR_LT, 2, NAN, 0, 0},
    {IR_LE, 2, 2, 0, 1},
    {IR_LE, 3, 2, 0, 0},
    {IR_LE, NAN, NAN, 0, 0},
    {IR_LE, 0.0, -0.0, 0, 1},
    {IR_GT, 2, 1, 0, 1},
    {IR_GT, 2, 2, 0, 0},
    {IR_GT, NAN, 1, 0, 0},
    {IR_GT, INFINITY, 1, 0, 1},
    {IR_GE, 2, 2, 0, 1},
    {IR_GE, 1, 2, 0, 0},
    {IR_GE, 1, NAN, 0, 0},
    {IR_GE, -0.0, 0.0, 0, 1},
    {IR_FMA, 2, 3, 4, 10},
    {IR_FMA, 0, INFINITY, 1, NAN},
    {IR_FMA, 1, 1, NAN, NAN},
    {IR_FMA, -0.0, 1, -0.0, -0.0},
    /* one rounding: the low half of the square would be lost by a product rounded on its own */
    {IR_FMA, 1 + 0x1p-12, 1 + 0x1p-12, -1 - 0x1p-11, 0x1p-24},
    {IR_LDEXP, 1, 3, 0, 8},
    {IR_LDEXP, 1, 3.99, 0, 8},
    {IR_LDEXP, 1, -0.5, 0, 0.5},
    {IR_LDEXP, -3, -1, 0, -1.5},
    {IR_LDEXP, 1, 3000, 0, INFINITY},
    {IR_LDEXP, -1, 1e30, 0, -INFINITY},
    {IR_LDEXP, -1, -3000, 0, -0.0},
    {IR_LDEXP, 0.0, 5, 0, 0.0},
    {IR_LDEXP, -0.0, -INFINITY, 0, -0.0},
    {IR_LDEXP, 0.0, INFINITY, 0, NAN},
    {IR_LDEXP, INFINITY, -5, 0, INFINITY},
    {IR_LDEXP, INFINITY, -INFINITY, 0, NAN},
    {IR_LDEXP, -INFINITY, INFINITY, 0, -INFINITY},
    {IR_LDEXP, -2, INFINITY, 0, -INFINITY},
    {IR_LDEXP, -2, -INFINITY, 0, -0.0},
    {IR_LDEXP, 1, NAN, 0, NAN},
    {IR_LDEXP, NAN, 1, 0, NAN},
    {IR_LDEXP, NAN, NAN, 0, NAN},
    {IR_LDEXP, NAN, INFINITY, 0, INFINITY},
    {IR_LDEXP, NAN, -INFINITY, 0, 0.0},
    {IR_LDEXP, 0, NAN, 0, NAN},
};

static void check_float_lane(ir_elem elem, const float_case *c, const void *out, int lane) {
    bool right;
    if (is_compare(c->op))
        right = ((const uint8_t *)out)[lane] == (uint8_t)c->result;
    else if (elem == IR_F32)
        right = same_float(((const float *)out)[lane], (float)c->result);
    else
        right = same_double(((const double *)out)[lane], c->result);
    if (!right)
        fail_msg("%s.%s(%a, %a, %a) in lane %d is not %a", ir_op_get(c->op)->text, ir_elem_get(elem)->name, c->x, c->y,
                 c->z, lane, c->result);
}

static bool differs_in_double(const float_case *c) {
    return c->op == IR_RINT && (c->x == 0x1p23 - 0.5 || c->x == 0x1p22 + 0.5);
}

static void check_float_case(ir_elem elem, const float_case *c, int lanes) {
    _Alignas(64) char x[LANES_BYTES], y[LANES_BYTES], z[LANES_BYTES], out[LANES_BYTES];
    const float_case other = {c->op, 1, 1, 1, 0};
    for (int at = 0; at < lanes; at++) {
        for (int l = 0; l < lanes; l++) {
            const float_case *lane = l == at ? c : &other;
            put(elem, x, l, lane->x, 0);
            put(elem, y, l, lane->y, 0);
            put(elem, z, l, lane->z, 0);
        }
        memset(out, 0xee, sizeof out);
        ir_eval_fn *fn = ir_eval_get(c->op, elem);
        assert_non_null(fn);
        fn(out, x, y, z, lanes);
        check_float_lane(elem, c, out, at);
        const size_t written = (size_t)lanes * (is_compare(c->op) ? 1 : ir_elem_get(elem)->bytes);
        if (written < sizeof out) assert_int_equal((uint8_t)out[written], 0xee);
    }
}

static void test_floats(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof float_cases / sizeof *float_cases; i++)
        for (int lanes = 1; lanes <= IR_MAX_LANES; lanes *= 2) {
            check_float_case(IR_F32, &float_cases[i], lanes);
            if (!differs_in_double(&float_cases[i])) check_float_case(IR_F64, &float_cases[i], lanes);
        }
}

/* Random bit patterns, denormals among them, against the C library. */
static void test_floats_at_random(void **state) {
    (void)state;
    for (int i = 0; i < 200000; i++) {
        const uint64_t bits = random_bits();
        const float x = float_from_bits((uint32_t)bits), y = float_from_bits((uint32_t)(bits >> 32));
        const float z = float_from_bits((uint32_t)random_bits()), n = (float)((int)(random_bits() % 700) - 350);
        float out;
        ir_eval_get(IR_FMA, IR_F32)(&out, &x, &y, &z, 1);
        assert_true(same_float(out, fmaf(x, y, z)));
        ir_eval_get(IR_RINT, IR_F32)(&out, &x, NULL, NULL, 1);
        assert_true(same_float(out, rintf(x)));
        ir_eval_get(IR_SQRT, IR_F32)(&out, &x, NULL, NULL, 1);
        assert_true(same_float(out, sqrtf(x)));
        ir_eval_get(IR_LDEXP, IR_F32)(&out, &x, &n, NULL, 1);
        assert_true(same_float(out, ldexpf(x, (int)n)));
        double dx, dout;
        const double dn = (double)((int)(random_bits() % 4800) - 2400);
        memcpy(&dx, &bits, sizeof dx);
        ir_eval_get(IR_RINT, IR_F64)(&dout, &dx, NULL, NULL, 1);
        assert_true(same_double(dout, rint(dx)));
        ir_eval_get(IR_LDEXP, IR_F64)(&dout, &dx, &dn, NULL, 1);
        assert_true(same_double(dout, ldexp(dx, (int)dn)));
    }
}

/* ---- Integers and bools ---- */

#define LEAST INT64_MIN /* means the least of the element under test */
static const int_case int_cases[] = {
    {IR_NEG, 5, 0, -5},        {IR_NEG, LEAST, 0, LEAST},  {IR_ABS, -7, 0, 7},         {IR_ABS, LEAST, 0, LEAST},
    {IR_NOT, 0, 0, -1},        {IR_ADD, 2, 3, 5},          {IR_ADD, LEAST, LEAST, 0},  {IR_SUB, 2, 3, -1},
    {IR_SUB, 0, LEAST, LEAST}, {IR_MUL, -4, 5, -20},       {IR_MUL, LEAST, -1, LEAST}, {IR_MUL, LEAST, 2, 0},
    {IR_DIV, 7, 2, 3},         {IR_DIV, -7, 2, -4},        {IR_DIV, 7, -2, -4},        {IR_DIV, -7, -2, 3},
    {IR_DIV, -8, 2, -4},       {IR_DIV, LEAST, -1, LEAST}, {IR_DIV, 5, 0, 0},          {IR_DIV, 0, -3, 0},
    {IR_MOD, 7, 3, 1},         {IR_MOD, -7, 3, 2},         {IR_MOD, 7, -3, -2},        {IR_MOD, -7, -3, -1},
    {IR_MOD, 6, 3, 0},         {IR_MOD, LEAST, -1, 0},     {IR_MOD, 5, 0, 0},          {IR_MIN, -1, 1, -1},
    {IR_MIN, 3, 2, 2},         {IR_MAX, LEAST, 0, 0},      {IR_MAX, 3, 2, 3},          {IR_AND, 12, 10, 8},
    {IR_OR, 12, 10, 14},       {IR_XOR, 12, 10, 6},        {IR_SHL, 1, 4, 16},         {IR_SHL, -1, 1, -2},
    {IR_SHR, -8, 1, -4},       {IR_SHR, 8, 2, 2},          {IR_SHR, -1, 31, -1},       {IR_SHL, 3, 64, 3},
    {IR_SHR, 48, 64 + 4, 3},   {IR_SHL, 1, -64, 1},        {IR_EQ, 4, 4, 1},           {IR_EQ, 4, 5, 0},
    {IR_NE, 4, 5, 1},          {IR_NE, 4, 4, 0},           {IR_LT, LEAST, 0, 1},       {IR_LT, 1, 1, 0},
    {IR_LE, 1, 1, 1},          {IR_LE, 2, 1, 0},           {IR_GT, 1, LEAST, 1},       {IR_GT, 1, 1, 0},
    {IR_GE, -1, -1, 1},        {IR_GE, -2, -1, 0},
};

static int64_t as_elem(ir_elem elem, int64_t value) {
    if (elem != IR_I32) return value;
    return value == LEAST ? INT32_MIN : (int32_t)value;
}

static int64_t get_int(ir_elem elem, const void *lanes, int lane) {
    return elem == IR_I32 ? ((const int32_t *)lanes)[lane] : ((const int64_t *)lanes)[lane];
}

static void check_int_case(ir_elem elem, const int_case *c, int lanes) {
    _Alignas(64) char x[LANES_BYTES], y[LANES_BYTES], out[LANES_BYTES];
    for (int l = 0; l < lanes; l++) {
        put(elem, x, l, 0, as_elem(elem, c->x));
        put(elem, y, l, 0, as_elem(elem, c->y));
    }
    ir_eval_fn *fn = ir_eval_get(c->op, elem);
    assert_non_null(fn);
    fn(out, x, y, NULL, lanes);
    for (int l = 0; l < lanes; l++) {
        const int64_t got = is_compare(c->op) ? ((const uint8_t *)out)[l] : get_int(elem, out, l);
        if (got != as_elem(elem, c->result))
            fail_msg("%s.%s(%lld, %lld) in lane %d is %lld", ir_op_get(c->op)->text, ir_elem_get(elem)->name,
                     (long long)as_elem(elem, c->x), (long long)as_elem(elem, c->y), l, (long long)got);
    }
}

static void test_integers(void **state) {
    (void)state;
    static const ir_elem elems[] = {IR_I32, IR_I64, IR_IDX};
    for (size_t i = 0; i < sizeof int_cases / sizeof *int_cases; i++)
        for (int e = 0; e < 3; e++)
            for (int lanes = 1; lanes <= IR_MAX_LANES; lanes *= 2) check_int_case(elems[e], &int_cases[i], lanes);
}

static void test_bools(void **state) {
    (void)state;
    const uint8_t x[4] = {0, 0, 1, 1}, y[4] = {0, 1, 0, 1};
    static const struct {
        ir_op op;
        uint8_t result[4];
    } cases[] = {{IR_NOT, {1, 1, 0, 0}}, {IR_AND, {0, 0, 0, 1}}, {IR_OR, {0, 1, 1, 1}},
                 {IR_XOR, {0, 1, 1, 0}}, {IR_EQ, {1, 0, 0, 1}},  {IR_NE, {0, 1, 1, 0}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t out[4];
        ir_eval_get(cases[i].op, IR_BOOL)(out, x, y, NULL, 4);
        assert_memory_equal(out, cases[i].result, 4);
    }
}

static void test_select(void **state) {
    (void)state;
    for (int elem = 0; elem < IR_ELEM_COUNT; elem++) {
        const int bytes = ir_elem_get((ir_elem)elem)->bytes;
        for (int lanes = 1; lanes <= IR_MAX_LANES; lanes *= 2) {
            uint8_t condition[IR_MAX_LANES];
            _Alignas(64) uint8_t x[LANES_BYTES], y[LANES_BYTES], out[LANES_BYTES];
            for (int l = 0; l < lanes; l++) condition[l] = random_bits() & 1;
            for (int b = 0; b < lanes * bytes; b++) x[b] = (uint8_t)random_bits(), y[b] = (uint8_t)random_bits();
            ir_eval_get(IR_SELECT, (ir_elem)elem)(out, condition, x, y, lanes);
            for (int b = 0; b < lanes * bytes; b++) assert_int_equal(out[b], condition[b / bytes] ? x[b] : y[b]);
        }
    }
}

/* ---- The table ---- */

static void test_every_operator_has_its_elements(void **state) {
    (void)state;
    for (int op = IR_NEG; op < IR_OP_COUNT; op++) {
        const ir_op_info *info = ir_op_get((ir_op)op);
        if (info->result == IR_RESULT_SPECIAL) continue;
        for (int elem = 0; elem < IR_ELEM_COUNT; elem++) {
            const bool expected =
                !(info->traits & IR_TRAIT_HIGH) && (info->accepts & ir_elem_get((ir_elem)elem)->class);
            if ((ir_eval_get((ir_op)op, (ir_elem)elem) != NULL) != expected)
                fail_msg("%s of %s: an evaluator is %s", info->text, ir_elem_get((ir_elem)elem)->name,
                         expected ? "missing" : "too many");
        }
    }
    assert_null(ir_eval_get(IR_OP_COUNT, IR_F32));
    assert_null(ir_eval_get(IR_ADD, IR_ELEM_COUNT));
    assert_null(ir_eval_cast(IR_F32, IR_ELEM_COUNT));
}

/* ---- Narrow floats ---- */

/* The value of a code of a narrow float, from the definition of the format. */
static double narrow_value(ir_elem elem, unsigned code) {
    const int exponent_bits = elem == IR_F16 ? 5 : elem == IR_BF16 ? 8 : 4;
    const int mantissa_bits = elem == IR_F16 ? 10 : elem == IR_BF16 ? 7 : 3;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (int)(code >> mantissa_bits & ((1u << exponent_bits) - 1));
    const int mantissa = (int)(code & ((1u << mantissa_bits) - 1));
    const double sign = code >> (exponent_bits + mantissa_bits) & 1 ? -1 : 1;
    if (elem == IR_F8 && exponent == 15 && mantissa == 7) return NAN;
    if (elem != IR_F8 && exponent == (1 << exponent_bits) - 1) return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

/* The positive code nearest to x >= 0, ties to even, by bisection; codes of positive numbers are in order. */
static unsigned nearest_code(ir_elem elem, double x) {
    unsigned low = 0, high = elem == IR_F16 ? 0x7c00 : elem == IR_BF16 ? 0x7f80 : 0x7f; /* infinity, or NaN in f8 */
    while (high - low > 1) {
        const unsigned middle = (low + high) / 2;
        if (narrow_value(elem, middle) <= x)
            low = middle;
        else
            high = middle;
    }
    /* Past the largest finite number the next step would be this one, if the format went on. */
    const double below = narrow_value(elem, low), step = narrow_value(elem, low) - narrow_value(elem, low - 1);
    const double above = isfinite(narrow_value(elem, high)) ? narrow_value(elem, high) : below + step;
    if (x - below < above - x) return low;
    if (x - below > above - x) return high;
    return low & 1 ? high : low;
}

static unsigned cast_to_narrow(ir_elem from, ir_elem to, const void *x) {
    uint16_t wide = 0;
    uint8_t byte = 0;
    ir_eval_cast(from, to)(to == IR_F8 ? (void *)&byte : (void *)&wide, x, NULL, NULL, 1);
    return to == IR_F8 ? byte : wide;
}

static void test_narrow_floats_widen_exactly(void **state) {
    (void)state;
    static const ir_elem elems[] = {IR_F16, IR_BF16, IR_F8};
    for (int e = 0; e < 3; e++)
        for (unsigned code = 0; code < (elems[e] == IR_F8 ? 256u : 65536u); code++) {
            const uint16_t wide = (uint16_t)code;
            const uint8_t byte = (uint8_t)code;
            float single;
            double twice;
            const void *x = elems[e] == IR_F8 ? (const void *)&byte : (const void *)&wide;
            ir_eval_cast(elems[e], IR_F32)(&single, x, NULL, NULL, 1);
            ir_eval_cast(elems[e], IR_F64)(&twice, x, NULL, NULL, 1);
            assert_true(same_float(single, (float)narrow_value(elems[e], code)));
            assert_true(same_double(twice, narrow_value(elems[e], code)));
            if (isnan(single)) continue;
            assert_int_equal(cast_to_narrow(IR_F32, elems[e], &single), code);
            assert_int_equal(cast_to_narrow(IR_F64, elems[e], &twice), code);
        }
}

static void check_rounding(ir_elem elem, double x) {
    const unsigned expected = nearest_code(elem, x);
    if (cast_to_narrow(IR_F64, elem, &x) != expected)
        fail_msg("%a to %s is %x, not %x", x, ir_elem_get(elem)->name, cast_to_narrow(IR_F64, elem, &x), expected);
    const float single = (float)x;
    if ((double)single == x) assert_int_equal(cast_to_narrow(IR_F32, elem, &single), expected);
}

static void test_narrow_floats_round_to_nearest(void **state) {
    (void)state;
    static const ir_elem elems[] = {IR_F16, IR_BF16, IR_F8};
    for (int e = 0; e < 3; e++) {
        const unsigned codes = elems[e] == IR_F8 ? 0x7f : elems[e] == IR_F16 ? 0x7c00 : 0x7f80;
        for (unsigned code = 1; code < codes; code += elems[e] == IR_F8 ? 1 : 37) {
            const double x = narrow_value(elems[e], code), half = (x - narrow_value(elems[e], code - 1)) / 2;
            check_rounding(elems[e], x - half);
            check_rounding(elems[e], nextafter(x - half, 0));
            check_rounding(elems[e], nextafter(x - half, INFINITY));
            check_rounding(elems[e], x - half * 2 * (double)(random_bits() >> 11) * 0x1p-53);
        }
        const double largest = narrow_value(elems[e], codes - 1), step = largest - narrow_value(elems[e], codes - 2);
        check_rounding(elems[e], largest + step * 0.49);
        check_rounding(elems[e], largest + step * 0.5);
        check_rounding(elems[e], largest + step * 0.51);
        const double huge = 1e300, infinite = INFINITY, nan = NAN;
        assert_int_equal(cast_to_narrow(IR_F64, elems[e], &huge), codes);
        assert_int_equal(cast_to_narrow(IR_F64, elems[e], &infinite), codes);
        assert_true(isnan(narrow_value(elems[e], cast_to_narrow(IR_F64, elems[e], &nan))));
    }
}

static void test_integers_round_once(void **state) {
    (void)state;
    /* To double this would round down to the tie and from there to even; one rounding goes up. */
    const int64_t x = (INT64_C(1) << 62) + (INT64_C(1) << 54) + 1;
    uint16_t bf16;
    ir_eval_cast(IR_I64, IR_BF16)(&bf16, &x, NULL, NULL, 1);
    assert_int_equal(bf16, (127 + 62) << 7 | 1);
    for (int i = 0; i < 100000; i++) {
        const int64_t n = (int64_t)random_bits() >> (random_bits() & 63);
        float single;
        double twice;
        ir_eval_cast(IR_I64, IR_F32)(&single, &n, NULL, NULL, 1);
        ir_eval_cast(IR_IDX, IR_F64)(&twice, &n, NULL, NULL, 1);
        assert_true(single == (float)n);
        assert_true(twice == (double)n);
        if (n > 0 && n < INT64_C(1) << 53) {
            ir_eval_cast(IR_I64, IR_BF16)(&bf16, &n, NULL, NULL, 1);
            assert_int_equal(bf16, nearest_code(IR_BF16, (double)n));
        }
    }
}

/* ---- Casts to integers and bools ---- */

static void test_float_to_integer(void **state) {
    (void)state;
    static const struct {
        double x;
        int64_t i8, i32, i64;
    } cases[] = {
        {0.99, 0, 0, 0},
        {-0.99, 0, 0, 0},
        {-1.5, -1, -1, -1},
        {126.9, 126, 126, 126},
        {127.5, 127, 127, 127},
        {128, INT8_MIN, 128, 128},
        {-128.5, -128, -128, -128},
        {-129, INT8_MIN, -129, -129},
        {0x1p31 - 128, INT8_MIN, INT32_MAX - 127, INT32_MAX - 127},
        {0x1p31, INT8_MIN, INT32_MIN, INT64_C(1) << 31},
        {-0x1p31, INT8_MIN, INT32_MIN, -(INT64_C(1) << 31)},
        {0x1p63, INT8_MIN, INT32_MIN, INT64_MIN},
        {-0x1p63, INT8_MIN, INT32_MIN, INT64_MIN},
        {0x1p62, INT8_MIN, INT32_MIN, INT64_C(1) << 62},
        {INFINITY, INT8_MIN, INT32_MIN, INT64_MIN},
        {-INFINITY, INT8_MIN, INT32_MIN, INT64_MIN},
        {NAN, INT8_MIN, INT32_MIN, INT64_MIN},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int lanes = 1; lanes <= 16; lanes *= 2) {
            float x[16];
            int8_t i8[16];
            int32_t i32[16];
            int64_t i64[16], idx[16];
            for (int l = 0; l < lanes; l++) x[l] = (float)cases[i].x;
            ir_eval_cast(IR_F32, IR_I8)(i8, x, NULL, NULL, lanes);
            ir_eval_cast(IR_F32, IR_I32)(i32, x, NULL, NULL, lanes);
            ir_eval_cast(IR_F32, IR_I64)(i64, x, NULL, NULL, lanes);
            ir_eval_cast(IR_F64, IR_IDX)(idx, &cases[i].x, NULL, NULL, 1);
            assert_int_equal(i8[lanes - 1], cases[i].i8);
            assert_int_equal(i32[lanes - 1], cases[i].i32);
            assert_true(i64[lanes - 1] == cases[i].i64);
            assert_true(idx[0] == cases[i].i64);
        }
}

static void test_integer_casts_wrap(void **state) {
    (void)state;
    const int64_t x = INT64_C(0x123456789) << 4 | 0xf5;
    int32_t i32;
    int8_t i8;
    uint8_t truth;
    ir_eval_cast(IR_IDX, IR_I32)(&i32, &x, NULL, NULL, 1);
    ir_eval_cast(IR_I64, IR_I8)(&i8, &x, NULL, NULL, 1);
    ir_eval_cast(IR_I64, IR_BOOL)(&truth, &x, NULL, NULL, 1);
    assert_int_equal(i32, (int32_t)(uint32_t)x);
    assert_int_equal(i8, (int8_t)(uint8_t)x);
    assert_int_equal(truth, 1);
    const uint8_t yes = 1;
    float one;
    ir_eval_cast(IR_BOOL, IR_F32)(&one, &yes, NULL, NULL, 1);
    ir_eval_cast(IR_BOOL, IR_I32)(&i32, &yes, NULL, NULL, 1);
    assert_true(one == 1.0f);
    assert_int_equal(i32, 1);
}

/* ---- dot2 ---- */

static uint16_t bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static float dot2(float x0, float x1, float y0, float y1, float acc) {
    const uint16_t x[2] = {bf16(x0), bf16(x1)}, y[2] = {bf16(y0), bf16(y1)};
    float out;
    ir_eval_get(IR_DOT2, IR_F32)(&out, x, y, &acc, 1);
    return out;
}

static void test_dot2(void **state) {
    (void)state;
    assert_true(dot2(1, 2, 3, 4, 5) == 16);
    /* odd first: the small odd product is lost in the large accumulator, then the even one cancels it */
    assert_true(dot2(-0x1p30f, 1, 1, 1, 0x1p30f) == 0);
    assert_true(dot2(1, -0x1p30f, 1, 1, 0x1p30f) == 1);
    assert_true(same_float(dot2(1, 0, 0x1p-130f, 0, 0), 0));       /* a denormal operand is zero */
    assert_true(same_float(dot2(0, 0, 0, 0, 0x1p-130f), 0));       /* a denormal accumulator too */
    assert_true(same_float(dot2(0x1p-70f, 0, 0x1p-70f, 0, 0), 0)); /* and a denormal result */
    assert_true(isnan(dot2(INFINITY, 1, 0, 1, 1)));
    /* 2^-126 less a unit of 24 bits is denormal, less half a unit (a tie, to even) is 2^-126 */
    assert_true(same_float(dot2(0x1p-75f, 0, -0x1p-75f, 0, 0x1p-126f), 0));
    assert_true(same_float(dot2(-0x1p-75f, 0, -0x1p-75f, 0, -0x1p-126f), -0.0f));
    assert_true(dot2(0x1p-75f, 0, -0x1p-76f, 0, 0x1p-126f) == 0x1p-126f);
    assert_true(same_float(dot2(0x1p-75f, 0, -0x1.02p-76f, 0, 0x1p-126f), 0));
}

static void test_dot4(void **state) {
    (void)state;
    const uint8_t x[8] = {255, 255, 255, 255, 1, 2, 3, 255}; /* unsigned */
    const int8_t y[8] = {-128, -128, -128, -128, 1, -2, 127, -1};
    const int32_t acc[2] = {-(1 << 30), 5};
    int32_t out[2];
    ir_eval_get(IR_DOT4, IR_I32)(out, x, y, acc, 2);
    assert_int_equal(out[0], -(1 << 30) - 4 * 255 * 128);
    assert_int_equal(out[1], 5 + 1 - 4 + 381 - 255);
    const int32_t most = INT32_MAX;
    const int8_t ones[4] = {1, 0, 0, 0};
    ir_eval_get(IR_DOT4, IR_I32)(out, x, ones, &most, 1); /* wraps, does not saturate */
    assert_int_equal(out[0], INT32_MIN + 254);
}

static void test_lookup(void **state) {
    (void)state;
    uint8_t low[16], high[16], out[16];
    const uint8_t index[16] = {0, 15, 16, 31, 32, 255, 128, 47};
    for (int i = 0; i < 16; i++) {
        low[i] = (uint8_t)(100 + i);
        high[i] = (uint8_t)(200 + i);
    }
    ir_eval_get(IR_LOOKUP, IR_I8)(out, low, high, index, 16);
    const uint8_t wanted[8] = {100, 115, 200, 215, 100, 215, 100, 115}; /* by the lowest five bits */
    assert_memory_equal(out, wanted, sizeof wanted);
    const float first[4] = {1, 2, 3, 4}, second[4] = {-1, -0.0f, INFINITY, 0x1p-149f};
    const int32_t places[4] = {3, 5, -2, 24}; /* by the lowest three bits */
    float found[4];
    ir_eval_get(IR_LOOKUP, IR_F32)(found, first, second, places, 4);
    const float sought[4] = {4, -0.0f, INFINITY, 1};
    assert_memory_equal(found, sought, sizeof sought);
}

static void test_tile_dot2(void **state) {
    (void)state;
    static uint16_t left[IR_TILE_ROWS][32], right[IR_TILE_ROWS][32];
    float sum[IR_TILE_ROWS][16] = {{0}};
    left[0][0] = left[0][2] = left[1][0] = left[1][2] = bf16(0x1p-63f);
    right[0][0] = bf16(0x1p-63f);
    right[1][0] = bf16(-0x1p-87f);
    left[1][2] = bf16(0x1p-64f);
    ir_eval_tile_dot2(sum, left, right);
    assert_true(same_float(sum[0][0], 0)); /* 2^-126 - 2^-150 */
    assert_true(sum[1][0] == 0x1p-126f);   /* 2^-126 - 2^-151 */
}

static void test_pack2(void **state) {
    (void)state;
    const float even[4] = {1, 0x1.01p0f, -0x1p-130f, NAN}, odd[4] = {0x1.03p0f, INFINITY, 0x1.fffffep127f, -0.0f};
    const uint16_t expected[8] = {0x3f80, 0x3f82, 0x3f80, 0x7f80, 0x8000, 0x7f80, 0x7fc0, 0x8000};
    uint16_t packed[8];
    ir_eval_get(IR_PACK2, IR_F32)(packed, even, odd, NULL, 8);
    for (int i = 0; i < 8; i++) assert_int_equal(packed[i], expected[i]);
}

int main(void) {
    random_state = UINT64_C(0x5eed5eed5eed5eed);
    printf("seed %llx\n", (unsigned long long)random_state);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_floats),
        cmocka_unit_test(test_floats_at_random),
        cmocka_unit_test(test_integers),
        cmocka_unit_test(test_bools),
        cmocka_unit_test(test_select),
        cmocka_unit_test(test_every_operator_has_its_elements),
        cmocka_unit_test(test_narrow_floats_widen_exactly),
        cmocka_unit_test(test_narrow_floats_round_to_nearest),
        cmocka_unit_test(test_integers_round_once),
        cmocka_unit_test(test_float_to_integer),
        cmocka_unit_test(test_integer_casts_wrap),
        cmocka_unit_test(test_dot2),
        cmocka_unit_test(test_dot4),
        cmocka_unit_test(test_lookup),
        cmocka_unit_test(test_tile_dot2),
        cmocka_unit_test(test_pack2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
