/* S = Q K^T for one slice of keys, lanes along keys: K is transposed to scratch, and elements of Q are broadcast.
 *
 *               keys 0 … L-1       keys L … 2L-1
 *     row 0   [ a a a a a a a ] [ a a a a a a a ]        a += Q[row][d] in all lanes * K^T[d][keys], for d = 0, 1, …
 *     row 1   [ a a a a a a a ] [ a a a a a a a ] */
#include "nest/columns.h"
#include "nest/product.h"
#include "nest/transpose.h"
#include "attend/around/probabilities.h"

/* ---- Q ---- */

const ir_expr *probabilities_query(const probabilities *w, const ir_expr *row) {
    ir_builder *b = w->b;
    row = ir_let(b, "output_row", ir_min(b, row, ir_plus(b, w->all_queries, -1)));
    if (!w->c->p->has_row_ids) return row;
    const ir_expr *id = ir_load(b, ir_at(b, w->c->params.tensor[MHA_ROW_IDS], 1, 1, row));
    return ir_let_index(b, "query", w->c->params.size[MHA_SEQ_Q], ir_cast(b, IR_IDX, id));
}

/* Rows beyond the last one repeat it. */
void probabilities_load_queries(const probabilities *w, const ir_expr *kv_head) {
    ir_builder *b = w->b;
    const ir_expr *group = ir_idx(b, w->c->group);
    IR_FOR(b, n, ir_idx(b, 0), ir_idx(b, w->queries), 1) {
        const ir_expr *token = ir_add(b, w->e.first_q, probabilities_query(w, ir_add(b, w->first_query, n)));
        IR_FOR(b, g, ir_idx(b, 0), group, 1) {
            const ir_expr *head = ir_add(b, ir_mul(b, kv_head, group), g);
            const ir_expr *row = ir_let(b, "row", ir_add(b, ir_mul(b, n, group), g));
            const mha_row source = {w->c->q, {w->e.batch, head, token}, NULL};
            MHA_COLUMNS(w->c, d, w->c->p->head_dim, w->lanes) {
                const ir_expr *q = mha_load(w->c, mha_row_access(w->c, &source, d.at, d.lanes));
                ir_store(b, ir_at(b, w->q, d.lanes, 2, row, d.at), q);
            }
        }
    }
}

/* ---- K ---- */

/* The places of the keys from `key` on. Keys beyond the last one that is needed repeat it. */
static void refer_keys(const probabilities *w, const ir_expr *kv_head, const ir_expr *key, mha_kv_row *rows) {
    ir_builder *b = w->b;
    for (int l = 0; l < w->lanes; l++) {
        const ir_expr *counts = ir_min(b, ir_plus(b, key, l), ir_plus(b, w->limit, -1));
        const ir_expr *j = ir_let_index(b, "key", w->all_keys, counts);
        rows[l] = mha_kv_row_at(w->c, &w->e, kv_head, j);
    }
}

static void pack_vectors(const probabilities *w, const mha_kv_row *rows, const ir_expr *at) {
    ir_builder *b = w->b;
    const int quarter = mha_quarter(w->lanes);
    const ir_expr *columns[4];
    MHA_COLUMNS(w->c, d, w->c->p->head_dim, quarter) {
        mha_transposed_keys(w->c, rows, d.at, quarter, columns);
        for (int i = 0; i < quarter; i++)
            ir_store(b, ir_at(b, w->kt, w->lanes, 2, ir_plus(b, d.at, i), at), columns[i]);
    }
}

/* Rows narrower than a quarter. */
static void pack_elements(const probabilities *w, const mha_kv_row *rows, const ir_expr *at) {
    ir_builder *b = w->b;
    IR_FOR(b, d, ir_idx(b, 0), ir_idx(b, w->c->p->head_dim), 1) {
        for (int l = 0; l < w->lanes; l++)
            ir_store(b, ir_at(b, w->kt, 1, 2, d, ir_plus(b, at, l)), mha_load_kv(w->c, w->c->k, &rows[l], d, 1));
    }
}

static void pack_keys(const probabilities *w, const ir_expr *kv_head, const ir_expr *first_key) {
    ir_builder *b = w->b;
    mha_kv_row rows[IR_MAX_LANES];
    IR_FOR(b, at, ir_idx(b, 0), ir_idx(b, w->keys), w->lanes) {
        refer_keys(w, kv_head, ir_add(b, first_key, at), rows);
        for (int l = 0; l < w->lanes && w->scales; l++)
            ir_store(b, ir_at(b, w->scales, 1, 2, ir_idx(b, 0), ir_plus(b, at, l)), mha_k_scale(w->c, &rows[l]));
        if (w->c->p->head_dim >= mha_quarter(w->lanes))
            pack_vectors(w, rows, at);
        else
            pack_elements(w, rows, at);
    }
}

/* ---- Q K^T ---- */

/* One register tile: rows from `first` on, and vectors of keys from `at` on. */
static void multiply_tile(const probabilities *w, const ir_expr *first, const ir_expr *at) {
    ir_builder *b = w->b;
    mha_product p = mha_product_of(w->c, MHA_MADD, w->tile_rows, w->tile_vectors);
    p.vectors_first = true;
    mha_product_clear(&p);
    IR_FOR(b, d, ir_idx(b, 0), ir_idx(b, w->c->p->head_dim), 1) {
        mha_product_hold(&p, "keys");
        for (int v = 0; v < p.vectors; v++)
            mha_product_vector(&p, NULL, v, ir_load(b, ir_at(b, w->kt, w->lanes, 2, d, ir_plus(b, at, v * w->lanes))));
        for (int r = 0; r < p.rows; r++)
            mha_product_repeat(&p, "query_value", r, ir_at(b, w->q, 1, 2, ir_plus(b, first, r), d));
    }
    for (int r = 0; r < p.rows; r++)
        for (int v = 0; v < p.vectors; v++) {
            const ir_expr *score = mha_product_sum(&p, r, v), *column = ir_plus(b, at, v * w->lanes);
            if (w->scales) score = ir_mul(b, score, ir_load(b, ir_at(b, w->scales, w->lanes, 2, ir_idx(b, 0), column)));
            ir_store(b, ir_at(b, w->scores, w->lanes, 2, ir_plus(b, first, r), column), score);
        }
}

/* The last register tile may overlap the one before, and computes the same bits again. */
static void multiply(const probabilities *w) {
    ir_builder *b = w->b;
    IR_FOR(b, at, ir_idx(b, 0), ir_idx(b, w->keys), w->tile_vectors * w->lanes) {
        IR_FOR(b, row, ir_idx(b, 0), ir_idx(b, w->rows), w->tile_rows) {
            if (w->rows % w->tile_rows) row = ir_let(b, "first", ir_min(b, row, ir_idx(b, w->rows - w->tile_rows)));
            multiply_tile(w, row, at);
        }
    }
}

static void clear(const probabilities *w) {
    ir_builder *b = w->b;
    IR_FOR(b, row, ir_idx(b, 0), ir_idx(b, w->rows), 1) {
        IR_FOR(b, at, ir_idx(b, 0), ir_idx(b, w->keys), w->lanes) {
            ir_store(b, ir_at(b, w->scores, w->lanes, 2, row, at), mha_number(w->c, 0, w->lanes));
        }
    }
}

void probabilities_scores(const probabilities *w, const ir_expr *kv_head, const ir_expr *first_key) {
    IR_IF(w->b, ir_lt(w->b, first_key, w->limit)) {
        pack_keys(w, kv_head, first_key);
        multiply(w);
    }
    IR_ELSE(w->b) clear(w);
}
