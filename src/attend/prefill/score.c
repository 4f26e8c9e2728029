/* S^T = K Q^T for one tile and stripe. A register tile is score_keys keys by score_row_vectors vectors of query rows,
 * in accumulators; the loop over the columns of K is inside. Before a register tile is stored, its products become
 * scores (scale, soft cap, ALiBi, bias, score_mod), hidden ones -inf, and the maximum of each row is taken:
 *
 *     for each register tile of keys
 *       multiply                   one of three (ql_products): lanes along rows, along columns, in integers
 *       score                      in registers
 *       hide, store, maximum       compares only where the visible range of a row begins or ends in the register tile
 *
 * Keys beyond the last one repeat it, so their scores repeat its score (or are hidden with it): the maximum is right.
 */
#include "attend/prefill/score_tile.h"
#include "base/integers.h"

#include <math.h>

void ql_multiply_rows(q_lanes *c, const q_lanes_tile *tile, const ql_score_tile *t, int64_t vectors) {
    ir_builder *b = c->b;
    const int64_t columns = c->m->p->head_dim / ql_width(c), unroll = divisor_below(columns, c->m->s->score_columns);
    mha_product product = t->product, *p = &product;
    const int wide = p->lanes * ql_width(c);
    const bool by_units = !c->keys && mha_is_paneled(c->m, c->m->k) && mha_unit_of(c->m->k) == ql_width(c);
    mha_row panel[QL_MAX_KEYS];
    for (int jj = 0; by_units && jj < p->rows; jj++) panel[jj] = mha_kv_row_of(c->m, c->m->k, &t->row[jj]);
    p->vectors = vectors;
    MHA_STEPS(c->m, d, ir_idx(b, 0), ir_idx(b, columns), unroll) {
        mha_product_hold(p, "queries");
        for (int v = 0; v < p->vectors; v++)
            mha_product_vector(p, NULL, v, ir_load(b, ir_at(b, c->qt, wide, 3, tile->stripe, d, ir_idx(b, v * wide))));
        const ir_expr *column = ir_times(b, d, ql_width(c));
        for (int jj = 0; jj < p->rows; jj++)
            mha_product_repeat(p, "key_value", jj,
                               c->keys    ? ir_at(b, c->keys, ql_width(c), 2, t->j[jj], column)
                               : by_units ? mha_panel_keys(c->m, &panel[jj], d, 1)
                                          : mha_kv_access(c->m, c->m->k, &t->row[jj], column, ql_width(c)));
    }
}

/* ---- From products to scores ---- */

/* Products become scores in the accumulators. Often there is nothing to do, as the softmax applies the scale. */
static void score(q_lanes *c, const q_lanes_tile *tile, const ql_score_tile *t) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    const int quarter = mha_quarter(lanes);
    q_lanes_key_values *const of_key = ir_build_alloc(b, (size_t)t->product.rows * sizeof *of_key);
    for (int jj = 0; of_key && jj < t->product.rows; jj++) ql_fill_key(c, MHA_SCORE_FUNCTION, t->key[jj], &of_key[jj]);
    for (int v = 0; of_key && v < t->product.vectors; v++) {
        const ir_expr *at = ir_idx(b, (int64_t)v * lanes);
        mha_values values = ql_values_of_rows(c, MHA_SCORE_FUNCTION, tile->stripe, at, lanes);
        q_lanes_pair_values pairs;
        ql_open_pairs(c, MHA_SCORE_FUNCTION, tile->stripe, at, &pairs);
        mha_score_operands of_rows = {0};
        if (c->position) {
            of_rows.position = ir_let(b, "position", ir_load(b, ir_at(b, c->position, lanes, 2, tile->stripe, at)));
            of_rows.slope = ir_let(b, "slope", ir_load(b, ir_at(b, c->slope, lanes, 2, tile->stripe, at)));
        }
        for (int jj = 0; jj < t->product.rows; jj++) {
            mha_score_operands operands = of_rows;
            operands.k_scale = mha_k_scale(c->m, &t->row[jj]);
            if (of_rows.slope) operands.key = ir_cast(b, c->m->elem, t->key[jj]);
            if (c->bias) operands.bias = ir_load(b, ir_at(b, c->bias, lanes, 2, ir_plus(b, t->first, jj), at));
            const ir_expr *dot = mha_product_sum(&t->product, jj, v);
            const ir_expr *z = mha_score(c->m, &operands, dot, ATTUNE_WEIGHTS_MASKED);
            if (jj % quarter == 0) ql_fill_pairs(c, t->key[jj], &pairs);
            ql_put_pairs(&pairs, jj % quarter, &values);
            ql_put_distances(c, MHA_SCORE_FUNCTION, at, ir_plus(b, t->first, jj), &values);
            z = ql_modified(c, MHA_SCORE_FUNCTION, &values, &of_key[jj], t->key[jj], z);
            if (z != dot) ir_store(b, mha_product_at(&t->product, jj, v), z);
        }
    }
}

/* Scores of keys that are hidden from a row become -inf. */
static void hide(q_lanes *c, const q_lanes_tile *tile, const ql_score_tile *t) {
    ir_builder *b = c->b;
    for (int v = 0; v < t->product.vectors; v++) {
        const ir_expr *at = ir_idx(b, (int64_t)v * c->m->lanes);
        const q_lanes_sight sight = ql_sight(c, tile, at);
        for (int jj = 0; jj < t->product.rows; jj++) {
            const ir_expr *sees = ql_is_visible(c, &sight, at, t->key[jj], ir_plus(b, t->first, jj));
            const ir_access *z = mha_product_at(&t->product, jj, v);
            ir_store(b, z, mha_hide(c->m, sees, ir_load(b, z), -INFINITY));
        }
    }
}

/* Whether the visible range of a row may begin or end within the register tile; NULL: it does not in any. */
static const ir_expr *crosses(const q_lanes *c, const q_lanes_tile *tile, const ql_score_tile *t) {
    ir_builder *b = c->b;
    if (ql_has_elements(c) || c->m->has_global || (ql_may_hide_any(c) && !ql_has_table(c)))
        return ir_int(b, IR_BOOL, 1);
    if (!ql_has_edges(c) && !ql_has_table(c)) return NULL;
    const ir_expr *ends = ir_gt(b, ir_plus(b, t->first, c->m->s->score_keys), tile->full_to);
    if (!c->m->has_first && !ql_has_table(c)) return ends;
    return ir_or(b, ends, ir_lt(b, t->first, tile->full_from));
}

static void update_maximum(q_lanes *c, const ql_score_tile *t, int64_t v, const ir_expr *z) {
    const ir_access *max = ir_at(c->b, t->max, c->m->lanes, 1, ir_idx(c->b, v));
    ir_store(c->b, max, ir_max(c->b, ir_load(c->b, max), z));
}

/* Stores the scores of the register tile (`stores`), and folds them into the maximum (`folds`). */
static void finish(q_lanes *c, const ql_score_tile *t, bool stores, bool folds) {
    ir_builder *b = c->b;
    for (int v = 0; v < t->product.vectors; v++)
        for (int jj = 0; jj < t->product.rows; jj++) {
            const ir_expr *z = mha_product_sum(&t->product, jj, v);
            if (stores) ir_store(b, ql_score_at(c, ir_idx(b, v), ir_plus(b, t->first, jj)), z);
            if (folds) update_maximum(c, t, v, z);
        }
}

/* Hides keys by mask_mod, in scores that were stored, and takes the maximum. mask_mod may be a long expression: in a
 * loop its code is emitted once. */
static void hide_stored(q_lanes *c, const q_lanes_tile *tile, const ql_score_tile *t) {
    ir_builder *b = c->b;
    q_lanes_sight *const sights = ir_build_alloc(b, (size_t)t->product.vectors * sizeof *sights);
    if (!sights) return;
    for (int v = 0; v < t->product.vectors; v++) sights[v] = ql_sight(c, tile, ir_idx(b, (int64_t)v * c->m->lanes));
    IR_FOR(b, i, ir_idx(b, 0), ir_idx(b, t->product.rows), 1) {
        const ir_expr *j = ir_let(b, "j", ir_add(b, t->first, i));
        const ir_expr *key = ir_let(b, "key", ql_clamp_key(c, ir_add(b, tile->first_key, j)));
        for (int v = 0; v < t->product.vectors; v++) {
            const ir_access *score = ql_score_at(c, ir_idx(b, v), j);
            const ir_expr *sees = ql_is_visible(c, &sights[v], ir_idx(b, (int64_t)v * c->m->lanes), key, j);
            const ir_expr *z = ir_let(b, "z", mha_hide(c->m, sees, ir_load(b, score), -INFINITY));
            ir_store(b, score, z);
            update_maximum(c, t, v, z);
        }
    }
}

/* Stores the scores of the register tile, -inf for hidden keys, and takes the maximum. Rows compare keys only if a
 * visible range begins or ends in the tile. */
static void close_tile(q_lanes *c, const q_lanes_tile *tile, const ql_score_tile *t) {
    ir_builder *b = c->b;
    const ir_expr *hides = crosses(c, tile, t);
    const bool always = hides && ir_is_const(hides), has_mask_mod = mha_has_function(c->m, MHA_MASK_FUNCTION);
    if (!has_mask_mod) {
        if (hides)
            IR_GUARD(b, !always, hides) hide(c, tile, t);
        finish(c, t, true, true);
        return;
    }
    finish(c, t, true, false);
    IR_GUARD(b, !always, hides) hide_stored(c, tile, t);
    if (always) return;
    IR_ELSE(b) finish(c, t, false, true);
}

/* The number after the last register tile with a key that is visible to the stripe. */
static const ir_expr *end_of_tiles(q_lanes *c, const q_lanes_tile *tile) {
    ir_builder *b = c->b;
    const int64_t keys = c->m->s->score_keys;
    const ir_expr *count = ir_ceil_div(b, tile->to, keys), *whole = ir_div(b, tile->room, ir_idx(b, keys));
    if (!c->keys_fill_tiles || c->v->score_tiles_overlap) return count;
    return ql_has_edges(c) || ql_has_table(c) ? ir_min(b, count, whole) : whole;
}

static const ir_buffer *open_maximum(q_lanes *c) {
    const int64_t vectors = c->m->s->score_row_vectors;
    const ir_buffer *max = ir_registers(c->b, "max_so_far", c->m->elem, c->m->lanes, 1, &vectors);
    IR_UNROLLED(c->b, v, vectors) {
        ir_store(c->b, ir_at(c->b, max, c->m->lanes, 1, v), ql_splat(c, -INFINITY));
    }
    return max;
}

/* All register tiles of a stripe. */
static void all_tiles(q_lanes *c, const q_lanes_tile *tile, ql_score_tile t, const ir_expr *end,
                      ql_products *multiply) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    const int64_t keys = c->m->s->score_keys;
    const bool overlap = c->v->score_tiles_overlap;
    /* The maximum is this loop's own, so that the loops of both kinds of stripe can be separate functions
     * (codegen/cut.c). */
    if (!t.max) t.max = open_maximum(c);
    IR_LOOP(b, n, ir_for_begin(b, "score_tile", ir_div(b, tile->from, ir_idx(b, keys)), end, 1, false)) {
        const ir_expr *first = ir_times(b, n, keys);
        t.number = n;
        t.first = ir_let(b, "first", overlap ? ir_min(b, first, ir_plus(b, tile->room, -keys)) : first);
        const ir_expr *first_key = ir_let(b, "key", ir_add(b, tile->first_key, t.first));
        if (overlap) ir_assume(b, ir_le(b, first_key, ir_plus(b, c->e.seq_kv, -keys)));
        for (int jj = 0; jj < keys; jj++) {
            const ir_expr *key = ql_clamp_key(c, ir_plus(b, first_key, jj));
            t.key[jj] = c->keys_fill_tiles ? key : ir_let(b, "key", key);
            t.row[jj] = mha_kv_row_at(c->m, &c->e, c->kv_head, t.key[jj]);
            t.j[jj] = ir_plus(b, t.first, jj);
            if (c->keys && !c->keys_fill_tiles)
                t.j[jj] = ir_let(b, "j", ir_min(b, ir_plus(b, tile->room, -1), t.j[jj]));
        }
        ql_prefetch(c, tile, overlap ? ir_times(b, n, keys) : t.first);
        multiply(c, tile, &t);
        score(c, tile, &t);
        close_tile(c, tile, &t);
    }
    IR_UNROLLED(b, v, t.product.vectors) {
        const ir_access *max = ir_at(b, c->tile_max, lanes, 1, ir_times(b, v, lanes));
        ir_store(b, max, ir_load(b, ir_at(b, t.max, lanes, 1, v)));
    }
}

void ql_score_tiles(q_lanes *c, const q_lanes_tile *tile, ql_products *multiply) {
    ir_builder *b = c->b;
    const int64_t keys = c->m->s->score_keys, vectors = c->m->s->score_row_vectors;
    const bool has_fewer = c->v->rest_rows || c->v->scores_by_columns;
    const bool has_other = c->num_stripes > 1 && has_fewer && c->m->p->seq_q * c->m->group % c->stripe_rows != 0;
    ql_score_tile t = {.is_last = true,
                       .product = mha_product_of(c->m, ql_is_quantised(c) ? MHA_MADD : ql_kind(c), keys, vectors)};
    if (!has_other) t.max = open_maximum(c);
    const ir_expr *end = ir_let(b, "score_tiles", end_of_tiles(c, tile));
    if (ql_has_elements(c)) ql_load_elements(c, tile, ir_times(b, end, keys));
    if (!has_other) {
        all_tiles(c, tile, t, end, multiply);
        return;
    }
    IR_IF(b, ql_is_last(c, tile->stripe)) all_tiles(c, tile, t, end, multiply);
    t.is_last = false;
    IR_ELSE(b) all_tiles(c, tile, t, end, multiply);
}

static void multiply_all(q_lanes *c, const q_lanes_tile *tile, ql_score_tile *t) {
    mha_product_clear(&t->product);
    ql_multiply_rows(c, tile, t, t->product.vectors);
}

void ql_scores(q_lanes *c, const q_lanes_tile *tile) { ql_score_tiles(c, tile, multiply_all); }
