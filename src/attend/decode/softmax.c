/* The softmax of one tile, row by row, lanes along keys:
 *
 *     row r    [ s s s s s s s s ] [ s s s s s s s s ] [ s s s -inf … ]      scores, padded to whole vectors
 *              [ p p p p p p p p ] [ p p p p p p p p ] [ p p p 0 …    ]      exp(s - max), in place
 *
 * Products become scores (-inf for hidden keys), and then exponentials. Maximum and sum of a row are reduced over the
 * lanes once for each tile. */
#include "attend/decode/layout.h"
#include "base/integers.h"
#include "nest/pairs.h"

#include <math.h>

/* ---- scores ---- */

/* Hides the lanes beyond the last key. */
static void hide_beyond(d_lanes *d, const dl_tile *tile, const ir_expr *r) {
    for (int i = 0; i < max_of(d->width, dl_side_by_side(d)); i += d->lanes) {
        const ir_access *beyond = ir_at(d->b, d->scores, d->lanes, 2, r, ir_plus(d->b, tile->keys, i));
        ir_store(d->b, beyond, mha_number(d->c, -INFINITY, d->lanes));
    }
    if (!d->planes) return;
    for (int64_t group = 0; group < d->k_groups; group++) {
        const ir_expr *row = ir_plus(d->b, ir_times(d->b, r, d->k_groups), group);
        const ir_access *dots = ir_at(d->b, d->dots, d->lanes, 2, row, tile->keys);
        ir_store(d->b, dots, ir_splat(d->b, ir_int(d->b, IR_I32, 0), d->lanes));
    }
}

/* Operands that the scores of a row share. */
static mha_score_operands operands_of_row(const d_lanes *d, const dl_row *row) {
    ir_builder *b = d->b;
    const mha_context *c = d->c;
    const ir_buffer *slopes = c->params.tensor[MHA_ALIBI_SLOPES];
    if (!slopes) return (mha_score_operands){0};
    const ir_expr *slope = mha_load(c, ir_at(b, slopes, 1, 1, row->head));
    slope = ir_let(b, "slope", ir_splat(b, slope, d->lanes));
    const ir_expr *position = ir_cast(b, c->elem, ir_add(b, d->sequence.base, row->query));
    return (mha_score_operands){.slope = slope, .position = ir_let(b, "position", ir_splat(b, position, d->lanes))};
}

/* Products become scores in place, for all keys of a row. */
static void score_row(d_lanes *d, const dl_tile *tile, const dl_row *row, const ir_expr *r, bool masked) {
    ir_builder *b = d->b;
    const mha_context *c = d->c;
    const int lanes = d->lanes;
    mha_score_operands operands = operands_of_row(d, row);
    const dl_sight sight = masked ? dl_sight_of(d, tile, row) : (dl_sight){.tile = tile, .row = row};
    const mha_place place = dl_place_of_row(d, row);
    mha_values values = d->values_of_task;
    mha_fill_values(c, MHA_SCORE_FUNCTION, &place, &values);
    IR_FOR(b, j, ir_idx(b, 0), tile->keys, lanes) {
        const ir_access *score = ir_at(b, d->scores, lanes, 2, r, j);
        operands.k_scale = dl_k_scales(d, j, lanes);
        if (operands.slope) {
            const ir_expr *first = ir_cast(b, IR_I32, ir_add(b, tile->first, j));
            operands.key = ir_cast(b, c->elem, ir_ramp(b, first, ir_int(b, IR_I32, 1), lanes));
        }
        operands.bias = dl_bias(d, &sight, j, lanes);
        const ir_expr *dot = d->planes ? dl_score_of_dots(d, r, j) : ir_load(b, score);
        const ir_expr *z = mha_score(c, &operands, dot, ATTUNE_WEIGHTS_MASKED);
        if (mha_has_function(c, MHA_SCORE_FUNCTION)) {
            const mha_place keys = dl_place_of_keys(d, row, tile, j, lanes);
            z = mha_modified(c, MHA_SCORE_FUNCTION, &keys, &values, z);
        }
        if (masked) z = mha_hide(c, ir_let(b, "sees", dl_sees(d, &sight, j, lanes, operands.bias)), z, -INFINITY);
        ir_store(b, score, z);
    }
    hide_beyond(d, tile, r);
}

void dl_finish_scores(d_lanes *d, const dl_tile *tile, const ir_expr *r) {
    ir_builder *b = d->b;
    hide_beyond(d, tile, r);
    const ir_expr *partial = tile->is_partial;
    const bool is_known = ir_is_const(partial), always = is_known && partial->value.i;
    const bool changes = d->c->is_natural || d->c->params.tensor[MHA_K_SCALE] || d->planes;
    if (is_known && !always && !changes) return;
    const dl_row row = dl_row_at(d, r);
    if (is_known) {
        score_row(d, tile, &row, r, always);
        return;
    }
    IR_IF(b, partial) score_row(d, tile, &row, r, true);
    if (!changes) return;
    IR_ELSE(b) score_row(d, tile, &row, r, false);
}

/* ---- the softmax ---- */

const ir_expr *dl_largest_score(d_lanes *d, const dl_tile *tile, const ir_expr *r) {
    ir_builder *b = d->b;
    const int lanes = dl_side_by_side(d);
    const ir_access *best = ir_mutable(b, "best", mha_number(d->c, -INFINITY, lanes));
    IR_FOR(b, j, ir_idx(b, 0), tile->keys, lanes) {
        ir_store(b, best, ir_max(b, ir_load(b, best), ir_load(b, ir_at(b, d->scores, lanes, 2, r, j))));
    }
    return ir_reduce(b, IR_MAX, ir_let(b, "best_lanes", ir_load(b, best)));
}

/* P = exp(S - base) for the keys from j on; adds them to the sum. P that is rounded to bf16 needs only the short
 * exponential, unless the LSE is an output. It is multiplied by the scales of V before it is rounded. */
static const ir_expr *exponential(d_lanes *d, const ir_expr *r, const ir_expr *j, const ir_expr *bases,
                                  const ir_access *sum) {
    const ir_access *at = ir_at(d->b, d->scores, d->lanes, 2, r, j);
    const ir_expr *score = ir_load(d->b, at);
    const bool is_short = d->c->variant.by_pairs && !d->c->lse;
    const ir_expr *p = is_short ? mha_short_exp(d->c, score, bases) : mha_exp(d->c, score, bases);
    p = ir_let(d->b, "p", p);
    if (!d->c->variant.by_pairs) ir_store(d->b, at, p);
    mha_add_term(d->c, sum, p);
    const ir_expr *scales = d->c->variant.by_pairs ? dl_v_scales(d, j, d->lanes) : NULL;
    return scales ? ir_mul(d->b, p, scales) : p;
}

/* P of all keys of a row; returns a vector of partial sums. */
static const ir_expr *exponentials(d_lanes *d, const dl_tile *tile, const ir_expr *r, const ir_expr *base) {
    ir_builder *b = d->b;
    const ir_access *sum = mha_new_sum(d->c, "sum", d->lanes);
    const ir_expr *bases = ir_let(b, "bases", ir_splat(b, base, d->lanes));
    IR_FOR(b, j, ir_idx(b, 0), tile->keys, d->width) {
        const ir_expr *p = exponential(d, r, j, bases, sum);
        if (d->c->variant.by_pairs) {
            const ir_expr *next = exponential(d, r, ir_plus(b, j, d->lanes), bases, sum);
            ir_store(b, ir_at(b, d->rounded, d->width, 2, r, j), mha_both_rounded(d->c, p, next));
        }
    }
    return ir_let(b, "lane_sums", ir_load(b, sum));
}

void dl_softmax(d_lanes *d, const dl_tile *tile) {
    ir_builder *b = d->b;
    const bool scales = d->c->params.tensor[MHA_V_SCALE] && !d->c->variant.by_pairs;
    IR_FOR(b, r, ir_idx(b, 0), d->padded_rows, 1) {
        dl_finish_scores(d, tile, r);
        const ir_access *row_max = ir_at(b, d->row_max, 1, 1, r);
        const ir_expr *old = ir_let(b, "old_max", ir_load(b, row_max));
        const mha_shrink shrink = mha_take_maximum(d->c, row_max, old, dl_largest_score(d, tile, r));
        ir_store(b, ir_at(b, d->factor, 1, 1, r), shrink.factor);
        const ir_expr *sums = exponentials(d, tile, r, shrink.base), *sum = NULL;
        if (d->is_serial && d->is_listed) {
            sum = dl_listed_sum(d, tile, r);
        } else if (d->is_serial) { /* in the order of prefill */
            const ir_access *serial = mha_new_sum(d->c, "sum", 1);
            MHA_CHUNKS(d->c, chunk, serial, ir_idx(b, 0), tile->keys) {
                mha_add_term(d->c, chunk.part, ir_load(b, ir_at(b, d->scores, 1, 2, r, chunk.key)));
            }
            sum = ir_load(b, serial);
        } else {
            sum = ir_reduce(b, IR_ADD, sums);
        }
        mha_join_sum(d->c, ir_at(b, d->row_sum, 1, 1, r), d->row_sum_lost, shrink.factor, sum);
        if (!scales) continue;
        /* P times the scales of V. A hidden key's scale may be NaN, and then so is its P. */
        IR_FOR(b, j, ir_idx(b, 0), tile->keys, d->lanes) {
            const ir_access *p = ir_at(b, d->scores, d->lanes, 2, r, j);
            ir_store(b, p, ir_mul(b, ir_load(b, p), dl_v_scales(d, j, d->lanes)));
        }
    }
}
