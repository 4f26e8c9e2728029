/* The softmax of one tile, row by row, lanes along keys: products become scores, hidden keys -inf, and then the
 * exponentials relative to the new maximum. Lanes beyond the last key hold -inf, and then 0. */
#include "attend/decode/layout.h"
#include "base/integers.h"
#include "nest/pairs.h"

#include <math.h>

/* ---- the user's functions ---- */

mha_place dl_place_of_row(const d_lanes *d, const dl_row *row) {
    return (mha_place){
        .sequence = &d->sequence, .head = row->head, .kv_head = d->kv_head, .query = row->query, .lanes = 1};
}

mha_place dl_place_of_keys(const d_lanes *d, const dl_row *row, const dl_tile *tile, const ir_expr *j, int lanes) {
    mha_place place = dl_place_of_row(d, row);
    place.key = ir_let(d->b, "key", ir_add(d->b, tile->first, j));
    place.lanes = lanes;
    return place;
}

/* ---- which keys a row sees ---- */

/* A key as i32, counted from the tile's first. A key outside of the tile is moved next to it. */
static const ir_expr *in_tile(const d_lanes *d, const dl_tile *tile, const char *name, const ir_expr *key) {
    ir_builder *b = d->b;
    if (!key) return NULL;
    const ir_expr *from = ir_sub(b, key, tile->first);
    const ir_expr *near = ir_max(b, ir_idx(b, -1), ir_min(b, from, ir_idx(b, d->c->s->kv_tile)));
    return ir_let(b, name, ir_cast(b, IR_I32, near));
}

dl_sight dl_sight_of(const d_lanes *d, const dl_tile *tile, const dl_row *row) {
    const mha_place place = dl_place_of_row(d, row);
    dl_sight sight = {.tile = tile, .row = row, .values = d->values_of_task};
    mha_fill_values(d->c, MHA_MASK_FUNCTION, &place, &sight.values);
    if (!d->masks_positions) return sight;
    const ir_expr *position = ir_let(d->b, "position", ir_add(d->b, d->sequence.base, row->query));
    const mha_sight keys = mha_sight_at(d->c, &d->sequence, position);
    sight.by_position =
        (mha_sight){in_tile(d, tile, "first_seen", keys.first), in_tile(d, tile, "last_seen", keys.last),
                    in_tile(d, tile, "last_global", keys.last_global)};
    return sight;
}

static void store_masks(const d_lanes *d, const ir_access *target, const ir_access *masks) {
    if (target && target->buffer->type.elem == IR_I32)
        ir_store(d->b, target, ir_cast(d->b, IR_I32, ir_load(d->b, masks)));
    else
        ir_store(d->b, target, mha_load(d->c, masks));
}

/* Lanes of a mask, as i32, or of a bias, as c->elem; 0 beyond its last key. */
static const ir_expr *load_masks(const d_lanes *d, const dl_sight *sight, mha_tensor_id id, mha_size size,
                                 const ir_expr *j, int lanes) {
    ir_builder *b = d->b;
    const ir_buffer *masks = d->c->params.tensor[id];
    if (!masks) return NULL;
    const ir_expr *end = d->c->params.size[size], *key = ir_let(b, "key", ir_add(b, sight->tile->first, j));
    const ir_expr *const index[] = {d->sequence.number, sight->row->head, sight->row->query, key};
    const ir_type type = ir_type_of(id == MHA_ATTN_MASK ? IR_I32 : d->c->elem, lanes);
    const ir_access *value = ir_at(b, ir_alloc(b, "masks", IR_REG, type, 0, NULL), lanes, 0);
    IR_IF(b, ir_le(b, ir_plus(b, key, lanes), end)) {
        store_masks(d, value, ir_access_make(b, masks, lanes, -1, 4, index, NULL));
    }
    IR_ELSE(b) {
        if (lanes > 1) {
            const ir_expr *there = ir_lt(b, ir_ramp(b, key, ir_idx(b, 1), lanes), ir_splat(b, end, lanes));
            store_masks(d, value, ir_access_make(b, masks, lanes, -1, 4, index, there));
        } else {
            ir_store(b, value, id == MHA_ATTN_MASK ? ir_int(b, IR_I32, 0) : mha_number(d->c, 0, 1));
        }
    }
    return ir_load(b, value);
}

const ir_expr *dl_bias(const d_lanes *d, const dl_sight *sight, const ir_expr *j, int lanes) {
    const ir_expr *bias = load_masks(d, sight, MHA_ATTN_BIAS, MHA_BIAS_KV, j, lanes);
    return bias ? ir_let(d->b, "bias", bias) : NULL;
}

const ir_expr *dl_sees(const d_lanes *d, const dl_sight *sight, const ir_expr *j, int lanes, const ir_expr *bias) {
    ir_builder *b = d->b;
    mha_hiding hiding = {.sight = sight->by_position, .bias = bias};
    if (hiding.sight.first || hiding.sight.last)
        hiding.key = ir_let(b, "key", ir_ramp(b, ir_cast(b, IR_I32, j), ir_int(b, IR_I32, 1), lanes));
    if (bias && d->c->p->short_masks) {
        const ir_expr *key = ir_ramp(b, ir_add(b, sight->tile->first, j), ir_idx(b, 1), lanes);
        hiding.there = ir_lt(b, key, ir_splat(b, d->c->params.size[MHA_BIAS_KV], lanes));
    }
    hiding.mask = load_masks(d, sight, MHA_ATTN_MASK, MHA_MASK_KV, j, lanes);
    if (mha_has_function(d->c, MHA_MASK_FUNCTION)) {
        const mha_place place = dl_place_of_keys(d, sight->row, sight->tile, j, lanes);
        hiding.by_function = mha_function_sees(d->c, &place, &sight->values, lanes);
    }
    return mha_sees(d->c, &hiding, lanes);
}

/* Lanes beyond the last key may say that it does. */
const ir_expr *dl_shows_some(d_lanes *d, const dl_tile *tile) {
    ir_builder *b = d->b;
    const ir_expr *no = ir_splat(b, ir_int(b, IR_I32, 0), d->lanes), *yes = ir_splat(b, ir_int(b, IR_I32, 1), d->lanes);
    const ir_access *some = ir_mutable(b, "some", no);
    IR_FOR(b, r, ir_idx(b, 0), d->rows, 1) {
        const dl_row row = dl_row_at(d, r);
        const mha_place place = dl_place_of_row(d, &row);
        mha_values values = d->values_of_task;
        mha_fill_values(d->c, MHA_MASK_FUNCTION, &place, &values);
        IR_FOR(b, j, ir_idx(b, 0), tile->keys, d->lanes) {
            const mha_place keys = dl_place_of_keys(d, &row, tile, j, d->lanes);
            const ir_expr *sees = mha_function_sees(d->c, &keys, &values, d->lanes);
            ir_store(b, some, ir_select(b, sees, yes, ir_load(b, some)));
        }
    }
    const ir_expr *any = ir_reduce(b, IR_MAX, ir_let(b, "some_lanes", ir_load(b, some)));
    return ir_let(b, "shows_some", ir_gt(b, any, ir_int(b, IR_I32, 0)));
}

/* ---- scores ---- */

/* The lanes of the last vectors that lie beyond the last key. */
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

static void score_rows_of(d_lanes *d, const dl_tile *tile, const ir_expr *r) {
    ir_builder *b = d->b;
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

static const ir_expr *largest(d_lanes *d, const dl_tile *tile, const ir_expr *r) {
    ir_builder *b = d->b;
    const int lanes = dl_side_by_side(d);
    const ir_access *best = ir_mutable(b, "best", mha_number(d->c, -INFINITY, lanes));
    IR_FOR(b, j, ir_idx(b, 0), tile->keys, lanes) {
        ir_store(b, best, ir_max(b, ir_load(b, best), ir_load(b, ir_at(b, d->scores, lanes, 2, r, j))));
    }
    return ir_reduce(b, IR_MAX, ir_let(b, "best_lanes", ir_load(b, best)));
}

/* P = exp(S - base) of the keys from j on, in place; their sum is added. Short where P is rounded and no LSE wanted.
 * Before it is rounded it is multiplied by the scales of V. */
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

/* P of all keys of a row; returns the sum by lanes. */
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

/* The sum in the order of q-lanes. */
static const ir_expr *serial_sum(d_lanes *d, const dl_tile *tile, const ir_expr *r) {
    const ir_access *sum = mha_new_sum(d->c, "sum", 1);
    MHA_CHUNKS(d->c, chunk, sum, ir_idx(d->b, 0), tile->keys) {
        mha_add_term(d->c, chunk.part, ir_load(d->b, ir_at(d->b, d->scores, 1, 2, r, chunk.key)));
    }
    return ir_load(d->b, sum);
}

/* P times the scales of V, which may make NaN of the 0 of a hidden key. */
static void scale_row(d_lanes *d, const dl_tile *tile, const ir_expr *r) {
    ir_builder *b = d->b;
    if (!d->c->params.tensor[MHA_V_SCALE] || d->c->variant.by_pairs) return;
    IR_FOR(b, j, ir_idx(b, 0), tile->keys, d->lanes) {
        const ir_access *p = ir_at(b, d->scores, d->lanes, 2, r, j);
        ir_store(b, p, ir_mul(b, ir_load(b, p), dl_v_scales(d, j, d->lanes)));
    }
}

void dl_softmax(d_lanes *d, const dl_tile *tile) {
    ir_builder *b = d->b;
    IR_FOR(b, r, ir_idx(b, 0), d->padded_rows, 1) {
        hide_beyond(d, tile, r);
        score_rows_of(d, tile, r);
        if (d->p_quantised) {
            dl_quantised_softmax(d, tile, r, largest(d, tile, r));
            continue;
        }
        const ir_access *row_max = ir_at(b, d->row_max, 1, 1, r);
        const ir_expr *old = ir_let(b, "old_max", ir_load(b, row_max));
        const mha_shrink shrink = mha_take_maximum(d->c, row_max, old, largest(d, tile, r));
        ir_store(b, ir_at(b, d->factor, 1, 1, r), shrink.factor);
        const ir_expr *sums = exponentials(d, tile, r, shrink.base);
        const ir_expr *sum = d->is_serial ? serial_sum(d, tile, r) : ir_reduce(b, IR_ADD, sums);
        mha_join_sum(d->c, ir_at(b, d->row_sum, 1, 1, r), d->row_sum_lost, shrink.factor, sum);
        scale_row(d, tile, r);
    }
}
