/* The output of probabilities if the keys are one tile: scratch has P^T, which is multiplied by 1 / sum and transposed
 * to memory, a quarter of a vector of keys at a time, as O is in rows.c. Otherwise a later phase computes the
 * probabilities again (around/probabilities.h). */
#include "attend/prefill/layout.h"

static const ir_expr *quotient(const q_lanes *c, const ir_expr *v, const ir_expr *key, const ir_expr *inverse) {
    return ir_mul(c->b, ir_load(c->b, ql_probability_at(c, v, key)), inverse);
}

static void put_vectors(q_lanes *c, const q_lanes_tensor *to, const q_lanes_row *rows, const ir_expr *v,
                        const ir_expr *inverse) {
    ir_builder *b = c->b;
    const int quarter = mha_quarter(c->m->lanes);
    const ir_expr *keys[4];
    MHA_COLUMNS(c->m, j, c->m->p->seq_kv, quarter) {
        for (int i = 0; i < quarter; i++) keys[i] = ir_let(b, "weight", quotient(c, v, ir_plus(b, j.at, i), inverse));
        ql_store_transposed(c, to, rows, j.at, keys);
    }
}

static void put_elements(q_lanes *c, const q_lanes_tensor *to, const q_lanes_row *rows, const ir_expr *v,
                         const ir_expr *inverse) {
    ir_builder *b = c->b;
    IR_FOR(b, j, ir_idx(b, 0), c->e.seq_kv, 1) {
        const ir_expr *weights = ir_let(b, "weights", quotient(c, v, j, inverse));
        for (int l = 0; l < c->m->lanes; l++)
            mha_store(c->m, ir_at(b, to->buffer, 1, 4, to->batch, rows[l].head, rows[l].query, j),
                      mha_lanes_of(b, weights, l, 1));
    }
}

void ql_store_probabilities(q_lanes *c, const ir_expr *stripe) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    const q_lanes_tensor to = {c->m->params.tensor[MHA_WEIGHTS_OUT], c->e.number, ir_idx(b, 0), false, NULL};
    q_lanes_row rows[IR_MAX_LANES];
    IR_FOR(b, v, ir_idx(b, 0), ir_idx(b, c->m->s->score_row_vectors), 1) {
        const ir_expr *at = ir_let(b, "at", ir_times(b, v, lanes));
        for (int l = 0; l < lanes; l++) rows[l] = ql_row(c, stripe, ir_plus(b, at, l));
        const ir_expr *inverse = ir_let(b, "inverse", ir_load(b, ir_at(b, c->row_sum, lanes, 2, stripe, at)));
        if (c->m->p->seq_kv >= mha_quarter(lanes))
            put_vectors(c, &to, rows, v, inverse);
        else
            put_elements(c, &to, rows, v, inverse);
    }
}
