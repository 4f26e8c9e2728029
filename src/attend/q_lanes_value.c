/* O^T = O^T * factor + V^T P^T for one tile and block: register tiles of value_rows columns of V by value_vectors
 * vectors of query rows. V^T P^T is summed in the order of the keys, from 0 on, before it is added to O^T: one serial
 * sum over all tiles would be wrong by one rounding for each key. Columns that value_rows does not divide get a smaller
 * register tile of their own, because this accumulation, unlike the scores, cannot be done twice. */
#include "attend/q_lanes.h"

/* A register tile: columns of V by value_vectors vectors of query rows. */
typedef struct value_tile {
    q_lanes *c;
    const q_lanes_tile *tile;
    const ir_expr *first;  /* first column of V */
    const ir_expr *vector; /* first vector of query rows within the block */
    /* A value of V that a row does not see is replaced by 0, so that NaN or infinity in it stays out (its probability
     * is 0 already). */
    bool masked;
    const ir_expr *page,
        *page_key;  /* the page at hand, and its first key; NULL unless V is paged and read where it is */
    mha_kv_row row; /* of V, at the key at hand; unless there is c->values */
} value_tile;

static const ir_expr *row_at(const value_tile *t, int64_t v) {
    return ir_mul(t->c->b, ir_add(t->c->b, t->vector, ql_i(t->c, v)), ql_i(t->c, t->c->m->lanes));
}

/* ---- Factors: j is a key, or pair of keys, of the tile ---- */

static void find_row(const mha_product *p, const ir_expr *j) {
    value_tile *t = p->user;
    const q_lanes *c = t->c;
    if (c->values) return;
    const ir_expr *key = ir_let(c->b, "key", ir_add(c->b, t->tile->first_key, j));
    if (t->page)
        t->row = (mha_kv_row){.index = {t->page, c->kv_head, ir_let(c->b, "slot", ir_sub(c->b, key, t->page_key))}};
    else
        t->row = mha_kv_row_at(c->m, &c->e, c->kv_head, key);
}

/* Which of the two keys of a pair, of which the second may be beyond the last one, rows see. */
static const ir_expr *seen_of_pair(const value_tile *t, const mha_sight *sight, const ir_expr *rows,
                                   const ir_expr *pair) {
    ir_builder *b = t->c->b;
    const ir_expr *one = ql_i(t->c, 1), *first = ir_mul(b, pair, ql_i(t->c, 2)), *seen[2];
    const ir_expr *second = ir_let(b, "second", ir_min(b, ir_add(b, first, one), ir_sub(b, t->tile->to, one)));
    for (int i = 0; i < 2; i++) {
        const ir_expr *j = i ? second : first, *key = ir_let(b, "key", ir_add(b, t->tile->first_key, j));
        seen[i] = ql_sees(t->c, sight, rows, key, j);
    }
    const ir_expr *exists = ir_splat(b, ir_apply(b, IR_GT, second, first, NULL), t->c->m->lanes);
    return mha_seen_bits(t->c->m, seen[0], ir_apply(b, IR_AND, seen[1], exists, NULL));
}

static const ir_expr *where_seen(const mha_product *p, const ir_expr *j, int64_t v, const ir_expr *x) {
    const value_tile *t = p->user;
    q_lanes *c = t->c;
    const ir_expr *rows = row_at(t, v);
    const mha_sight sight = ql_sight(c, t->tile, rows);
    if (p->kind == MHA_DOT2) return mha_where_seen(c->m, p->kind, seen_of_pair(t, &sight, rows, j), x);
    const ir_expr *key = ir_let(c->b, "key", ir_add(c->b, t->tile->first_key, j));
    return mha_where_seen(c->m, p->kind, ql_sees(c, &sight, rows, key, j), x);
}

/* Times the scale of a hidden key it may be anything. */
static const ir_expr *weight(const mha_product *p, const ir_expr *j, int64_t v) {
    const value_tile *t = p->user;
    const ir_expr *w = ir_load(t->c->b, ql_weight_at(t->c, ir_add(t->c->b, t->vector, ql_i(t->c, v)), j));
    return t->masked && t->c->m->params.tensor[MHA_V_SCALE] ? where_seen(p, j, v, w) : w;
}

static const ir_expr *value(const mha_product *p, const ir_expr *j, int64_t column) {
    const value_tile *t = p->user;
    const q_lanes *c = t->c;
    const ir_expr *d = ir_add(c->b, t->first, ql_i(c, column));
    const ir_access *at = c->values ? ir_at(c->b, c->values, c->width, 2, j, ir_mul(c->b, d, ql_i(c, c->width)))
                                    : mha_kv_access(c->m, c->m->v, &t->row, d, 1);
    return mha_load_repeated(c->m, p->kind, at, p->lanes);
}

/* ---- A register tile ---- */

/* Neighbouring keys of the tile, lo <= j < hi; of c->values: neighbouring rows of that, which may be pairs of keys. */
static void add_keys(const mha_product *p, const ir_expr *lo, const ir_expr *hi) {
    const value_tile *t = p->user;
    ir_builder *b = t->c->b;
    const int32_t unroll = t->masked ? 1 : t->c->m->s->value_unroll;
    mha_product_steps(p, "j", lo, ir_sub(b, hi, ql_i(t->c, unroll - 1)), unroll);
    if (unroll == 1) return;
    /* What is left over; the maximum changes nothing, but shows the prover where that begins. */
    const ir_expr *left = ir_mod(b, ir_max(b, ql_i(t->c, 0), ir_sub(b, hi, lo)), ql_i(t->c, unroll));
    mha_product_steps(p, "j", ir_let(b, "done", ir_max(b, lo, ir_sub(b, hi, left))), hi, 1);
}

/* Page by page, so that the block table is read once for each. */
static void add_pages(const mha_product *p) {
    value_tile *t = p->user;
    const q_lanes *c = t->c;
    const q_lanes_tile *tile = t->tile;
    ir_builder *b = c->b;
    const ir_expr *size = ql_i(c, c->m->p->page_size);
    const ir_expr *first = ir_div(b, ir_add(b, tile->first_key, tile->from), size);
    const ir_expr *last = ir_div(b, ir_add(b, tile->first_key, ir_sub(b, tile->to, ql_i(c, 1))), size);
    const ir_expr *n = ir_for_begin(b, "column_of_table", first, ir_add(b, last, ql_i(c, 1)), 1, false);
    t->page_key = ir_let(b, "page_key", ir_mul(b, n, size));
    t->page = mha_kv_row_at(c->m, &c->e, c->kv_head, t->page_key).index[0];
    const ir_expr *lo = ir_let(b, "page_from", ir_sub(b, t->page_key, tile->first_key));
    const ir_expr *from = ir_let(b, "page_lo", ir_max(b, lo, tile->from));
    add_keys(p, from, ir_let(b, "page_hi", ir_min(b, ir_add(b, lo, size), tile->to)));
    ir_for_end(b);
}

/* Adds the sums of this tile to those of the tiles before. */
static void end(const mha_product *p) {
    const value_tile *t = p->user;
    const q_lanes *c = t->c;
    for (int64_t v = 0; v < p->vectors; v++) {
        const ir_expr *rows = row_at(t, v);
        const ir_expr *factor = ir_let(c->b, "shrink", ir_load(c->b, ir_at(c->b, c->factor, p->lanes, 1, rows)));
        for (int64_t column = 0; column < p->rows; column++) {
            const ir_expr *d = ir_add(c->b, t->first, ql_i(c, column));
            const ir_access *lost = c->ot_lost ? ir_at(c->b, c->ot_lost, p->lanes, 3, t->tile->block, d, rows) : NULL;
            mha_join_sum(c->m, ir_at(c->b, c->ot, p->lanes, 3, t->tile->block, d, rows), lost, factor,
                         mha_product_sum(p, column, v));
        }
    }
}

static void register_tile(q_lanes *c, const q_lanes_tile *tile, const ir_expr *first, int64_t columns, bool masked) {
    ir_builder *b = c->b;
    value_tile t = {.c = c, .tile = tile, .first = first, .masked = masked};
    mha_product p = ql_product(c, columns, c->m->s->value_vectors);
    p.row_name = "value", p.vector_name = "weights";
    p.user = &t;
    p.open = find_row, p.row = value, p.vector = weight, p.part = masked ? where_seen : NULL;
    t.vector = ir_for_begin(b, "vector", ql_i(c, 0), ql_i(c, c->m->s->score_vectors), p.vectors, false);
    mha_product_begin(&p);
    mha_product_clear(&p);
    if (c->m->p->page_size && !c->values)
        add_pages(&p);
    else
        add_keys(&p, ir_div(b, tile->from, ql_i(c, c->width)), ql_ceil_div(c, tile->to, c->width));
    end(&p);
    ir_for_end(b);
}

/* All columns of V, `columns` at a time and then those that are left over. */
static void all_columns(q_lanes *c, const q_lanes_tile *tile, int64_t columns, bool masked) {
    ir_builder *b = c->b;
    const int64_t whole = c->m->p->head_dim_v / columns, rest = c->m->p->head_dim_v % columns;
    const ir_expr *n = ir_for_begin(b, "value_tile", ql_i(c, 0), ql_i(c, whole), 1, false);
    register_tile(c, tile, ir_let(b, "column", ir_mul(b, n, ql_i(c, columns))), columns, masked);
    ir_for_end(b);
    if (rest) register_tile(c, tile, ql_i(c, whole * columns), rest, masked);
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
