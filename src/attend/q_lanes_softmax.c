/* The softmax of one tile and stripe, one vector of query rows at a time: a register tile would save nothing here, and
 * the code for exp2 is long. */
#include "attend/q_lanes.h"

#include <math.h>

/* Of the probabilities, and of the exponentials before rounding, where both are needed. */
typedef struct tile_sums {
    const ir_expr *probabilities, *exact;
} tile_sums;

const ir_expr *ql_times_v_scale(q_lanes *c, const q_lanes_tile *tile, const ir_expr *j, const ir_expr *probability) {
    if (!c->m->params.tensor[MHA_V_SCALE]) return probability;
    const ir_expr *key = ir_let_index(c->b, "key", c->e.seq_kv, ir_add(c->b, tile->first_key, j));
    const mha_kv_row row = mha_kv_row_at(c->m, &c->e, c->kv_head, key);
    return ir_mul(c->b, probability, ir_splat(c->b, mha_v_scale(c->m, &row), c->m->lanes));
}

/* P = exp(S - base) in place, for vector `v` of the rows. */
static tile_sums exponentials(q_lanes *c, const q_lanes_tile *tile, const ir_expr *v, const ir_expr *base) {
    ir_builder *b = c->b;
    const ir_access *sum = mha_new_sum(c->m, "sum", c->m->lanes);
    MHA_CHUNKS(c->m, chunk, sum, tile->from, tile->to) {
        const ir_access *score = ql_score_at(c, v, chunk.key);
        const ir_expr *probability = ir_let(b, "probability", mha_exp(c->m, ir_load(b, score), base));
        const bool is_last_step = !ql_has_prob(c);
        ir_store(b, score, is_last_step ? ql_times_v_scale(c, tile, chunk.key, probability) : probability);
        mha_add_term(c->m, chunk.part, probability);
    }
    return (tile_sums){ir_load(b, sum), NULL};
}

/* The same by pairs of keys, rounded. The sum is that of the rounded probabilities, by which values are multiplied. A
 * key after the last one is hidden. */
static tile_sums pairs_of_exponentials(q_lanes *c, const q_lanes_tile *tile, const ir_expr *v, const ir_expr *base) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    const bool has_lse = c->lse_sum != c->row_sum;
    const ir_access *exact = has_lse ? mha_new_sum(c->m, "exact", lanes) : NULL;
    ir_store(b, ql_score_at(c, v, tile->to), ql_splat(c, -INFINITY));
    const ir_access *sum = mha_new_sum(c->m, "sum", lanes);
    const ir_expr *ones = ir_splat(b, ir_cast(b, IR_BF16, mha_number(c->m, 1, 1)), 2 * lanes);
    const ir_expr *first = ir_div(b, tile->from, ir_idx(b, 2));
    IR_FOR(b, pair, first, ir_ceil_div(b, tile->to, 2), 1) {
        const ir_expr *exponential[2];
        for (int i = 0; i < 2; i++) {
            const ir_expr *j = ir_plus(b, ir_times(b, pair, 2), i);
            const ir_expr *score = ir_load(b, ql_score_at(c, v, j));
            const ir_expr *p = has_lse ? mha_exp(c->m, score, base) : mha_short_exp(c->m, score, base);
            exponential[i] = ir_let(b, "probability", p);
        }
        const ir_expr *probabilities = ir_let(b, "probabilities", ir_pack2(b, exponential[0], exponential[1]));
        ir_store(b, ql_probability_at(c, v, pair), probabilities);
        ir_store(b, sum, ir_dot2(b, probabilities, ones, ir_load(b, sum)));
        if (has_lse) mha_add_term(c->m, exact, ir_add(b, exponential[0], exponential[1]));
    }
    return (tile_sums){ir_load(b, sum), has_lse ? ir_load(b, exact) : NULL};
}

/* Turns scores into probabilities relative to the new maximum and updates maximum and sum. Earlier sums are to be
 * multiplied by c->factor. */
void ql_softmax(q_lanes *c, const q_lanes_tile *tile) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    IR_FOR(b, v, ir_idx(b, 0), ir_idx(b, c->m->s->score_row_vectors), 1) {
        const ir_expr *at = ir_let(b, "at", ir_times(b, v, lanes));
        const ir_access *row_max = ir_at(b, c->row_max, lanes, 2, tile->stripe, at);
        const ir_access *row_sum = ir_at(b, c->row_sum, lanes, 2, tile->stripe, at);
        const ir_expr *old = c->at_once ? NULL : ir_let(b, "old_max", ir_load(b, row_max));
        const ir_expr *tile_max = ir_load(b, ir_at(b, c->tile_max, lanes, 1, at));
        const mha_shrink shrink = mha_take_maximum(c->m, row_max, old, tile_max);
        if (shrink.factor) ir_store(b, ir_at(b, c->factor, lanes, 1, at), shrink.factor);
        const tile_sums sums =
            c->width == 2 ? pairs_of_exponentials(c, tile, v, shrink.base) : exponentials(c, tile, v, shrink.base);
        mha_join_sum(c->m, row_sum, c->row_sum_lost, shrink.factor, sums.probabilities);
        if (sums.exact)
            mha_join_sum(c->m, ir_at(b, c->lse_sum, lanes, 2, tile->stripe, at), NULL, shrink.factor, sums.exact);
    }
}
