/* Which keys of a tile a row attends to, with lanes along keys: by position, an interval counted from the tile's first
 * key; by masks in memory, which are read along the keys; and by mask_mod. */
#include "attend/decode/layout.h"
#include "base/integers.h"

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

/* A key number as i32, counted from the tile's first key, clamped to -1 … kv_tile. */
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

/* A vector of a mask, as i32, or of a bias, as c->elem; 0 beyond its last key. */
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

/* Lanes beyond the last key are evaluated, too, and may only make the answer true without need. */
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
