/* V of a tile in scratch, as the products read it, once for all blocks of the task: the values of two keys side by
 * side, column by column. */
#include "mha/q_lanes.h"
#include "mha/rows.h"

void ql_load_values(q_lanes *c, const q_lanes_tile *tile) {
    ir_builder *b = c->b;
    const mha_context *m = c->m;
    const ir_expr *pair = ir_for_begin(b, "pair", ql_i(c, 0), ql_ceil_div(c, tile->room, 2), 1, false);
    const ir_expr *j = ir_mul(b, pair, ql_i(c, 2));
    const ir_expr *key = ir_let(b, "key", ir_add(b, tile->first_key, j)), *next = ir_add(b, key, ql_i(c, 1));
    next = ir_let(b, "next_key", ir_min(b, ir_sub(b, c->e.seq_kv, ql_i(c, 1)), next));
    const mha_kv_row even = mha_kv_row_at(m, &c->e, c->kv_head, key), odd = mha_kv_row_at(m, &c->e, c->kv_head, next);
    const ir_expr *is_pair = ir_apply(b, IR_LT, ir_add(b, j, ql_i(c, 1)), tile->room, NULL);
    const mha_columns d = mha_columns_begin(m, m->p->head_dim_v, 2 * m->lanes);
    uint8_t pick[IR_MAX_LANES];
    for (int l = 0; l < d.lanes; l++) {
        pick[2 * l] = (uint8_t)l;
        pick[2 * l + 1] = (uint8_t)(d.lanes + l);
    }
    const ir_expr *zero = ir_splat(b, ir_cast(b, IR_BF16, mha_number(m, 0, 1)), d.lanes);
    const ir_expr *x = ir_load(b, mha_kv_access(m, m->v, &even, d.at, d.lanes));
    const ir_expr *y = ir_load(b, mha_kv_access(m, m->v, &odd, d.at, d.lanes));
    const ir_expr *second = ir_let(b, "odd_key", ir_select(b, ir_splat(b, is_pair, d.lanes), y, zero));
    const ir_access *to = ir_at(b, c->values, 2 * d.lanes, 2, pair, ir_mul(b, d.at, ql_i(c, 2)));
    ir_store(b, to, ir_shuffle(b, ir_let(b, "even_key", x), second, 2 * d.lanes, pick));
    ir_for_end(b);
    ir_for_end(b);
}
