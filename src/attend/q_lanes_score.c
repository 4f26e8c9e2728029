/* S^T = K Q^T for one tile and stripe: register tiles of score_keys keys by score_row_vectors vectors of query rows.
 * Keys beyond the last one repeat it, and where all rows see that, so do their scores: the maximum is right. */
#include "attend/q_lanes.h"

#include <math.h>

enum { MAX_ROWS = 64 };

typedef struct score_tile {
    const ir_expr *first;         /* its first key within the tile */
    const ir_expr *key[MAX_ROWS]; /* its keys, clamped to the last one */
    mha_kv_row row[MAX_ROWS];     /* where they lie in K */
    const ir_expr *j[MAX_ROWS];   /* and in c->keys */
    mha_product product;          /* score_keys by score_row_vectors */
    const ir_buffer *max;         /* registers [score_row_vectors]: running maximum over the tile */
} score_tile;

static void find_keys(q_lanes *c, const q_lanes_tile *tile, score_tile *t) {
    ir_builder *b = c->b;
    const ir_expr *first = ir_let(b, "key", ir_add(b, tile->first_key, t->first));
    for (int jj = 0; jj < c->m->s->score_keys; jj++) {
        const ir_expr *key = ql_clamp_key(c, ir_plus(b, first, jj));
        t->key[jj] = c->keys_fill_tiles ? key : ir_let(b, "key", key);
        t->row[jj] = mha_kv_row_at(c->m, &c->e, c->kv_head, t->key[jj]);
        t->j[jj] = ir_plus(b, t->first, jj);
        if (c->keys && !c->keys_fill_tiles) t->j[jj] = ir_let(b, "j", ir_min(b, ir_plus(b, tile->room, -1), t->j[jj]));
    }
}

/* How often the loop over the columns, or pairs of them, is unrolled. */
static int64_t unrolling(const q_lanes *c) {
    int64_t unroll = c->m->s->score_columns;
    while (c->m->p->head_dim / c->width % unroll) unroll--;
    return unroll;
}

/* K[key, d] * Q^T[d, rows], summed in the order of d. */
static void multiply(q_lanes *c, const q_lanes_tile *tile, score_tile *t) {
    ir_builder *b = c->b;
    mha_product *p = &t->product;
    const int wide = p->lanes * c->width;
    mha_product_clear(p);
    MHA_STEPS(c->m, d, ir_idx(b, 0), ir_idx(b, c->m->p->head_dim / c->width), unrolling(c)) {
        mha_product_hold(p, "queries");
        for (int v = 0; v < p->vectors; v++)
            mha_product_vector(p, NULL, v, ir_load(b, ir_at(b, c->qt, wide, 3, tile->stripe, d, ir_idx(b, v * wide))));
        const ir_expr *column = ir_times(b, d, c->width);
        for (int jj = 0; jj < p->rows; jj++)
            mha_product_repeat(p, "key_value", jj,
                               c->keys ? ir_at(b, c->keys, 1, 2, t->j[jj], column)
                                       : mha_kv_access(c->m, c->m->k, &t->row[jj], column, c->width));
    }
}

/* The operands of the scores of one key of the register tile, for the stripe's rows from `at` on. `rows`: those that
 * all keys share. */
static mha_score_operands operands_of(q_lanes *c, const score_tile *t, mha_score_operands rows, int jj,
                                      const ir_expr *at) {
    ir_builder *b = c->b;
    rows.k_scale = mha_k_scale(c->m, &t->row[jj]);
    if (rows.slope) rows.key = ir_cast(b, c->m->elem, t->key[jj]);
    if (c->bias) rows.bias = ir_load(b, ir_at(b, c->bias, c->m->lanes, 2, ir_plus(b, t->first, jj), at));
    return rows;
}

/* Products become scores where they are. Often there is nothing to do: the scale is applied by the softmax. */
static void score(q_lanes *c, const q_lanes_tile *tile, const score_tile *t) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    q_lanes_key_values of_key[MAX_ROWS];
    for (int jj = 0; jj < t->product.rows; jj++) ql_fill_key(c, MHA_SCORE_FUNCTION, t->key[jj], &of_key[jj]);
    for (int v = 0; v < t->product.vectors; v++) {
        const ir_expr *at = ir_idx(b, (int64_t)v * lanes);
        const mha_values values = ql_values_of_rows(c, MHA_SCORE_FUNCTION, tile->stripe, at);
        mha_score_operands rows = {0};
        if (c->position) {
            rows.position = ir_let(b, "position", ir_load(b, ir_at(b, c->position, lanes, 2, tile->stripe, at)));
            rows.slope = ir_let(b, "slope", ir_load(b, ir_at(b, c->slope, lanes, 2, tile->stripe, at)));
        }
        for (int jj = 0; jj < t->product.rows; jj++) {
            const mha_score_operands operands = operands_of(c, t, rows, jj, at);
            const ir_expr *dot = mha_product_sum(&t->product, jj, v);
            const ir_expr *z = mha_score(c->m, &operands, dot, ATTUNE_WEIGHTS_MASKED);
            z = ql_modified(c, &values, &of_key[jj], t->key[jj], z);
            if (z != dot) ir_store(b, mha_product_at(&t->product, jj, v), z);
        }
    }
}

/* Keys that a row does not see become -inf. */
static void hide(q_lanes *c, const q_lanes_tile *tile, const score_tile *t) {
    ir_builder *b = c->b;
    for (int v = 0; v < t->product.vectors; v++) {
        const ir_expr *at = ir_idx(b, (int64_t)v * c->m->lanes);
        const q_lanes_sight sight = ql_sight(c, tile, at);
        for (int jj = 0; jj < t->product.rows; jj++) {
            const ir_expr *sees = ql_sees(c, &sight, at, t->key[jj], ir_plus(b, t->first, jj));
            const ir_access *z = mha_product_at(&t->product, jj, v);
            ir_store(b, z, mha_hide(c->m, sees, ir_load(b, z), -INFINITY));
        }
    }
}

/* Register tiles within which no row's sight begins or ends need not compare. */
static void hide_some(q_lanes *c, const q_lanes_tile *tile, const score_tile *t) {
    ir_builder *b = c->b;
    if (!c->has_edges || c->asks_all || c->m->has_global) {
        if (c->has_edges || c->asks_all) hide(c, tile, t);
        return;
    }
    const ir_expr *crosses = ir_gt(b, ir_plus(b, t->first, c->m->s->score_keys), tile->full_to);
    if (c->m->has_first) crosses = ir_or(b, crosses, ir_lt(b, t->first, tile->full_from));
    IR_IF(b, crosses) hide(c, tile, t);
}

/* Stores the scores of the register tile and folds them into the maximum. */
static void finish(q_lanes *c, const score_tile *t) {
    ir_builder *b = c->b;
    for (int v = 0; v < t->product.vectors; v++)
        for (int jj = 0; jj < t->product.rows; jj++) {
            const ir_access *max = ir_at(b, t->max, c->m->lanes, 1, ir_idx(b, v));
            const ir_expr *z = mha_product_sum(&t->product, jj, v);
            ir_store(b, ql_score_at(c, ir_idx(b, v), ir_plus(b, t->first, jj)), z);
            ir_store(b, max, ir_max(b, ir_load(b, max), z));
        }
}

/* The number after the last register tile with a key that the stripe sees. If score_keys divides the number of keys, no
 * tile reaches beyond the last key. */
static const ir_expr *end_of_tiles(q_lanes *c, const q_lanes_tile *tile) {
    ir_builder *b = c->b;
    const int64_t rows = c->m->s->score_keys;
    const ir_expr *count = ir_ceil_div(b, tile->to, rows), *whole = ir_div(b, tile->room, ir_idx(b, rows));
    if (!c->keys_fill_tiles) return count;
    return c->has_edges ? ir_min(b, count, whole) : whole;
}

void ql_scores(q_lanes *c, const q_lanes_tile *tile) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    const int64_t rows = c->m->s->score_keys, vectors = c->m->s->score_row_vectors;
    score_tile t = {.product = mha_product_of(c->m, ql_kind(c), rows, vectors),
                    .max = ir_registers(b, "max_so_far", c->m->elem, lanes, 1, &vectors)};
    IR_UNROLLED(b, v, vectors) {
        ir_store(b, ir_at(b, t.max, lanes, 1, v), ql_splat(c, -INFINITY));
    }
    const ir_expr *end = ir_let(b, "score_tiles", end_of_tiles(c, tile));
    if (c->has_elements) ql_load_elements(c, tile, ir_times(b, end, rows));
    IR_LOOP(b, n, ir_for_begin(b, "score_tile", ir_div(b, tile->from, ir_idx(b, rows)), end, 1, false)) {
        t.first = ir_let(b, "first", ir_times(b, n, rows));
        find_keys(c, tile, &t);
        ql_ask_ahead(c, tile, t.first);
        multiply(c, tile, &t);
        score(c, tile, &t);
        hide_some(c, tile, &t);
        finish(c, &t);
    }
    IR_UNROLLED(b, v, vectors) {
        const ir_access *max = ir_at(b, c->tile_max, lanes, 1, ir_times(b, v, lanes));
        ir_store(b, max, ir_load(b, ir_at(b, t.max, lanes, 1, v)));
    }
}
