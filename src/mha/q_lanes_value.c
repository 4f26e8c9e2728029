/* O^T = O^T * factor + V^T P^T for one tile and block: register tiles of value_rows columns of V by value_vectors
 * vectors of query rows, summed in the order of the keys. Columns that value_rows does not divide get a smaller
 * register tile of their own, because this accumulation, unlike the scores, cannot be done twice. */
#include "mha/q_lanes.h"

typedef struct value_tile {
    const ir_expr *first; /* first column of V */
    int64_t columns;
    const ir_expr *vector; /* first vector of query rows within the block */
    const ir_buffer *acc;  /* registers [columns, value_vectors] */
} value_tile;

static const ir_expr *row_at(q_lanes *c, const value_tile *t, const ir_expr *v) {
    return ir_mul(c->b, ir_add(c->b, t->vector, v), ql_i(c, c->s->lanes));
}

static const ir_access *output_at(q_lanes *c, const q_lanes_tile *tile, const value_tile *t, const ir_expr *column,
                                  const ir_expr *v) {
    return ir_at(c->b, c->ot, c->s->lanes, 3, tile->block, ir_add(c->b, t->first, column), row_at(c, t, v));
}

static void begin(q_lanes *c, const q_lanes_tile *tile, const value_tile *t) {
    ir_builder *b = c->b;
    const int lanes = c->s->lanes;
    const ir_expr *v = ql_unrolled(c, "v", c->s->value_vectors);
    const ir_expr *factor = ir_let(b, "shrink", ir_load(b, ir_at(b, c->factor, lanes, 1, row_at(c, t, v))));
    const ir_expr *column = ql_unrolled(c, "dd", t->columns);
    const ir_expr *old = ir_load(b, output_at(c, tile, t, column, v));
    ir_store(b, ir_at(b, t->acc, lanes, 2, column, v), ir_mul(b, old, factor));
    ir_for_end(b);
    ir_for_end(b);
}

/* Keys lo, lo + unroll, … < hi of the tile, each with the unroll - 1 keys after it. masked: a value of V that a row
 * does not see is replaced by 0, so that NaN or infinity in it stays out (its probability is 0 already). */
static void accumulate(q_lanes *c, const q_lanes_tile *tile, const value_tile *t, const ir_expr *lo, const ir_expr *hi,
                       int32_t unroll, bool masked) {
    ir_builder *b = c->b;
    const int lanes = c->s->lanes;
    const ir_expr *turn = ir_for_begin(b, "j", lo, hi, unroll, false);
    const ir_expr *j = ir_add(b, turn, ql_unrolled(c, "ju", unroll));
    const ir_expr *key = ir_let(b, "key", ir_add(b, tile->first_key, j));
    const ir_buffer *p = ql_registers(c, "weights", 1, (int64_t[]){c->s->value_vectors});
    const ir_expr *v = ql_unrolled(c, "v", c->s->value_vectors);
    ir_store(b, ir_at(b, p, lanes, 1, v), ir_load(b, ir_at(b, c->scores, lanes, 2, j, row_at(c, t, v))));
    ir_for_end(b);
    const ir_expr *column = ql_unrolled(c, "dd", t->columns);
    const ir_access *at = ir_at(b, c->v, 1, 4, c->batch, c->kv_head, key, ir_add(b, t->first, column));
    const ir_expr *value = ir_let(b, "value", ir_splat(b, ir_load(b, at), lanes));
    v = ql_unrolled(c, "v", c->s->value_vectors);
    const ir_expr *seen = value;
    if (masked) {
        const ir_expr *last = ir_load(b, ir_at(b, c->last_key, lanes, 2, tile->block, row_at(c, t, v)));
        const ir_expr *sees = ir_apply(b, IR_GE, last, ir_splat(b, ir_cast(b, IR_I32, key), lanes), NULL);
        seen = ir_select(b, sees, value, ql_splat(c, 0));
    }
    const ir_access *acc = ir_at(b, t->acc, lanes, 2, column, v);
    ir_store(b, acc, ql_madd(c, seen, ir_load(b, ir_at(b, p, lanes, 1, v)), ir_load(b, acc)));
    ir_for_end(b);
    ir_for_end(b);
    ir_for_end(b);
    ir_for_end(b);
}

static void end(q_lanes *c, const q_lanes_tile *tile, const value_tile *t) {
    ir_builder *b = c->b;
    const ir_expr *column = ql_unrolled(c, "dd", t->columns);
    const ir_expr *v = ql_unrolled(c, "v", c->s->value_vectors);
    ir_store(b, output_at(c, tile, t, column, v), ir_load(b, ir_at(b, t->acc, c->s->lanes, 2, column, v)));
    ir_for_end(b);
    ir_for_end(b);
}

static void register_tile(q_lanes *c, const q_lanes_tile *tile, const ir_expr *first, int64_t columns,
                          const ir_expr *vector) {
    value_tile t = {.first = first, .columns = columns, .vector = vector};
    t.acc = ql_registers(c, "acc", 2, (int64_t[]){columns, c->s->value_vectors});
    begin(c, tile, &t);
    const ir_expr *keys = c->p->is_causal ? tile->full_keys : tile->keys;
    const int32_t unroll = c->s->value_unroll;
    accumulate(c, tile, &t, ql_i(c, 0), ir_sub(c->b, keys, ql_i(c, unroll - 1)), unroll, false);
    if (unroll > 1) {
        const ir_expr *done = ir_let(c->b, "done", ir_sub(c->b, keys, ir_mod(c->b, keys, ql_i(c, unroll))));
        accumulate(c, tile, &t, done, keys, 1, false);
    }
    if (c->p->is_causal) accumulate(c, tile, &t, tile->full_keys, tile->keys, 1, true);
    end(c, tile, &t);
}

void ql_values(q_lanes *c, const q_lanes_tile *tile) {
    ir_builder *b = c->b;
    const int64_t columns = c->s->value_rows, whole = c->p->head_dim_v / columns, rest = c->p->head_dim_v % columns;
    const ir_expr *vector =
        ir_for_begin(b, "vector", ql_i(c, 0), ql_i(c, c->s->score_vectors), c->s->value_vectors, false);
    const ir_expr *n = ir_for_begin(b, "value_tile", ql_i(c, 0), ql_i(c, whole), 1, false);
    register_tile(c, tile, ir_let(b, "column", ir_mul(b, n, ql_i(c, columns))), columns, vector);
    ir_for_end(b);
    if (rest) register_tile(c, tile, ql_i(c, whole * columns), rest, vector);
    ir_for_end(b);
}
