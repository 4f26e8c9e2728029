/* Values in integers (integer=all): V's codes as they lie, and the probabilities of a tile as codes of 16 bits.
 *
 *     w      = p * v_scale, 0 where p is 0       of each key that the row sees in the tile
 *     range  = max w                             NaN if some w is negative, NaN or infinite
 *     code   = rint(w / range * 65535)           0 if range is 0 or not finite
 *     o     += (sum_j code[j] * v[j]) * (range / 65535)     the sum is exact
 *
 * A code is two planes of unsigned bytes, high * 256 + low; each is a row of the register tile. A tile has at most 256
 * keys (MHA_INTEGER_KEYS), so that 256 * 65535 * 128 is still an i32. Range and codes are those of a tile, because a
 * tile that comes after a much larger one would else be rounded to nothing.
 *
 * dot4 wants the bytes of four keys side by side. Rows of V are interleaved for that within segments of 16 columns, as
 * unpack instructions do, and the columns of a finished sum are put in order. */
#include "attend/codes.h"
#include "attend/d_lanes.h"
#include "nest/columns.h"

#include <math.h>

enum { FOUR = 4, PLANES = 2, LARGEST = 65535, PLANE_BITS = 8 };

/* ---- Probabilities ---- */

static const ir_expr *int_lanes(const d_lanes *d, int32_t value, int lanes) {
    return ir_splat(d->b, ir_int(d->b, IR_I32, value), lanes);
}

static const ir_expr *plane_row(const d_lanes *d, const ir_expr *r, int64_t plane) {
    return ir_plus(d->b, ir_times(d->b, r, PLANES), plane);
}

/* The weights of keys j, j + 1, … The scale of a hidden key may be anything. */
static const ir_expr *weights_at(const d_lanes *d, const ir_expr *r, const ir_expr *j) {
    ir_builder *b = d->b;
    const ir_expr *p = ir_let(b, "p", ir_load(b, ir_at(b, d->scores, d->lanes, 2, r, j)));
    if (!d->c->params.tensor[MHA_V_SCALE]) return p;
    const ir_expr *zero = mha_number(d->c, 0, d->lanes);
    return ir_select(b, ir_eq(b, p, zero), zero, ir_mul(b, p, dl_v_scales(d, j, d->lanes)));
}

/* A maximum would ignore a NaN, but the sum of 0 * w is NaN if some w is NaN or infinite. */
static const ir_expr *range_of(const d_lanes *d, const dl_tile *tile, const ir_expr *r) {
    ir_builder *b = d->b;
    const mha_context *c = d->c;
    const ir_expr *zero = mha_number(c, 0, d->lanes);
    const ir_access *most = ir_mutable(b, "most", zero), *least = ir_mutable(b, "least", zero);
    const ir_access *odd = ir_mutable(b, "odd", zero);
    IR_FOR(b, j, ir_idx(b, 0), tile->keys, d->lanes) {
        const ir_expr *w = ir_let(b, "w", weights_at(d, r, j));
        ir_store(b, most, ir_max(b, w, ir_load(b, most)));
        ir_store(b, least, ir_min(b, w, ir_load(b, least)));
        ir_store(b, odd, ir_add(b, ir_load(b, odd), ir_mul(b, w, zero)));
    }
    const ir_expr *sum = ir_reduce(b, IR_ADD, ir_let(b, "odd_lanes", ir_load(b, odd)));
    const ir_expr *range = ir_add(b, ir_reduce(b, IR_MAX, ir_let(b, "most_lanes", ir_load(b, most))), sum);
    const ir_expr *lowest = ir_reduce(b, IR_MIN, ir_let(b, "least_lanes", ir_load(b, least)));
    const ir_expr *is_negative = ir_lt(b, lowest, mha_number(c, 0, 1));
    return ir_let(b, "range", ir_select(b, is_negative, mha_number(c, NAN, 1), range));
}

static void store_codes(const d_lanes *d, const ir_expr *r, const ir_expr *j, const ir_expr *code) {
    ir_builder *b = d->b;
    const ir_expr *high = ir_apply(b, IR_SHR, code, int_lanes(d, PLANE_BITS, d->lanes), NULL);
    ir_store(b, ir_at(b, d->p_codes, d->lanes, 2, plane_row(d, r, 0), j), ir_cast(b, IR_I8, high));
    ir_store(b, ir_at(b, d->p_codes, d->lanes, 2, plane_row(d, r, 1), j), ir_cast(b, IR_I8, code));
}

static void encode_row(const d_lanes *d, const dl_tile *tile, const ir_expr *r) {
    ir_builder *b = d->b;
    const mha_context *c = d->c;
    const ir_expr *range = range_of(d, tile, r);
    const ir_expr *usable = ir_let(b, "usable", mha_is_usable_scale(c, range));
    IR_FOR(b, j, ir_idx(b, 0), tile->keys, d->lanes) {
        const ir_expr *part = mha_over_scale(c, weights_at(d, r, j), range, usable);
        const ir_expr *code = ir_rint(b, ir_mul(b, part, mha_number(c, LARGEST, d->lanes)));
        store_codes(d, r, j, ir_let(b, "code", ir_cast(b, IR_I32, code)));
    }
    /* A last key that is alone is multiplied with its three neighbours' codes and zeros. */
    const ir_expr *none = ir_bitcast(b, IR_I8, ir_int(b, IR_I32, 0));
    for (int64_t plane = 0; plane < PLANES; plane++)
        ir_store(b, ir_at(b, d->p_codes, FOUR, 2, plane_row(d, r, plane), tile->keys), none);
    ir_store(b, ir_at(b, d->p_scales, 1, 1, r), ir_div(b, range, mha_number(c, LARGEST, 1)));
}

/* ---- Columns of four rows of V ---- */

/* Columns of V in a vector, and in a segment of one. */
static int width_of(const d_lanes *d) { return FOUR * d->lanes; }
static int segment_of(const d_lanes *d) { return width_of(d) < 16 ? width_of(d) : 16; }

/* Elements of `bytes` bytes from the lower or the upper halves of the segments of x and y, by turns. */
static const ir_expr *unpack(const d_lanes *d, const ir_expr *x, const ir_expr *y, int bytes, bool upper) {
    uint8_t pick[IR_MAX_LANES];
    const int width = width_of(d), segment = segment_of(d), half = segment / 2;
    for (int l = 0; l < width; l++) {
        const int in_segment = l % segment, turn = in_segment / bytes;
        const int from = l / segment * segment + (upper ? half : 0) + turn / 2 * bytes + in_segment % bytes;
        pick[l] = (uint8_t)(turn % 2 ? width + from : from);
    }
    return ir_let(d->b, "v", ir_shuffle(d->b, x, y, width, pick));
}

/* Lane l of vector i holds column segment * (l / q) + q * i + l % q of four rows, q being a quarter of a segment. */
static void interleave(const d_lanes *d, const ir_expr *const row[FOUR], const ir_expr *vector[FOUR]) {
    for (int upper = 0; upper < 2; upper++) {
        const ir_expr *first = unpack(d, row[0], row[1], 1, upper), *second = unpack(d, row[2], row[3], 1, upper);
        for (int i = 0; i < 2; i++) vector[2 * upper + i] = unpack(d, first, second, 2, i);
    }
}

/* Vector number `m` of the columns in order. */
static const ir_expr *in_order(const d_lanes *d, const ir_expr *const sum[FOUR], int m) {
    ir_builder *b = d->b;
    const int segment = segment_of(d), q = segment / FOUR;
    uint8_t pick[IR_MAX_LANES], both[IR_MAX_LANES];
    for (int l = 0; l < d->lanes; l++) {
        const int column = m * d->lanes + l, vector = column % segment / q;
        const int from = column / segment * q + column % q;
        pick[l] = (uint8_t)(vector % 2 ? d->lanes + from : from);
        both[l] = (uint8_t)(vector < 2 ? l : d->lanes + l);
    }
    const ir_expr *low = ir_shuffle(b, sum[0], sum[1], d->lanes, pick);
    const ir_expr *high = ir_shuffle(b, sum[2], sum[3], d->lanes, pick);
    return ir_shuffle(b, low, high, d->lanes, both);
}

/* ---- Products ---- */

/* Some rows and one vector of columns of V, over the keys of a tile. */
typedef struct value_block {
    mha_product product; /* rows by planes, four vectors */
    const ir_expr *first_row, *column;
    int64_t count; /* columns that exist */
} value_block;

/* Adds the products of `keys` keys from key i of the stream on: four, or one. */
static void add_keys(d_lanes *d, value_block *block, const dl_streams *streams, const ir_expr *i, int keys) {
    ir_builder *b = d->b;
    mha_product *p = &block->product;
    const ir_expr *row[FOUR], *vector[FOUR];
    for (int n = 0; n < FOUR; n++) {
        row[n] = ir_bitcast(b, IR_I8, int_lanes(d, 0, d->lanes));
        if (n >= keys) continue;
        const mha_kv_row key = dl_key_at(d, streams, 0, ir_plus(b, i, n));
        const ir_expr *const *index = mha_kv_index(d->c, d->c->v, &key);
        row[n] = mha_load_raw_columns(d->c, d->c->v, index, block->column, width_of(d), block->count);
        row[n] = ir_let(b, "v", row[n]);
    }
    interleave(d, row, vector);
    for (int n = 0; n < FOUR; n++) mha_product_vector(p, NULL, n, vector[n]);
    const ir_expr *j = ir_add(b, streams->first[0], i);
    for (int64_t r = 0; r < p->rows; r++) {
        const ir_expr *number = ir_plus(b, ir_times(b, block->first_row, PLANES), r);
        mha_product_repeat(p, "p", r, ir_at(b, d->p_codes, FOUR, 2, number, j));
    }
}

static void add_stream(d_lanes *d, const dl_streams *streams, const void *user) {
    ir_builder *b = d->b;
    value_block block = *(const value_block *)user;
    const ir_expr *rest = ir_mod(b, streams->keys, ir_idx(b, FOUR));
    const bool is_whole = ir_is_const(rest) && rest->value.i == 0;
    rest = is_whole ? rest : ir_let(b, "rest", rest);
    const ir_expr *whole = ir_sub(b, streams->keys, rest);
    if (!is_whole) whole = ir_let_in(b, "whole", ir_idx(b, 0), ir_plus(b, streams->keys, 1), whole);
    IR_FOR(b, turn, ir_idx(b, 0), ir_div(b, whole, ir_idx(b, FOUR)), 1) {
        const ir_expr *i = dl_first(d, "in_stream", ir_times(b, turn, FOUR), ir_idx(b, FOUR), streams->keys);
        add_keys(d, &block, streams, i, FOUR);
    }
    if (is_whole) return;
    IR_FOR(b, i, whole, streams->keys, 1) add_keys(d, &block, streams, i, 1);
}

/* O (serially: this tile's O) += sums * scale. */
static void finish_row(d_lanes *d, const value_block *block, int64_t row) {
    ir_builder *b = d->b;
    const mha_context *c = d->c;
    const ir_expr *r = ir_plus(b, block->first_row, row), *sum[FOUR];
    const ir_expr *scale = ir_let(b, "p_scale", ir_splat(b, ir_load(b, ir_at(b, d->p_scales, 1, 1, r)), d->lanes));
    for (int n = 0; n < FOUR; n++) {
        const ir_expr *high = mha_product_sum(&block->product, PLANES * row, n);
        const ir_expr *low = mha_product_sum(&block->product, PLANES * row + 1, n);
        sum[n] = ir_add(b, ir_apply(b, IR_SHL, high, int_lanes(d, PLANE_BITS, d->lanes), NULL), low);
        sum[n] = ir_let(b, "sum", sum[n]);
    }
    for (int m = 0; m < FOUR && (int64_t)m * d->lanes < block->count; m++) {
        const ir_expr *at = ir_plus(b, block->column, m * d->lanes);
        const ir_access *o = ir_at(b, d->is_serial ? d->tile_o : d->o, d->lanes, 2, r, at);
        const ir_expr *part = ir_cast(b, c->elem, in_order(d, sum, m));
        ir_store(b, o, mha_madd(c, part, scale, ir_load(b, o)));
    }
}

typedef struct tile_rows {
    const dl_tile *tile;
    const ir_expr *first_row;
    int64_t rows;
} tile_rows;

static void multiply_columns(d_lanes *d, void *user, const ir_expr *column, int64_t count) {
    const tile_rows *t = user;
    value_block block = {.product = mha_product_of(d->c, MHA_DOT4, PLANES * t->rows, FOUR),
                         .first_row = t->first_row,
                         .column = column,
                         .count = count};
    mha_product_clear(&block.product);
    dl_each_streams(d, t->tile, 1, FOUR, add_stream, &block);
    for (int64_t row = 0; row < t->rows; row++) finish_row(d, &block, row);
}

static void multiply_rows(d_lanes *d, const void *user, const ir_expr *first_row, int64_t rows) {
    tile_rows t = {user, first_row, rows};
    const dl_columns loop = {"column", d->c->p->head_dim_v, width_of(d), 1};
    dl_each_columns(d, &loop, multiply_columns, &t);
}

void dl_code_values(d_lanes *d, const dl_tile *tile) {
    IR_FOR(d->b, r, ir_idx(d->b, 0), d->padded_rows, 1) encode_row(d, tile, r);
    dl_each_rows(d, d->c->s->value_rows, multiply_rows, tile);
}
