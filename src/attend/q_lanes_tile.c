/* K and V of a tile in scratch, as the products read them, once for all stripes of the task: converted to the element
 * of the arithmetic, a vector at a time; or, where products are of pairs, the values of two keys side by side, column
 * by column. */
#include "attend/q_lanes.h"

static void convert(q_lanes *c, const q_lanes_tile *tile, const ir_buffer *from, const ir_buffer *to, int64_t columns) {
    ir_builder *b = c->b;
    IR_FOR(b, j, ir_idx(b, 0), tile->room, 1) {
        const mha_kv_row row = mha_kv_row_at(c->m, &c->e, c->kv_head, ir_let(b, "key", ir_add(b, tile->first_key, j)));
        MHA_COLUMNS(c->m, d, columns, c->m->lanes) {
            ir_store(b, ir_at(b, to, d.lanes, 2, j, d.at),
                     mha_load(c->m, mha_kv_access(c->m, from, &row, d.at, d.lanes)));
        }
    }
}

static void pair_values(q_lanes *c, const q_lanes_tile *tile) {
    ir_builder *b = c->b;
    const mha_context *m = c->m;
    IR_FOR(b, pair, ir_idx(b, 0), ir_ceil_div(b, tile->room, 2), 1) {
        const ir_expr *j = ir_times(b, pair, 2);
        const ir_expr *key = ir_let(b, "key", ir_add(b, tile->first_key, j)), *next = ir_plus(b, key, 1);
        next = ir_let(b, "next_key", ir_min(b, ir_plus(b, c->e.seq_kv, -1), next));
        const mha_kv_row even = mha_kv_row_at(m, &c->e, c->kv_head, key),
                         odd = mha_kv_row_at(m, &c->e, c->kv_head, next);
        const ir_expr *is_pair = ir_lt(b, ir_plus(b, j, 1), tile->room);
        MHA_COLUMNS(m, d, m->p->head_dim_v, 2 * m->lanes) {
            const ir_expr *zero = ir_splat(b, ir_cast(b, IR_BF16, mha_number(m, 0, 1)), d.lanes);
            const ir_expr *x = ir_load(b, mha_kv_access(m, m->v, &even, d.at, d.lanes));
            const ir_expr *y = ir_load(b, mha_kv_access(m, m->v, &odd, d.at, d.lanes));
            const ir_expr *second = ir_let(b, "odd_key", ir_select(b, ir_splat(b, is_pair, d.lanes), y, zero));
            const ir_access *to = ir_at(b, c->values, 2 * d.lanes, 2, pair, ir_times(b, d.at, 2));
            ir_store(b, to, mha_interleave(m, ir_let(b, "even_key", x), second, d.lanes, 2 * d.lanes, false));
        }
    }
}

void ql_load_tile(q_lanes *c, const q_lanes_tile *tile) {
    if (c->keys) convert(c, tile, c->m->k, c->keys, c->m->p->head_dim);
    if (tile->pass == QL_SUMS_PASS) return;
    if (c->values && c->width == 2) pair_values(c, tile);
    if (c->values && c->width == 1) convert(c, tile, c->m->v, c->values, c->m->p->head_dim_v);
}
