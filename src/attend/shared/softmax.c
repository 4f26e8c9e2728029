/* Online softmax, the arithmetic of softmax.h. Exponentials are computed as exp2 of (score - maximum) times a factor
 * that joins softmax_scale and log2(e), so they need no multiplication of their own. */
#include "attend/shared/softmax.h"
#include "attend/shared/score.h"

#include <float.h>
#include <math.h>

/* ---- Exponentials ---- */

/* The exponent for exp2. The difference is computed first, so that equal scores have exactly equal probabilities. */
static const ir_expr *exponent(const mha_context *c, const ir_expr *score, const ir_expr *base) {
    if (!score) return NULL;
    const ir_expr *difference = ir_sub(c->b, score, base);
    if (c->in_log2) return difference;
    return ir_mul(c->b, difference, ir_splat(c->b, mha_score_log2e(c), score->type.lanes));
}

/* exp is exp2 of a scaled score, which ir/passes/pass_lower_math.c approximates; mha_short_exp and, for pairs of bf16,
 * attend/prefill/exp_pairs.c have polynomials or tables of their own.
 *
 * The exponent is never positive. neg(abs(x)) tells the lowering of exp2 so, which saves more than it costs without
 * scalef. */
const ir_expr *mha_exp(const mha_context *c, const ir_expr *score, const ir_expr *base) {
    const ir_expr *x = exponent(c, score, base);
    if (!c->has_scalef) x = ir_neg(c->b, ir_abs(c->b, x));
    return mha_math(c, IR_EXP2, x);
}

/* 2^x = 2^n (1 + f (...)) with n = rint(x), f = x - n and minimax coefficients. At x = -inf, f is NaN, and scaling it
 * by 2^-inf gives 0. */
const ir_expr *mha_short_exp(const mha_context *c, const ir_expr *score, const ir_expr *base) {
    static const double coefficients[] = {0x1.62f5fcp-1, 0x1.f00c54p-3, 0x1.c2a168p-5};
    ir_builder *b = c->b;
    if (!score || !base) return NULL;
    if (!c->has_scalef) return mha_exp(c, score, base);
    const int lanes = score->type.lanes;
    const ir_expr *x = ir_let(b, "x", exponent(c, score, base));
    const ir_expr *n = ir_let(b, "n", ir_rint(b, x));
    const ir_expr *f = ir_let(b, "f", ir_sub(b, x, n)), *slope = mha_number(c, coefficients[2], lanes);
    for (int i = 1; i >= 0; i--) slope = mha_madd(c, slope, f, mha_number(c, coefficients[i], lanes));
    return ir_apply(b, IR_LDEXP, mha_madd(c, slope, f, mha_number(c, 1, lanes)), n, NULL);
}

const ir_expr *mha_probability(const mha_context *c, const ir_expr *score, const ir_expr *lse) {
    return mha_math(c, IR_EXP2, exponent(c, score, lse));
}

/* ---- One tile ---- */

mha_shrink mha_take_maximum(const mha_context *c, const ir_access *max, const ir_expr *old, const ir_expr *tile_max) {
    ir_builder *b = c->b;
    if (!tile_max) return (mha_shrink){0};
    const int lanes = tile_max->type.lanes;
    const ir_expr *new = ir_let(b, "new_max", old ? ir_max(b, old, tile_max) : tile_max);
    ir_store(b, max, new);
    const ir_expr *empty = ir_eq(b, new, mha_number(c, -INFINITY, lanes));
    const ir_expr *base = ir_let(b, "base", ir_select(b, empty, mha_number(c, 0, lanes), new));
    return (mha_shrink){base, old ? ir_let(b, "shrink", mha_exp(c, old, base)) : NULL};
}

void mha_add_term(const mha_context *c, const ir_access *sum, const ir_expr *term) {
    ir_store(c->b, sum, ir_add(c->b, ir_load(c->b, sum), term));
}

const ir_access *mha_new_sum(const mha_context *c, const char *name, int lanes) {
    return ir_mutable(c->b, name, mha_number(c, 0, lanes));
}

mha_chunk mha_chunk_begin(const mha_context *c, const ir_access *sum, const ir_expr *from, const ir_expr *to) {
    ir_builder *b = c->b;
    const ir_expr *size = ir_idx(b, MHA_CHUNK);
    const ir_expr *first = ir_for_begin(b, "chunk", ir_mul(b, ir_div(b, from, size), size), to, MHA_CHUNK, false);
    const ir_access *part = mha_new_sum(c, "part", sum ? sum->lanes : 1);
    const ir_expr *begin = ir_is(from, 0) ? first : ir_max(b, first, from);
    return (mha_chunk){ir_for_begin(b, "j", begin, ir_min(b, ir_add(b, first, size), to), 1, false), part, sum};
}

void mha_chunk_end(const mha_context *c, const mha_chunk *chunk) {
    ir_for_end(c->b);
    mha_add_term(c, chunk->sum, ir_load(c->b, chunk->part));
    ir_for_end(c->b);
}

/* ---- Sums over all tiles ---- */

static const ir_access *lost_at(const mha_context *c, const ir_access *sum, const ir_buffer *lost) {
    if (!sum || !lost) return NULL;
    return ir_access_make(c->b, lost, sum->lanes, -1, lost->num_dims, sum->indices, NULL);
}

void mha_clear_sum(const mha_context *c, const ir_access *sum, const ir_buffer *lost) {
    if (!sum) return;
    ir_store(c->b, sum, mha_number(c, 0, sum->lanes));
    if (lost) ir_store(c->b, lost_at(c, sum, lost), mha_number(c, 0, sum->lanes));
}

const ir_expr *mha_load_sum(const mha_context *c, const ir_access *sum, const ir_buffer *lost) {
    return mha_sum_total(c, (mha_sum){ir_load(c->b, sum), lost ? ir_load(c->b, lost_at(c, sum, lost)) : NULL});
}

void mha_join_sum(const mha_context *c, const ir_access *sum, const ir_buffer *lost, const ir_expr *factor,
                  const ir_expr *term) {
    if (!factor) {
        ir_store(c->b, sum, term);
        return;
    }
    const ir_access *at = lost_at(c, sum, lost);
    const mha_sum old = {ir_load(c->b, sum), at ? ir_load(c->b, at) : NULL};
    const mha_sum new = mha_sum_add(c, old, factor, term);
    ir_store(c->b, sum, new.value);
    if (at) ir_store(c->b, at, new.lost);
}

/* ---- Sinks ---- */

static const ir_expr *is_usual(const mha_context *c, const ir_expr *sink) {
    return ir_lt(c->b, sink, mha_number(c, INFINITY, sink->type.lanes));
}

/* A quotient beyond the largest number would leave the row without a base. */
const ir_expr *mha_first_sink(const mha_context *c, const ir_expr *sink) {
    ir_builder *b = c->b;
    if (!sink) return NULL;
    const int lanes = sink->type.lanes;
    const ir_expr *first = ir_select(b, is_usual(c, sink), sink, mha_number(c, -INFINITY, lanes));
    if (!c->is_natural) {
        const ir_expr *largest = mha_number(c, c->elem == IR_F64 ? DBL_MAX : FLT_MAX, lanes);
        first = ir_min(b, ir_div(b, first, ir_splat(b, mha_score_scale(c), lanes)), largest);
    }
    return ir_let(b, "first_max", first);
}

const ir_expr *mha_first_sum(const mha_context *c, const ir_expr *first_sink) {
    if (!first_sink) return NULL;
    const ir_expr *none = ir_eq(c->b, first_sink, mha_number(c, -INFINITY, 1));
    return ir_select(c->b, none, mha_number(c, 0, 1), mha_number(c, 1, 1));
}

const ir_expr *mha_sum_with_sink(const mha_context *c, const ir_expr *sum, const ir_expr *sink) {
    ir_builder *b = c->b;
    if (!sink) return sum;
    const int lanes = sum->type.lanes;
    const ir_expr *empty = ir_eq(b, sum, mha_number(c, 0, lanes));
    const ir_expr *other = ir_select(b, empty, mha_number(c, 1, lanes), ir_add(b, sum, sink));
    return ir_select(b, is_usual(c, sink), sum, other);
}

/* ---- The end ---- */

const ir_expr *mha_log_sum(const mha_context *c, const ir_expr *max, const ir_expr *sum, const ir_expr *sink) {
    ir_builder *b = c->b;
    if (!sum) return NULL;
    const int lanes = sum->type.lanes;
    const ir_expr *log = ir_mul(b, mha_math(c, IR_LOG2, sum), mha_number(c, M_LN2, lanes));
    if (sink) log = ir_let(b, "log", log);
    const ir_expr *by_keys = mha_madd(c, max, ir_splat(b, mha_score_scale(c), lanes), log);
    if (!sink) return by_keys;
    const ir_expr *is_larger = ir_and(b, is_usual(c, sink), ir_lt(b, mha_first_sink(c, sink), max));
    return ir_select(b, is_larger, by_keys, ir_add(b, sink, log));
}
