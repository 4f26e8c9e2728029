/* Integer values (integer=all): dot4 multiplies quantised V, which is read as it is stored, with the quantised
 * probabilities of a tile, four keys at a time. Lanes run along the columns of V.
 *
 *     value = (sum_j x[j] * v[j]) * unit            the sum is exact
 *     o     = o * kept + value * share              see quantised_softmax.c
 *
 * x has as many planes of unsigned bytes as Q: x = high * 256 + low. Each plane is a row of the register tile. A tile
 * has at most MHA_INTEGER_KEYS keys, so that f32 represents the sum of a plane exactly.
 *
 * int4 values are multiplied by 16 (they stay in the upper half of a byte), first those in one half of the bytes and
 * then those in the other, and the sums are shifted back.
 *
 * dot4 reads the bytes of four keys side by side. So four rows of V are interleaved by unpack instructions, within
 * segments of 16 columns, and the columns of a finished sum are put in order:
 *
 *     V[j] … V[j+3]    [ c0 c1 c2 … ] x 4      ->      [ c0 of j, j+1, j+2, j+3 ][ c1 of j … ] … */
#include "attend/decode/layout.h"
#include "attend/around/merge.h"
#include "nest/columns.h"

enum {
    FOUR = 4,
    HIGH_PLANE = 256,
    HALF_BITS = 4,
    SIGN_BITS = (int)0x80808080,
    UPPER_HALVES = (int)0xf0f0f0f0,
    ZEROS_QUANTISED = (int)0x88888888 /* of int4 */
};

static const ir_expr *int_lanes(const d_lanes *d, int32_t value, int lanes) {
    return ir_splat(d->b, ir_int(d->b, IR_I32, value), lanes);
}

/* ---- Columns of four rows of V ---- */

/* Columns of V in a vector, and in a segment of one. */
static int width_of(const d_lanes *d) { return FOUR * d->lanes; }
static int segment_of(const d_lanes *d) { return width_of(d) < 16 ? width_of(d) : 16; }

/* Elements of `bytes` bytes from the lower or the upper halves of the segments, alternately of x and of y. */
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

/* Vector m of the columns in order. */
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

const ir_expr *dl_value_factors(const d_lanes *d, const ir_expr *bytes, int half) {
    ir_builder *b = d->b;
    if (d->v_halves == 1) return bytes;
    const ir_expr *words = ir_bitcast(b, IR_I32, bytes);
    if (!half) words = ir_apply(b, IR_SHL, words, int_lanes(d, HALF_BITS, d->lanes), NULL);
    words = ir_and(b, words, int_lanes(d, UPPER_HALVES, d->lanes));
    words = ir_apply(b, IR_XOR, words, int_lanes(d, SIGN_BITS, d->lanes), NULL);
    return ir_let(b, "v", ir_bitcast(b, IR_I8, words));
}

/* ---- Products ---- */

/* Some rows and one vector of columns of V, over the keys of a tile. */
typedef struct value_block {
    mha_product product;               /* rows by planes, four vectors */
    const ir_expr *first_row, *column; /* number of a byte of a row of V; for i8 a column */
    int64_t count;                     /* bytes that exist */
    int half;                          /* for int4: which half of the bytes */
} value_block;

/* Adds the products of `keys` keys from key i of the stream on: four, or one. */
static void add_keys(d_lanes *d, value_block *block, const dl_streams *streams, const ir_expr *i, int keys) {
    ir_builder *b = d->b;
    mha_product *p = &block->product;
    const ir_expr *row[FOUR], *vector[FOUR];
    for (int n = 0; n < FOUR; n++) {
        row[n] = ir_bitcast(b, IR_I8, int_lanes(d, d->v_halves > 1 ? ZEROS_QUANTISED : 0, d->lanes));
        if (n >= keys) continue;
        const mha_kv_row key = dl_key_at(d, streams, 0, ir_plus(b, i, n));
        const ir_expr *const *index = mha_kv_index(d->c, d->c->v, &key);
        row[n] = mha_load_raw_columns(d->c, d->c->v, index, block->column, width_of(d), block->count);
        row[n] = ir_let(b, "v", row[n]);
        dl_prefetch_columns(d, streams, ir_plus(b, i, n), block->column);
    }
    interleave(d, row, vector);
    for (int n = 0; n < FOUR; n++) mha_product_vector(p, NULL, n, dl_value_factors(d, vector[n], block->half));
    const ir_expr *j = ir_add(b, streams->first[0], i);
    for (int64_t r = 0; r < p->rows; r++) {
        const ir_expr *query = ir_plus(b, block->first_row, r / d->planes);
        mha_product_repeat(p, "p", r, dl_quantised_probabilities(d, query, r % d->planes, j, FOUR));
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

/* ---- From sums to O ---- */

const ir_expr *dl_value_sum(const d_lanes *d, const ir_expr *sum) {
    return d->v_halves > 1 ? ir_apply(d->b, IR_SHR, sum, int_lanes(d, HALF_BITS, d->lanes), NULL) : sum;
}

const ir_expr *dl_sum_with_plane(const d_lanes *d, const ir_expr *sum, const ir_expr *quantised) {
    const ir_expr *part = ir_cast(d->b, d->c->elem, quantised);
    return sum ? ir_add(d->b, ir_mul(d->b, sum, mha_number(d->c, HIGH_PLANE, d->lanes)), part) : part;
}

dl_joined_row dl_joined_row_of(const d_lanes *d, const ir_expr *r) {
    ir_builder *b = d->b;
    const ir_expr *unit = ir_splat(b, ir_load(b, ir_at(b, d->p_units, 1, 1, r)), d->lanes);
    dl_joined_row row = {.r = r};
    row.kept = ir_let(b, "kept", ir_splat(b, ir_load(b, ir_at(b, d->factor, 1, 1, r)), d->lanes));
    row.share = ir_let(b, "share", ir_splat(b, ir_load(b, ir_at(b, d->p_shares, 1, 1, r)), d->lanes));
    row.unit = ir_let(b, "unit", unit);
    return row;
}

void dl_join_values(const d_lanes *d, const dl_joined_row *row, const ir_expr *column, const ir_expr *sum) {
    ir_builder *b = d->b;
    const mha_joining join = {.kept = row->kept, .share = row->share};
    const ir_access *o = ir_at(b, d->o, d->lanes, 2, row->r, column);
    ir_store(b, o, mha_joined(d->c, &join, ir_load(b, o), ir_mul(b, sum, row->unit)));
}

/* Vector m of a row's columns, from the sums of all planes. */
static const ir_expr *sum_of(const d_lanes *d, const ir_expr *const *planes, int m) {
    const ir_expr *sum = NULL;
    for (int i = 0; i < d->planes; i++) {
        sum = dl_sum_with_plane(d, sum, dl_value_sum(d, in_order(d, planes + (ptrdiff_t)i * FOUR, m)));
    }
    return sum;
}

const ir_expr *dl_output_column(const d_lanes *d, const ir_expr *byte, int half) {
    ir_builder *b = d->b;
    if (d->v_halves == 1) return byte;
    const ir_expr *column = dl_column_of_byte(d, byte, d->v_halves, half);
    return ir_let_in(b, "o_column", ir_idx(b, 0), ir_idx(b, d->v_columns - d->lanes + 1), column);
}

static void finish_row(d_lanes *d, const value_block *block, int64_t row) {
    const dl_joined_row joined = dl_joined_row_of(d, ir_plus(d->b, block->first_row, row));
    const ir_expr *planes[2 * FOUR];
    for (int i = 0; i < d->planes * FOUR; i++)
        planes[i] = mha_product_sum(&block->product, d->planes * row + i / FOUR, i % FOUR);
    for (int m = 0; m < FOUR && (int64_t)m * d->lanes < block->count; m++) {
        const ir_expr *byte = ir_plus(d->b, block->column, (int64_t)m * d->lanes);
        const ir_expr *column = dl_output_column(d, byte, block->half);
        dl_join_values(d, &joined, column, sum_of(d, planes, m));
    }
}

void dl_quantised_values(d_lanes *d, const dl_tile *tile) {
    DL_ROWS(d, rows, d->c->s->value_rows) {
        DL_COLUMNS(d, c, "column", d->c->p->head_dim_v / d->v_halves, width_of(d), 1) {
            for (int half = 0; half < d->v_halves; half++) {
                value_block block = {.product = mha_product_of(d->c, MHA_DOT4, d->planes * rows.count, FOUR),
                                     .first_row = rows.first,
                                     .column = c.at,
                                     .count = c.count,
                                     .half = half};
                mha_product_clear(&block.product);
                dl_each_streams(d, tile, 1, FOUR, add_stream, &block);
                for (int64_t row = 0; row < rows.count; row++) finish_row(d, &block, row);
            }
        }
    }
}
