/* Arithmetic that all builders share, so that a score means the same in each of them. */
#include "nest/context.h"

#include <math.h>

const ir_expr *mha_number(const mha_context *c, double value, int lanes) {
    return ir_splat(c->b, ir_float(c->b, c->elem, value), lanes);
}

const ir_expr *mha_madd(const mha_context *c, const ir_expr *x, const ir_expr *y, const ir_expr *z) {
    return c->has_fma ? ir_fma(c->b, x, y, z) : ir_add(c->b, ir_mul(c->b, x, y), z);
}

mha_sum mha_sum_add(const mha_context *c, mha_sum sum, const ir_expr *factor, const ir_expr *term) {
    ir_builder *b = c->b;
    if (!sum.lost) return (mha_sum){mha_madd(c, sum.value, factor, term), NULL};
    const ir_expr *kept = ir_let(b, "kept", ir_mul(b, sum.value, factor));
    const ir_expr *value = ir_let(b, "sum", ir_add(b, kept, term));
    const ir_expr *lost = ir_sub(b, term, ir_sub(b, value, kept));
    return (mha_sum){value, mha_madd(c, sum.lost, factor, lost)};
}

const ir_expr *mha_sum_total(const mha_context *c, mha_sum sum) {
    ir_builder *b = c->b;
    if (!sum.value || !sum.lost) return sum.value;
    const ir_expr *lost = ir_let(b, "lost", sum.lost), *value = ir_let(b, "sum", sum.value);
    const ir_expr *zero = mha_number(c, 0, lost ? lost->type.lanes : 1);
    const ir_expr *is_finite = ir_apply(b, IR_EQ, ir_sub(b, lost, lost), zero, NULL);
    return ir_select(b, is_finite, ir_add(b, value, lost), value);
}

static bool is_narrow(ir_elem elem) { return elem == IR_F16 || elem == IR_BF16 || elem == IR_F8; }

/* f16, bf16 and f8 convert from and to f32 only, so that f64 arithmetic is rounded twice on its way into them; i8
 * converts to i32. */
static const ir_expr *convert(const mha_context *c, ir_elem from, ir_elem to, const ir_expr *x) {
    if (from == to) return x;
    if (from == IR_I8) return ir_cast(c->b, to, ir_cast(c->b, IR_I32, x));
    const bool by_f32 = (is_narrow(from) && to == IR_F64) || (from == IR_F64 && is_narrow(to));
    return ir_cast(c->b, to, by_f32 ? ir_cast(c->b, IR_F32, x) : x);
}

const ir_expr *mha_load(const mha_context *c, const ir_access *access) {
    if (!access) return NULL;
    return convert(c, (ir_elem)access->buffer->type.elem, c->elem, ir_load(c->b, access));
}

void mha_store(const mha_context *c, const ir_access *access, const ir_expr *value) {
    if (access) ir_store(c->b, access, convert(c, c->elem, (ir_elem)access->buffer->type.elem, value));
}

/* As it is in c->elem, where it may be 0: the difference of hidden keys is infinite, and 0 times that is NaN. */
static double softmax_scale(const mha_context *c) {
    return c->elem == IR_F32 ? (double)(float)c->p->softmax_scale : c->p->softmax_scale;
}

static double score_scale(const mha_context *c) {
    return c->is_natural || softmax_scale(c) == 0 ? 1 : fabs(softmax_scale(c));
}

void mha_scale_open(mha_context *c) {
    ir_builder *b = c->b;
    const ir_expr *scale = c->params.softmax_scale;
    if (!scale || c->is_natural) return;
    const ir_expr *zero = mha_number(c, 0, 1), *one = mha_number(c, 1, 1);
    const ir_expr *is_zero = ir_apply(b, IR_EQ, scale, zero, NULL), *is_less = ir_apply(b, IR_LT, scale, zero, NULL);
    c->score_scale = ir_let(b, "score_scale", ir_select(b, is_zero, one, ir_apply(b, IR_ABS, scale, NULL, NULL)));
    const ir_expr *sign = ir_select(b, is_less, mha_number(c, -1, 1), one);
    c->query_sign = ir_let(b, "query_sign", ir_select(b, is_zero, zero, sign));
}

const ir_expr *mha_score_scale(const mha_context *c) {
    return c->score_scale && !c->is_natural ? c->score_scale : mha_number(c, score_scale(c), 1);
}

const ir_expr *mha_query_sign(const mha_context *c) {
    if (c->is_natural) return NULL;
    if (c->query_sign) return c->query_sign;
    const double scale = softmax_scale(c);
    return scale > 0 ? NULL : mha_number(c, scale < 0 ? -1 : 0, 1);
}

/* Products of f32 factors, each rounded, whether they are constants or not. */
const ir_expr *mha_score_log2e(const mha_context *c) {
    if (c->score_scale && !c->is_natural) return ir_mul(c->b, c->score_scale, mha_number(c, M_LOG2E, 1));
    const double scale = score_scale(c);
    return mha_number(c, c->elem == IR_F32 ? (double)((float)scale * (float)M_LOG2E) : scale * M_LOG2E, 1);
}

/* The difference first, so that equal scores weigh exactly alike. It is never positive, and neg(abs(x)) says so to the
 * lowering of exp2, where that saves more than it costs. */
const ir_expr *mha_exp(const mha_context *c, const ir_expr *score, const ir_expr *base) {
    if (!score) return NULL;
    const ir_expr *log2e = ir_splat(c->b, mha_score_log2e(c), score->type.lanes);
    const ir_expr *x = ir_mul(c->b, ir_sub(c->b, score, base), log2e);
    if (!c->has_scalef) x = ir_neg(c->b, ir_apply(c->b, IR_ABS, x, NULL, NULL));
    return ir_apply(c->b, IR_EXP2, x, NULL, NULL);
}

const ir_expr *mha_log_sum(const mha_context *c, const ir_expr *base, const ir_expr *sum) {
    if (!sum) return NULL;
    const int lanes = sum->type.lanes;
    const ir_expr *log = ir_mul(c->b, ir_apply(c->b, IR_LOG2, sum, NULL, NULL), mha_number(c, M_LN2, lanes));
    return mha_madd(c, base, ir_splat(c->b, mha_score_scale(c), lanes), log);
}

const ir_expr *mha_sink_sum(const mha_context *c, const ir_expr *sink) {
    ir_builder *b = c->b;
    if (!sink) return NULL;
    const int lanes = sink->type.lanes;
    const ir_expr *none = ir_apply(b, IR_EQ, sink, mha_number(c, -INFINITY, lanes), NULL);
    const ir_expr *one = ir_add(b, mha_number(c, 1, lanes), ir_sub(b, sink, sink));
    return ir_select(b, none, mha_number(c, 0, lanes), one);
}

const ir_expr *mha_scaled(const mha_context *c, const ir_expr *dot) {
    if (!dot || !c->is_natural) return dot;
    const ir_expr *scale = c->params.softmax_scale ? c->params.softmax_scale : mha_number(c, c->p->softmax_scale, 1);
    return ir_mul(c->b, dot, ir_splat(c->b, scale, dot->type.lanes));
}

const ir_expr *mha_capped(const mha_context *c, const ir_expr *z) {
    const double cap = c->p->logits_soft_cap;
    if (!z || cap == 0) return z;
    const ir_expr *ratio = ir_div(c->b, z, mha_number(c, cap, z->type.lanes));
    return ir_mul(c->b, ir_apply(c->b, IR_TANH, ratio, NULL, NULL), mha_number(c, cap, z->type.lanes));
}

const ir_expr *mha_alibi(const mha_context *c, const ir_expr *z, const ir_expr *slope, const ir_expr *position,
                         const ir_expr *key) {
    if (!z || !c->p->has_alibi_slopes) return z;
    const ir_expr *distance = ir_apply(c->b, IR_ABS, ir_sub(c->b, position, key), NULL, NULL);
    return ir_sub(c->b, z, ir_mul(c->b, slope, distance));
}
