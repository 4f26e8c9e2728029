/* Values of users' functions that depend on kv - q alone. A table in scratch has them for a tile and a stripe, by
 * falling distance. Then a vector of rows is contiguous, and begins one element earlier for each key:
 *
 *     table         [ … d+2  d+1  d  d-1  d-2 … ]
 *     key j               rows r, r+1, r+2, …             row r has the distance j - r
 *     key j + 1     the same, one element to the left
 *
 * Rows and keys must fill their tiles: a row number beyond the last row is clamped, which changes its distance. */
#include "attend/prefill/layout.h"
#include "base/integers.h"

/* The distances of one tile and stripe, rounded up to whole vectors. */
static int64_t table_length(const q_lanes *c) {
    return ceil_div(c->stripe_rows + c->m->s->kv_tile - 1, c->m->lanes) * c->m->lanes;
}

static bool has_tables(const q_lanes *c) {
    return c->m->functions && c->m->group == 1 && c->rows_fill_tasks && c->keys_fill_tiles &&
           c->m->s->kv_tile >= c->stripe_rows;
}

static int nodes_of(const q_lanes *c, mha_function f, int nodes[EX_MAX_NODES]) {
    const bool has_any = has_tables(c) && f != MHA_PROB_FUNCTION;
    return has_any ? mha_distance_values(c->m, f, table_length(c), nodes) : 0;
}

void ql_alloc_distances(q_lanes *c) {
    const int64_t length = table_length(c);
    for (mha_function f = 0; f < MHA_NUM_FUNCTIONS; f++) {
        int nodes[EX_MAX_NODES];
        const int count = nodes_of(c, f, nodes);
        for (int i = 0; i < count; i++)
            if (!c->by_distance[nodes[i]])
                c->by_distance[nodes[i]] = ir_scratch(c->b, "of_distances", mha_kept_elem(c->m, nodes[i]), 1, &length);
    }
}

static const ir_expr *reversed(ir_builder *b, const ir_expr *x) {
    uint8_t pick[IR_MAX_LANES];
    for (int l = 0; l < x->type.lanes; l++) pick[l] = (uint8_t)(x->type.lanes - 1 - l);
    return ir_shuffle(b, x, x, x->type.lanes, pick);
}

/* Element t from the end has the distance of the tile's key t from the stripe's last row. Elements before the tile's
 * last key are distances from earlier rows: their `key` lies beyond the tile, and perhaps beyond the sequence. */
void ql_fill_distances(q_lanes *c, const q_lanes_tile *tile) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    const int64_t length = table_length(c);
    int nodes[MHA_NUM_FUNCTIONS][EX_MAX_NODES], counts[MHA_NUM_FUNCTIONS], all = 0;
    for (mha_function f = 0; f < MHA_NUM_FUNCTIONS; f++) all += counts[f] = nodes_of(c, f, nodes[f]);
    if (!all) return;
    const ir_expr *last = ir_let(b, "last_row", ir_plus(b, ql_first_row(c, tile->stripe), c->stripe_rows - 1));
    IR_FOR(b, at, ir_idx(b, 0), ir_idx(b, length), lanes) {
        mha_values values = c->values_of_task;
        const ir_expr *key = ir_let(b, "key", ir_add(b, tile->first_key, ir_sub(b, ir_idx(b, length - lanes), at)));
        const mha_place place = {&c->whole, c->kv_head, c->kv_head, last, key, lanes};
        for (mha_function f = 0; f < MHA_NUM_FUNCTIONS; f++)
            for (int i = 0; i < counts[f]; i++) {
                const int node = nodes[f][i];
                mha_fill_value(c->m, node, &place, &values);
                const ir_expr *kept = mha_in_lanes(c->m, mha_keep_value(c->m, node, &values), lanes);
                ir_store(b, ir_at(b, c->by_distance[node], lanes, 1, at), reversed(b, ir_let(b, "kept", kept)));
            }
    }
}

void ql_put_distances(q_lanes *c, mha_function f, const ir_expr *at, const ir_expr *j, mha_values *of_rows) {
    ir_builder *b = c->b;
    int nodes[EX_MAX_NODES];
    const int count = nodes_of(c, f, nodes);
    for (int i = 0; i < count; i++) {
        const ir_expr *first = ir_sub(b, ir_plus(b, at, table_length(c) - c->stripe_rows), j);
        const ir_expr *kept = ir_load(b, ir_at(b, c->by_distance[nodes[i]], c->m->lanes, 1, first));
        of_rows->of[nodes[i]] = ir_let(b, "of_distance", mha_kept_value(c->m, nodes[i], kept));
    }
}
