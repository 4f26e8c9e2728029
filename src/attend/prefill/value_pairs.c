/* V in pairs of keys, as dot2 multiplies it:
 *
 *     V[j]    [ a0 a1 a2 … ]
 *     V[j+1]  [ b0 b1 b2 … ]      ->      [ a0 b0 a1 b1 a2 b2 … ]      a row of twice as many columns
 *
 * for one tile at a time, or for all of V in an earlier phase (kv_copy=once). */
#include "attend/prefill/value_pairs.h"
#include "nest/pairs.h"

const ir_expr *mha_load_pairs(const mha_context *c, const ir_buffer *from, const mha_kv_row *row, const ir_expr *column,
                              int lanes) {
    ir_builder *b = c->b;
    if (!from || from->type.elem == IR_BF16) return ir_load(b, mha_kv_access(c, from, row, column, lanes));
    const ir_expr *x[2];
    if (lanes == 1) return ir_cast(b, IR_BF16, mha_load_kv(c, from, row, column, 1));
    for (int i = 0; i < 2; i++) {
        const ir_expr *at = ir_plus(b, column, (int64_t)i * lanes / 2);
        x[i] = ir_let(b, "x", mha_load_kv(c, from, row, at, lanes / 2));
    }
    return mha_both_rounded(c, x[0], x[1]);
}

/* The same from panels, which hold tokens in pairs already. A token beyond the last one may be anything there, so it is
 * replaced by 0. */
static void copy_pairs(const mha_context *c, const mha_sequence *e, const ir_expr *kv_head, const ir_expr *key,
                       const ir_expr *has_second, const mha_row *target) {
    ir_builder *b = c->b;
    const mha_kv_row at = mha_kv_row_at(c, e, kv_head, key);
    const mha_row row = mha_kv_row_of(c, c->v, &at);
    const mha_panel_unit unit = mha_panel_unit_of(c, &row);
    const ir_expr *seen = ir_let(b, "seen", mha_seen_bits(c, ir_int(b, IR_BOOL, 1), has_second));
    MHA_COLUMNS(c, d, c->p->head_dim_v, c->lanes) {
        const ir_expr *pairs = mha_load_panel_values(c, &unit, d.at, d.lanes, d.lanes);
        pairs = mha_where_seen(c, MHA_DOT2, ir_splat(b, seen, d.lanes), pairs);
        ir_store(b, mha_row_access(c, target, ir_times(b, d.at, 2), 2 * d.lanes), pairs);
    }
}

void mha_pair_values(const mha_context *c, const mha_sequence *e, const ir_expr *kv_head, const ir_expr *key,
                     const ir_expr *has_second, const mha_row *target) {
    ir_builder *b = c->b;
    if (mha_is_paneled(c, c->v)) {
        copy_pairs(c, e, kv_head, key, has_second, target);
        return;
    }
    const ir_expr *next = ir_let(b, "next_key", ir_min(b, ir_plus(b, e->seq_kv, -1), ir_plus(b, key, 1)));
    const mha_kv_row even = mha_kv_row_at(c, e, kv_head, key), odd = mha_kv_row_at(c, e, kv_head, next);
    MHA_COLUMNS(c, d, c->p->head_dim_v, 2 * c->lanes) {
        const ir_expr *zero = ir_splat(b, ir_cast(b, IR_BF16, mha_number(c, 0, 1)), d.lanes);
        const ir_expr *x = mha_load_pairs(c, c->v, &even, d.at, d.lanes);
        const ir_expr *y = mha_load_pairs(c, c->v, &odd, d.at, d.lanes);
        const ir_expr *second = ir_let(b, "odd_key", ir_select(b, ir_splat(b, has_second, d.lanes), y, zero));
        const ir_access *to = mha_row_access(c, target, ir_times(b, d.at, 2), 2 * d.lanes);
        ir_store(b, to, mha_interleave(c, ir_let(b, "even_key", x), second, d.lanes, 2 * d.lanes, false));
    }
}

void mha_value_pairs_shared(mha_context *c) {
    const ir_buffer *v = c->v;
    if (c->s->kv_copy != MHA_COPY_ONCE || ir_failed(c->b)) return;
    const ir_expr *const dims[] = {v->dims[0], v->dims[1], ir_ceil_div(c->b, v->dims[2], 2),
                                   ir_idx(c->b, 2 * c->p->head_dim_v)};
    c->v_pairs = ir_shared(c->b, "value_pairs", IR_BF16, 4, dims);
}

void mha_value_pairs(mha_context *c) {
    enum { PAIRS_OF_TASK = 32 };
    ir_builder *b = c->b;
    if (!c->v_pairs) return;
    IR_PHASE(b) {
        const ir_expr *number = ir_parallel(b, "sequence", c->v_pairs->dims[0]);
        const ir_expr *kv_head = ir_parallel(b, "kv_head", c->v_pairs->dims[1]);
        const ir_expr *task = ir_parallel(b, "task", ir_ceil_div(b, c->v_pairs->dims[2], PAIRS_OF_TASK));
        const mha_sequence e = mha_sequence_open(c, number);
        const ir_expr *first = ir_times(b, task, PAIRS_OF_TASK);
        const ir_expr *end = ir_min(b, ir_plus(b, first, PAIRS_OF_TASK), ir_ceil_div(b, e.seq_kv, 2));
        IR_FOR(b, pair, first, end, 1) {
            const ir_expr *key = ir_let(b, "key", ir_times(b, pair, 2));
            const mha_row to = {c->v_pairs, {number, kv_head, pair}, NULL};
            mha_pair_values(c, &e, kv_head, key, ir_lt(b, ir_plus(b, key, 1), e.seq_kv), &to);
        }
    }
}
