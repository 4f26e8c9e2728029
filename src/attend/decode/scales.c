/* The scales of K and V, if each token has its own: loaded once for each tile into scratch, contiguous along the keys,
 * for all rows of the task. Scales of a head are loaded where they are used. */
#include "attend/decode/layout.h"

/* Scales of `lanes` contiguous keys from key i of the stream on. */
static void load_scales_at(d_lanes *d, const dl_streams *streams, const ir_expr *i, int lanes) {
    ir_builder *b = d->b;
    const mha_kv_row key = dl_key_at(d, streams, 0, i);
    const ir_expr *j = ir_add(b, streams->first[0], i);
    if (d->k_scales)
        ir_store(b, ir_at(b, d->k_scales, lanes, 1, j), mha_scales_of_keys(d->c, MHA_K_SCALE, &key, lanes));
    if (d->v_scales)
        ir_store(b, ir_at(b, d->v_scales, lanes, 1, j), mha_scales_of_keys(d->c, MHA_V_SCALE, &key, lanes));
}

static void load_scales_of(d_lanes *d, const dl_streams *streams, const void *user) {
    ir_builder *b = d->b;
    const ir_expr *rest = ir_mod(b, streams->keys, ir_idx(b, d->lanes));
    (void)user;
    if (d->is_listed) {
        IR_FOR(b, i, ir_idx(b, 0), streams->keys, 1) load_scales_at(d, streams, i, 1);
        return;
    }
    IR_FOR(b, i, ir_idx(b, 0), ir_sub(b, streams->keys, ir_idx(b, d->lanes - 1)), d->lanes) {
        load_scales_at(d, streams, i, d->lanes);
    }
    if (ir_is(rest, 0)) return;
    const ir_expr *done = dl_first(d, "done", ir_sub(b, streams->keys, rest), ir_idx(b, 0), streams->keys);
    IR_FOR(b, i, done, streams->keys, 1) load_scales_at(d, streams, i, 1);
}

void dl_load_scales(d_lanes *d, const dl_tile *tile) {
    const ir_buffer *const scales[2] = {d->k_scales, d->v_scales};
    if (!scales[0] && !scales[1]) return;
    for (int i = 0; i < 2; i++)
        for (int l = 0; scales[i] && l < d->width; l += d->lanes) {
            const ir_access *beyond = ir_at(d->b, scales[i], d->lanes, 1, ir_plus(d->b, tile->keys, l));
            ir_store(d->b, beyond, mha_number(d->c, 1, d->lanes));
        }
    dl_each_streams(d, tile, 1, 1, load_scales_of, NULL);
}

const ir_expr *dl_k_scales(const d_lanes *d, const ir_expr *j, int lanes) {
    if (d->k_scales) return ir_load(d->b, ir_at(d->b, d->k_scales, lanes, 1, j));
    const ir_expr *scale = mha_k_scale(d->c, &(mha_kv_row){.index = {NULL, d->kv_head, NULL}});
    return scale ? ir_splat(d->b, scale, lanes) : NULL;
}

const ir_expr *dl_v_scales(const d_lanes *d, const ir_expr *j, int lanes) {
    if (d->v_scales) return ir_load(d->b, ir_at(d->b, d->v_scales, lanes, 1, j));
    const ir_expr *scale = mha_v_scale(d->c, &(mha_kv_row){.index = {NULL, d->kv_head, NULL}});
    return scale ? ir_splat(d->b, scale, lanes) : NULL;
}
