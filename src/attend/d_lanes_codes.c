/* Rows of Q as codes of 8 bits (q_planes=1) or 16 (2), for scores in integers.
 *
 *     scale = max |q[d]| / largest      largest = 127, or 127 * 128
 *     code  = rint(q[d] / scale)        0 if scale is 0 or not finite
 *
 * A code of 16 bits is two planes of bytes, high * 128 + low, low being from -64 to 63.
 *
 * A vector holds d->pack rows side by side, so that the lanes of their sums are added up together. */
#include "attend/d_lanes.h"
#include "base/integers.h"
#include "nest/codes.h"
#include "nest/columns.h"

enum { SIGN_BITS = -2139062144 /* 0x80808080 */, PLANE_BITS = 7 };

/* A row on its way into its place. */
typedef struct coded_row {
    mha_row query;
    const ir_expr *vector; /* number of the vectors that it lies in */
    int64_t part;          /* and its place there */
    const ir_expr *scale, *usable;
} coded_row;

static const ir_expr *int_lanes(const d_lanes *d, int32_t value, int lanes) {
    return ir_splat(d->b, ir_int(d->b, IR_I32, value), lanes);
}

static const ir_expr *shifted(const d_lanes *d, ir_op by, const ir_expr *x, int32_t bits) {
    return ir_apply(d->b, by, x, int_lanes(d, bits, x ? x->type.lanes : 1), NULL);
}

static double largest_of(const d_lanes *d) { return d->planes == 2 ? 127 << PLANE_BITS : 127; }

const ir_access *dl_query_codes(const d_lanes *d, const ir_expr *vector, int64_t plane, const ir_expr *block,
                                int64_t from, int lanes) {
    const ir_expr *row = ir_plus(d->b, ir_times(d->b, vector, d->planes), plane);
    return ir_at(d->b, d->q, lanes, 3, row, block, ir_idx(d->b, from));
}

/* d->lanes codes, which begin at column `from` of a block. The high plane is the nearest multiple of 128. */
static void store_codes(const d_lanes *d, const coded_row *row, const ir_expr *block, int64_t from,
                        const ir_expr *code) {
    ir_builder *b = d->b;
    const int64_t at = row->part * d->k_width + from;
    if (d->planes == 1) {
        ir_store(b, dl_query_codes(d, row->vector, 0, block, at, d->lanes), ir_cast(b, IR_I8, code));
        return;
    }
    const ir_expr *half = int_lanes(d, 1 << (PLANE_BITS - 1), d->lanes);
    const ir_expr *high = ir_let(b, "high", shifted(d, IR_SHR, ir_add(b, code, half), PLANE_BITS));
    const ir_expr *low = ir_sub(b, code, shifted(d, IR_SHL, high, PLANE_BITS));
    ir_store(b, dl_query_codes(d, row->vector, 0, block, at, d->lanes), ir_cast(b, IR_I8, high));
    ir_store(b, dl_query_codes(d, row->vector, 1, block, at, d->lanes), ir_cast(b, IR_I8, low));
}

/* A block of k_width columns, of which `count` exist; the codes of the others are 0. */
static void encode_block(const d_lanes *d, const coded_row *row, const ir_expr *block, const ir_expr *column,
                         int64_t count) {
    ir_builder *b = d->b;
    const mha_context *c = d->c;
    const ir_expr *most = mha_number(c, largest_of(d), d->lanes), *least = mha_number(c, -largest_of(d), d->lanes);
    for (int64_t from = 0; from < d->k_width; from += d->lanes) {
        const ir_expr *x = mha_load_columns(c, c->q, row->query.index, ir_plus(b, column, from), count - from);
        /* A scale that is denormal may be so wrong that the quotient exceeds the largest code. */
        const ir_expr *part = ir_min(b, most, ir_max(b, least, mha_over_scale(c, x, row->scale, row->usable)));
        store_codes(d, row, block, from, ir_let(b, "code", ir_cast(b, IR_I32, ir_rint(b, part))));
    }
}

/* A scale of NaN makes all scores of the row NaN. It takes the sign of softmax_scale, which Q itself takes elsewhere.
 */
static void encode_row(const d_lanes *d, const ir_expr *vector, int64_t part, const ir_expr *r) {
    ir_builder *b = d->b;
    const mha_context *c = d->c;
    const dl_row place = dl_row_at(d, r);
    coded_row row = {.query = {c->q, {d->entry.batch, place.head, place.token}, NULL}, .vector = vector, .part = part};
    const ir_expr *range = mha_row_range(c, &row.query, c->p->head_dim), *sign = mha_query_sign(c);
    row.scale = ir_let(b, "q_scale", ir_div(b, range, mha_number(c, largest_of(d), 1)));
    row.usable = ir_let(b, "usable", mha_is_usable_scale(c, row.scale));
    const int64_t whole = c->p->head_dim / d->k_width, rest = c->p->head_dim % d->k_width;
    if (whole) {
        IR_FOR(b, block, ir_idx(b, 0), ir_idx(b, whole), 1) {
            encode_block(d, &row, block, ir_times(b, block, d->k_width), d->k_width);
        }
    }
    if (rest) encode_block(d, &row, ir_idx(b, whole), ir_idx(b, whole * d->k_width), rest);
    ir_store(b, ir_at(b, d->q_scales, 1, 1, r), sign ? ir_mul(b, row.scale, sign) : row.scale);
}

/* dot4's first factor is unsigned. So K's codes come with their sign bit turned, k + 128, and the sums of a row begin
 * with -128 times the sum of its codes, some of it in each lane. */
static void store_start(const d_lanes *d, const ir_expr *vector) {
    ir_builder *b = d->b;
    const ir_expr *signs = ir_bitcast(b, IR_I8, int_lanes(d, SIGN_BITS, d->lanes)), *all = NULL;
    for (int64_t plane = 0; plane < d->planes; plane++) {
        const ir_access *sum = ir_mutable(b, "code_sum", int_lanes(d, 0, d->lanes));
        IR_FOR(b, block, ir_idx(b, 0), ir_idx(b, d->k_columns / d->k_width), 1) {
            const ir_expr *codes = ir_load(b, dl_query_codes(d, vector, plane, block, 0, 4 * d->lanes));
            ir_store(b, sum, ir_dot4(b, signs, codes, ir_load(b, sum)));
        }
        all = all ? ir_add(b, shifted(d, IR_SHL, all, PLANE_BITS), ir_load(b, sum)) : ir_load(b, sum);
    }
    ir_store(b, ir_at(b, d->starts, d->lanes, 2, vector, ir_idx(b, 0)), ir_sub(b, int_lanes(d, 0, d->lanes), all));
}

/* Where rows leave a vector half empty, it is filled with the last row. */
void dl_encode_queries(d_lanes *d) {
    ir_builder *b = d->b;
    const ir_expr *vectors = ir_ceil_div(b, d->padded_rows, d->pack), *one = ir_idx(b, 1);
    vectors = ir_let_in(b, "vectors", one, ir_idx(b, ceil_div(d->max_rows, d->pack) + 1), vectors);
    IR_FOR(b, vector, ir_idx(b, 0), vectors, 1) {
        for (int part = 0; part < d->pack; part++) {
            const ir_expr *r = ir_plus(b, ir_times(b, vector, d->pack), part);
            r = ir_min(b, r, ir_plus(b, d->padded_rows, -1));
            encode_row(d, vector, part, dl_first(d, "row", r, one, d->padded_rows));
        }
        store_start(d, vector);
    }
}

const ir_expr *dl_whole_code(const d_lanes *d, const ir_expr *high, const ir_expr *low) {
    return ir_add(d->b, shifted(d, IR_SHL, high, PLANE_BITS), low);
}

const ir_expr *dl_unsigned_codes(const d_lanes *d, const ir_expr *codes) {
    const ir_expr *words = ir_bitcast(d->b, IR_I32, codes);
    return ir_bitcast(d->b, IR_I8, ir_apply(d->b, IR_XOR, words, int_lanes(d, SIGN_BITS, d->lanes), NULL));
}
