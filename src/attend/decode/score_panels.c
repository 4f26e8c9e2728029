/* S = Q K^T for one tile, K in panels. Panels store neighbouring keys side by side, so lanes run along keys, and an
 * element of Q, or a pair, is broadcast to all lanes. There is no reduction over lanes: each score is summed serially
 * along head_dim, as in prefill.
 *
 *               keys 0 … L-1       keys L … 2L-1
 *     row 0   [ a a a a a a a ] [ a a a a a a a ]        a += Q[row][d] * K[d][keys]
 *     row 1   [ a a a a a a a ] [ a a a a a a a ]             in all lanes  one vector of a panel
 *
 * A register tile is score_rows rows by score_keys vectors of keys. Tiles begin with panels, and the lanes divide a
 * panel, so a vector lies within one panel. Vectors beyond the last key repeat the last vector. */
#include "attend/decode/layout.h"

typedef struct panel_tile {
    const ir_expr *first; /* key within the tile */
    const ir_expr *first_row;
    mha_row vector[IR_MAX_LANES]; /* the first token of each */
    mha_product product;          /* rows by vectors of keys */
} panel_tile;

mha_row dl_vector_of_keys(const d_lanes *d, const dl_tile *tile, const ir_expr *first, int64_t number) {
    ir_builder *b = d->b;
    const ir_expr *last = ir_plus(b, tile->keys, -1), *lanes = ir_idx(b, d->lanes);
    const ir_expr *j = ir_min(b, ir_plus(b, first, number * d->lanes), last);
    const mha_kv_row key = mha_kv_row_at(d->c, &d->sequence, d->kv_head, ir_let(b, "key", ir_add(b, tile->first, j)));
    mha_row vector = mha_kv_row_of(d->c, d->c->k, &key);
    const ir_expr *place = ir_mul(b, ir_div(b, vector.first, lanes), lanes);
    vector.first = ir_let_index(b, "place", ir_idx(b, ATTUNE_PANEL_TOKENS - d->lanes + 1), place);
    return vector;
}

static const ir_access *query_at(const d_lanes *d, const panel_tile *t, int row, const ir_expr *column, int lanes) {
    return ir_at(d->b, d->q, lanes, 2, ir_plus(d->b, t->first_row, row), column);
}

static const ir_access *keys_of_unit(const d_lanes *d, const panel_tile *t, int v, const ir_expr *unit) {
    return mha_panel_keys(d->c, &t->vector[v], unit, d->lanes);
}

/* Adds Q * K of one unit of columns, which a panel interleaves. Unless products are of pairs, each column of a unit is
 * a step. */
static void multiply(d_lanes *d, panel_tile *t, const ir_expr *column, int64_t count) {
    ir_builder *b = d->b;
    mha_product *p = &t->product;
    const int64_t columns = mha_unit_of(d->c->k);
    const ir_expr *keys[IR_MAX_LANES], *unit = ir_div(b, column, ir_idx(b, columns));
    (void)count; /* head_dim is whole units */
    for (int v = 0; v < p->vectors; v++) keys[v] = ir_let(b, "k", ir_load(b, keys_of_unit(d, t, v, unit)));
    const int steps = d->c->variant.by_pairs ? 1 : (int)columns;
    for (int i = 0; i < steps; i++) {
        for (int v = 0; v < p->vectors; v++) {
            const ir_expr *k = steps == 4               ? mha_byte_of_units(d->c, keys[v], i)
                               : steps == 2             ? mha_half_of_pairs(d->c, keys[v], i)
                               : d->c->variant.by_pairs ? keys[v]
                                                        : mha_widened(d->c, keys[v]);
            mha_product_vector(p, "k", v, k);
        }
        for (int r = 0; r < p->rows; r++)
            mha_product_repeat(p, "q", r, query_at(d, t, r, ir_plus(b, column, i), d->c->variant.by_pairs ? 2 : 1));
    }
}

/* The same for a block of int4 values, in the order of its columns: first those in the lower halves of its bytes. */
static void multiply_nibbles(d_lanes *d, panel_tile *t, const ir_expr *column, int64_t count) {
    enum { UNIT = 4, UNITS = 4, HALF = MHA_BLOCK_COLUMNS / 2 };
    ir_builder *b = d->b;
    mha_product *p = &t->product;
    const ir_expr *first = ir_times(b, ir_div(b, column, ir_idx(b, MHA_BLOCK_COLUMNS)), UNITS), *keys[IR_MAX_LANES];
    for (int i = 0; i < count; i++) {
        const int half = i / HALF, unit = i % HALF / UNIT, byte = i % UNIT;
        for (int v = 0; v < p->vectors; v++) {
            if (byte == 0) keys[v] = ir_let(b, "k", ir_load(b, keys_of_unit(d, t, v, ir_plus(b, first, unit))));
            mha_product_vector(p, "k", v, mha_nibble_of_units(d->c, keys[v], byte, half));
        }
        for (int r = 0; r < p->rows; r++) mha_product_repeat(p, "q", r, query_at(d, t, r, ir_plus(b, column, i), 1));
    }
}

void dl_panel_scores(d_lanes *d, const dl_tile *tile) {
    ir_builder *b = d->b;
    const bool is_i4 = d->c->p->k_dtype == ATTUNE_I4;
    const int64_t width = is_i4 ? MHA_BLOCK_COLUMNS : mha_unit_of(d->c->k);
    const int64_t unroll = is_i4 ? 1 : d->c->s->score_column_vectors, vectors = d->c->s->score_keys;
    panel_tile t;
    IR_FOR(b, first, ir_idx(b, 0), tile->keys, vectors * d->lanes) {
        t.first = first;
        for (int v = 0; v < vectors; v++) t.vector[v] = dl_vector_of_keys(d, tile, first, v);
        DL_ROWS(d, rows, d->c->s->score_rows) {
            t.first_row = rows.first;
            t.product = mha_product_of(d->c, dl_kind(d), rows.count, vectors);
            t.product.vectors_first = true;
            mha_product_clear(&t.product);
            DL_COLUMNS(d, c, "d", d->c->p->head_dim, width, unroll) {
                (is_i4 ? multiply_nibbles : multiply)(d, &t, c.at, c.count);
            }
            for (int r = 0; r < rows.count; r++)
                for (int v = 0; v < vectors; v++) {
                    const ir_expr *row = ir_plus(b, rows.first, r), *j = ir_plus(b, first, (int64_t)v * d->lanes);
                    ir_store(b, ir_at(b, d->scores, d->lanes, 2, row, j), mha_product_sum(&t.product, r, v));
                }
        }
    }
}
