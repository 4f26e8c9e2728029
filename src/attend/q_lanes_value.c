/* O^T = O^T * factor + V^T P^T for one tile and block: register tiles of value_rows columns of V by value_vectors
 * vectors of query rows. V^T P^T is summed in the order of the keys, from 0 on, before it is added to O^T: one serial
 * sum over all tiles would be wrong by one rounding for each key. Columns that value_rows does not divide get a smaller
 * register tile of their own, because this accumulation, unlike the scores, cannot be done twice. */
#include "attend/q_lanes.h"

typedef struct value_tile {
    const ir_expr *first; /* first column of V */
    int64_t columns;
    const ir_expr *vector; /* first vector of query rows within the block */
    const ir_buffer *acc;  /* registers [columns, value_vectors] */
    /* A value of V that a row does not see is replaced by 0, so that NaN or infinity in it stays out (its probability
     * is 0 already). */
    bool masked;
} value_tile;

/* Neighbouring keys of the tile, lo <= j < hi; of c->values: neighbouring rows of that, which may be pairs of keys.
 * Paged: keys of one page. */
typedef struct segment {
    const ir_expr *lo, *hi;
    const ir_expr *page, *page_key; /* the page, and its first key; NULL unless paged */
} segment;

static const ir_expr *row_at(q_lanes *c, const value_tile *t, const ir_expr *v) {
    return ir_mul(c->b, ir_add(c->b, t->vector, v), ql_i(c, c->m->lanes));
}

static void clear(q_lanes *c, const value_tile *t) {
    const ir_expr *column = ql_unrolled(c, "dd", t->columns);
    const ir_expr *v = ql_unrolled(c, "v", c->m->s->value_vectors);
    ir_store(c->b, ir_at(c->b, t->acc, c->m->lanes, 2, column, v), ql_splat(c, 0));
    ir_for_end(c->b);
    ir_for_end(c->b);
}

static mha_kv_row row_of_key(q_lanes *c, const segment *s, const ir_expr *key) {
    if (!s->page) return mha_kv_row_at(c->m, &c->e, c->kv_head, key);
    return (mha_kv_row){.index = {s->page, c->kv_head, ir_let(c->b, "slot", ir_sub(c->b, key, s->page_key))}};
}

/* The lanes of a pair in which a row does not see one of the two keys, or both, replaced by 0. */
static const ir_expr *seen_of_pair(q_lanes *c, const q_lanes_tile *tile, const q_lanes_sight *sight,
                                   const ir_expr *pair, const ir_expr *value) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    const ir_expr *first = ir_mul(b, pair, ql_i(c, 2)), *bits = NULL;
    const ir_expr *second =
        ir_let(b, "second", ir_min(b, ir_add(b, first, ql_i(c, 1)), ir_sub(b, tile->to, ql_i(c, 1))));
    for (int i = 0; i < 2; i++) {
        const ir_expr *j = i ? second : first, *key = ir_let(b, "key", ir_add(b, tile->first_key, j));
        const ir_expr *sees = ql_sees(c, sight, key, j);
        if (i) sees = ir_apply(b, IR_AND, sees, ir_splat(b, ir_apply(b, IR_GT, second, first, NULL), lanes), NULL);
        const ir_expr *half = ir_splat(b, ir_int(b, IR_I32, i ? -65536 : 65535), lanes);
        const ir_expr *seen = ir_select(b, sees, half, ir_splat(b, ir_int(b, IR_I32, 0), lanes));
        bits = bits ? ir_apply(b, IR_OR, bits, seen, NULL) : seen;
    }
    return ir_bitcast(b, IR_BF16, ir_apply(b, IR_AND, ir_bitcast(b, IR_I32, value), bits, NULL));
}

static const ir_expr *seen_value(q_lanes *c, const q_lanes_tile *tile, const value_tile *t, const ir_expr *v,
                                 const ir_expr *j, const ir_expr *value) {
    const q_lanes_sight sight = ql_sight(c, tile, row_at(c, t, v));
    if (c->width == 2) return seen_of_pair(c, tile, &sight, j, value);
    const ir_expr *key = ir_let(c->b, "key", ir_add(c->b, tile->first_key, j));
    return ir_select(c->b, ql_sees(c, &sight, key, j), value, ql_splat(c, 0));
}

/* One key, or pair, after the other, `unroll` in a turn, as long as there are so many. */
static void add_keys(q_lanes *c, const q_lanes_tile *tile, const value_tile *t, const segment *s, int32_t unroll) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes, wide = lanes * c->width;
    const ir_expr *end = ir_sub(b, s->hi, ql_i(c, unroll - 1));
    const ir_expr *turn = ir_for_begin(b, "j", s->lo, end, unroll, false);
    const ir_expr *j = ir_add(b, turn, ql_unrolled(c, "ju", unroll));
    mha_kv_row row = {0};
    if (!c->values) row = row_of_key(c, s, ir_let(b, "key", ir_add(b, tile->first_key, j)));
    const ir_buffer *p = ql_operands(c, "weights", c->m->s->value_vectors);
    const ir_expr *v = ql_unrolled(c, "v", c->m->s->value_vectors);
    const ir_expr *weight = ir_load(b, ql_weight_at(c, ir_add(b, t->vector, v), j));
    /* Times the scale of a hidden key it may be anything. */
    if (t->masked && c->m->params.tensor[MHA_V_SCALE]) weight = seen_value(c, tile, t, v, j, weight);
    ir_store(b, ir_at(b, p, wide, 1, v), weight);
    ir_for_end(b);
    const ir_expr *column = ql_unrolled(c, "dd", t->columns), *d = ir_add(b, t->first, column);
    const ir_access *element = c->values ? ir_at(b, c->values, c->width, 2, j, ir_mul(b, d, ql_i(c, c->width)))
                                         : mha_kv_access(c->m, c->m->v, &row, d, 1);
    const ir_expr *value = ir_let(b, "value", ql_repeated(c, element));
    v = ql_unrolled(c, "v", c->m->s->value_vectors);
    const ir_expr *seen = t->masked ? seen_value(c, tile, t, v, j, value) : value;
    const ir_access *acc = ir_at(b, t->acc, lanes, 2, column, v);
    ir_store(b, acc, ql_accumulate(c, seen, ir_load(b, ir_at(b, p, wide, 1, v)), ir_load(b, acc)));
    ir_for_end(b);
    ir_for_end(b);
    ir_for_end(b);
    ir_for_end(b);
}

static void add_segment(q_lanes *c, const q_lanes_tile *tile, const value_tile *t, const segment *s) {
    ir_builder *b = c->b;
    const int32_t unroll = t->masked ? 1 : c->m->s->value_unroll;
    add_keys(c, tile, t, s, unroll);
    if (unroll == 1) return;
    /* What is left over; the maximum changes nothing, but shows the prover where that begins. */
    const ir_expr *left = ir_mod(b, ir_max(b, ql_i(c, 0), ir_sub(b, s->hi, s->lo)), ql_i(c, unroll));
    segment rest = *s;
    rest.lo = ir_let(b, "done", ir_max(b, s->lo, ir_sub(b, s->hi, left)));
    add_keys(c, tile, t, &rest, 1);
}

/* Page by page, so that the block table is read once for each. */
static void add_pages(q_lanes *c, const q_lanes_tile *tile, const value_tile *t) {
    ir_builder *b = c->b;
    const ir_expr *size = ql_i(c, c->m->p->page_size);
    const ir_expr *first = ir_div(b, ir_add(b, tile->first_key, tile->from), size);
    const ir_expr *last = ir_div(b, ir_add(b, tile->first_key, ir_sub(b, tile->to, ql_i(c, 1))), size);
    const ir_expr *n = ir_for_begin(b, "column_of_table", first, ir_add(b, last, ql_i(c, 1)), 1, false);
    segment s = {.page_key = ir_let(b, "page_key", ir_mul(b, n, size))};
    s.page = mha_kv_row_at(c->m, &c->e, c->kv_head, s.page_key).index[0];
    const ir_expr *lo = ir_let(b, "page_from", ir_sub(b, s.page_key, tile->first_key));
    s.lo = ir_let(b, "page_lo", ir_max(b, lo, tile->from));
    s.hi = ir_let(b, "page_hi", ir_min(b, ir_add(b, lo, size), tile->to));
    add_segment(c, tile, t, &s);
    ir_for_end(b);
}

/* Adds the sums of this tile to those of the tiles before. */
static void end(q_lanes *c, const q_lanes_tile *tile, const value_tile *t) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    const ir_expr *v = ql_unrolled(c, "v", c->m->s->value_vectors), *rows = row_at(c, t, v);
    const ir_expr *factor = ir_let(b, "shrink", ir_load(b, ir_at(b, c->factor, lanes, 1, rows)));
    const ir_expr *column = ql_unrolled(c, "dd", t->columns), *d = ir_add(b, t->first, column);
    const ir_access *lost = c->ot_lost ? ir_at(b, c->ot_lost, lanes, 3, tile->block, d, rows) : NULL;
    ql_add_to_sums(c, ir_at(b, c->ot, lanes, 3, tile->block, d, rows), lost, factor,
                   ir_load(b, ir_at(b, t->acc, lanes, 2, column, v)));
    ir_for_end(b);
    ir_for_end(b);
}

static void register_tile(q_lanes *c, const q_lanes_tile *tile, value_tile *t) {
    ir_builder *b = c->b;
    t->vector = ir_for_begin(b, "vector", ql_i(c, 0), ql_i(c, c->m->s->score_vectors), c->m->s->value_vectors, false);
    t->acc = ql_registers(c, "acc", 2, (int64_t[]){t->columns, c->m->s->value_vectors});
    clear(c, t);
    const ir_expr *lo = ir_div(b, tile->from, ql_i(c, c->width)), *hi = ql_ceil_div(c, tile->to, c->width);
    if (c->m->p->page_size && !c->values)
        add_pages(c, tile, t);
    else
        add_segment(c, tile, t, &(segment){.lo = lo, .hi = hi});
    end(c, tile, t);
    ir_for_end(b);
}

/* All columns of V, `columns` at a time and then those that are left over. */
static void all_columns(q_lanes *c, const q_lanes_tile *tile, int64_t columns, bool masked) {
    ir_builder *b = c->b;
    const int64_t whole = c->m->p->head_dim_v / columns, rest = c->m->p->head_dim_v % columns;
    const ir_expr *n = ir_for_begin(b, "value_tile", ql_i(c, 0), ql_i(c, whole), 1, false);
    value_tile t = {.columns = columns, .masked = masked};
    t.first = ir_let(b, "column", ir_mul(b, n, ql_i(c, columns)));
    register_tile(c, tile, &t);
    ir_for_end(b);
    if (!rest) return;
    t = (value_tile){.columns = rest, .masked = masked, .first = ql_i(c, whole * columns)};
    register_tile(c, tile, &t);
}

/* Hidden values that would do harm are rare: their tiles go column by column, which is slow and little code. */
void ql_values(q_lanes *c, const q_lanes_tile *tile) {
    if (tile->is_harmless) ir_if_begin(c->b, tile->is_harmless);
    all_columns(c, tile, c->m->s->value_rows, false);
    if (!tile->is_harmless) return;
    ir_if_else(c->b);
    all_columns(c, tile, 1, true);
    ir_if_end(c->b);
}
