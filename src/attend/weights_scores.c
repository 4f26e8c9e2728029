/* S = Q K^T for one block: K^T is packed with its keys along the lanes, rows of Q are read as broadcast scalars. Each
 * product is summed in the order of the columns. */
#include "nest/columns.h"
#include "nest/product.h"
#include "nest/rows.h"
#include "nest/transpose.h"
#include "attend/weights.h"

static const ir_expr *loop(const weights *w, const char *name, int64_t count) {
    return ir_for_begin(w->b, name, mha_i(w->c, 0), mha_i(w->c, count), 1, false);
}

static const ir_expr *plus(const weights *w, const ir_expr *x, int64_t y) { return ir_add(w->b, x, mha_i(w->c, y)); }

/* ---- Q ---- */

/* Rows beyond the last one are that row again. */
void weights_load_queries(const weights *w, const ir_expr *kv_head) {
    ir_builder *b = w->b;
    const int64_t group = w->c->group;
    const ir_expr *n = loop(w, "n", w->queries);
    const ir_expr *token = ir_add(b, w->e.first_q, weights_query(w, ir_add(b, w->first_query, n)));
    const ir_expr *g = loop(w, "g", group);
    const ir_expr *head = ir_add(b, ir_mul(b, kv_head, mha_i(w->c, group)), g);
    const ir_expr *row = ir_let(b, "row", ir_add(b, ir_mul(b, n, mha_i(w->c, group)), g));
    const mha_columns d = mha_columns_begin(w->c, w->c->p->head_dim, w->lanes);
    const mha_row source = {w->c->q, {w->e.batch, head, token}, NULL};
    const ir_expr *q = mha_load(w->c, mha_row_access(w->c, &source, d.at, d.lanes));
    ir_store(b, ir_at(b, w->q, d.lanes, 2, row, d.at), q);
    for (int i = 0; i < 3; i++) ir_for_end(b);
}

/* ---- K ---- */

/* The places of the keys from `key` on. Keys beyond the last one that counts are that one again. The outer two clamps
 * change nothing: they shorten the prover's work. */
static void refer_keys(const weights *w, const ir_expr *kv_head, const ir_expr *key, mha_kv_row *rows) {
    ir_builder *b = w->b;
    const ir_expr *one = mha_i(w->c, 1), *zero = mha_i(w->c, 0);
    for (int l = 0; l < w->lanes; l++) {
        const ir_expr *counts = ir_min(b, plus(w, key, l), ir_sub(b, w->limit, one));
        const ir_expr *j = ir_let(b, "key", ir_min(b, ir_sub(b, w->all_keys, one), ir_max(b, zero, counts)));
        rows[l] = mha_kv_row_at(w->c, &w->e, kv_head, j);
    }
}

static void pack_vectors(const weights *w, const mha_kv_row *rows, const ir_expr *at) {
    const int quarter = mha_quarter(w->lanes);
    const ir_expr *columns[4];
    const mha_columns d = mha_columns_begin(w->c, w->c->p->head_dim, quarter);
    mha_transposed_keys(w->c, rows, d.at, quarter, columns);
    for (int i = 0; i < quarter; i++) ir_store(w->b, ir_at(w->b, w->kt, w->lanes, 2, plus(w, d.at, i), at), columns[i]);
    ir_for_end(w->b);
}

/* Rows narrower than a quarter. */
static void pack_elements(const weights *w, const mha_kv_row *rows, const ir_expr *at) {
    ir_builder *b = w->b;
    const ir_expr *d = loop(w, "d", w->c->p->head_dim);
    for (int l = 0; l < w->lanes; l++)
        ir_store(b, ir_at(b, w->kt, 1, 2, d, ir_add(b, at, mha_i(w->c, l))),
                 mha_load(w->c, mha_kv_access(w->c, w->c->k, &rows[l], d, 1)));
    ir_for_end(b);
}

static void pack_keys(const weights *w, const ir_expr *kv_head, const ir_expr *first_key) {
    mha_kv_row rows[IR_MAX_LANES];
    const ir_expr *at = ir_for_begin(w->b, "at", mha_i(w->c, 0), mha_i(w->c, w->keys), w->lanes, false);
    refer_keys(w, kv_head, ir_add(w->b, first_key, at), rows);
    for (int l = 0; l < w->lanes && w->scales; l++)
        ir_store(w->b, ir_at(w->b, w->scales, 1, 2, mha_i(w->c, 0), plus(w, at, l)), mha_k_scale(w->c, &rows[l]));
    if (w->c->p->head_dim >= mha_quarter(w->lanes))
        pack_vectors(w, rows, at);
    else
        pack_elements(w, rows, at);
    ir_for_end(w->b);
}

/* ---- Q K^T ---- */

/* One register tile: rows first … and vectors of keys from `at`. */
static void multiply_tile(const weights *w, const ir_expr *first, const ir_expr *at) {
    ir_builder *b = w->b;
    mha_product p = mha_product_of(w->c, MHA_MADD, w->tile_rows, w->tile_vectors);
    p.vectors_first = true;
    mha_product_clear(&p);
    const ir_expr *d = loop(w, "d", w->c->p->head_dim);
    mha_product_hold(&p, "keys");
    for (int v = 0; v < p.vectors; v++)
        mha_product_vector(&p, NULL, v, ir_load(b, ir_at(b, w->kt, w->lanes, 2, d, plus(w, at, v * w->lanes))));
    for (int r = 0; r < p.rows; r++)
        mha_product_repeat(&p, "query_value", r, ir_at(b, w->q, 1, 2, plus(w, first, r), d));
    ir_for_end(b);
    for (int r = 0; r < p.rows; r++)
        for (int v = 0; v < p.vectors; v++) {
            const ir_expr *score = mha_product_sum(&p, r, v), *column = plus(w, at, v * w->lanes);
            if (w->scales)
                score = ir_mul(b, score, ir_load(b, ir_at(b, w->scales, w->lanes, 2, mha_i(w->c, 0), column)));
            ir_store(b, ir_at(b, w->scores, w->lanes, 2, plus(w, first, r), column), score);
        }
}

/* The last tile of rows overlaps the one before: it computes the same bits again. */
static void multiply(const weights *w) {
    ir_builder *b = w->b;
    const ir_expr *at = ir_for_begin(b, "at", mha_i(w->c, 0), mha_i(w->c, w->keys), w->tile_vectors * w->lanes, false);
    const ir_expr *row = ir_for_begin(b, "row", mha_i(w->c, 0), mha_i(w->c, w->rows), w->tile_rows, false);
    if (w->rows % w->tile_rows) row = ir_let(b, "first", ir_min(b, row, mha_i(w->c, w->rows - w->tile_rows)));
    multiply_tile(w, row, at);
    ir_for_end(b);
    ir_for_end(b);
}

static void clear(const weights *w) {
    const ir_expr *row = loop(w, "row", w->rows);
    const ir_expr *at = ir_for_begin(w->b, "at", mha_i(w->c, 0), mha_i(w->c, w->keys), w->lanes, false);
    ir_store(w->b, ir_at(w->b, w->scores, w->lanes, 2, row, at), mha_number(w->c, 0, w->lanes));
    ir_for_end(w->b);
    ir_for_end(w->b);
}

void weights_scores(const weights *w, const ir_expr *kv_head, const ir_expr *first_key) {
    ir_if_begin(w->b, ir_apply(w->b, IR_LT, first_key, w->limit, NULL));
    pack_keys(w, kv_head, first_key);
    multiply(w);
    ir_if_else(w->b);
    clear(w);
    ir_if_end(w->b);
}
