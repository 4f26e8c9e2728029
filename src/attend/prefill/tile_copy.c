/* Copies K and V of a tile to scratch in the form in which the products read them, once for all stripes of the task:
 *
 *     other types       widened to the type of the arithmetic, a vector of columns at a time
 *     pairs of bf16     V[j] and V[j + 1] interleaved:  [ V[j][0] V[j+1][0] ][ V[j][1] V[j+1][1] ] …
 *
 * There is no copy if memory has that form already, or if the schedule reads K or V in place. */
#include "attend/prefill/layout.h"
#include "attend/prefill/value_pairs.h"

static void convert(q_lanes *c, const q_lanes_tile *tile, const q_lanes_keys *keys, const ir_buffer *from,
                    const ir_buffer *to, int64_t columns) {
    ir_builder *b = c->b;
    IR_FOR(b, j, keys->from, keys->to, 1) {
        const mha_kv_row row = mha_kv_row_at(c->m, &c->e, c->kv_head, ir_let(b, "key", ir_add(b, tile->first_key, j)));
        MHA_COLUMNS(c->m, d, columns, ql_width(c) * c->m->lanes) {
            ir_store(b, ir_at(b, to, d.lanes, 2, j, d.at),
                     c->v->by_pairs ? mha_load_pairs(c->m, from, &row, d.at, d.lanes)
                                    : mha_load_kv(c->m, from, &row, d.at, d.lanes));
        }
    }
}

static void pair_values(q_lanes *c, const q_lanes_tile *tile, const q_lanes_keys *keys) {
    ir_builder *b = c->b;
    IR_FOR(b, pair, ir_div(b, keys->from, ir_idx(b, 2)), ir_ceil_div(b, keys->to, 2), 1) {
        const ir_expr *j = ir_times(b, pair, 2), *key = ir_let(b, "key", ir_add(b, tile->first_key, j));
        const mha_row to = {c->values, {pair}, NULL};
        mha_pair_values(c->m, &c->e, c->kv_head, key, ir_lt(b, ir_plus(b, j, 1), tile->room), &to);
    }
}

const ir_expr *ql_pair_of(q_lanes *c, const q_lanes_tile *tile, const ir_expr *j) {
    if (c->values) return j;
    return ir_let_index(c->b, "pair", c->m->v_pairs->dims[2], ir_add(c->b, tile->first_pair, j));
}

const ir_access *ql_pair_at(const q_lanes *c, const ir_expr *pair, const ir_expr *column, int lanes) {
    const ir_expr *at = ir_times(c->b, column, 2);
    if (c->values) return ir_at(c->b, c->values, 2 * lanes, 2, pair, at);
    return ir_at(c->b, c->m->v_pairs, 2 * lanes, 4, c->e.kv_batch, c->kv_head, pair, at);
}

void ql_load_tile(q_lanes *c, const q_lanes_tile *tile, bool values) {
    if (!c->keys && !c->values) return;
    const q_lanes_keys keys = ql_keys_of_task(c, tile);
    if (c->keys) convert(c, tile, &keys, c->m->k, c->keys, c->m->p->head_dim);
    if (!values || !c->values) return;
    if (c->v->by_pairs)
        pair_values(c, tile, &keys);
    else
        convert(c, tile, &keys, c->m->v, c->values, c->m->p->head_dim_v);
}
