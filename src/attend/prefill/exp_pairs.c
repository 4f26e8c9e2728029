/* Exponentials of pairs of keys, directly as bf16. 2^x of two scores is computed in the two halves of an i32:
 *
 *     x + 127, fixed point       [ 7 bits of integer | 9 bits of fraction f ]      rounded
 *     2^x as bf16 would be       [ exponent          | 2^f - 1              ]
 *
 * So only the fraction is wrong, by f - (2^f - 1). A table has that difference for the first 7 bits of f. It is
 * subtracted, and the 9 bits are rounded to the 7 of bf16's fraction. So two scores cost one instruction where a
 * polynomial costs two.
 *
 * Adding ONLY_INTEGERS to a number leaves its integer part in the lowest bits. That sum has the same exponent for every
 * score that is a number, so the exponent bits tell after the loop whether a score was NaN. */
#include "attend/prefill/layout.h"
#include "problem/problem.h"

#include <math.h>

enum {
    FRACTION = 9,   /* bits of f, of which bf16 keeps 7 */
    ROUNDING = 2,   /* half of the 2 bits that are dropped */
    BYTES = 64,     /* a vector of 16 lanes */
    TABLE = 128,    /* two such vectors */
    LEAST_KEYS = 64 /* fewer keys do not pay for the table */
};
static const float ONLY_INTEGERS = 0x1.8p23F;
static const float HUGE_SCALE = 1e30F;             /* a larger scale times 2^FRACTION might be infinite */
static const int32_t ONLY_INTEGERS_UPPER = 0x4b40; /* the upper half of its bits */

/* f - (2^f - 1) in steps of 2^-9. Of all tables, this one has the least mean square of relative errors after rounding.
 */
static const uint8_t corrections[TABLE] = {
    1,  1,  3,  4,  5,  6,  8,  8,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 24, 25, 26,
    27, 28, 28, 29, 30, 31, 32, 32, 33, 33, 34, 35, 36, 36, 36, 37, 38, 38, 39, 39, 40, 40, 40, 41, 41, 42,
    42, 42, 43, 43, 43, 43, 44, 44, 44, 44, 44, 44, 44, 44, 45, 45, 45, 45, 45, 44, 44, 44, 44, 44, 44, 44,
    43, 43, 43, 43, 42, 42, 42, 41, 41, 41, 40, 39, 39, 38, 38, 37, 37, 36, 35, 35, 34, 34, 33, 32, 31, 30,
    30, 29, 27, 27, 26, 25, 23, 23, 22, 21, 19, 18, 17, 15, 14, 14, 13, 11, 10, 9,  6,  5,  3,  2};

bool ql_has_pair_exp(const q_lanes *c) {
    const bool pays = mha_most_keys(c->m->p) >= LEAST_KEYS && c->m->s->kv_tile >= LEAST_KEYS;
    return c->v->by_pairs && 4 * c->m->lanes == BYTES && c->m->target->flags & AT_TARGET_LOOKUP && !c->m->lse &&
           !c->m->params.tensor[MHA_V_SCALE] && pays;
}

void ql_fill_corrections(q_lanes *c) {
    enum { WORD = 4 };
    ir_builder *b = c->b;
    c->corrections = ir_scratch(b, "corrections", IR_I32, 1, (int64_t[]){TABLE / WORD});
    for (int i = 0; i < TABLE; i += WORD) {
        uint32_t word = 0;
        for (int k = 0; k < WORD; k++) word |= (uint32_t)corrections[i + k] << 8 * k;
        ir_store(b, ir_at(b, c->corrections, 1, 1, ir_idx(b, i / WORD)), ir_int(b, IR_I32, (int32_t)word));
    }
}

static const ir_expr *int_lanes(const q_lanes *c, int32_t value) {
    return ir_splat(c->b, ir_int(c->b, IR_I32, value), c->m->lanes);
}

static const ir_expr *shift(const q_lanes *c, ir_op by, const ir_expr *x, int32_t bits) {
    return ir_apply(c->b, by, x, int_lanes(c, bits), NULL);
}

/* The factor from scores to fixed-point exponents: scale * 2^FRACTION. If that might be infinite, scores are multiplied
 * by 2^FRACTION first and by the scale after; a power of two changes no bits. A scale that the call passes is tested at
 * run time, so its results have the bits of a compiled-in scale. */
static void open_scale(q_lanes *c, ql_pair_exp *e) {
    const attune_problem *p = c->m->p;
    ir_builder *b = c->b;
    const ir_expr *steps = mha_number(c->m, 1 << FRACTION, 1), *one = mha_number(c->m, 1, 1), *scale = one;
    if (!c->m->in_log2) scale = mha_score_log2e(c->m);
    if (!c->m->in_log2 && (p->has_softmax_scale || fabs(p->softmax_scale) > HUGE_SCALE)) {
        const ir_expr *is_huge = ir_gt(b, ir_abs(b, scale), mha_number(c->m, HUGE_SCALE, 1));
        is_huge = ir_let(b, "is_huge", is_huge);
        e->before = ir_let(b, "before", ir_splat(b, ir_select(b, is_huge, steps, one), c->m->lanes));
        steps = ir_select(b, is_huge, one, steps);
    }
    e->scale = ir_let(b, "scale", ir_splat(b, ir_mul(b, scale, steps), c->m->lanes));
}

ql_pair_exp ql_open_pair_exp(q_lanes *c, const ir_expr *base) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    ql_pair_exp e = {.base = base, .bits = ir_mutable(b, "bits", int_lanes(c, 0))};
    open_scale(c, &e);
    for (int i = 0; i < 2; i++) {
        const ir_expr *words = ir_load(b, ir_at(b, c->corrections, lanes, 1, ir_idx(b, i * lanes)));
        e.table[i] = ir_let(b, "corrections", ir_bitcast(b, IR_I8, words));
    }
    return e;
}

/* 127 + exponent in fixed point, minus `less`, in the lower half of each lane. The upper half is ONLY_INTEGERS_UPPER:
 * the second score of a pair subtracts that as `less`, which cancels the first one's upper half when both are joined.
 */
static const ir_expr *fixed_point(q_lanes *c, const ql_pair_exp *e, const ir_expr *score, int32_t less) {
    enum { BIAS = 127 << FRACTION };
    const double zero = (double)ONLY_INTEGERS + ROUNDING - less;
    const ir_expr *x = ir_sub(c->b, score, e->base);
    if (e->before) x = ir_mul(c->b, x, e->before);
    x = mha_madd(c->m, x, e->scale, ql_splat(c, zero + BIAS));
    return ir_let(c->b, "fixed", ir_bitcast(c->b, IR_I32, ir_max(c->b, ql_splat(c, zero), x)));
}

const ir_expr *ql_pair_exp_of(q_lanes *c, const ql_pair_exp *e, const ir_expr *first, const ir_expr *second) {
    enum { LOWER_BYTES = 0x00ff00ff, RESULT = 0x3fff3fff, DROPPED = FRACTION - 7, HALF = 16 };
    ir_builder *b = c->b;
    const ir_expr *x = fixed_point(c, e, first, 0), *y = fixed_point(c, e, second, ONLY_INTEGERS_UPPER);
    ir_store(b, e->bits, ir_or(b, ir_load(b, e->bits), ir_or(b, x, y)));
    const ir_expr *both = ir_let(b, "both", ir_add(b, x, shift(c, IR_SHL, y, HALF)));
    const ir_expr *index = ir_bitcast(b, IR_I8, shift(c, IR_SHR, both, DROPPED));
    const ir_expr *less = ir_bitcast(b, IR_I32, ir_lookup(b, e->table[0], e->table[1], index));
    const ir_expr *sum = ir_sub(b, both, ir_and(b, less, int_lanes(c, LOWER_BYTES)));
    return ir_bitcast(b, IR_BF16, ir_and(b, shift(c, IR_SHR, sum, DROPPED), int_lanes(c, RESULT)));
}

const ir_expr *ql_close_pair_exp(q_lanes *c, const ql_pair_exp *e, const ir_expr *sum) {
    ir_builder *b = c->b;
    const ir_expr *infinite = int_lanes(c, 0x7f800000);
    const ir_expr *is_nan = ir_eq(b, ir_and(b, ir_load(b, e->bits), infinite), infinite);
    return ir_select(b, is_nan, ql_splat(c, NAN), sum);
}
