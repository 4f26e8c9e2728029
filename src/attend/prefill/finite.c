/* Whether the values of a tile are finite. A hidden key has the probability 0, and 0 times a finite value is 0, but 0
 * times NaN or infinity is NaN. So if a key of the tile may be hidden from a row, 0 * V is summed over the tile first:
 * the sum is 0 if V is finite, else NaN. */
#include "attend/prefill/layout.h"

/* Whether window or causality hides a part of the tile from some row of the task. */
static const ir_expr *is_partial(q_lanes *c, const q_lanes_tile *t) {
    ir_builder *b = c->b;
    const mha_sights s = ql_sights_of_task(c);
    const ir_expr *partial = NULL;
    if (c->m->has_last) partial = ir_gt(b, ir_add(b, t->first_key, t->room), s.all_end);
    if (!c->m->has_first) return partial;
    const ir_expr *begins = ir_lt(b, t->first_key, s.all_first);
    return partial ? ir_or(b, partial, begins) : begins;
}

/* Whether some row may attend to a part of the tile only. NULL: unknown. */
static const ir_expr *hides_some(q_lanes *c, const q_lanes_tile *t) {
    if (ql_has_elements(c) || c->m->has_global || (ql_may_hide_any(c) && !ql_has_table(c))) return NULL;
    const ir_expr *partial = ql_has_edges(c) ? is_partial(c, t) : NULL;
    return !t->is_mixed ? partial : partial ? ir_or(c->b, partial, t->is_mixed) : t->is_mixed;
}

/* Whether the sums of 0 * V over the tile are 0. They stay 0 if no key is hidden, and V is not read. Lanes run along
 * the columns of V; the last vector of a row overlaps the one before if vectors do not fill the row. Two sums hide the
 * latency of an addition. */
static const ir_expr *sums_are_zero(q_lanes *c, const q_lanes_tile *t) {
    ir_builder *b = c->b;
    const int64_t columns = c->m->p->head_dim_v;
    const int lanes = mha_column_lanes(columns, c->m->lanes), count = columns >= 2 * lanes ? 2 : 1;
    const ir_expr *last = ir_idx(b, columns - lanes), *zero = mha_number(c->m, 0, lanes);
    const ir_buffer *sums = ir_registers(b, "zeros", c->m->elem, lanes, 1, (int64_t[]){count});
    const ir_access *sum[2];
    for (int i = 0; i < count; i++) {
        sum[i] = ir_at(b, sums, lanes, 1, ir_idx(b, i));
        ir_store(b, sum[i], zero);
    }
    const ir_expr *hides = hides_some(c, t);
    IR_GUARD(b, hides, hides) {
        IR_FOR(b, j, ir_idx(b, 0), t->room, 1) {
            const mha_kv_row row = mha_kv_row_at(c->m, &c->e, c->kv_head, ir_add(b, t->first_key, j));
            const ir_expr *scale = mha_v_scale(c->m, &row);
            scale = scale ? ir_let(b, "scale", scale) : NULL;
            IR_FOR(b, column, ir_idx(b, 0), ir_idx(b, columns), (int64_t)lanes * count) {
                for (int i = 0; i < count; i++) {
                    const ir_expr *at = ir_plus(b, column, (int64_t)i * lanes);
                    at = columns % (lanes * count) ? ir_min(b, at, last) : at;
                    const ir_expr *value = mha_load_kv(c->m, c->m->v, &row, at, lanes);
                    value = scale ? ir_mul(b, value, ir_splat(b, scale, lanes)) : value;
                    ir_store(b, sum[i], mha_madd(c->m, value, zero, ir_load(b, sum[i])));
                }
            }
        }
    }
    const ir_expr *total = ir_load(b, sum[0]);
    if (count > 1) total = ir_add(b, total, ir_load(b, sum[1]));
    return ir_let(b, "is_finite", ir_eq(b, ir_reduce(b, IR_ADD, total), mha_number(c->m, 0, 1)));
}

void ql_find_finite(q_lanes *c, q_lanes_tile *t) {
    const bool by_interval = c->v->values != MHA_VALUES_TRANSPOSED && !ql_may_hide_any(c) && !c->m->has_global;
    if ((ql_has_edges(c) || ql_may_hide_any(c)) && !by_interval) t->is_finite = sums_are_zero(c, t);
}
