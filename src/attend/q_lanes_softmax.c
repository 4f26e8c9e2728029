/* The softmax of one tile and block, one vector of query rows at a time: a register tile would save nothing here, and
 * the code for exp2 is long. */
#include "attend/q_lanes.h"

#include <math.h>

static void accumulate(q_lanes *c, const ir_access *sum, const ir_expr *term) {
    ir_store(c->b, sum, ir_add(c->b, ir_load(c->b, sum), term));
}

/* Of the weights, and of the exponentials that they are rounded from where that matters. */
typedef struct tile_sums {
    const ir_expr *weights, *exact;
} tile_sums;

/* What the codes of a key's value are multiplied by. */
static const ir_expr *times_scale(q_lanes *c, const q_lanes_tile *tile, const ir_expr *j, const ir_expr *probability) {
    if (!c->m->params.tensor[MHA_V_SCALE]) return probability;
    /* It is a key of the entry anyway, but not by a way that the prover finds where lengths come from tables. */
    const ir_expr *key = ir_let(c->b, "key", ql_clamp_key(c, ir_add(c->b, tile->first_key, j)));
    const mha_kv_row row = mha_kv_row_at(c->m, &c->e, c->kv_head, key);
    return ir_mul(c->b, probability, ir_splat(c->b, mha_v_scale(c->m, &row), c->m->lanes));
}

/* P = exp(S - base) in place, for vector `v` of the rows. Summed chunk by chunk: one long serial sum would be the
 * largest rounding error of all. Chunks begin where the tile does, not where the block's sight does. */
static tile_sums exponentials(q_lanes *c, const q_lanes_tile *tile, const ir_expr *v, const ir_expr *base) {
    enum { CHUNK = 16 };
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    const ir_access *sum = ir_at(b, ql_registers(c, "sum", 0, NULL), lanes, 0);
    ir_store(b, sum, ql_splat(c, 0));
    const ir_expr *start = ir_mul(b, ir_div(b, tile->from, ql_i(c, CHUNK)), ql_i(c, CHUNK));
    const ir_expr *first = ir_for_begin(b, "chunk", start, tile->to, CHUNK, false);
    const ir_access *part = ir_at(b, ql_registers(c, "part", 0, NULL), lanes, 0);
    ir_store(b, part, ql_splat(c, 0));
    const ir_expr *begin = c->m->has_first ? ir_max(b, first, tile->from) : first;
    const ir_expr *end = ir_min(b, ir_add(b, first, ql_i(c, CHUNK)), tile->to);
    const ir_expr *j = ir_for_begin(b, "j", begin, end, 1, false);
    const ir_access *score = ql_score_at(c, v, j);
    const ir_expr *probability = ir_let(b, "probability", mha_exp(c->m, ir_load(b, score), base));
    ir_store(b, score, times_scale(c, tile, j, probability));
    accumulate(c, part, probability);
    ir_for_end(b);
    accumulate(c, sum, ir_load(b, part));
    ir_for_end(b);
    return (tile_sums){ir_load(b, sum), NULL};
}

/* mha_exp for what is rounded to bf16 at once: 2^x = 2^n (1 + f (...)) with n = rint(x), wrong by 2^-13 of it at most,
 * the coefficients being minimax. At -inf f is NaN, and scaling that by 2^-inf is 0. */
static const ir_expr *short_exp(q_lanes *c, const ir_expr *score, const ir_expr *base) {
    static const double coefficients[] = {0x1.62f5fcp-1, 0x1.f00c54p-3, 0x1.c2a168p-5};
    ir_builder *b = c->b;
    if (!c->m->has_scalef) return mha_exp(c->m, score, base);
    const ir_expr *log2e = ir_splat(b, mha_score_log2e(c->m), c->m->lanes);
    const ir_expr *x = ir_let(b, "x", ir_mul(b, ir_sub(b, score, base), log2e));
    const ir_expr *n = ir_let(b, "n", ir_apply(b, IR_RINT, x, NULL, NULL));
    const ir_expr *f = ir_let(b, "f", ir_sub(b, x, n)), *slope = ql_splat(c, coefficients[2]);
    for (int i = 1; i >= 0; i--) slope = mha_madd(c->m, slope, f, ql_splat(c, coefficients[i]));
    return ir_apply(b, IR_LDEXP, mha_madd(c->m, slope, f, ql_splat(c, 1)), n, NULL);
}

/* The same by pairs of keys, rounded: their sum is that of the rounded ones, which are what the values are multiplied
 * by. A key behind the last one is hidden. */
static tile_sums pairs_of_exponentials(q_lanes *c, const q_lanes_tile *tile, const ir_expr *v, const ir_expr *base) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    const bool has_lse = c->lse_sum != c->row_sum;
    const ir_access *exact = has_lse ? ir_at(b, ql_registers(c, "exact", 0, NULL), lanes, 0) : NULL;
    if (has_lse) ir_store(b, exact, ql_splat(c, 0));
    ir_store(b, ql_score_at(c, v, tile->to), ql_splat(c, -INFINITY));
    const ir_access *sum = ir_at(b, ql_registers(c, "sum", 0, NULL), lanes, 0);
    ir_store(b, sum, ql_splat(c, 0));
    const ir_expr *ones = ir_splat(b, ir_cast(b, IR_BF16, mha_number(c->m, 1, 1)), 2 * lanes);
    const ir_expr *first = ir_div(b, tile->from, ql_i(c, 2));
    const ir_expr *pair = ir_for_begin(b, "pair", first, ql_ceil_div(c, tile->to, 2), 1, false);
    const ir_expr *exponential[2];
    for (int i = 0; i < 2; i++) {
        const ir_expr *j = ir_add(b, ir_mul(b, pair, ql_i(c, 2)), ql_i(c, i));
        const ir_expr *score = ir_load(b, ql_score_at(c, v, j));
        const ir_expr *p = has_lse ? mha_exp(c->m, score, base) : short_exp(c, score, base);
        exponential[i] = ir_let(b, "probability", p);
    }
    const ir_expr *weights = ir_let(b, "pair_of_weights", ir_pack2(b, exponential[0], exponential[1]));
    ir_store(b, ql_weight_at(c, v, pair), weights);
    ir_store(b, sum, ir_dot2(b, weights, ones, ir_load(b, sum)));
    if (has_lse) accumulate(c, exact, ir_add(b, exponential[0], exponential[1]));
    ir_for_end(b);
    return (tile_sums){ir_load(b, sum), has_lse ? ir_load(b, exact) : NULL};
}

/* factor NULL: there are no tiles before. */
static void join_sums(q_lanes *c, const ir_access *at, const ir_access *lost, const ir_expr *factor,
                      const ir_expr *term) {
    if (factor)
        ql_add_to_sums(c, at, lost, factor, term);
    else
        ir_store(c->b, at, term);
}

/* Turns scores into probabilities relative to the new maximum and updates maximum and sum; c->factor says by how much
 * what was summed so far must shrink. A row that has seen no key yet keeps the maximum -inf; 0 stands in for it, so
 * that exp2 gives 0 and not NaN. */
void ql_softmax(q_lanes *c, const q_lanes_tile *tile) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    const ir_expr *v = ir_for_begin(b, "v", ql_i(c, 0), ql_i(c, c->m->s->score_vectors), 1, false);
    const ir_expr *at = ir_let(b, "at", ir_mul(b, v, ql_i(c, lanes)));
    const ir_access *row_max = ir_at(b, c->row_max, lanes, 2, tile->block, at);
    const ir_access *row_sum = ir_at(b, c->row_sum, lanes, 2, tile->block, at);
    const ir_expr *old = c->at_once ? NULL : ir_let(b, "old_max", ir_load(b, row_max));
    const ir_expr *new = ir_load(b, ir_at(b, c->tile_max, lanes, 1, at));
    new = ir_let(b, "new_max", old ? ir_max(b, old, new) : new);
    ir_store(b, row_max, new);
    const ir_expr *empty = ir_apply(b, IR_EQ, new, ql_splat(c, -INFINITY), NULL);
    const ir_expr *base = ir_let(b, "base", ir_select(b, empty, ql_splat(c, 0), new));
    const ir_expr *factor = old ? ir_let(b, "shrink", mha_exp(c->m, old, base)) : NULL;
    if (factor) ir_store(b, ir_at(b, c->factor, lanes, 1, at), factor);
    const tile_sums sums = c->width == 2 ? pairs_of_exponentials(c, tile, v, base) : exponentials(c, tile, v, base);
    join_sums(c, row_sum, c->row_sum_lost ? ir_at(b, c->row_sum_lost, lanes, 2, tile->block, at) : NULL, factor,
              sums.weights);
    if (sums.exact) join_sums(c, ir_at(b, c->lse_sum, lanes, 2, tile->block, at), NULL, factor, sums.exact);
    ir_for_end(b);
}
