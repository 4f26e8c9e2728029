/* From q · k to a score (see score.h). Each step folds away if the problem does not have it. softmax_scale is special:
 * usually it is no step, but is split into a sign, which goes into Q once, and a magnitude, which the exponential of
 * the softmax applies together with log2(e). */
#include "attend/shared/score.h"

#include <math.h>

/* ---- The steps ---- */

static const ir_expr *scaled(const mha_context *c, const ir_expr *z) {
    if (!z || !c->is_natural) return z;
    const ir_expr *scale = c->params.softmax_scale ? c->params.softmax_scale : mha_number(c, c->p->softmax_scale, 1);
    return ir_mul(c->b, z, mha_in_lanes(c, scale, z->type.lanes));
}

/* Whether to multiply by 1 / cap, as a division costs as much as ten multiplications. Not where bits are pinned to the
 * division, nor if 1 / cap would be denormal. */
static bool caps_by_inverse(const mha_context *c) {
    static const double LARGE = 1e37;
    return c->elem == IR_F32 && c->has_fma && c->p->logits_soft_cap < LARGE;
}

/* cap tanh(z / cap) */
static const ir_expr *capped(const mha_context *c, const ir_expr *z) {
    const double soft_cap = c->p->logits_soft_cap;
    if (!z || soft_cap == 0) return z;
    const int lanes = z->type.lanes;
    const ir_expr *cap = mha_in_lanes(c, c->cap ? c->cap : mha_number(c, soft_cap, 1), lanes), *x;
    if (caps_by_inverse(c))
        x = ir_mul(c->b, z, mha_in_lanes(c, c->inverse_cap ? c->inverse_cap : mha_number(c, 1 / soft_cap, 1), lanes));
    else
        x = ir_div(c->b, z, cap);
    return ir_mul(c->b, mha_math(c, IR_TANH, x), cap);
}

/* A general kernel gets the bits of its cap as a size, so it computes with the same values as a kernel with a constant
 * cap. */
static void open_cap(mha_context *c) {
    ir_builder *b = c->b;
    if (!c->p->is_general || c->p->logits_soft_cap == 0) return;
    const ir_expr *bits = ir_cast(b, IR_I64, c->params.size[MHA_SOFT_CAP]);
    const ir_expr *cap = ir_let(b, "exact_cap", ir_bitcast(b, IR_F64, bits));
    c->cap = ir_let(b, "cap", ir_cast(b, c->elem, cap));
    if (!caps_by_inverse(c)) return;
    c->inverse_cap = ir_let(b, "inverse_cap", ir_cast(b, c->elem, ir_div(b, ir_float(b, IR_F64, 1), cap)));
}

static const ir_expr *with_alibi(const mha_context *c, const mha_score_operands *o, const ir_expr *z) {
    if (!z || !o->slope) return z;
    const int lanes = z->type.lanes;
    const ir_expr *from_key = ir_sub(c->b, mha_in_lanes(c, o->position, lanes), mha_in_lanes(c, o->key, lanes));
    const ir_expr *distance = ir_abs(c->b, from_key);
    return ir_sub(c->b, z, ir_mul(c->b, mha_in_lanes(c, o->slope, lanes), distance));
}

const ir_expr *mha_score(const mha_context *c, const mha_score_operands *o, const ir_expr *dot,
                         attune_weights_mode shown) {
    if (!dot) return NULL;
    const int lanes = dot->type.lanes;
    const ir_expr *z = o->k_scale ? ir_mul(c->b, dot, mha_in_lanes(c, o->k_scale, lanes)) : dot;
    z = scaled(c, z);
    if (shown == ATTUNE_WEIGHTS_SCALED) return z;
    z = capped(c, z);
    if (shown == ATTUNE_WEIGHTS_CAPPED) return z;
    z = with_alibi(c, o, z);
    return o->bias ? ir_add(c->b, z, mha_in_lanes(c, o->bias, lanes)) : z;
}

const ir_expr *mha_hide(const mha_context *c, const ir_expr *sees, const ir_expr *z, double hidden) {
    return sees && z ? ir_select(c->b, sees, z, mha_number(c, hidden, z->type.lanes)) : z;
}

/* ---- softmax_scale ---- */

bool mha_has_natural_scores(const attune_problem *p) {
    return p->logits_soft_cap > 0 || p->has_alibi_slopes || p->attn_bias_dims[3] || p->score_mod[0] ||
           (p->has_sinks && p->integer) || p->op == ATTUNE_MERGE || p->op == ATTUNE_WEIGHTS;
}

/* The scale as c->elem, which may round it to 0. (Such a scale must be treated as 0: a hidden key's difference is
 * infinite, and 0 times it is NaN.) */
static double softmax_scale(const mha_context *c) {
    return c->elem == IR_F32 ? (double)(float)c->p->softmax_scale : c->p->softmax_scale;
}

static double score_scale(const mha_context *c) {
    return c->is_natural || softmax_scale(c) == 0 ? 1 : fabs(softmax_scale(c));
}

void mha_scale_open(mha_context *c) {
    ir_builder *b = c->b;
    open_cap(c);
    const ir_expr *scale = c->params.softmax_scale;
    if (!scale || c->is_natural) return;
    const ir_expr *zero = mha_number(c, 0, 1), *one = mha_number(c, 1, 1);
    const ir_expr *is_zero = ir_eq(b, scale, zero), *is_less = ir_lt(b, scale, zero);
    c->score_scale = ir_let(b, "score_scale", ir_select(b, is_zero, one, ir_abs(b, scale)));
    const ir_expr *sign = ir_select(b, is_less, mha_number(c, -1, 1), one);
    c->query_sign = ir_let(b, "query_sign", ir_select(b, is_zero, zero, sign));
}

const ir_expr *mha_score_scale(const mha_context *c) {
    if (c->in_log2) return mha_number(c, M_LN2, 1);
    return c->score_scale && !c->is_natural ? c->score_scale : mha_number(c, score_scale(c), 1);
}

const ir_expr *mha_query_sign(const mha_context *c) {
    if (c->is_natural) return NULL;
    if (c->query_sign) return c->query_sign;
    const double scale = softmax_scale(c);
    return scale > 0 ? NULL : mha_number(c, scale < 0 ? -1 : 0, 1);
}

/* In f32, both factors are rounded before the product, as they are in a kernel whose scale is not constant. */
const ir_expr *mha_score_log2e(const mha_context *c) {
    if (c->score_scale && !c->is_natural) return ir_mul(c->b, c->score_scale, mha_number(c, M_LOG2E, 1));
    const double scale = score_scale(c);
    return mha_number(c, c->elem == IR_F32 ? (double)((float)scale * (float)M_LOG2E) : scale * M_LOG2E, 1);
}
