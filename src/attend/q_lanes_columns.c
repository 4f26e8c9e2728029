/* Scores with lanes along the columns of Q and K: of each row and key a sum over the lanes of a vector. Q is not
 * transposed for them, and rows need not fill a vector. */
#include "attend/q_lanes_columns.h"
#include "base/integers.h"

enum { SUMS = 8 }; /* of a row that are added up together */

/* Of Q and K, a part of the columns. */
static int lanes_of_columns(const q_lanes *c) {
    int64_t lanes = c->m->target->vector_bytes / ir_elem_get(c->m->elem)->bytes;
    while (c->m->p->head_dim % lanes) lanes /= 2;
    return (int)lanes;
}

/* Products of the rows from number `at` of the stripe on and the keys from number `first` of the register tile on, with
 * a sum in each lane. */
static void multiply(q_lanes *c, const q_lanes_tile *tile, const ql_score_tile *t, int64_t at, int64_t first,
                     mha_product *sums) {
    ir_builder *b = c->b;
    const ir_expr *sign = mha_query_sign(c->m);
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

/* ---- A few rows: the keys of each side by side ---- */

/* The products of row r, key by key in a vector. */
static const ir_expr *sums_of_row(q_lanes *c, const mha_product *sums, int64_t r) {
    const ir_expr *x[IR_MAX_LANES];
    int count = 1;
    while (count < sums->rows) count *= 2;
    for (int64_t jj = 0; jj < count; jj++)
        x[jj] = jj < sums->rows ? mha_product_sum(sums, jj, r) : mha_number(c->m, 0, sums->lanes);
    return ir_let(c->b, "dots", mha_sum_lanes(c->b, sums->lanes, count, x));
}

/* The products of one key with `rows` rows, in lanes. */
static void store_dots(q_lanes *c, const ql_score_tile *t, int64_t jj, int64_t vector, int64_t rows,
                       const ir_expr *const *dots) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    const ir_expr *parts[IR_MAX_LANES];
    for (int l = 0; l < lanes; l++) parts[l] = l < rows ? dots[l] : parts[rows - 1];
    const ir_expr *x = rows > 1 ? mha_join(b, parts, lanes, 1) : ir_splat(b, parts[0], lanes);
    ir_store(b, mha_product_at(&t->product, jj, vector), x);
}

static void multiply_few(q_lanes *c, const q_lanes_tile *tile, const ql_score_tile *t, int64_t vector, int64_t rows,
                         int64_t keys) {
    ir_builder *b = c->b;
    const int64_t together = min_of(SUMS, lanes_of_columns(c));
    for (int64_t first = 0; first < keys; first += together) {
        mha_product sums = mha_product_of(c->m, MHA_MADD, min_of(together, keys - first), rows);
        const ir_expr *sum[IR_MAX_LANES], *dots[IR_MAX_LANES];
        sums.lanes = lanes_of_columns(c);
        multiply(c, tile, t, vector * c->m->lanes, first, &sums);
        for (int64_t r = 0; r < rows; r++) sum[r] = sums_of_row(c, &sums, r);
        for (int64_t jj = 0; jj < sums.rows; jj++) {
            for (int64_t r = 0; r < rows; r++) dots[r] = ir_let(b, "dot", mha_lanes_of(b, sum[r], (int)jj, 1));
            store_dots(c, t, first + jj, vector, rows, dots);
        }
    }
}

/* ---- Many rows: those of each key side by side ---- */

/* The products of key jj of the sums, which are of the rows from number `first` on. Other lanes hold those of the row
 * next to them. */
static const ir_expr *sums_of_key(q_lanes *c, const mha_product *sums, int64_t first, int64_t jj) {
    const ir_expr *x[IR_MAX_LANES];
    const int lanes = c->m->lanes;
    for (int64_t r = 0; r < lanes; r++)
        x[r] = mha_product_sum(sums, jj, min_of(max_of(r - first, 0), sums->vectors - 1));
    return ir_let(c->b, "dots", mha_sum_lanes(c->b, sums->lanes, lanes, x));
}

/* Two keys at once. `is_diagonal`: row r sees keys up to number r, so rows before a key need no product with it. */
static void multiply_many(q_lanes *c, const q_lanes_tile *tile, const ql_score_tile *t, int64_t vector, int64_t rows,
                          int64_t keys, bool is_diagonal) {
    enum { TOGETHER = 2 };
    const int lanes = c->m->lanes;
    for (int64_t first = 0; first < keys; first += TOGETHER) {
        const int64_t row = is_diagonal ? first : 0;
        mha_product sums = mha_product_of(c->m, MHA_MADD, min_of(TOGETHER, keys - first), rows - row);
        sums.lanes = lanes_of_columns(c);
        multiply(c, tile, t, vector * lanes + row, first, &sums);
        for (int64_t jj = 0; jj < sums.rows; jj++)
            ir_store(c->b, mha_product_at(&t->product, first + jj, vector), sums_of_key(c, &sums, row, jj));
    }
}

/* ---- A vector of rows ---- */

/* The last row's products in a vector of rows that do not exist. */
static void repeat_row(q_lanes *c, const ql_score_tile *t, int64_t vector) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    for (int64_t jj = 0; jj < t->product.rows; jj++) {
        const ir_expr *last = mha_lanes_of(b, mha_product_sum(&t->product, jj, vector - 1), lanes - 1, 1);
        ir_store(b, mha_product_at(&t->product, jj, vector), ir_splat(b, last, lanes));
    }
}

/* Keys after those of the last row are that row's last one. */
static void repeat_key(q_lanes *c, const ql_score_tile *t, int64_t vector, int64_t keys) {
    for (int64_t jj = keys; jj < t->product.rows; jj++)
        ir_store(c->b, mha_product_at(&t->product, jj, vector), mha_product_sum(&t->product, keys - 1, vector));
}

void ql_multiply_columns(q_lanes *c, const q_lanes_tile *tile, const ql_score_tile *t, int64_t vector, int64_t rows,
                         bool is_diagonal) {
    enum { FEW = 3 };
    for (int64_t v = vector; v < t->product.vectors; v++) {
        const int64_t count = min_of(c->m->lanes, rows - (v - vector) * c->m->lanes);
        const int64_t keys = is_diagonal ? min_of(count, t->product.rows) : t->product.rows;
        if (count <= 0) {
            repeat_row(c, t, v);
            continue;
        }
        if (count <= FEW || !c->by_columns)
            multiply_few(c, tile, t, v, count, keys);
        else
            multiply_many(c, tile, t, v, count, keys, is_diagonal);
        repeat_key(c, t, v, keys);
    }
}
