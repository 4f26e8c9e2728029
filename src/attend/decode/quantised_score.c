/* Integer scores (integer=scores or all) of a quantised K, which is read as it is stored: dot4 multiplies four columns
 * of it with four of a quantised row of Q.
 *
 *     dot   = sum_d x[d] * k[d]          exact
 *     score = dot * scale                dot rounded to f32 (exact in f64 arithmetic); then k_scale etc.
 *     score = (dot of group 0 * its k_scale + dot of group 1 * …) * scale        if K has scales by group
 *             each dot * k_scale + the group's minimum * sum_d x[d]              if it also has minima
 *
 * A byte of int4 holds two columns, which are multiplied one after the other; quantised Q is stored in that order.
 *
 * A register tile is score_keys keys by score_rows rows, d->pack of them in a vector:
 *
 *     key j    [ d0-d3 ][ d4-d7 ] … [ d0-d3 ][ d4-d7 ] …       K's columns, repeated for each row of a vector
 *     rows     [ row 0              ][ row 1           ]       a vector has the partial sums of several rows
 *
 * Each plane has its own sum. With a head_dim of at most 1024, every dot product fits into i32; intermediate sums may
 * wrap and wrap back. */
#include "attend/decode/layout.h"
#include "base/integers.h"
#include "nest/columns.h"
#include "nest/transpose.h"

/* A register tile: keys i + j of a stream, j < score_keys, and some rows. */
typedef struct quantised_tile {
    const dl_streams *streams;
    const ir_expr *i, *first_row, *first_vector;
    const ir_expr *group;  /* of K's columns */
    int64_t rows, vectors; /* of rows */
    mha_kv_row key[IR_MAX_LANES];
    mha_product product; /* vectors of rows by planes, keys */
} quantised_tile;

/* The row of a buffer that has a row for each row and group. */
static const ir_expr *of_group(const d_lanes *d, const quantised_tile *t, const ir_expr *row) {
    return ir_add(d->b, ir_times(d->b, row, d->k_groups), t->group);
}

static const ir_expr *zero_sum(const d_lanes *d) { return ir_splat(d->b, ir_int(d->b, IR_I32, 0), d->lanes); }

/* ---- Products ---- */

static void start_sums(const d_lanes *d, quantised_tile *t) {
    ir_builder *b = d->b;
    mha_product *const p = &t->product;
    mha_product_begin(p);
    for (int64_t r = 0; r < p->rows; r++) {
        const ir_expr *vector = ir_plus(b, t->first_vector, r / d->planes), *start = zero_sum(d);
        if (r % d->planes == d->planes - 1)
            start =
                ir_let(b, "start", ir_load(b, ir_at(b, d->starts, d->lanes, 2, of_group(d, t, vector), ir_idx(b, 0))));
        for (int64_t j = 0; j < p->vectors; j++) ir_store(b, mha_product_at(p, r, j), start);
    }
}

/* k_width bytes of a key, once for each row of a vector. */
static const ir_expr *load_key(const d_lanes *d, const mha_kv_row *key, const ir_expr *column, int64_t count) {
    const mha_context *c = d->c;
    uint8_t pick[IR_MAX_LANES];
    const ir_expr *const *index = mha_kv_index(c, c->k, key);
    const ir_expr *quantised = mha_load_raw_columns(c, c->k, index, column, d->k_width, count);
    for (int l = 0; l < 4 * d->lanes; l++) pick[l] = (uint8_t)(l % d->k_width);
    if (d->pack > 1) quantised = ir_shuffle(d->b, quantised, quantised, 4 * d->lanes, pick);
    return quantised;
}

/* Multiplies vector `number` of the bytes of a row of K, of which `count` exist. */
static void multiply_block(const d_lanes *d, quantised_tile *t, const ir_expr *number, int64_t count) {
    ir_builder *b = d->b;
    mha_product *const p = &t->product;
    const ir_expr *column = ir_times(b, number, d->k_width), *quantised[IR_MAX_LANES];
    for (int64_t j = 0; j < p->vectors; j++) {
        quantised[j] = load_key(d, &t->key[j], column, count);
        if (d->k_halves > 1) quantised[j] = ir_let(b, "quantised", quantised[j]);
    }
    for (int half = 0; half < d->k_halves; half++) {
        const ir_expr *block = ir_plus(b, ir_times(b, number, d->k_halves), half);
        for (int64_t j = 0; j < p->vectors; j++) mha_product_vector(p, "k", j, dl_unsigned_keys(d, quantised[j], half));
        for (int64_t r = 0; r < p->rows; r++) {
            const ir_expr *vector = ir_plus(b, t->first_vector, r / d->planes);
            mha_product_row(p, "q", r,
                            ir_load(b, dl_quantised_query(d, vector, r % d->planes, block, 0, 4 * d->lanes)));
        }
    }
}

/* Multiplies all columns of K, or those of the current group, which are whole vectors. */
static void multiply(const d_lanes *d, quantised_tile *t) {
    ir_builder *b = d->b;
    const int64_t dim = d->c->p->head_dim / d->k_halves, blocks = dim / d->k_width;
    const int64_t unroll = d->c->s->score_column_vectors;
    int64_t done = blocks / unroll * unroll;
    if (d->k_groups > 1) {
        const int64_t numbers = d->k_columns / d->k_halves / d->k_width / d->k_groups;
        const ir_expr *first = ir_times(b, t->group, numbers);
        for (int64_t i = 0; i < numbers; i++) multiply_block(d, t, ir_plus(b, first, i), d->k_width);
        return;
    }
    if (done) {
        IR_FOR(b, first, ir_idx(b, 0), ir_idx(b, done), unroll) {
            for (int64_t u = 0; u < unroll; u++) multiply_block(d, t, ir_plus(b, first, u), d->k_width);
        }
    }
    for (; done * d->k_width < dim; done++) multiply_block(d, t, ir_idx(b, done), dim - done * d->k_width);
}

/* ---- Sums ---- */

/* Stores `count` dot products from number `from` of the register tile on. Number n is of vector of rows n / keys and
 * key n % keys. Lane part * (lanes / pack) + i is number from + i, for row `part` of the vector. */
static void store_dots(const d_lanes *d, const quantised_tile *t, int64_t from, int64_t count, const ir_expr *dots) {
    ir_builder *b = d->b;
    const int64_t keys = t->product.vectors, part_lanes = d->lanes / d->pack;
    for (int64_t done = 0; done < count;) {
        const int64_t vector = (from + done) / keys, j = (from + done) % keys;
        const int lanes = (int)power_below(min_of(keys - j, count - done));
        const ir_expr *key = ir_add(b, t->streams->first[0], ir_plus(b, t->i, j));
        for (int64_t part = 0; part < d->pack && vector * d->pack + part < t->rows; part++) {
            const ir_expr *row = ir_plus(b, t->first_row, vector * d->pack + part);
            ir_store(b, ir_at(b, d->dots, lanes, 2, of_group(d, t, row), key),
                     mha_lanes_of(b, dots, (int)(part * part_lanes + done), lanes));
        }
        done += lanes;
    }
}

static const ir_expr *sum_of(const d_lanes *d, const quantised_tile *t, int64_t number) {
    const int64_t vector = number / t->product.vectors * d->planes, key = number % t->product.vectors;
    const ir_expr *first = mha_product_sum(&t->product, vector, key);
    return d->planes == 1 ? first : dl_of_planes(d, first, mha_product_sum(&t->product, vector + 1, key));
}

static void finish_sums(const d_lanes *d, const quantised_tile *t) {
    const int64_t all = t->vectors * t->product.vectors, most = d->lanes / d->pack;
    for (int64_t from = 0; from < all; from += most) {
        const int64_t count = min_of(all - from, most);
        const ir_expr *sums[IR_MAX_LANES];
        int padded = 1;
        while (padded < count) padded *= 2;
        for (int64_t i = 0; i < padded; i++) sums[i] = i < count ? sum_of(d, t, from + i) : zero_sum(d);
        const ir_expr *dots = mha_sum_parts(d->b, d->lanes, (int)most, padded, sums);
        store_dots(d, t, from, count, ir_let(d->b, "dots", dots));
    }
}

/* ---- The tile ---- */

static void multiply_group(const d_lanes *d, quantised_tile *t) {
    start_sums(d, t);
    multiply(d, t);
    finish_sums(d, t);
}

static void register_tile(d_lanes *d, quantised_tile *t, const dl_rows *rows) {
    ir_builder *b = d->b;
    t->first_row = rows->first;
    t->rows = rows->count;
    t->vectors = ceil_div(rows->count, d->pack);
    t->first_vector = rows->first;
    if (d->pack > 1)
        t->first_vector = dl_first(d, "vector", ir_div(b, rows->first, ir_idx(b, d->pack)), ir_idx(b, t->vectors),
                                   ir_idx(b, ceil_div(d->max_rows, d->pack)));
    t->product = mha_product_of(d->c, MHA_DOT4, t->vectors * d->planes, d->c->s->score_keys);
    t->product.vectors_first = true;
    t->group = ir_idx(b, 0);
    if (d->k_groups == 1) {
        multiply_group(d, t);
        return;
    }
    IR_FOR(b, group, ir_idx(b, 0), ir_idx(b, d->k_groups), 1) {
        t->group = group;
        multiply_group(d, t);
    }
}

/* Keys beyond the stream's last one repeat it. */
static void score_stream(d_lanes *d, const dl_streams *streams, const void *user) {
    ir_builder *b = d->b;
    const int64_t keys = d->c->s->score_keys;
    const bool fits = ir_is_const(streams->keys) && streams->keys->value.i % keys == 0;
    quantised_tile t = {.streams = streams};
    (void)user;
    IR_FOR(b, i, ir_idx(b, 0), streams->keys, keys) {
        t.i = i;
        for (int64_t j = 0; j < keys; j++) {
            const ir_expr *key = ir_plus(b, i, j);
            dl_prefetch_key(d, d->c->k, streams, 0, key);
            t.key[j] = dl_key_at(d, streams, 0, fits ? key : ir_min(b, key, ir_plus(b, streams->keys, -1)));
        }
        DL_ROWS(d, rows, d->c->s->score_rows) register_tile(d, &t, &rows);
    }
}

void dl_quantised_scores(d_lanes *d, const dl_tile *tile) {
    dl_load_group_scales(d, tile);
    dl_each_streams(d, tile, 1, d->c->s->score_keys, score_stream, NULL);
}

/* ---- Scales by group ---- */

/* Scales of `keys` keys from key i of the stream on: four groups of four keys are transposed together, or one by one.
 */
static void load_group_scales_at(d_lanes *d, const dl_streams *streams, const ir_expr *i, int keys) {
    enum { SQUARE = 4 };
    ir_builder *b = d->b;
    const mha_context *c = d->c;
    const ir_buffer *from = c->params.tensor[MHA_K_SCALES];
    for (int64_t group = 0; group < dl_group_numbers(d); group += keys) {
        const ir_expr *scales[SQUARE];
        for (int n = 0; n < keys; n++) {
            const mha_kv_row key = dl_key_at(d, streams, 0, ir_plus(b, i, n));
            const mha_row row = mha_kv_row_of(c, c->k, &key);
            scales[n] =
                mha_load(c, ir_at(b, from, keys, 4, row.index[0], row.index[1], row.index[2], ir_idx(b, group)));
            scales[n] = ir_let(b, "k_scale", scales[n]);
        }
        if (keys == SQUARE) mha_transpose_quarters(b, SQUARE, scales);
        for (int n = 0; n < keys; n++) {
            const ir_expr *j = ir_add(b, streams->first[0], i);
            ir_store(b, ir_at(b, d->k_group_scales, keys, 2, ir_idx(b, group + n), j), scales[n]);
        }
    }
}

static void load_group_scales_of(d_lanes *d, const dl_streams *streams, const void *user) {
    enum { SQUARE = 4 };
    ir_builder *b = d->b;
    const ir_expr *done = ir_idx(b, 0);
    (void)user;
    if (dl_group_numbers(d) % SQUARE == 0) {
        const ir_expr *rest = ir_mod(b, streams->keys, ir_idx(b, SQUARE));
        IR_FOR(b, i, done, ir_sub(b, streams->keys, ir_idx(b, SQUARE - 1)), SQUARE) {
            load_group_scales_at(d, streams, i, SQUARE);
        }
        if (ir_is(rest, 0)) return;
        done = dl_first(d, "done", ir_sub(b, streams->keys, rest), ir_idx(b, 0), streams->keys);
    }
    IR_FOR(b, i, done, streams->keys, 1) load_group_scales_at(d, streams, i, 1);
}

void dl_load_group_scales(d_lanes *d, const dl_tile *tile) {
    if (!d->k_group_scales) return;
    for (int64_t group = 0; group < dl_group_numbers(d); group++) {
        const ir_access *beyond = ir_at(d->b, d->k_group_scales, d->lanes, 2, ir_idx(d->b, group), tile->keys);
        ir_store(d->b, beyond, mha_number(d->c, 1, d->lanes));
    }
    dl_each_streams(d, tile, 1, 1, load_group_scales_of, NULL);
}

static const ir_expr *group_number(const d_lanes *d, int64_t number, const ir_expr *j) {
    return ir_load(d->b, ir_at(d->b, d->k_group_scales, d->lanes, 2, ir_idx(d->b, number), j));
}

/* The groups' dot products times their scales, added in the order of the groups. */
static const ir_expr *sum_of_groups(const d_lanes *d, const ir_expr *r, const ir_expr *j) {
    ir_builder *b = d->b;
    const ir_expr *sum = NULL;
    for (int64_t group = 0; group < d->k_groups; group++) {
        const ir_expr *row = ir_plus(b, ir_times(b, r, d->k_groups), group);
        const ir_expr *dots = ir_cast(b, d->c->elem, ir_load(b, ir_at(b, d->dots, d->lanes, 2, row, j)));
        if (d->k_group_scales) dots = ir_mul(b, dots, group_number(d, group, j));
        if (d->q_sums) {
            const ir_expr *quantised = ir_splat(b, ir_load(b, ir_at(b, d->q_sums, 1, 1, row)), d->lanes);
            dots = ir_add(b, dots, ir_mul(b, group_number(d, d->k_groups + group, j), quantised));
        }
        sum = sum ? ir_let(b, "group_sum", ir_add(b, sum, dots)) : dots;
    }
    return sum;
}

const ir_expr *dl_score_of_dots(const d_lanes *d, const ir_expr *r, const ir_expr *j) {
    ir_builder *b = d->b;
    const ir_expr *scale = ir_load(b, ir_at(b, d->q_scales, 1, 1, r));
    return ir_mul(b, sum_of_groups(d, r, j), ir_splat(b, scale, d->lanes));
}
