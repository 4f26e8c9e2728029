/* O = O * factor + P V for one tile: what both loop nests have in common. The nests are value_streams.c, whose sums
 * stay in memory, and value_held.c, whose sums stay in registers.
 *
 *     begin   O *= factor                        reproducible: O of the tile = 0
 *     add     O += P V                           reproducible: O of the tile += P V
 *     end                                        reproducible: O = O * factor + O of the tile, as in prefill
 *
 * The probability of a hidden key is 0, but 0 times NaN or infinity is NaN. So if a key may be hidden from a row, 0 * V
 * is summed first. If that sum is NaN, hidden values are replaced by 0 one by one. */
#include "attend/decode/layout.h"
#include "nest/columns.h"

/* ---- Values that are not finite ---- */

/* Sums of 0 * V. Several hide the latency of an addition. */
enum { NUM_SUMS = 4 };

/* The same for a panel: only this token's values are read, as its neighbours may be anything. */
static void add_panel_zeros(d_lanes *d, const mha_kv_row *key, const ir_access *sum, const ir_expr *column,
                            int64_t count) {
    const mha_row row = mha_kv_row_of(d->c, d->c->v, key);
    const ir_expr *zero = mha_number(d->c, 0, 1), *scale = mha_v_scale(d->c, key);
    zero = ir_splat(d->b, scale ? ir_mul(d->b, zero, scale) : zero, d->lanes);
    for (int64_t i = 0; i < count; i += d->lanes) {
        const ir_expr *at = ir_plus(d->b, column, i);
        const ir_expr *v = mha_needs_row_reader(d->c, d->c->v)
                               ? mha_load_row(d->c, &row, at, d->lanes)
                               : mha_load_panel_row(d->c, &row, at, d->lanes, count - i);
        ir_store(d->b, sum, mha_madd(d->c, v, zero, ir_load(d->b, sum)));
    }
}

static void add_zeros(d_lanes *d, const mha_kv_row *key, const ir_access *sum, const ir_expr *column, int64_t count) {
    ir_builder *b = d->b;
    if (d->v_by_panels) {
        add_panel_zeros(d, key, sum, column, count);
        return;
    }
    const ir_expr *v = dl_load_key(d, d->c->v, key, column, count), *old = ir_load(b, sum);
    const int lanes = d->c->variant.by_pairs ? 1 : d->lanes;
    const ir_expr *zero = mha_number(d->c, 0, lanes), *scale = mha_v_scale(d->c, key);
    if (scale) zero = ir_mul(b, zero, ir_splat(b, scale, lanes));
    if (d->c->variant.by_pairs)
        zero = scale ? ir_splat(b, ir_cast(b, IR_BF16, zero), d->width) : mha_zero_pairs(d->c, d->lanes);
    ir_store(b, sum, mha_accumulate(d->c, dl_kind(d), v, zero, old));
}

/* Adds 0 * V of the keys of a stream, all columns. */
static void add_zeros_of_keys(d_lanes *d, const dl_streams *streams, const void *user) {
    ir_builder *b = d->b;
    const ir_access *const *sums = user;
    const int64_t dim = d->c->p->head_dim_v, step = (int64_t)NUM_SUMS * d->width, whole = dim / step * step;
    IR_FOR(b, i, ir_idx(b, 0), streams->keys, 1) {
        const mha_kv_row key = dl_key_at(d, streams, 0, i);
        if (whole) {
            IR_FOR(b, at, ir_idx(b, 0), ir_idx(b, whole), step) {
                for (int n = 0; n < NUM_SUMS; n++)
                    add_zeros(d, &key, sums[n], ir_plus(b, at, (int64_t)n * d->width), d->width);
            }
        }
        for (int64_t done = whole; done < dim; done += d->width)
            add_zeros(d, &key, sums[(done - whole) / d->width], ir_idx(b, done), dim - done);
    }
}

/* Whether V of the tile has a NaN or an infinity. */
static const ir_expr *has_nonfinite(d_lanes *d, const dl_tile *tile) {
    ir_builder *b = d->b;
    const ir_buffer *zeros = ir_registers(b, "zeros", d->c->elem, d->lanes, 1, (int64_t[]){NUM_SUMS});
    const ir_access *sums[NUM_SUMS];
    for (int i = 0; i < NUM_SUMS; i++) {
        sums[i] = ir_at(b, zeros, d->lanes, 1, ir_idx(b, i));
        ir_store(b, sums[i], mha_number(d->c, 0, d->lanes));
    }
    dl_each_streams(d, tile, 1, 1, add_zeros_of_keys, sums);
    const ir_expr *sum = ir_load(b, sums[0]);
    for (int i = 1; i < NUM_SUMS; i++) sum = ir_add(b, sum, ir_load(b, sums[i]));
    const ir_expr *total = ir_let(b, "zero_sum", ir_reduce(b, IR_ADD, ir_let(b, "zero_lanes", sum)));
    return ir_ne(b, total, total);
}

/* ---- the frame ---- */

/* O += P V. If a hidden value of the tile is NaN or infinite, `add_carefully` replaces it by 0. That is rare, so its
 * code is small and slow, and adds the keys in the same order. */
static void add_tile(d_lanes *d, const dl_tile *tile, dl_step *add, dl_step *add_carefully) {
    ir_builder *b = d->b;
    const ir_expr *partial = tile->is_partial;
    if (ir_is_const(partial) && !partial->value.i) {
        add(d, tile);
        return;
    }
    const ir_access *careful = ir_mutable(b, "careful", ir_int(b, IR_I32, 0));
    IR_IF(b, partial) {
        ir_store(b, careful, ir_cast(b, IR_I32, has_nonfinite(d, tile)));
    }
    IR_IF(b, ir_eq(b, ir_load(b, careful), ir_int(b, IR_I32, 0))) add(d, tile);
    IR_ELSE(b) add_carefully(d, tile);
}

/* The factor that rescales a row's earlier sums. */
static const ir_expr *shrink_of(d_lanes *d, const ir_expr *r) {
    return ir_let(d->b, "shrink", ir_splat(d->b, ir_load(d->b, ir_at(d->b, d->factor, 1, 1, r)), d->lanes));
}

void dl_add_values(d_lanes *d, const dl_tile *tile, dl_step *add, dl_step *add_carefully) {
    ir_builder *b = d->b;
    IR_FOR(b, r, ir_idx(b, 0), d->padded_rows, 1) {
        const ir_expr *shrink = shrink_of(d, r);
        IR_FOR(b, at, ir_idx(b, 0), ir_idx(b, d->v_columns), d->lanes) {
            const ir_access *o = ir_at(b, d->is_serial ? d->tile_o : d->o, d->lanes, 2, r, at);
            ir_store(b, o, d->is_serial ? mha_number(d->c, 0, d->lanes) : ir_mul(b, ir_load(b, o), shrink));
        }
    }
    add_tile(d, tile, add, add_carefully);
    if (!d->is_serial) return;
    IR_FOR(b, r, ir_idx(b, 0), d->padded_rows, 1) {
        const ir_expr *shrink = shrink_of(d, r);
        IR_FOR(b, at, ir_idx(b, 0), ir_idx(b, d->v_columns), d->lanes) {
            const ir_expr *term = ir_load(b, ir_at(b, d->tile_o, d->lanes, 2, r, at));
            mha_join_sum(d->c, ir_at(b, d->o, d->lanes, 2, r, at), d->o_lost, shrink, term);
        }
    }
}
