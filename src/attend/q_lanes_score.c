/* S^T = K Q^T for one tile and stripe: register tiles of score_keys keys by score_row_vectors vectors of query rows.
 * Keys beyond the last one repeat it, and where all rows see that, so do their scores: the maximum is right. */
#include "attend/q_lanes.h"
#include "base/integers.h"

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
    return divisor_below(c->codes ? ql_code_units(c) : c->m->p->head_dim / c->width, c->m->s->score_columns);
}

/* K[key, d] * Q^T[d, rows], summed in the order of d, for the first vectors of rows. */
static void multiply(q_lanes *c, const q_lanes_tile *tile, const score_tile *t, int64_t vectors) {
    ir_builder *b = c->b;
    mha_product product = t->product, *p = &product;
    const int wide = p->lanes * c->width;
    const bool by_units = !c->keys && mha_is_paneled(c->m, c->m->k) && mha_unit_of(c->m->k) == c->width;
    mha_row panel[MAX_ROWS];
    for (int jj = 0; by_units && jj < p->rows; jj++) panel[jj] = mha_kv_row_of(c->m, c->m->k, &t->row[jj]);
    p->vectors = vectors;
    MHA_STEPS(c->m, d, ir_idx(b, 0), ir_idx(b, c->m->p->head_dim / c->width), unrolling(c)) {
        mha_product_hold(p, "queries");
        for (int v = 0; v < p->vectors; v++)
            mha_product_vector(p, NULL, v, ir_load(b, ir_at(b, c->qt, wide, 3, tile->stripe, d, ir_idx(b, v * wide))));
        const ir_expr *column = ir_times(b, d, c->width);
        for (int jj = 0; jj < p->rows; jj++)
            mha_product_repeat(p, "key_value", jj,
                               c->keys    ? ir_at(b, c->keys, c->width, 2, t->j[jj], column)
                               : by_units ? mha_panel_keys(c->m, &panel[jj], d, 1)
                                          : mha_kv_access(c->m, c->m->k, &t->row[jj], column, c->width));
    }
}

/* ---- Rest rows ---- */

/* Lanes along the columns, which they fill. */
static int lanes_of_columns(const q_lanes *c) {
    int64_t lanes = c->m->target->vector_bytes / ir_elem_get(c->m->elem)->bytes;
    while (c->m->p->head_dim % lanes) lanes /= 2;
    return (int)lanes;
}

/* Products of the rest rows and the keys from number `first` of the register tile on, with a sum in each lane. */
static void multiply_columns(q_lanes *c, const q_lanes_tile *tile, const score_tile *t, int64_t first,
                             mha_product *sums) {
    ir_builder *b = c->b;
    const ir_expr *sign = mha_query_sign(c->m);
    const int64_t at = ql_whole_vectors(c, true) * c->m->lanes;
    q_lanes_row rows[IR_MAX_LANES];
    for (int64_t r = 0; r < sums->vectors; r++) rows[r] = ql_row(c, tile->stripe, ir_idx(b, at + r));
    mha_product_clear(sums);
    IR_FOR(b, d, ir_idx(b, 0), ir_idx(b, c->m->p->head_dim), sums->lanes) {
        for (int64_t r = 0; r < sums->vectors; r++) {
            const ir_expr *token = ir_add(b, c->e.first_q, rows[r].query);
            const ir_expr *q = mha_load(c->m, ir_at(b, c->m->q, sums->lanes, 4, c->e.batch, rows[r].head, token, d));
            mha_product_vector(sums, "query", r, sign ? ir_mul(b, q, ir_splat(b, sign, sums->lanes)) : q);
        }
        for (int64_t jj = 0; jj < sums->rows; jj++) {
            const ir_access *k = c->keys ? ir_at(b, c->keys, sums->lanes, 2, t->j[first + jj], d)
                                         : mha_kv_access(c->m, c->m->k, &t->row[first + jj], d, sums->lanes);
            mha_product_row(sums, "key_columns", jj, mha_load(c->m, k));
        }
    }
}

/* The products of row r, key by key in a vector. */
static const ir_expr *sums_of_row(q_lanes *c, const mha_product *sums, int64_t r) {
    const ir_expr *x[IR_MAX_LANES];
    int count = 1;
    while (count < sums->rows) count *= 2;
    for (int64_t jj = 0; jj < count; jj++)
        x[jj] = jj < sums->rows ? mha_product_sum(sums, jj, r) : mha_number(c->m, 0, sums->lanes);
    return ir_let(c->b, "dots", mha_sum_lanes(c->b, sums->lanes, count, x));
}

/* The products of one key with the rest rows, in lanes, the last one again and again; all lanes are that after them. */
static void store_dots(q_lanes *c, const score_tile *t, int64_t jj, int64_t vector, const ir_expr *const *dots) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    const ir_expr *parts[IR_MAX_LANES];
    for (int l = 0; l < lanes; l++) parts[l] = l < c->rest_rows ? dots[l] : parts[c->rest_rows - 1];
    for (int64_t v = vector; v < t->product.vectors; v++) {
        const bool has_all = v == vector && c->rest_rows > 1;
        const ir_expr *x = has_all ? mha_join(b, parts, lanes, 1) : ir_splat(b, parts[lanes - 1], lanes);
        ir_store(b, mha_product_at(&t->product, jj, v), x);
    }
}

/* The same as multiply for the vectors of rows from `vector` on, which hold the rest rows. */
static void multiply_rest(q_lanes *c, const q_lanes_tile *tile, const score_tile *t, int64_t vector) {
    enum { TOGETHER = 8 };
    ir_builder *b = c->b;
    const int64_t together = min_of(TOGETHER, lanes_of_columns(c));
    for (int64_t first = 0; first < t->product.rows; first += together) {
        mha_product sums = mha_product_of(c->m, MHA_MADD, min_of(together, t->product.rows - first), c->rest_rows);
        const ir_expr *sum[IR_MAX_LANES], *dots[IR_MAX_LANES];
        sums.lanes = lanes_of_columns(c);
        multiply_columns(c, tile, t, first, &sums);
        for (int64_t r = 0; r < c->rest_rows; r++) sum[r] = sums_of_row(c, &sums, r);
        for (int64_t jj = 0; jj < sums.rows; jj++) {
            for (int64_t r = 0; r < c->rest_rows; r++) dots[r] = ir_let(b, "dot", mha_lanes_of(b, sum[r], (int)jj, 1));
            store_dots(c, t, first + jj, vector, dots);
        }
    }
}

/* ---- From products to scores ---- */

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
    const int quarter = mha_quarter(lanes);
    q_lanes_key_values *const of_key = ir_build_alloc(b, (size_t)t->product.rows * sizeof *of_key);
    for (int jj = 0; of_key && jj < t->product.rows; jj++) ql_fill_key(c, MHA_SCORE_FUNCTION, t->key[jj], &of_key[jj]);
    for (int v = 0; of_key && v < t->product.vectors; v++) {
        const ir_expr *at = ir_idx(b, (int64_t)v * lanes);
        mha_values values = ql_values_of_rows(c, MHA_SCORE_FUNCTION, tile->stripe, at, lanes);
        q_lanes_pair_values pairs;
        ql_open_pairs(c, MHA_SCORE_FUNCTION, tile->stripe, at, &pairs);
        mha_score_operands rows = {0};
        if (c->position) {
            rows.position = ir_let(b, "position", ir_load(b, ir_at(b, c->position, lanes, 2, tile->stripe, at)));
            rows.slope = ir_let(b, "slope", ir_load(b, ir_at(b, c->slope, lanes, 2, tile->stripe, at)));
        }
        for (int jj = 0; jj < t->product.rows; jj++) {
            const mha_score_operands operands = operands_of(c, t, rows, jj, at);
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

/* Whether a row's sight may begin or end within the register tile; NULL: not in any. */
static const ir_expr *crosses(const q_lanes *c, const q_lanes_tile *tile, const score_tile *t) {
    ir_builder *b = c->b;
    if (c->has_elements || c->m->has_global || (c->asks_all && !c->has_tiles)) return ir_int(b, IR_BOOL, 1);
    if (!c->has_edges && !c->has_tiles) return NULL;
    const ir_expr *ends = ir_gt(b, ir_plus(b, t->first, c->m->s->score_keys), tile->full_to);
    if (!c->m->has_first && !c->has_tiles) return ends;
    return ir_or(b, ends, ir_lt(b, t->first, tile->full_from));
}

static void take_maximum(q_lanes *c, const score_tile *t, int64_t v, const ir_expr *z) {
    const ir_access *max = ir_at(c->b, t->max, c->m->lanes, 1, ir_idx(c->b, v));
    ir_store(c->b, max, ir_max(c->b, ir_load(c->b, max), z));
}

/* Stores the scores of the register tile, and folds them into the maximum. */
static void finish(q_lanes *c, const score_tile *t, bool stores, bool folds) {
    ir_builder *b = c->b;
    for (int v = 0; v < t->product.vectors; v++)
        for (int jj = 0; jj < t->product.rows; jj++) {
            const ir_expr *z = mha_product_sum(&t->product, jj, v);
            if (stores) ir_store(b, ql_score_at(c, ir_idx(b, v), ir_plus(b, t->first, jj)), z);
            if (folds) take_maximum(c, t, v, z);
        }
}

/* The same of scores in memory, where mask_mod hides keys: it may be a long expression, and is asked in a loop. */
static void hide_stored(q_lanes *c, const q_lanes_tile *tile, const score_tile *t) {
    ir_builder *b = c->b;
    q_lanes_sight *const sights = ir_build_alloc(b, (size_t)t->product.vectors * sizeof *sights);
    if (!sights) return;
    for (int v = 0; v < t->product.vectors; v++) sights[v] = ql_sight(c, tile, ir_idx(b, (int64_t)v * c->m->lanes));
    IR_FOR(b, i, ir_idx(b, 0), ir_idx(b, t->product.rows), 1) {
        const ir_expr *j = ir_let(b, "j", ir_add(b, t->first, i));
        const ir_expr *key = ir_let(b, "key", ql_clamp_key(c, ir_add(b, tile->first_key, j)));
        for (int v = 0; v < t->product.vectors; v++) {
            const ir_access *score = ql_score_at(c, ir_idx(b, v), j);
            const ir_expr *sees = ql_sees(c, &sights[v], ir_idx(b, (int64_t)v * c->m->lanes), key, j);
            const ir_expr *z = ir_let(b, "z", mha_hide(c->m, sees, ir_load(b, score), -INFINITY));
            ir_store(b, score, z);
            take_maximum(c, t, v, z);
        }
    }
}

/* Scores of the register tile to memory, those of hidden keys as -inf. Where no row's sight begins or ends, nothing
 * compares. */
static void close_tile(q_lanes *c, const q_lanes_tile *tile, const score_tile *t) {
    ir_builder *b = c->b;
    const ir_expr *hides = crosses(c, tile, t);
    const bool always = hides && ir_is_const(hides), asks = mha_has_function(c->m, MHA_MASK_FUNCTION);
    if (!asks && hides)
        IR_GUARD(b, !always, hides) hide(c, tile, t);
    finish(c, t, true, !asks);
    if (!asks) return;
    IR_GUARD(b, !always, hides) hide_stored(c, tile, t);
    if (always) return;
    IR_ELSE(b) finish(c, t, false, true);
}

/* The number after the last register tile with a key that the stripe sees. If score_keys divides the number of keys, no
 * tile reaches beyond the last key. */
static const ir_expr *end_of_tiles(q_lanes *c, const q_lanes_tile *tile) {
    ir_builder *b = c->b;
    const int64_t rows = c->m->s->score_keys;
    const ir_expr *count = ir_ceil_div(b, tile->to, rows), *whole = ir_div(b, tile->room, ir_idx(b, rows));
    if (!c->keys_fill_tiles) return count;
    return c->has_edges || c->has_tiles ? ir_min(b, count, whole) : whole;
}

/* All register tiles of a stripe, which is the last one or may be any other. */
static void all_tiles(q_lanes *c, const q_lanes_tile *tile, score_tile t, const ir_expr *end, bool is_last) {
    ir_builder *b = c->b;
    const int64_t rows = t.product.rows, whole = ql_whole_vectors(c, is_last);
    IR_LOOP(b, n, ir_for_begin(b, "score_tile", ir_div(b, tile->from, ir_idx(b, rows)), end, 1, false)) {
        t.first = ir_let(b, "first", ir_times(b, n, rows));
        find_keys(c, tile, &t);
        ql_ask_ahead(c, tile, t.first);
        if (c->codes)
            mha_product_begin(&t.product);
        else
            mha_product_clear(&t.product);
        if (c->codes)
            ql_multiply_codes(c, tile, t.row, unrolling(c), &t.product);
        else if (whole)
            multiply(c, tile, &t, whole);
        if (whole < t.product.vectors) multiply_rest(c, tile, &t, whole);
        score(c, tile, &t);
        close_tile(c, tile, &t);
    }
}

void ql_scores(q_lanes *c, const q_lanes_tile *tile) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    const int64_t rows = c->m->s->score_keys, vectors = c->m->s->score_row_vectors;
    const bool has_other = c->rest_rows && c->num_stripes > 1;
    score_tile t = {.product = mha_product_of(c->m, c->codes ? MHA_MADD : ql_kind(c), rows, vectors),
                    .max = ir_registers(b, "max_so_far", c->m->elem, lanes, 1, &vectors)};
    IR_UNROLLED(b, v, vectors) {
        ir_store(b, ir_at(b, t.max, lanes, 1, v), ql_splat(c, -INFINITY));
    }
    const ir_expr *end = ir_let(b, "score_tiles", end_of_tiles(c, tile));
    if (c->has_elements) ql_load_elements(c, tile, ir_times(b, end, rows));
    IR_GUARD(b, has_other, ql_is_last(c, tile->stripe)) all_tiles(c, tile, t, end, true);
    if (has_other)
        IR_ELSE(b) all_tiles(c, tile, t, end, false);
    IR_UNROLLED(b, v, vectors) {
        const ir_access *max = ir_at(b, c->tile_max, lanes, 1, ir_times(b, v, lanes));
        ir_store(b, max, ir_load(b, ir_at(b, t.max, lanes, 1, v)));
    }
}
