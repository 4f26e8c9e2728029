/* Rows of Q quantised to 8 bits (q_planes=1) or 16 bits (q_planes=2), for integer scores.
 *
 *     scale = max |q[d]| / largest       largest = 127, or 127 * 128
 *     x     = rint(q[d] / scale)         0 if scale is 0 or not finite
 *
 * 16 bits are two planes of bytes: x = high * 128 + low, with low from -64 to 63. A vector holds d->pack rows side by
 * side, so that their sums are reduced over lanes together:
 *
 *     plane    [ d0-d3 of row 0 ][ d4-d7 of row 0 ] … [ d0-d3 of row 1 ][ d4-d7 of row 1 ] …       d->pack = 2 */
#include "attend/decode/layout.h"
#include "base/integers.h"
#include "nest/quantised.h"
#include "nest/columns.h"
#include "nest/transpose.h"

enum {
    SIGN_BITS = -2139062144 /* 0x80808080 */,
    EIGHTS = 0x08080808,
    LOWER_HALVES = 0x0f0f0f0f,
    HALF_BITS = 4,
    PLANE_BITS = 7
};

/* A row that is being quantised. */
typedef struct quantised_row {
    mha_row query;
    const ir_expr *vector; /* number of the vectors that hold it */
    int64_t part;          /* its place in them */
    const ir_expr *scale, *usable;
} quantised_row;

static const ir_expr *int_lanes(const d_lanes *d, int32_t value, int lanes) {
    return ir_splat(d->b, ir_int(d->b, IR_I32, value), lanes);
}

static const ir_expr *shifted(const d_lanes *d, ir_op by, const ir_expr *x, int32_t bits) {
    return ir_apply(d->b, by, x, int_lanes(d, bits, x ? x->type.lanes : 1), NULL);
}

static double largest_of(const d_lanes *d) { return d->planes == 2 ? 127 << PLANE_BITS : 127; }

const ir_access *dl_quantised_query(const d_lanes *d, const ir_expr *vector, int64_t plane, const ir_expr *block,
                                    int64_t from, int lanes) {
    const ir_expr *row = ir_plus(d->b, ir_times(d->b, vector, d->planes), plane);
    return ir_at(d->b, d->q, lanes, 3, row, block, ir_idx(d->b, from));
}

/* Stores d->lanes quantised values, from column `from` of a block on. The high plane is x / 128, rounded to nearest. */
static void store_quantised(const d_lanes *d, const quantised_row *row, const ir_expr *block, int64_t from,
                            const ir_expr *quantised) {
    ir_builder *b = d->b;
    const int64_t at = row->part * d->k_width + from;
    if (d->planes == 1) {
        ir_store(b, dl_quantised_query(d, row->vector, 0, block, at, d->lanes), ir_cast(b, IR_I8, quantised));
        return;
    }
    const ir_expr *half = int_lanes(d, 1 << (PLANE_BITS - 1), d->lanes);
    const ir_expr *high = ir_let(b, "high", shifted(d, IR_SHR, ir_add(b, quantised, half), PLANE_BITS));
    const ir_expr *low = ir_sub(b, quantised, shifted(d, IR_SHL, high, PLANE_BITS));
    ir_store(b, dl_quantised_query(d, row->vector, 0, block, at, d->lanes), ir_cast(b, IR_I8, high));
    ir_store(b, dl_quantised_query(d, row->vector, 1, block, at, d->lanes), ir_cast(b, IR_I8, low));
}

const ir_expr *dl_column_of_byte(const d_lanes *d, const ir_expr *byte, int halves, int half) {
    enum { COLUMNS = MHA_BLOCK_COLUMNS, HALF = COLUMNS / 2 };
    ir_builder *b = d->b;
    if (halves == 1) return byte;
    const ir_expr *block = ir_div(b, byte, ir_idx(b, HALF)), *within = ir_mod(b, byte, ir_idx(b, HALF));
    return ir_plus(b, ir_add(b, ir_times(b, block, COLUMNS), within), (int64_t)half * HALF);
}

/* Quantises the columns of Q that meet k_width bytes of K from `byte` on, or one half of those bytes. Only `count`
 * bytes exist; columns beyond them are 0. */
static void quantise_block(const d_lanes *d, const quantised_row *row, const ir_expr *block, const ir_expr *byte,
                           int64_t count, int half) {
    ir_builder *b = d->b;
    const mha_context *c = d->c;
    const ir_expr *most = mha_number(c, largest_of(d), d->lanes), *least = mha_number(c, -largest_of(d), d->lanes);
    for (int64_t from = 0; from < d->k_width; from += d->lanes) {
        const ir_expr *column = dl_column_of_byte(d, ir_plus(b, byte, from), d->k_halves, half);
        if (d->k_halves > 1 && count > from)
            column = ir_let_in(b, "column", ir_idx(b, 0), ir_idx(b, c->p->head_dim - d->lanes + 1), column);
        const ir_expr *x = mha_load_columns(c, c->q, row->query.index, column, count - from);
        /* A denormal scale is so inaccurate that the quotient may exceed the largest quantised value. */
        const ir_expr *part = ir_min(b, most, ir_max(b, least, mha_over_scale(c, x, row->scale, row->usable)));
        store_quantised(d, row, block, from, ir_let(b, "code", ir_cast(b, IR_I32, ir_rint(b, part))));
    }
}

/* The blocks of Q that meet a vector of bytes of K: one for each half of the bytes. */
static void quantise_bytes(const d_lanes *d, const quantised_row *row, const ir_expr *number, int64_t count) {
    const ir_expr *byte = ir_times(d->b, number, d->k_width), *block = ir_times(d->b, number, d->k_halves);
    for (int half = 0; half < d->k_halves; half++)
        quantise_block(d, row, ir_plus(d->b, block, half), byte, count, half);
}

/* A scale of NaN makes all scores of the row NaN. The scale gets the sign of softmax_scale (elsewhere Q itself gets
 * it). */
static void quantise_row(const d_lanes *d, const ir_expr *vector, int64_t part, const ir_expr *r) {
    ir_builder *b = d->b;
    const mha_context *c = d->c;
    const dl_row place = dl_row_at(d, r);
    quantised_row row = {
        .query = {c->q, {d->sequence.batch, place.head, place.token}, NULL}, .vector = vector, .part = part};
    const ir_expr *range = mha_row_range(c, &row.query, c->p->head_dim), *sign = mha_query_sign(c);
    row.scale = ir_let(b, "q_scale", ir_div(b, range, mha_number(c, largest_of(d), 1)));
    row.usable = ir_let(b, "usable", mha_is_usable_scale(c, row.scale));
    const int64_t bytes = c->p->head_dim / d->k_halves, whole = bytes / d->k_width, rest = bytes % d->k_width;
    if (whole) {
        IR_FOR(b, block, ir_idx(b, 0), ir_idx(b, whole), 1) quantise_bytes(d, &row, block, d->k_width);
    }
    if (rest) quantise_bytes(d, &row, ir_idx(b, whole), rest);
    ir_store(b, ir_at(b, d->q_scales, 1, 1, r), sign ? ir_mul(b, row.scale, sign) : row.scale);
}

/* Stores the sums of the quantised values of a vector's rows, for K's minima. `eights`: partial sums in lanes, times 8.
 */
static void store_row_sums(const d_lanes *d, const ir_expr *vector, int64_t group, const ir_expr *eights) {
    enum { EIGHT_BITS = 3 };
    ir_builder *b = d->b;
    const ir_expr *sums = ir_let(b, "code_sums", shifted(d, IR_SHR, eights, EIGHT_BITS));
    const int lanes = d->lanes / d->pack;
    for (int part = 0; part < d->pack; part++) {
        const ir_expr *sum = ir_reduce(b, IR_ADD, ir_let(b, "part", mha_lanes_of(b, sums, part * lanes, lanes)));
        const ir_expr *row = ir_plus(b, ir_times(b, vector, d->pack), part);
        const ir_expr *at = ir_plus(b, ir_times(b, row, d->k_groups), group);
        ir_store(b, ir_at(b, d->q_sums, 1, 1, at), ir_cast(b, d->c->elem, sum));
    }
}

/* dot4's first factor is unsigned. So the sign bit of quantised K is flipped, which gives k + 128 (int4: k + 8), and
 * the sums of a row begin with -128 (-8) times the sum of its quantised values. Each lane begins with its own part of
 * that sum; with panels, whose lanes are keys, each lane begins with all of it. Quantised values that count from a
 * minimum are unsigned already: their sums begin with 0. Each group of K has its own sums. */
static void store_start(const d_lanes *d, const ir_expr *vector, int64_t group) {
    ir_builder *b = d->b;
    const int32_t bits = d->k_halves > 1 ? EIGHTS : SIGN_BITS;
    const ir_expr *signs = ir_bitcast(b, IR_I8, int_lanes(d, bits, d->lanes)), *all = NULL;
    const int64_t blocks = d->k_columns / d->k_width / d->k_groups;
    for (int64_t plane = 0; plane < d->planes; plane++) {
        const ir_access *sum = ir_mutable(b, "code_sum", int_lanes(d, 0, d->lanes));
        IR_FOR(b, block, ir_idx(b, group * blocks), ir_idx(b, (group + 1) * blocks), 1) {
            const ir_expr *quantised = ir_load(b, dl_quantised_query(d, vector, plane, block, 0, 4 * d->lanes));
            ir_store(b, sum, ir_dot4(b, signs, quantised, ir_load(b, sum)));
        }
        all = all ? ir_add(b, shifted(d, IR_SHL, all, PLANE_BITS), ir_load(b, sum)) : ir_load(b, sum);
    }
    if (d->q_sums) {
        store_row_sums(d, vector, group, all);
        all = int_lanes(d, 0, d->lanes);
    }
    if (d->k_by_panels) all = ir_splat(b, ir_reduce(b, IR_ADD, ir_let(b, "code_sums", all)), d->lanes);
    const ir_expr *row = ir_plus(b, ir_times(b, vector, d->k_groups), group);
    ir_store(b, ir_at(b, d->starts, d->lanes, 2, row, ir_idx(b, 0)), ir_sub(b, int_lanes(d, 0, d->lanes), all));
}

/* If rows do not fill the last vector, it repeats the last row. */
void dl_quantise_queries(d_lanes *d) {
    ir_builder *b = d->b;
    const ir_expr *vectors = ir_ceil_div(b, d->padded_rows, d->pack), *one = ir_idx(b, 1);
    vectors = ir_let_in(b, "vectors", one, ir_idx(b, ceil_div(d->max_rows, d->pack) + 1), vectors);
    IR_FOR(b, vector, ir_idx(b, 0), vectors, 1) {
        for (int part = 0; part < d->pack; part++) {
            const ir_expr *r = ir_plus(b, ir_times(b, vector, d->pack), part);
            r = ir_min(b, r, ir_plus(b, d->padded_rows, -1));
            quantise_row(d, vector, part, dl_first(d, "row", r, one, d->padded_rows));
        }
        for (int64_t group = 0; group < d->k_groups; group++) store_start(d, vector, group);
    }
}

const ir_expr *dl_of_planes(const d_lanes *d, const ir_expr *high, const ir_expr *low) {
    return ir_add(d->b, shifted(d, IR_SHL, high, PLANE_BITS), low);
}

const ir_expr *dl_unsigned_keys(const d_lanes *d, const ir_expr *quantised, int half) {
    const ir_expr *words = ir_bitcast(d->b, IR_I32, quantised);
    if (d->k_halves > 1) {
        if (half) words = shifted(d, IR_SHR, words, HALF_BITS);
        return ir_bitcast(d->b, IR_I8, ir_and(d->b, words, int_lanes(d, LOWER_HALVES, d->lanes)));
    }
    return ir_bitcast(d->b, IR_I8, ir_apply(d->b, IR_XOR, words, int_lanes(d, SIGN_BITS, d->lanes), NULL));
}
