/* The softmax of one tile with integer=all: probabilities are quantised, and results have the same bits on every
 * target. Lanes run along keys.
 *
 *     m   = the largest score of the tile
 *     p   = exp(score - m)                          of each visible key
 *     sum = (sum_j rint(p * largest)) / largest     largest = 255 (q_planes=1) or 65535; the sum is exact
 *     x   = rint(p * largest)                       unless tokens of V have scales; unit = v_scale / largest
 *         = rint(w * (largest / max w))             if they have: w = p * v_scale, 0 if p is 0;
 *                                                   unit = max w / largest
 *
 * quantised_value.c computes value = (sum_j x * v) * unit. Then the tile joins the earlier ones (mha_joining):
 *
 *     row_sum = row_sum * kept + sum * share
 *     o       = o * kept + value * share
 *
 * Tiles have MHA_INTEGER_KEYS keys, counted from the sequence's first key, independent of schedule and machine.
 * Everything is computed element by element, in operations that all targets round the same way, except sums of integers
 * and maxima, whose order does not matter. A tile that is hidden from a row changes nothing. */
#include "nest/quantised.h"
#include "attend/decode/layout.h"
#include "attend/around/merge.h"

#include <math.h>

enum { FOUR = 4, PLANE_BITS = 8 };

double dl_largest_quantised(const d_lanes *d) { return d->planes == 1 ? 255 : 65535; }

static const ir_expr *int_lanes(const d_lanes *d, int32_t value, int lanes) {
    return ir_splat(d->b, ir_int(d->b, IR_I32, value), lanes);
}

const ir_access *dl_quantised_probabilities(const d_lanes *d, const ir_expr *r, int64_t plane, const ir_expr *j,
                                            int lanes) {
    const ir_expr *row = ir_plus(d->b, ir_times(d->b, r, d->planes), plane);
    return ir_at(d->b, d->p_quantised, lanes, 2, row, j);
}

/* Narrows d->lanes quantised values at a time. */
static void store_plane(const d_lanes *d, const ir_expr *r, int64_t plane, const ir_expr *j, const ir_expr *quantised) {
    ir_builder *b = d->b;
    const int all = quantised ? quantised->type.lanes : 0, lanes = d->lanes;
    for (int from = 0; from < all; from += lanes) {
        uint8_t pick[IR_MAX_LANES];
        for (int l = 0; l < lanes; l++) pick[l] = (uint8_t)(from + l);
        const ir_expr *part = all > lanes ? ir_shuffle(b, quantised, quantised, lanes, pick) : quantised;
        ir_store(b, dl_quantised_probabilities(d, r, plane, ir_plus(b, j, from), lanes), ir_cast(b, IR_I8, part));
    }
}

static void store_quantised(const d_lanes *d, const ir_expr *r, const ir_expr *j, const ir_expr *quantised) {
    ir_builder *b = d->b;
    if (!quantised) return;
    if (d->planes == 2) {
        const ir_expr *high = ir_apply(b, IR_SHR, quantised, int_lanes(d, PLANE_BITS, quantised->type.lanes), NULL);
        store_plane(d, r, 0, j, ir_let(b, "high", high));
    }
    store_plane(d, r, d->planes - 1, j, quantised);
}

static const ir_expr *quantised_of(const d_lanes *d, const ir_expr *x) {
    return ir_let(d->b, "code", ir_cast(d->b, IR_I32, ir_rint(d->b, x)));
}

static const ir_access *new_sum(const d_lanes *d, const char *name, ir_elem elem, int lanes) {
    const ir_access *sum = ir_at(d->b, ir_registers(d->b, name, elem, lanes, 0, NULL), lanes, 0);
    ir_store(d->b, sum, elem == IR_I32 ? int_lanes(d, 0, lanes) : mha_number(d->c, 0, lanes));
    return sum;
}

static void add_to(const d_lanes *d, const ir_access *sum, const ir_expr *x) {
    ir_store(d->b, sum, ir_add(d->b, ir_load(d->b, sum), x));
}

static const ir_expr *total_of(const d_lanes *d, const char *name, const ir_access *sum) {
    return ir_reduce(d->b, IR_ADD, ir_let(d->b, name, ir_load(d->b, sum)));
}

/* ---- Scaled probabilities, if tokens of V have scales ---- */

/* Replaces p by w = p * v_scale, and returns the largest w; NaN if some w is negative, NaN or infinite. The maximum may
 * ignore a NaN, but the sum of 0 * w does not. A hidden key's scale may be anything, so w is 0 if p is. */
static const ir_expr *scale_row(const d_lanes *d, const dl_tile *tile, const ir_expr *r) {
    ir_builder *b = d->b;
    const mha_context *c = d->c;
    const ir_expr *zero = mha_number(c, 0, d->lanes);
    const ir_access *most = new_sum(d, "most", c->elem, d->lanes), *least = new_sum(d, "least", c->elem, d->lanes);
    const ir_access *odd = new_sum(d, "odd", c->elem, d->lanes);
    IR_FOR(b, j, ir_idx(b, 0), tile->keys, d->lanes) {
        const ir_access *at = ir_at(b, d->scores, d->lanes, 2, r, j);
        const ir_expr *p = ir_let(b, "p", ir_load(b, at));
        const ir_expr *w = ir_select(b, ir_eq(b, p, zero), zero, ir_mul(b, p, dl_v_scales(d, j, d->lanes)));
        w = ir_let(b, "w", w);
        ir_store(b, at, w);
        ir_store(b, most, ir_max(b, w, ir_load(b, most)));
        ir_store(b, least, ir_min(b, w, ir_load(b, least)));
        add_to(d, odd, ir_mul(b, w, zero));
    }
    const ir_expr *range = ir_reduce(b, IR_MAX, ir_let(b, "most_lanes", ir_load(b, most)));
    const ir_expr *lowest = ir_reduce(b, IR_MIN, ir_let(b, "least_lanes", ir_load(b, least)));
    range = ir_add(b, range, total_of(d, "odd_lanes", odd));
    const ir_expr *is_negative = ir_lt(b, lowest, mha_number(c, 0, 1));
    return ir_let(b, "range", ir_select(b, is_negative, mha_number(c, NAN, 1), range));
}

/* Quantises w; returns its unit. */
static const ir_expr *quantise_probabilities(const d_lanes *d, const dl_tile *tile, const ir_expr *r) {
    ir_builder *b = d->b;
    const mha_context *c = d->c;
    const ir_expr *range = scale_row(d, tile, r), *largest = mha_number(c, dl_largest_quantised(d), 1);
    const ir_expr *steps = ir_let(b, "steps", ir_div(b, largest, range));
    const ir_expr *usable = ir_splat(b, ir_let(b, "usable", mha_is_usable_scale(c, steps)), d->lanes);
    IR_FOR(b, j, ir_idx(b, 0), tile->keys, d->lanes) {
        const ir_expr *w = ir_load(b, ir_at(b, d->scores, d->lanes, 2, r, j));
        const ir_expr *x = ir_mul(b, w, ir_splat(b, steps, d->lanes));
        store_quantised(d, r, j, quantised_of(d, ir_select(b, usable, x, mha_number(c, 0, d->lanes))));
    }
    return ir_div(b, range, largest);
}

/* ---- A row ---- */

/* P of all keys, quantised, or not yet if w follows. Returns the sum of quantised P; NaN if some p is NaN. */
static const ir_expr *exponentials(const d_lanes *d, const dl_tile *tile, const ir_expr *r, const ir_expr *base) {
    ir_builder *b = d->b;
    const mha_context *c = d->c;
    const int lanes = dl_side_by_side(d);
    const ir_expr *bases = ir_let(b, "bases", ir_splat(b, base, lanes));
    const ir_expr *largest = mha_number(c, dl_largest_quantised(d), lanes);
    const ir_access *sum = new_sum(d, "sum", IR_I32, lanes), *odd = new_sum(d, "odd", c->elem, lanes);
    IR_FOR(b, j, ir_idx(b, 0), tile->keys, lanes) {
        const ir_access *score = ir_at(b, d->scores, lanes, 2, r, j);
        const ir_expr *p = ir_let(b, "p", mha_exp(c, ir_load(b, score), bases));
        const ir_expr *quantised = quantised_of(d, ir_mul(b, p, largest));
        add_to(d, sum, quantised);
        add_to(d, odd, p);
        if (d->v_scales)
            ir_store(b, score, p);
        else
            store_quantised(d, r, j, quantised);
    }
    const ir_expr *zero = ir_mul(b, total_of(d, "odd_lanes", odd), mha_number(c, 0, 1));
    const ir_expr *total = ir_cast(b, c->elem, total_of(d, "code_lanes", sum));
    return ir_let(b, "tile_sum", ir_add(b, ir_div(b, total, mha_number(c, dl_largest_quantised(d), 1)), zero));
}

static void join_sum(const d_lanes *d, const ir_expr *r, const ir_expr *max, const ir_expr *sum) {
    ir_builder *b = d->b;
    const ir_access *row_max = ir_at(b, d->row_max, 1, 1, r), *row_sum = ir_at(b, d->row_sum, 1, 1, r);
    const mha_joining join = mha_join_of(d->c, ir_let(b, "old_max", ir_load(b, row_max)), max);
    ir_store(b, row_max, join.max);
    ir_store(b, row_sum, mha_joined(d->c, &join, ir_load(b, row_sum), sum));
    ir_store(b, ir_at(b, d->factor, 1, 1, r), join.kept);
    ir_store(b, ir_at(b, d->p_shares, 1, 1, r), join.share);
}

void dl_quantised_softmax(d_lanes *d, const dl_tile *tile) {
    ir_builder *b = d->b;
    const mha_context *c = d->c;
    IR_FOR(b, r, ir_idx(b, 0), d->padded_rows, 1) {
        dl_finish_scores(d, tile, r);
        const ir_expr *largest = ir_let(b, "tile_max", dl_largest_score(d, tile, r));
        const ir_expr *zero = mha_number(c, 0, 1);
        const ir_expr *empty = ir_let(b, "empty", ir_eq(b, largest, mha_number(c, -INFINITY, 1)));
        const ir_expr *base = ir_let(b, "base", ir_select(b, empty, zero, largest));
        join_sum(d, r, largest, exponentials(d, tile, r, base));
        const ir_expr *unit = NULL;
        if (d->v_scales) {
            unit = quantise_probabilities(d, tile, r);
        } else { /* V's scale is part of the unit */
            const ir_expr *scale = dl_v_scales(d, NULL, 1);
            unit = ir_div(b, scale ? scale : mha_number(c, 1, 1), mha_number(c, dl_largest_quantised(d), 1));
            unit = ir_select(b, empty, zero, unit);
        }
        ir_store(b, ir_at(b, d->p_units, 1, 1, r), unit);
        /* dot4 multiplies the last key together with up to three keys beyond it, so their probabilities are 0. */
        for (int64_t plane = 0; plane < d->planes; plane++)
            ir_store(b, dl_quantised_probabilities(d, r, plane, tile->keys, FOUR),
                     ir_bitcast(b, IR_I8, ir_int(b, IR_I32, 0)));
    }
}
