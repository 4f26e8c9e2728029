/* Scores in integers (integer=scores): K's codes as they lie, and rows of Q as codes of 8 bits (q_planes=1) or 16 (2).
 *
 *     scale = max |q[d]| / largest      largest = 127, or 127 * 128
 *     code  = rint(q[d] / scale)        0 if scale is 0 or not finite
 *     dot   = sum_d code[d] * k[d]      exact
 *     score = dot * scale               dot rounded to f32 (f64 arithmetic: not rounded); then k_scale and the rest
 *
 * A code of 16 bits is two planes of bytes, high * 128 + low, low being from -64 to 63. Each plane is a row of the
 * register tile.
 *
 * dot4's first factor is unsigned. So K's codes come with their sign bit turned, k + 128, and the sums of a row begin
 * with -128 times the sum of its codes. With head_dim of at most 1024 no dot leaves an i32; what wraps on the way to it
 * wraps back. */
#include "attend/codes.h"
#include "attend/d_lanes.h"

enum { SIGN_BITS = -2139062144 /* 0x80808080 */, PLANE_BITS = 7 };

/* ---- Rows of Q ---- */

static const ir_expr *int_lanes(const d_lanes *d, int32_t value, int lanes) {
    return ir_splat(d->b, ir_int(d->b, IR_I32, value), lanes);
}

static const ir_expr *shifted(const d_lanes *d, ir_op by, const ir_expr *x, int32_t bits) {
    return ir_apply(d->b, by, x, int_lanes(d, bits, x ? x->type.lanes : 1), NULL);
}

static void store_plane(const d_lanes *d, const ir_expr *r, int64_t plane, const mha_columns *at, const ir_expr *code) {
    const ir_expr *row = ir_plus(d->b, ir_times(d->b, r, d->planes), plane);
    ir_store(d->b, ir_at(d->b, d->q, at->lanes, 2, row, at->at), ir_cast(d->b, IR_I8, code));
}

/* The high plane is the nearest multiple of 128. */
static void store_codes(const d_lanes *d, const ir_expr *r, const mha_columns *at, const ir_expr *code) {
    ir_builder *b = d->b;
    if (d->planes == 1) {
        store_plane(d, r, 0, at, code);
        return;
    }
    const ir_expr *half = int_lanes(d, 1 << (PLANE_BITS - 1), at->lanes);
    const ir_expr *high = ir_let(b, "high", shifted(d, IR_SHR, ir_add(b, code, half), PLANE_BITS));
    store_plane(d, r, 0, at, high);
    store_plane(d, r, 1, at, ir_sub(b, code, shifted(d, IR_SHL, high, PLANE_BITS)));
}

/* The codes beyond the last column are 0. */
static void clear_tail(const d_lanes *d, const ir_expr *r) {
    ir_builder *b = d->b;
    const int64_t last = d->k_columns - d->k_width;
    if (d->c->p->head_dim == d->k_columns) return;
    for (int64_t plane = 0; plane < d->planes; plane++) {
        const ir_expr *row = ir_plus(b, ir_times(b, r, d->planes), plane);
        ir_store(b, ir_at(b, d->q, d->k_width, 2, row, ir_idx(b, last)),
                 ir_bitcast(b, IR_I8, int_lanes(d, 0, d->k_width / 4)));
    }
}

static double largest_of(const d_lanes *d) { return d->planes == 2 ? 127 << PLANE_BITS : 127; }

static void encode(const d_lanes *d, const mha_row *query, const ir_expr *r, const ir_expr *scale) {
    ir_builder *b = d->b;
    const mha_context *c = d->c;
    const ir_expr *usable = ir_let(b, "usable", mha_is_usable_scale(c, scale));
    clear_tail(d, r);
    MHA_COLUMNS(c, at, c->p->head_dim, c->lanes) {
        const ir_expr *x = mha_load(c, mha_row_access(c, query, at.at, at.lanes));
        /* A scale that is denormal may be so wrong that the quotient exceeds the largest code. */
        const ir_expr *most = mha_number(c, largest_of(d), at.lanes), *least = mha_number(c, -largest_of(d), at.lanes);
        const ir_expr *part = ir_min(b, most, ir_max(b, least, mha_over_scale(c, x, scale, usable)));
        store_codes(d, r, &at, ir_let(b, "code", ir_cast(b, IR_I32, ir_rint(b, part))));
    }
}

/* -128 times the sum of the codes, some of it in each lane. */
static void store_start(const d_lanes *d, const ir_expr *r) {
    ir_builder *b = d->b;
    const ir_expr *signs = ir_bitcast(b, IR_I8, int_lanes(d, SIGN_BITS, d->lanes)), *all = NULL;
    for (int64_t plane = 0; plane < d->planes; plane++) {
        const ir_access *sum = ir_mutable(b, "code_sum", int_lanes(d, 0, d->lanes));
        const ir_expr *row = ir_plus(b, ir_times(b, r, d->planes), plane);
        IR_FOR(b, at, ir_idx(b, 0), ir_idx(b, d->k_columns), d->k_width) {
            const ir_expr *codes = ir_load(b, ir_at(b, d->q, d->k_width, 2, row, at));
            ir_store(b, sum, ir_dot4(b, signs, codes, ir_load(b, sum)));
        }
        all = all ? ir_add(b, shifted(d, IR_SHL, all, PLANE_BITS), ir_load(b, sum)) : ir_load(b, sum);
    }
    ir_store(b, ir_at(b, d->starts, d->lanes, 2, r, ir_idx(b, 0)), ir_sub(b, int_lanes(d, 0, d->lanes), all));
}

/* A scale of NaN makes all scores of the row NaN. It takes the sign of softmax_scale, which Q itself takes elsewhere.
 */
void dl_encode_query(d_lanes *d, const ir_expr *r, const ir_expr *const *index) {
    ir_builder *b = d->b;
    const mha_context *c = d->c;
    const mha_row query = {c->q, {index[0], index[1], index[2]}, NULL};
    const ir_expr *range = mha_row_range(c, &query, c->p->head_dim), *sign = mha_query_sign(c);
    const ir_expr *scale = ir_let(b, "q_scale", ir_div(b, range, mha_number(c, largest_of(d), 1)));
    encode(d, &query, r, scale);
    store_start(d, r);
    ir_store(b, ir_at(b, d->q_scales, 1, 1, r), sign ? ir_mul(b, scale, sign) : scale);
}

/* ---- Scores ---- */

const ir_expr *dl_unsigned_codes(const d_lanes *d, const ir_expr *codes) {
    const ir_expr *words = ir_bitcast(d->b, IR_I32, codes);
    const ir_expr *turned = ir_apply(d->b, IR_XOR, words, int_lanes(d, SIGN_BITS, d->lanes), NULL);
    return ir_bitcast(d->b, IR_I8, turned);
}

void dl_start_sums(const d_lanes *d, mha_product *p, const ir_expr *first_row) {
    ir_builder *b = d->b;
    mha_product_begin(p);
    for (int64_t r = 0; r < p->rows; r++) {
        const bool is_last = r % d->planes == d->planes - 1;
        const ir_expr *row = ir_plus(b, first_row, r / d->planes);
        const ir_expr *start = is_last ? ir_load(b, ir_at(b, d->starts, d->lanes, 2, row, ir_idx(b, 0))) : NULL;
        start = start ? ir_let(b, "start", start) : int_lanes(d, 0, d->lanes);
        for (int64_t j = 0; j < p->vectors; j++) ir_store(b, mha_product_at(p, r, j), start);
    }
}

const ir_expr *dl_whole_sum(const d_lanes *d, const mha_product *p, int64_t row, int64_t vector) {
    if (d->planes == 1) return mha_product_sum(p, row, vector);
    const ir_expr *high = mha_product_sum(p, 2 * row, vector), *low = mha_product_sum(p, 2 * row + 1, vector);
    return ir_add(d->b, shifted(d, IR_SHL, high, PLANE_BITS), low);
}

const ir_expr *dl_score_of_dots(const d_lanes *d, const ir_expr *row, const ir_expr *dots) {
    if (!dots) return NULL;
    const ir_expr *scale = ir_load(d->b, ir_at(d->b, d->q_scales, 1, 1, row));
    return ir_mul(d->b, ir_cast(d->b, d->c->elem, dots), ir_splat(d->b, scale, dots->type.lanes));
}
