/* Integer scores and values of caches in panels. Panels interleave four bytes as a lane of dot4 reads them, so there
 * are no shuffles and no reductions over lanes:
 *
 *     K panel    [ d0-d3 of key 0 ][ d0-d3 of key 1 ] …                lanes run along keys
 *     V panel    [ c0 of keys 0-3 ][ c1 of keys 0-3 ] …                lanes run along columns
 *
 * The sums are those of quantised_score.c and quantised_value.c.
 *
 * Scores: four values of a row of Q are broadcast to all lanes. A register tile is score_rows rows by score_keys
 * vectors of keys. Tiles begin with panels, and the lanes divide a panel, so a vector lies within one panel. Vectors
 * beyond the last key repeat the last vector.
 *
 * Values: the quantised probabilities of four keys are broadcast. A register tile is value_rows rows by
 * value_column_vectors vectors. Keys beyond the last one may be anything in V, as their quantised probabilities are 0.
 *
 * A byte of int4 holds two columns, so each load gives two factors. In scores they are multiplied with the columns of
 * the lower halves and then of the upper halves; in values each has its own sum. */
#include "attend/decode/layout.h"
#include "base/integers.h"

enum { FOUR = 4, TOKENS = ATTUNE_PANEL_TOKENS };

/* Prefetches an element some panels ahead, if the schedule prefetches. */
static void fetch_panel(const d_lanes *d, const mha_row *row, const ir_expr *element) {
    const int64_t ahead = d->c->s->kv_prefetch, columns = mha_panel_columns(d->c, row->buffer);
    if (ahead > 0) ir_prefetch(d->b, mha_panel_ahead(d->c, row, ceil_div(ahead, TOKENS * columns), element));
}

/* ---- Scores ---- */

typedef struct key_tile {
    const ir_expr *first; /* key within the tile */
    const ir_expr *first_row, *block;
    mha_row vector[IR_MAX_LANES]; /* the first token of each */
    mha_product product;          /* rows by planes, vectors of keys */
} key_tile;

/* Multiplies four columns of each half of the bytes: unit `unit` of the block. */
static void multiply_unit(d_lanes *d, key_tile *t, const ir_expr *unit) {
    ir_builder *b = d->b;
    mha_product *p = &t->product;
    const ir_expr *number = ir_add(b, ir_times(b, t->block, d->lanes), unit), *from = ir_times(b, unit, FOUR);
    const ir_expr *quantised[IR_MAX_LANES];
    for (int64_t v = 0; v < p->vectors; v++) {
        quantised[v] = ir_load(b, mha_panel_keys(d->c, &t->vector[v], number, d->lanes));
        if (d->k_halves > 1) quantised[v] = ir_let(b, "quantised", quantised[v]);
        fetch_panel(d, &t->vector[v], ir_times(b, number, TOKENS * FOUR));
        mha_product_vector(p, "k", v, dl_unsigned_keys(d, quantised[v], 0));
    }
    for (int half = 0; half < d->k_halves; half++) {
        const ir_expr *block = ir_plus(b, ir_times(b, t->block, d->k_halves), half);
        for (int64_t v = 0; half && v < p->vectors; v++)
            mha_product_vector(p, "k", v, dl_unsigned_keys(d, quantised[v], half));
        for (int64_t r = 0; r < p->rows; r++) {
            const ir_expr *row = ir_plus(b, ir_times(b, t->first_row, d->planes), r);
            mha_product_repeat(p, "q", r, ir_at(b, d->q, FOUR, 3, row, block, from));
        }
    }
}

static void multiply_units(d_lanes *d, key_tile *t, const ir_expr *block, int64_t units) {
    t->block = block;
    DL_COLUMNS(d, unit, "unit", units, 1, d->c->s->score_column_vectors) multiply_unit(d, t, unit.at);
}

static void store_dots(d_lanes *d, const key_tile *t, int64_t row) {
    ir_builder *b = d->b;
    const ir_expr *r = ir_plus(b, t->first_row, row);
    for (int64_t v = 0; v < t->product.vectors; v++) {
        const ir_expr *dots = mha_product_sum(&t->product, row * d->planes, v);
        if (d->planes == 2) dots = dl_of_planes(d, dots, mha_product_sum(&t->product, row * d->planes + 1, v));
        ir_store(b, ir_at(b, d->dots, d->lanes, 2, r, ir_plus(b, t->first, v * d->lanes)), dots);
    }
}

void dl_quantised_panel_scores(d_lanes *d, const dl_tile *tile) {
    ir_builder *b = d->b;
    const int64_t units = d->c->p->head_dim / d->k_halves / FOUR, whole = units / d->lanes, rest = units % d->lanes;
    const int64_t vectors = d->c->s->score_keys;
    key_tile t = {0};
    dl_load_group_scales(d, tile);
    IR_FOR(b, first, ir_idx(b, 0), tile->keys, vectors * d->lanes) {
        t.first = first;
        for (int v = 0; v < vectors; v++) t.vector[v] = dl_vector_of_keys(d, tile, first, v);
        DL_ROWS(d, rows, d->c->s->score_rows) {
            t.first_row = rows.first;
            t.product = mha_product_of(d->c, MHA_DOT4, rows.count * d->planes, vectors);
            t.product.vectors_first = true;
            mha_product_clear(&t.product);
            for (int64_t r = 0; r < rows.count; r++) {
                const ir_access *start = ir_at(b, d->starts, d->lanes, 2, ir_plus(b, rows.first, r), ir_idx(b, 0));
                const ir_expr *lanes = ir_let(b, "start", ir_load(b, start));
                for (int64_t v = 0; v < vectors; v++)
                    ir_store(b, mha_product_at(&t.product, (r + 1) * d->planes - 1, v), lanes);
            }
            if (whole) {
                IR_FOR(b, block, ir_idx(b, 0), ir_idx(b, whole), 1) multiply_units(d, &t, block, d->lanes);
            }
            if (rest) multiply_units(d, &t, ir_idx(b, whole), rest);
            for (int64_t r = 0; r < rows.count; r++) store_dots(d, &t, r);
        }
    }
}

/* ---- Values ---- */

/* Some rows and vectors of columns, over the keys of a tile. */
typedef struct value_tile {
    mha_product product; /* rows by planes, vectors of columns: for int4 two for each vector of bytes */
    const ir_expr *first_row, *column;
    int64_t count; /* columns that exist; for int4 bytes */
} value_tile;

/* Adds the products of four keys from key j of the tile on. */
static void add_unit(d_lanes *d, value_tile *t, const mha_panel_unit *unit, const ir_expr *j) {
    ir_builder *b = d->b;
    mha_product *p = &t->product;
    for (int64_t v = 0; v < p->vectors; v += d->v_halves) {
        const int64_t from = v / d->v_halves * d->lanes;
        const ir_expr *column = ir_plus(b, t->column, from);
        const ir_expr *quantised = mha_load_panel_values(d->c, unit, column, d->lanes, t->count - from);
        if (d->v_halves > 1) quantised = ir_let(b, "quantised", quantised);
        for (int half = 0; half < d->v_halves; half++)
            mha_product_vector(p, "v", v + half, dl_value_factors(d, quantised, half));
        fetch_panel(d, &unit->row, ir_add(b, unit->at, ir_times(b, column, FOUR)));
    }
    for (int64_t r = 0; r < p->rows; r++) {
        const ir_expr *row = ir_plus(b, t->first_row, r / d->planes);
        mha_product_repeat(p, "p", r, dl_quantised_probabilities(d, row, r % d->planes, j, FOUR));
    }
}

static mha_panel_unit unit_at(d_lanes *d, const dl_streams *streams, const ir_expr *i) {
    const mha_kv_row key = dl_key_at(d, streams, 0, i);
    const mha_row row = mha_kv_row_of(d->c, d->c->v, &key);
    return mha_panel_unit_of(d->c, &row);
}

/* Streams begin with panels: first whole panels, then the units of the last one. */
static void add_stream(d_lanes *d, const dl_streams *streams, const void *user) {
    ir_builder *b = d->b;
    value_tile t = *(const value_tile *)user;
    const ir_expr *rest = ir_mod(b, streams->keys, ir_idx(b, TOKENS));
    IR_FOR(b, panel, ir_idx(b, 0), ir_div(b, streams->keys, ir_idx(b, TOKENS)), 1) {
        const ir_expr *i = dl_first(d, "in_stream", ir_times(b, panel, TOKENS), ir_idx(b, TOKENS), streams->keys);
        const mha_panel_unit unit = unit_at(d, streams, i);
        for (int n = 0; n < TOKENS / FOUR; n++) {
            const mha_panel_unit at = mha_panel_unit_after(d->c, &unit, n);
            add_unit(d, &t, &at, ir_add(b, streams->first[0], ir_plus(b, i, (int64_t)n * FOUR)));
        }
    }
    if (ir_is(rest, 0)) return;
    const ir_expr *done = dl_first(d, "done", ir_sub(b, streams->keys, rest), ir_idx(b, 0), streams->keys);
    IR_FOR(b, i, done, streams->keys, FOUR) {
        const mha_panel_unit unit = unit_at(d, streams, i);
        add_unit(d, &t, &unit, ir_add(b, streams->first[0], i));
    }
}

/* Adds a row's sums of all planes to O. */
static void join_row(d_lanes *d, const value_tile *t, int64_t row) {
    const dl_joined_row joined = dl_joined_row_of(d, ir_plus(d->b, t->first_row, row));
    for (int64_t v = 0; v < t->product.vectors; v++) {
        const ir_expr *sum = NULL;
        for (int i = 0; i < d->planes; i++)
            sum = dl_sum_with_plane(d, sum, dl_value_sum(d, mha_product_sum(&t->product, row * d->planes + i, v)));
        const ir_expr *first = ir_plus(d->b, t->column, v / d->v_halves * d->lanes);
        dl_join_values(d, &joined, dl_output_column(d, first, (int)(v % d->v_halves)), sum);
    }
}

void dl_quantised_panel_values(d_lanes *d, const dl_tile *tile) {
    const int64_t width = (int64_t)d->lanes * d->c->s->value_column_vectors;
    DL_ROWS(d, rows, d->c->s->value_rows) {
        DL_COLUMNS(d, c, "column", d->c->p->head_dim_v / d->v_halves, width, 1) {
            const int64_t vectors = ceil_div(c.count, d->lanes) * d->v_halves;
            value_tile t = {.product = mha_product_of(d->c, MHA_DOT4, d->planes * rows.count, vectors),
                            .first_row = rows.first,
                            .column = c.at,
                            .count = c.count};
            mha_product_clear(&t.product);
            dl_each_streams(d, tile, 1, FOUR, add_stream, &t);
            for (int64_t row = 0; row < rows.count; row++) join_row(d, &t, row);
        }
    }
}
