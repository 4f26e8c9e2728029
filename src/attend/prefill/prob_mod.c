/* prob_mod: V is multiplied by a function of each probability, so the sum over all keys is needed first. If the keys
 * are one tile, its softmax has that sum. Otherwise the tiles are visited twice, with the same scores: for maximum and
 * sum, and again for the values.
 *
 * A score of -inf may belong to a hidden key, or to a visible one, for which prob_mod is evaluated. So the second pass
 * tests again which keys are hidden. */
#include "attend/prefill/layout.h"

#include <math.h>

void ql_keep_base(q_lanes *c, const ir_expr *stripe) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    IR_FOR(b, at, ir_idx(b, 0), ir_idx(b, c->stripe_rows), lanes) {
        const ir_expr *max = ir_let(b, "max", ir_load(b, ir_at(b, c->row_max, lanes, 2, stripe, at)));
        const ir_expr *empty = ir_eq(b, max, ql_splat(c, -INFINITY));
        ir_store(b, ir_at(b, c->row_base, lanes, 2, stripe, at), ir_select(b, empty, ql_splat(c, 0), max));
    }
}

/* A vector of rows, and what their probabilities are computed from. base is NULL if scratch has exponentials already.
 */
typedef struct prob_rows {
    const ir_expr *vector, *at, *base, *inverse;
    mha_values values;
    q_lanes_sight sight;
} prob_rows;

static void modify_key(q_lanes *c, const q_lanes_tile *tile, const prob_rows *rows, const ir_expr *j) {
    ir_builder *b = c->b;
    const ir_expr *key = ir_let(b, "key", ir_add(b, tile->first_key, j));
    const ir_access *at = ql_score_at(c, rows->vector, j);
    const ir_expr *p = ir_load(b, at);
    q_lanes_key_values of_key;
    if (rows->base) p = mha_exp(c->m, p, rows->base);
    ql_fill_key(c, MHA_PROB_FUNCTION, key, &of_key);
    p = ql_modified(c, MHA_PROB_FUNCTION, &rows->values, &of_key, key, ir_mul(b, p, rows->inverse));
    p = mha_hide(c->m, ql_is_visible(c, &rows->sight, rows->at, key, j), p, 0);
    ir_store(b, at, ql_times_v_scale(c, tile, j, p));
}

void ql_modify_probabilities(q_lanes *c, const q_lanes_tile *tile) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    IR_FOR(b, v, ir_idx(b, 0), ir_idx(b, c->m->s->score_row_vectors), 1) {
        prob_rows rows = {.vector = v, .at = ir_let(b, "at", ir_times(b, v, lanes))};
        rows.inverse = ir_let(b, "inverse", ir_load(b, ir_at(b, c->row_sum, lanes, 2, tile->stripe, rows.at)));
        if (c->row_base)
            rows.base = ir_let(b, "base", ir_load(b, ir_at(b, c->row_base, lanes, 2, tile->stripe, rows.at)));
        rows.values = ql_values_of_rows(c, MHA_PROB_FUNCTION, tile->stripe, rows.at, lanes);
        rows.sight = ql_sight(c, tile, rows.at);
        IR_FOR(b, j, tile->from, tile->to, 1) {
            modify_key(c, tile, &rows, j);
        }
        ir_store(b, ir_at(b, c->factor, lanes, 1, rows.at), ql_splat(c, 1));
    }
}

void ql_end_division(q_lanes *c, const ir_expr *stripe) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    IR_FOR(b, at, ir_idx(b, 0), ir_idx(b, c->stripe_rows), lanes) {
        ir_store(b, ir_at(b, c->row_sum, lanes, 2, stripe, at), ql_splat(c, 1));
    }
}
