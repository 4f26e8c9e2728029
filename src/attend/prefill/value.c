/* O^T = O^T * factor + V^T P^T for one tile and stripe, lanes along query rows.
 *
 *                 rows 0 … L-1     rows L … 2L-1
 *     column 0  [ a a a a a a a ] [ a a a a a a a ]        a += V[j][column] * P^T[j][row], for keys j of the tile
 *     column 1  [ a a a a a a a ] [ a a a a a a a ]             in all lanes    one vector
 *
 * A register tile is value_columns columns by value_row_vectors vectors of rows. Its sums begin with 0 and are added to
 * O^T afterwards: one serial sum over all tiles would have a rounding error for each key. Remaining columns get a
 * smaller register tile: register tiles of scores may overlap, but a sum must not be added twice. */
#include "attend/prefill/layout.h"

/* A register tile: columns of V by value_row_vectors vectors of query rows. */
typedef struct value_tile {
    const ir_expr *first;  /* first column of V */
    const ir_expr *vector; /* first vector of query rows within the stripe */
    mha_product product;
    /* A value of V that is hidden from a row is replaced by 0, as it may be NaN or infinite. Its probability is 0
     * already. */
    bool masked;
    /* If V is paged and read in place: the current page, and its first key. */
    const ir_expr *page, *page_key;
} value_tile;

static const ir_expr *row_at(const q_lanes *c, const value_tile *t, int64_t v) {
    return ir_times(c->b, ir_plus(c->b, t->vector, v), c->m->lanes);
}

/* Bits of a pair's keys that are visible to the rows. The second key may be beyond the last one. */
static const ir_expr *visible_bits(q_lanes *c, const q_lanes_tile *tile, const q_lanes_sight *sight, const ir_expr *at,
                                   const ir_expr *pair) {
    ir_builder *b = c->b;
    const ir_expr *first = ir_times(b, pair, 2), *seen[2];
    const ir_expr *second = ir_let(b, "second", ir_min(b, ir_plus(b, first, 1), ir_plus(b, tile->to, -1)));
    for (int i = 0; i < 2; i++) {
        const ir_expr *j = i ? second : first, *key = ir_let(b, "key", ir_add(b, tile->first_key, j));
        seen[i] = ql_is_visible(c, sight, at, key, j);
    }
    const ir_expr *exists = ir_splat(b, ir_gt(b, second, first), c->m->lanes);
    return mha_seen_bits(c->m, seen[0], ir_and(b, seen[1], exists));
}

/* x in the lanes of vector `v` of the rows that attend to key, or pair, j; 0 in the others. */
static const ir_expr *where_visible(q_lanes *c, const q_lanes_tile *tile, const value_tile *t, int64_t v,
                                    const ir_expr *j, const ir_expr *x) {
    const ir_expr *at = row_at(c, t, v);
    const q_lanes_sight sight = ql_sight(c, tile, at);
    if (c->v->by_pairs) return mha_where_seen(c->m, ql_kind(c), visible_bits(c, tile, &sight, at, j), x);
    const ir_expr *key = ir_let(c->b, "key", ir_add(c->b, tile->first_key, j));
    return mha_where_seen(c->m, ql_kind(c), ql_is_visible(c, &sight, at, key, j), x);
}

/* Adds V^T P^T of j: a key, or a pair of keys, of the tile. */
static void multiply(q_lanes *c, const q_lanes_tile *tile, value_tile *t, const ir_expr *j) {
    ir_builder *b = c->b;
    mha_product *p = &t->product;
    mha_kv_row row = {0};
    if (!c->values && !c->v->by_pairs) {
        const ir_expr *key = ir_let(b, "key", ir_add(b, tile->first_key, j));
        if (t->page)
            row = (mha_kv_row){.index = {t->page, c->kv_head, ir_let(b, "slot", ir_sub(b, key, t->page_key))}};
        else
            row = mha_kv_row_at(c->m, &c->e, c->kv_head, key);
    }
    const ir_expr *pair = c->v->by_pairs ? ql_pair_of(c, tile, j) : NULL;
    mha_product_hold(p, "probabilities");
    for (int v = 0; v < p->vectors; v++) {
        const ir_expr *probability = ir_load(b, ql_probability_at(c, ir_plus(b, t->vector, v), j));
        /* The probability has been multiplied by V's scale, which may be NaN for a hidden key. */
        const bool hides = t->masked && c->m->params.tensor[MHA_V_SCALE];
        mha_product_vector(p, NULL, v, hides ? where_visible(c, tile, t, v, j, probability) : probability);
    }
    for (int column = 0; column < p->rows; column++) {
        const ir_expr *d = ir_plus(b, t->first, column);
        const ir_access *at = pair        ? ql_pair_at(c, pair, d, 1)
                              : c->values ? ir_at(b, c->values, 1, 2, j, d)
                                          : mha_kv_access(c->m, c->m->v, &row, d, 1);
        const ir_expr *value = ir_let(b, "value", mha_load_repeated(c->m, p->kind, at, p->lanes));
        for (int v = 0; v < p->vectors; v++)
            mha_product_add(p, column, v, t->masked ? where_visible(c, tile, t, v, j, value) : value);
    }
}

/* ---- A register tile ---- */

/* Keys, or pairs, lo … hi - 1 of the tile: value_keys of them in an iteration, and the remaining ones one by one. */
static void add_keys(q_lanes *c, const q_lanes_tile *tile, value_tile *t, const ir_expr *lo, const ir_expr *hi) {
    ir_builder *b = c->b;
    const int32_t unroll = t->masked ? 1 : c->m->s->value_keys;
    MHA_STEPS(c->m, j, lo, ir_plus(b, hi, 1 - unroll), unroll) multiply(c, tile, t, j);
    if (unroll == 1) return;
    const ir_expr *left = ir_mod(b, ir_sub(b, hi, lo), ir_idx(b, unroll));
    const ir_expr *done = ir_let_in(b, "done", lo, ir_plus(b, hi, 1), ir_sub(b, hi, left));
    MHA_STEPS(c->m, j, done, hi, 1) multiply(c, tile, t, j);
}

/* Page by page, so that the block table is read once for each page. */
static void add_pages(q_lanes *c, const q_lanes_tile *tile, value_tile *t) {
    ir_builder *b = c->b;
    const ir_expr *size = c->m->params.size[MHA_PAGE_SIZE];
    const ir_expr *first = mha_page_of(c->m, ir_add(b, tile->first_key, tile->from));
    const ir_expr *last = mha_page_of(c->m, ir_add(b, tile->first_key, ir_plus(b, tile->to, -1)));
    IR_LOOP(b, n, ir_for_begin(b, "column_of_table", first, ir_plus(b, last, 1), 1, false)) {
        t->page_key = ir_let(b, "page_key", ir_mul(b, n, size));
        t->page = mha_kv_row_at(c->m, &c->e, c->kv_head, t->page_key).index[0];
        const ir_expr *lo = ir_let(b, "page_from", ir_sub(b, t->page_key, tile->first_key));
        const ir_expr *from = ir_let(b, "page_lo", ir_max(b, lo, tile->from));
        add_keys(c, tile, t, from, ir_let(b, "page_hi", ir_min(b, ir_add(b, lo, size), tile->to)));
    }
}

/* Some columns of V for all rows of the stripe. Adds their sums to those of earlier tiles. */
static void register_tiles(q_lanes *c, const q_lanes_tile *tile, const ir_expr *first, int64_t columns, bool masked) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    const int64_t vectors = c->m->s->value_row_vectors;
    value_tile t = {.first = first, .masked = masked, .product = mha_product_of(c->m, ql_kind(c), columns, vectors)};
    IR_FOR(b, vector, ir_idx(b, 0), ir_idx(b, c->m->s->score_row_vectors), vectors) {
        t.vector = vector;
        mha_product_clear(&t.product);
        if (c->m->p->page_size && !c->values)
            add_pages(c, tile, &t);
        else
            add_keys(c, tile, &t, ir_div(b, tile->from, ir_idx(b, ql_width(c))), ir_ceil_div(b, tile->to, ql_width(c)));
        for (int v = 0; v < vectors; v++) {
            const ir_expr *rows = row_at(c, &t, v);
            const ir_expr *factor = ir_let(b, "shrink", ir_load(b, ir_at(b, c->factor, lanes, 1, rows)));
            for (int column = 0; column < columns; column++) {
                const ir_expr *d = ir_plus(b, first, column);
                mha_join_sum(c->m, ir_at(b, c->ot, lanes, 3, tile->stripe, d, rows), c->ot_lost, factor,
                             mha_product_sum(&t.product, column, v));
            }
        }
    }
}

/* All columns of V, `columns` at a time, and then the remaining ones. */
static void all_columns(q_lanes *c, const q_lanes_tile *tile, int64_t columns, bool masked) {
    ir_builder *b = c->b;
    const int64_t whole = c->m->p->head_dim_v / columns, rest = c->m->p->head_dim_v % columns;
    IR_LOOP(b, n, ir_for_begin(b, "value_tile", ir_idx(b, 0), ir_idx(b, whole), 1, false)) {
        register_tiles(c, tile, ir_let(b, "column", ir_times(b, n, columns)), columns, masked);
    }
    if (rest) register_tiles(c, tile, ir_idx(b, whole * columns), rest, masked);
}

/* Tiles with hidden values that are NaN or infinite are rare. They are computed column by column, which is slow but
 * little code. */
void ql_values(q_lanes *c, const q_lanes_tile *tile) {
    IR_GUARD(c->b, tile->is_finite, tile->is_finite) all_columns(c, tile, c->m->s->value_columns, false);
    if (!tile->is_finite) return;
    IR_ELSE(c->b) all_columns(c, tile, 1, true);
}
