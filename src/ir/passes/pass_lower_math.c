/* lower_math: exp2, log2 and tanh become arithmetic. This pass defines their results.
 *
 * Needs: HIGH operators on f32 and f64 only, none in the head of a phase or in the size of a parameter. Keeps:
 * everything else. A value that is used twice becomes a `let` before the statement. After it: no HIGH operators. The
 * target decides which sequence is used, so results may differ between targets.
 *
 * Errors, in units of the last place (tests/ir/test_ir_passes.c tests the bounds). Coefficients are of minimax
 * polynomials; those of exp2 on f32 are rounded together, so that the total error is smallest:
 *
 *   exp2   below 1 with fused multiply-add, below 1.5 without; exact at integers, 0 at -inf, inf from 128 (f64: 1024)
 *          on. On targets without AT_TARGET_SCALEF a result below the smallest normal number is off by up to that
 *          number: it is 0 from -127 (-1023) down and imprecise in between.
 *   log2   below 2, denormals included; -inf at 0, NaN below
 *   tanh   below 2, on f32 with fused multiply-add below 2.5; keeps the sign of 0
 *
 * NaN gives NaN. */
#include "ir/passes.h"
#include "ir/passes/rewrite.h"

#include <math.h>

/* (2^x - 1) / x on [-1/2, 1/2] */
static const double exp2_f32[] = {0x1.62e43p-1,  0x1.ebfbd8p-3,  0x1.c6aefap-5,
                                  0x1.3b2d62p-7, 0x1.5f3f26p-10, 0x1.41fdfcp-13};
static const double exp2_f64[] = {0x1.62e42fefa39efp-1,  0x1.ebfbdff82c5a4p-3,  0x1.c6b08d7049fe8p-5,
                                  0x1.3b2ab6fba0119p-7,  0x1.5d87fe78cd6e2p-10, 0x1.4309130ed8f26p-13,
                                  0x1.ffcbfba97cb3ep-17, 0x1.62bfc79cf2c3ep-20, 0x1.b5267ce6dc264p-24,
                                  0x1.e61b502d256e7p-28, 0x1.e79bae7e75842p-32};

/* log2(1 + x) / x - 1 on [sqrt(1/2) - 1, sqrt(2) - 1] */
static const double log2_f32[] = {0x1.c551dap-2,  -0x1.71547p-1, 0x1.ec7096p-2,  -0x1.715a76p-2, 0x1.277e36p-2,
                                  -0x1.eabc86p-3, 0x1.a305a8p-3, -0x1.874bf6p-3, 0x1.7d495cp-3,  -0x1.c25a78p-4};
static const double log2_f64[] = {
    0x1.c551d94ae0bf8p-2,  -0x1.71547652b82ffp-1, 0x1.ec709dc3a0438p-2,  -0x1.71547652b80aap-2, 0x1.2776c50ef4e3ep-2,
    -0x1.ec709dc3d02d5p-3, 0x1.a61762acbd5d6p-3,  -0x1.71547646c28cdp-3, 0x1.484b127e44902p-3,  -0x1.2776c60b73a51p-3,
    0x1.0c9ab984c9e4dp-3,  -0x1.ec70cd61c5f57p-4, 0x1.c6859b72067ffp-4,  -0x1.a609c611df70bp-4, 0x1.8a7b9141e3749p-4,
    -0x1.728c316b71a22p-4, 0x1.57a316933bb8p-4,   -0x1.3a673cd435e98p-4, 0x1.4045b584e02e7p-4,  -0x1.73eedb6c87958p-4,
    0x1.5140103e90242p-4,  -0x1.1e76856fc1273p-5};

/* (tanh(x) / x - 1) / x^2 as a polynomial in x^2, for x on [0, 5/8] */
static const double tanh_f32[] = {-0x1.555534p-2, 0x1.110768p-3, -0x1.b84446p-5, 0x1.5256c6p-6, -0x1.76abdp-8};
static const double tanh_f64[] = {-0x1.5555555555503p-2,  0x1.111111110b0c3p-3,  -0x1.ba1ba1b530defp-5,
                                  0x1.664f4781f0e0ap-6,   -0x1.226e16d975decp-7, 0x1.d6cf3c9507d46p-9,
                                  -0x1.7d6969d8c23f7p-10, 0x1.336ae26d3c623p-11, -0x1.df7a6fb1b301cp-13,
                                  0x1.43e141351a7adp-14,  -0x1.0e3d02ecd06ap-16};

/* (x coth(x) - 1) / x^2 as a polynomial in x^2, for x on [0, ln 2 / 4] */
static const double coth_f32[] = {0x1.5554fep-2, -0x1.6a0c0cp-6};

#define TERMS(table) (int)(sizeof(table) / sizeof((table)[0]))

/* ---- Notation: one element type and lane count at a time ---- */

typedef struct math {
    ir_builder *b;
    uint32_t flags;      /* AT_TARGET_* */
    ir_elem elem, bits;  /* the float, and the integer of its size */
    int lanes, fraction; /* fraction: bits of the significand in memory */
    bool f64;
} math;

typedef const ir_expr value;

static value *number(math *m, double x) { return ir_splat(m->b, ir_float(m->b, m->elem, x), m->lanes); }
static value *integer(math *m, int64_t x) { return ir_splat(m->b, ir_int(m->b, m->bits, x), m->lanes); }
static value *as_bits(math *m, value *x) { return ir_bitcast(m->b, m->bits, x); }
static value *as_float(math *m, value *x) { return ir_bitcast(m->b, m->elem, x); }
static value *shift_left(math *m, value *x) { return ir_apply(m->b, IR_SHL, x, integer(m, m->fraction), NULL); }
static value *less(math *m, value *x, value *y) { return ir_apply(m->b, IR_LT, x, y, NULL); }

/* Small integers are converted through i32, for which all targets have vector instructions. */
static value *to_integer(math *m, value *x) { return ir_cast(m->b, m->bits, ir_cast(m->b, IR_I32, x)); }
static value *to_float(math *m, value *x) { return ir_cast(m->b, m->elem, ir_cast(m->b, IR_I32, x)); }

static value *multiply_add(math *m, value *x, value *y, value *z) {
    return m->flags & AT_TARGET_FMA ? ir_fma(m->b, x, y, z) : ir_add(m->b, ir_mul(m->b, x, y), z);
}

/* c[0] + c[1] x + c[2] x^2 + … */
static value *polynomial(math *m, value *x, const double *c, int terms) {
    value *sum = number(m, c[terms - 1]);
    for (int i = terms - 2; i >= 0; i--) sum = multiply_add(m, sum, x, number(m, c[i]));
    return sum;
}

/* ---- The functions ---- */

/* Rounds half to even. If the target has no instruction for it, |x| must be far below 2^fraction. */
static value *round_small(math *m, value *x) {
    if (m->flags & AT_TARGET_ROUND) return ir_apply(m->b, IR_RINT, x, NULL, NULL);
    value *magic = number(m, m->f64 ? 0x1.8p52 : 0x1.8p23);
    return ir_sub(m->b, ir_add(m->b, x, magic), magic);
}

/* 2^x = 2^n * 2^f with n = rint(x).
 *
 * With ldexp in hardware nothing needs a clamp: at +-inf f and the polynomial are NaN, and scaling a (quiet) NaN by an
 * infinite power gives inf and 0. Otherwise n is added to the exponent field, and x is first clamped to a range in
 * which the sum stays inside the field: 2^128 is inf because the polynomial is exactly 1 there, and 2^-127 is 0
 * likewise. The constant is the first operand of both clamps, so that a NaN comes through; its n becomes an integer
 * whose low bits are 0. An x of the form neg(abs(y)) needs no upper clamp. The softmax writes its differences so, which
 * saves an operation. */
static value *exp2_of(math *m, value *x) {
    const bool scale = m->flags & AT_TARGET_SCALEF;
    const double top = m->f64 ? 1024 : 128, bottom = 1 - top;
    const bool never_positive = x->op == IR_NEG && x->args[0]->op == IR_ABS;
    if (!scale) x = ir_max(m->b, number(m, bottom), x);
    if (!scale && !never_positive) x = ir_min(m->b, number(m, top), x);
    x = ir_let(m->b, "exp2.x", x);
    value *n = ir_let(m->b, "exp2.n", round_small(m, x));
    value *f = ir_let(m->b, "exp2.f", ir_sub(m->b, x, n));
    value *slope = m->f64 ? polynomial(m, f, exp2_f64, TERMS(exp2_f64)) : polynomial(m, f, exp2_f32, TERMS(exp2_f32));
    value *power = multiply_add(m, slope, f, number(m, 1));
    if (scale) return ir_apply(m->b, IR_LDEXP, power, n, NULL);
    return as_float(m, ir_add(m->b, as_bits(m, power), shift_left(m, to_integer(m, n))));
}

/* log2(x) = e + log2(1 + r) with 1 + r = x / 2^e in [sqrt(1/2), sqrt(2)), where r is exact. Denormals are scaled
 * into the normal numbers first. */
static value *log2_of(math *m, value *x) {
    ir_builder *b = m->b;
    const int64_t sqrt_half = m->f64 ? 0x3fe6a09e667f3bcd : 0x3f3504f3;
    const int up = m->f64 ? 54 : 24;
    x = ir_let(b, "log2.x", x);
    value *tiny = ir_let(b, "log2.tiny", less(m, x, number(m, m->f64 ? 0x1p-1022 : 0x1p-126)));
    value *scaled = ir_select(b, tiny, ir_mul(b, x, number(m, ldexp(1, up))), x);
    value *bits = ir_let(b, "log2.bits", as_bits(m, scaled));
    value *e = ir_apply(b, IR_SHR, ir_sub(b, bits, integer(m, sqrt_half)), integer(m, m->fraction), NULL);
    e = ir_let(b, "log2.e", e);
    value *r = ir_let(b, "log2.r", ir_sub(b, as_float(m, ir_sub(b, bits, shift_left(m, e))), number(m, 1)));
    value *slope = m->f64 ? polynomial(m, r, log2_f64, TERMS(log2_f64)) : polynomial(m, r, log2_f32, TERMS(log2_f32));
    value *exponent = ir_add(b, to_float(m, e), ir_select(b, tiny, number(m, -up), number(m, 0)));
    value *finite = ir_add(b, exponent, multiply_add(m, r, slope, r));

    value *inf = number(m, INFINITY), *zero = number(m, 0);
    value *at_zero = ir_select(b, ir_apply(b, IR_EQ, x, zero, NULL), number(m, -INFINITY), number(m, NAN));
    value *above = ir_select(b, less(m, x, inf), finite, inf);
    return ir_select(b, less(m, zero, x), above, at_zero);
}

static value *with_sign_of(math *m, value *x, value *magnitude) {
    value *sign = ir_apply(m->b, IR_AND, as_bits(m, x), integer(m, m->f64 ? INT64_MIN : INT32_MIN), NULL);
    return as_float(m, ir_apply(m->b, IR_OR, as_bits(m, magnitude), sign, NULL));
}

/* An odd polynomial near 0, elsewhere 1 - 2 / (e^2|x| + 1), with the sign of x. */
static value *tanh_by_parts(math *m, value *x) {
    ir_builder *b = m->b;
    value *a = ir_let(b, "tanh.a", ir_apply(b, IR_ABS, x, NULL, NULL));
    value *square = ir_let(b, "tanh.square", ir_mul(b, a, a));
    value *slope =
        m->f64 ? polynomial(m, square, tanh_f64, TERMS(tanh_f64)) : polynomial(m, square, tanh_f32, TERMS(tanh_f32));
    value *small = multiply_add(m, ir_mul(b, a, square), slope, a);
    value *power = exp2_of(m, ir_mul(b, a, number(m, 0x1.71547652b82fep+1))); /* 2 / ln 2 */
    value *large = ir_sub(b, number(m, 1), ir_div(b, number(m, 2), ir_add(b, power, number(m, 1))));
    return with_sign_of(m, x, ir_select(b, less(m, a, number(m, 0.625)), small, large));
}

/* e / (e + 1) of e = (e^2|x| - 1) / 2, with the sign of x. With |x| = n ln 2 / 2 + r and y = r coth(r) - r it is
 * 2^n r / y + (2^n - 1) / 2, and y multiplies both sides of the quotient. Near 0 it is as exact as elsewhere: there n
 * is 0, and y e is r. n is the low bits of a large sum, which a shift makes the exponent of the power. From 9.02 on the
 * quotient is 1; the constant is the first operand so that a NaN comes through. */
static value *tanh_at_once(math *m, value *x) {
    ir_builder *b = m->b;
    value *large = number(m, 0x1.8p23 + 127), *half = number(m, 0.5);
    value *a = ir_let(b, "tanh.a", ir_min(b, number(m, 9.02), ir_apply(b, IR_ABS, x, NULL, NULL)));
    value *sum = ir_let(b, "tanh.sum", multiply_add(m, a, number(m, 0x1.71547652b82fep+1), large)); /* 2 / ln 2 */
    value *power = ir_let(b, "tanh.power", as_float(m, shift_left(m, as_bits(m, sum))));
    value *r = multiply_add(m, ir_sub(b, sum, large), number(m, -0x1.62e42fefa39efp-2), a); /* -ln 2 / 2 */
    r = ir_let(b, "tanh.r", r);
    value *square = ir_let(b, "tanh.square", ir_mul(b, r, r));
    value *slope = polynomial(m, square, coth_f32, TERMS(coth_f32));
    value *y = ir_let(b, "tanh.y", multiply_add(m, square, slope, ir_sub(b, number(m, 1), r)));
    value *fall = multiply_add(m, ir_neg(b, power), half, half);
    value *e = ir_let(b, "tanh.e", multiply_add(m, power, r, ir_neg(b, ir_mul(b, fall, y))));
    return with_sign_of(m, x, ir_div(b, e, ir_add(b, e, y)));
}

/* tanh_at_once needs a fused multiply-add, as otherwise n ln 2 would be rounded. For f64, tanh_by_parts is as accurate.
 */
static value *tanh_of(math *m, value *x) {
    x = ir_let(m->b, "tanh.x", x);
    return !m->f64 && m->flags & AT_TARGET_FMA ? tanh_at_once(m, x) : tanh_by_parts(m, x);
}

/* ---- The pass ---- */

const ir_expr *ir_math(ir_builder *b, ir_op op, const ir_expr *x, uint32_t flags) {
    if (!x) return NULL;
    const bool f64 = x->type.elem == IR_F64;
    math m = {.b = b,
              .flags = flags,
              .elem = x->type.elem,
              .bits = f64 ? IR_I64 : IR_I32,
              .lanes = x->type.lanes,
              .fraction = f64 ? 52 : 23,
              .f64 = f64};
    switch (op) {
    case IR_EXP2: return exp2_of(&m, x);
    case IR_LOG2: return log2_of(&m, x);
    case IR_TANH: return tanh_of(&m, x);
    default: ir_build_fail(b, "lower_math does not know '%s'", ir_op_get(op)->text); return NULL;
    }
}

static value *lower_expr(ir_rewriter *r, const ir_expr *old, const ir_expr *const *args) {
    const at_target *target = r->user;
    return ir_op_get(old->op)->traits & IR_TRAIT_HIGH ? ir_math(r->b, old->op, args[0], target->flags) : NULL;
}

static bool is_high(const ir_expr *e, const void *user) {
    (void)user;
    return ir_op_get(e->op)->traits & IR_TRAIT_HIGH;
}

ir_kernel *ir_pass_lower_math(const ir_kernel *kernel, const at_target *target, at_error *err) {
    if (!ir_kernel_has(kernel, is_high, NULL, NULL)) return (ir_kernel *)kernel;
    return ir_rewrite_kernel(kernel, &(ir_rewriter){.on_expr = lower_expr, .user = (void *)target}, err);
}
