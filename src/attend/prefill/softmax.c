/* The softmax of one tile and stripe: P = exp(S - max) in place, one vector of query rows after the other, key by key.
 * Lanes are rows, so nothing is reduced over lanes. There is no register tile: it would save nothing here, and the code
 * of exp2 is long. */
#include "attend/prefill/layout.h"

#include <math.h>

ql_row_vector ql_row_vector_at(q_lanes *c, const q_lanes_tile *tile, const ir_expr *v) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    const ir_expr *at = ir_let(b, "at", ir_times(b, v, lanes));
    return (ql_row_vector){
        .max = ir_at(b, c->row_max, lanes, 2, tile->stripe, at),
        .tile_max = ir_at(b, c->tile_max, lanes, 1, at),
        .sum = ir_at(b, c->row_sum, lanes, 2, tile->stripe, at),
        .lse_sum = ir_at(b, c->lse_sum, lanes, 2, tile->stripe, at),
        .factor = ir_at(b, c->factor, lanes, 1, at),
    };
}

mha_shrink ql_take_maximum(q_lanes *c, const ql_row_vector *at) {
    ir_builder *b = c->b;
    const ir_expr *old = mha_values_at_once(c->v) ? NULL : ir_let(b, "old_max", ir_load(b, at->max));
    const mha_shrink shrink = mha_take_maximum(c->m, at->max, old, ir_load(b, at->tile_max));
    if (shrink.factor) ir_store(b, at->factor, shrink.factor);
    return shrink;
}

const ir_expr *ql_times_v_scale(q_lanes *c, const q_lanes_tile *tile, const ir_expr *j, const ir_expr *probability) {
    ir_builder *b = c->b;
    if (!c->m->params.tensor[MHA_V_SCALE]) return probability;
    const ir_expr *number = ir_add(b, tile->first_key, j);
    if (c->v->by_pairs) number = ir_min(b, number, ir_plus(b, c->e.seq_kv, -1));
    const ir_expr *key = ir_let_index(c->b, "key", c->e.seq_kv, number);
    const mha_kv_row row = mha_kv_row_at(c->m, &c->e, c->kv_head, key);
    return ir_mul(c->b, probability, ir_splat(c->b, mha_v_scale(c->m, &row), c->m->lanes));
}

void ql_softmax(q_lanes *c, const q_lanes_tile *tile) {
    ir_builder *b = c->b;
    const bool is_last_step = !ql_has_prob(c);
    IR_FOR(b, v, ir_idx(b, 0), ir_idx(b, c->m->s->score_row_vectors), 1) {
        const ql_row_vector at = ql_row_vector_at(c, tile, v);
        const mha_shrink shrink = ql_take_maximum(c, &at);
        const ir_access *sum = mha_new_sum(c->m, "sum", c->m->lanes);
        MHA_CHUNKS(c->m, chunk, sum, tile->from, tile->to) {
            const ir_access *score = ql_score_at(c, v, chunk.key);
            const ir_expr *probability = ir_let(b, "probability", mha_exp(c->m, ir_load(b, score), shrink.base));
            ir_store(b, score, is_last_step ? ql_times_v_scale(c, tile, chunk.key, probability) : probability);
            mha_add_term(c->m, chunk.part, probability);
        }
        mha_join_sum(c->m, at.sum, c->row_sum_lost, shrink.factor, ir_load(b, sum));
    }
}
