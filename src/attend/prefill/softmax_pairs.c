/* The softmax if products are of pairs of bf16: P is rounded to bf16 and stored in pairs of neighbouring keys, which
 * one dot2 of the values multiplies.
 *
 *     scores          f32  [rows of key 0]  [rows of key 1]  [rows of key 2] …     a vector each
 *     probabilities   bf16 [key 0, key 1 of row 0][key 0, key 1 of row 1] …    a pair in each lane
 */
#include "attend/prefill/layout.h"

#include <math.h>

/* ---- by pairs ---- */

/* For one vector of rows: the base of its exponentials, and its sums over the tile so far. */
typedef struct pair_sums {
    const ir_expr *base;
    const ir_access *rounded, *exact; /* exact: of unrounded probabilities, for the LSE; else NULL */
} pair_sums;

/* Stores the probabilities of a pair of keys, which are bf16, and adds them to the sum. */
static void store_rounded(q_lanes *c, const ir_expr *v, const ir_expr *pair, const ir_expr *probabilities,
                          const ir_access *sum) {
    ir_builder *b = c->b;
    const ir_expr *ones = ir_splat(b, ir_cast(b, IR_BF16, mha_number(c->m, 1, 1)), 2 * c->m->lanes);
    const ir_expr *rounded = ir_let(b, "probabilities", probabilities);
    ir_store(b, ql_probability_at(c, v, pair), rounded);
    ir_store(b, sum, ir_dot2(b, rounded, ones, ir_load(b, sum)));
}

/* The score of key i of a pair. */
static const ir_expr *score_of_pair(q_lanes *c, const ir_expr *v, const ir_expr *pair, int i) {
    return ir_load(c->b, ql_score_at(c, v, ir_plus(c->b, ir_times(c->b, pair, 2), i)));
}

/* A probability times the scale of V. A hidden key's scale may be NaN, and so 0 times it: the result is 0 there. */
static const ir_expr *scaled_of_pair(q_lanes *c, const q_lanes_tile *tile, const ir_expr *v, const ir_expr *pair, int i,
                                     const ir_expr *p) {
    ir_builder *b = c->b;
    const ir_expr *scaled = ql_times_v_scale(c, tile, ir_plus(b, ir_times(b, pair, 2), i), p);
    const ir_expr *is_hidden = ir_eq(b, score_of_pair(c, v, pair, i), ql_splat(c, -INFINITY));
    return ir_select(b, is_hidden, ql_splat(c, 0), scaled);
}

/* Stores the probabilities of a pair of keys, rounded, and adds them to the sum. The sum is of the rounded
 * probabilities, as these multiply V. If V has scales, it is of the unrounded ones: scale and rounding come after. */
static void store_pair(q_lanes *c, const q_lanes_tile *tile, const ir_expr *v, const ir_expr *pair,
                       const ir_expr *const *p, const ir_access *sum) {
    ir_builder *b = c->b;
    if (c->m->params.tensor[MHA_V_SCALE]) {
        const ir_expr *scaled[2];
        for (int i = 0; i < 2; i++) scaled[i] = scaled_of_pair(c, tile, v, pair, i, p[i]);
        ir_store(b, ql_probability_at(c, v, pair), ir_pack2(b, scaled[0], scaled[1]));
        ir_store(b, sum, ir_add(b, ir_load(b, sum), ir_add(b, p[0], p[1])));
        return;
    }
    store_rounded(c, v, pair, ir_pack2(b, p[0], p[1]), sum);
}

/* P of the pairs from … to - 1 for vector `v` of the rows, directly as bf16 (exp_pairs.c). */
static void rounded_exponentials(q_lanes *c, const ir_expr *v, const ir_expr *from, const ir_expr *to,
                                 const pair_sums *sums) {
    ir_builder *b = c->b;
    const ql_pair_exp e = ql_open_pair_exp(c, sums->base);
    IR_FOR(b, pair, from, to, 1) {
        const ir_expr *p = ql_pair_exp_of(c, &e, score_of_pair(c, v, pair, 0), score_of_pair(c, v, pair, 1));
        store_rounded(c, v, pair, p, sums->rounded);
    }
    ir_store(b, sums->rounded, ql_close_pair_exp(c, &e, ir_load(b, sums->rounded)));
}

/* The same, by whichever way is legal: directly as bf16, or as f32 and then rounded. */
static void pairs_of_exponentials(q_lanes *c, const q_lanes_tile *tile, const ir_expr *v, const ir_expr *from,
                                  const ir_expr *to, const pair_sums *sums) {
    ir_builder *b = c->b;
    if (ql_has_pair_exp(c)) {
        rounded_exponentials(c, v, from, to, sums);
        return;
    }
    IR_FOR(b, pair, from, to, 1) {
        const ir_expr *exponential[2];
        for (int i = 0; i < 2; i++) {
            const ir_expr *score = score_of_pair(c, v, pair, i);
            const ir_expr *p = sums->exact ? mha_exp(c->m, score, sums->base) : mha_short_exp(c->m, score, sums->base);
            exponential[i] = ir_let(b, "probability", p);
        }
        store_pair(c, tile, v, pair, exponential, sums->rounded);
        if (sums->exact) mha_add_term(c->m, sums->exact, ir_add(b, exponential[0], exponential[1]));
    }
}

/* Sums in registers. They continue those in memory (`rounded`, `exact`), or begin with 0 if these are NULL. */
static pair_sums sums_from(q_lanes *c, const ir_expr *base, const ir_access *rounded, const ir_access *exact) {
    ir_builder *b = c->b;
    const bool has_lse = c->lse_sum != c->row_sum;
    pair_sums sums = {.base = base, .rounded = mha_new_sum(c->m, "sum", c->m->lanes)};
    if (rounded) ir_store(b, sums.rounded, ir_load(b, rounded));
    if (has_lse) sums.exact = mha_new_sum(c->m, "exact", c->m->lanes);
    if (exact) ir_store(b, sums.exact, ir_load(b, exact));
    return sums;
}

/* One vector of rows after the other. The key after the last one, which may be half of a pair, is hidden. */
void ql_pair_softmax(q_lanes *c, const q_lanes_tile *tile) {
    ir_builder *b = c->b;
    IR_FOR(b, v, ir_idx(b, 0), ir_idx(b, c->m->s->score_row_vectors), 1) {
        const ql_row_vector at = ql_row_vector_at(c, tile, v);
        const mha_shrink shrink = ql_take_maximum(c, &at);
        ir_store(b, ql_score_at(c, v, tile->to), ql_splat(c, -INFINITY));
        const pair_sums sums = sums_from(c, shrink.base, NULL, NULL);
        pairs_of_exponentials(c, tile, v, ir_div(b, tile->from, ir_idx(b, 2)), ir_ceil_div(b, tile->to, 2), &sums);
        mha_join_sum(c->m, at.sum, c->row_sum_lost, shrink.factor, ir_load(b, sums.rounded));
        if (sums.exact) mha_join_sum(c->m, at.lse_sum, NULL, shrink.factor, ir_load(b, sums.exact));
    }
}

/* The same for MHA_VALUES_WHOLE, where a key's scores of all vectors are contiguous: a few keys of each vector in turn.
 * Whole vectors one after the other would read lines that are far apart, and each page several times. The tile is the
 * only one, so sums begin with 0. */
void ql_pair_softmax_by_turns(q_lanes *c, const q_lanes_tile *tile) {
    enum { PAIRS_AT_ONCE = 8 };
    ir_builder *b = c->b;
    const ir_expr *vectors = ir_idx(b, c->m->s->score_row_vectors), *pairs = ir_ceil_div(b, tile->to, 2);
    const bool has_lse = c->lse_sum != c->row_sum;
    IR_FOR(b, v, ir_idx(b, 0), vectors, 1) {
        const ql_row_vector at = ql_row_vector_at(c, tile, v);
        ir_store(b, at.tile_max, ql_take_maximum(c, &at).base);
        ir_store(b, ql_score_at(c, v, tile->to), ql_splat(c, -INFINITY));
        ir_store(b, at.sum, ql_splat(c, 0));
        if (has_lse) ir_store(b, at.lse_sum, ql_splat(c, 0));
    }
    IR_FOR(b, turn, ir_idx(b, 0), pairs, PAIRS_AT_ONCE) {
        IR_LOOP(b, v, ir_for_begin(b, "v", ir_idx(b, 0), vectors, 1, false)) {
            const ql_row_vector at = ql_row_vector_at(c, tile, v);
            const ir_expr *base = ir_let(b, "base", ir_load(b, at.tile_max));
            const pair_sums sums = sums_from(c, base, at.sum, has_lse ? at.lse_sum : NULL);
            pairs_of_exponentials(c, tile, v, turn, ir_min(b, ir_plus(b, turn, PAIRS_AT_ONCE), pairs), &sums);
            ir_store(b, at.sum, ir_load(b, sums.rounded));
            if (has_lse) ir_store(b, at.lse_sum, ir_load(b, sums.exact));
        }
    }
}
