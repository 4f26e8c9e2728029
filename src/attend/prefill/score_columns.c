/* Scores whose lanes run along the columns of Q and K: the product of a row and a key is a vector of partial sums, and
 * several such vectors are reduced together. Q is not transposed, and rows need not fill a vector.
 *
 *     sums     Q[r][d…]  *  K[j][d…]             one vector for each row r and key j
 *     few      up to 3 rows: a row's sums for up to 8 keys are reduced together, so lanes become keys
 *     many     more rows: a key's sums for all rows are reduced together, so lanes become rows, as in scratch
 *
 * On the diagonal of a causal square, row r attends to the first r + 1 keys: products of hidden keys are skipped. */
#include "attend/prefill/score_tile.h"
#include "base/integers.h"

enum { SUMS = 8 }; /* of a row that are reduced together */

/* Columns of Q and K in a vector; divides head_dim. */
static int lanes_of_columns(const q_lanes *c) {
    int64_t lanes = c->m->target->vector_bytes / ir_elem_get(c->m->elem)->bytes;
    while (c->m->p->head_dim % lanes) lanes /= 2;
    return (int)lanes;
}

/* The rows of one vector. */
typedef struct column_rows {
    q_lanes_row at[IR_MAX_LANES];
} column_rows;

static column_rows rows_from(q_lanes *c, const q_lanes_tile *tile, int64_t first, int64_t count) {
    column_rows rows;
    for (int64_t r = 0; r < count; r++) rows.at[r] = ql_row(c, tile->stripe, ir_idx(c->b, first + r));
    return rows;
}

/* Partial sums, one in each lane, of the products of rows with the keys at `key` in memory, or at `j` in c->keys. */
static void multiply(q_lanes *c, const q_lanes_row *rows, const mha_kv_row *key, const ir_expr *const *j,
                     mha_product *sums) {
    ir_builder *b = c->b;
    const ir_expr *sign = mha_query_sign(c->m);
    mha_product_clear(sums);
    IR_FOR(b, d, ir_idx(b, 0), ir_idx(b, c->m->p->head_dim), sums->lanes) {
        for (int64_t r = 0; r < sums->vectors; r++) {
            const ir_expr *token = ir_add(b, c->e.first_q, rows[r].query);
            const ir_expr *q = mha_load(c->m, ir_at(b, c->m->q, sums->lanes, 4, c->e.batch, rows[r].head, token, d));
            mha_product_vector(sums, "query", r, sign ? ir_mul(b, q, ir_splat(b, sign, sums->lanes)) : q);
        }
        for (int64_t jj = 0; jj < sums->rows; jj++) {
            const ir_access *k = c->keys ? ir_at(b, c->keys, sums->lanes, 2, j[jj], d)
                                         : mha_kv_access(c->m, c->m->k, &key[jj], d, sums->lanes);
            mha_product_row(sums, "key_columns", jj, mha_load(c->m, k));
        }
    }
}

/* ---- A few rows: the keys of each side by side ---- */

/* The dot products of row r: a vector with one key in each lane. */
static const ir_expr *sums_of_row(q_lanes *c, const mha_product *sums, int64_t r) {
    const ir_expr *x[IR_MAX_LANES];
    int count = 1;
    while (count < sums->rows) count *= 2;
    for (int64_t jj = 0; jj < count; jj++)
        x[jj] = jj < sums->rows ? mha_product_sum(sums, jj, r) : mha_number(c->m, 0, sums->lanes);
    return ir_let(c->b, "dots", mha_sum_lanes(c->b, sums->lanes, count, x));
}

/* Stores the dot products of one key with `rows` rows, one row in each lane. */
static void store_dots(q_lanes *c, const ql_score_tile *t, int64_t jj, int64_t vector, int64_t rows,
                       const ir_expr *const *dots) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    const ir_expr *parts[IR_MAX_LANES];
    for (int l = 0; l < lanes; l++) parts[l] = l < rows ? dots[l] : parts[rows - 1];
    const ir_expr *x = rows > 1 ? mha_concat(b, parts, lanes, 1) : ir_splat(b, parts[0], lanes);
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
        const column_rows of = rows_from(c, tile, vector * c->m->lanes, rows);
        multiply(c, of.at, &t->row[first], &t->j[first], &sums);
        for (int64_t r = 0; r < rows; r++) sum[r] = sums_of_row(c, &sums, r);
        for (int64_t jj = 0; jj < sums.rows; jj++) {
            for (int64_t r = 0; r < rows; r++) dots[r] = ir_let(b, "dot", mha_lanes_of(b, sum[r], (int)jj, 1));
            store_dots(c, t, first + jj, vector, rows, dots);
        }
    }
}

/* ---- Many rows: those of each key side by side ---- */

/* The dot products of key jj with `count` rows, one row in each lane. `sums` begins with row `first`; the lanes of
 * other rows repeat the nearest one that it has. */
static const ir_expr *sums_of_key(q_lanes *c, const mha_product *sums, int64_t first, int64_t jj, int64_t count) {
    const ir_expr *x[IR_MAX_LANES];
    for (int64_t r = 0; r < count; r++)
        x[r] = mha_product_sum(sums, jj, min_of(max_of(r - first, 0), sums->vectors - 1));
    return ir_let(c->b, "dots", mha_sum_lanes(c->b, sums->lanes, (int)count, x));
}

enum { TOGETHER = 2 }; /* keys that are multiplied together */

/* A few neighbouring keys of the tile: their numbers within it, where they are in c->keys, and where in K. */
typedef struct key_pair {
    int64_t count;
    const ir_expr *number[TOGETHER], *j[TOGETHER];
    mha_kv_row row[TOGETHER];
} key_pair;

static key_pair pair_at(q_lanes *c, const q_lanes_tile *tile, const ir_expr *first, int64_t count) {
    ir_builder *b = c->b;
    key_pair pair = {.count = count};
    for (int64_t jj = 0; jj < count; jj++) {
        const ir_expr *number = ir_let(b, "number", ir_plus(b, first, jj));
        const ir_expr *key = ir_let(b, "key", ql_clamp_key(c, ir_add(b, tile->first_key, number)));
        pair.number[jj] = number;
        pair.row[jj] = mha_kv_row_at(c->m, &c->e, c->kv_head, key);
        pair.j[jj] = c->keys_fill_tiles ? number : ir_let(b, "j", ir_min(b, ir_plus(b, tile->room, -1), number));
    }
    return pair;
}

/* Stores the dot products of a pair of keys with rows `from` … `count` - 1 of the vector. */
static void multiply_pair(q_lanes *c, const key_pair *pair, const column_rows *rows, int64_t vector, int64_t from,
                          int64_t count) {
    enum { FEW_ROWS = 4 };
    /* As many rows as have their sums with two keys, and their operands, in registers. */
    const int64_t together = at_has_few_registers(c->m->target) ? min_of(c->m->lanes, FEW_ROWS) : c->m->lanes;
    const int64_t first = from / together, last = (count - 1) / together;
    const ir_expr *dots[TOGETHER][IR_MAX_LANES], *parts[IR_MAX_LANES];
    for (int64_t i = first; i <= last; i++) {
        const int64_t begin = max_of(from, i * together), end = min_of(count, (i + 1) * together);
        mha_product sums = mha_product_of(c->m, MHA_MADD, pair->count, end - begin);
        sums.lanes = lanes_of_columns(c);
        multiply(c, &rows->at[begin], pair->row, pair->j, &sums);
        for (int64_t jj = 0; jj < pair->count; jj++)
            dots[jj][i] = sums_of_key(c, &sums, begin - i * together, jj, together);
    }
    for (int64_t jj = 0; jj < pair->count; jj++) {
        for (int64_t i = 0; i < c->m->lanes / together; i++) parts[i] = dots[jj][min_of(max_of(i, first), last)];
        const ir_expr *all = mha_concat(c->b, parts, (int)(c->m->lanes / together), (int)together);
        ir_store(c->b, ql_score_at(c, ir_idx(c->b, vector), pair->number[jj]), all);
    }
}

/* The diagonal: row r attends to keys 0 … r, so rows before a key need no product with it. Keys after the last row
 * repeat the scores of that row's key. */
static void multiply_diagonal(q_lanes *c, const q_lanes_tile *tile, const ql_score_tile *t, const column_rows *rows,
                              int64_t vector, int64_t count) {
    ir_builder *b = c->b;
    const ir_expr *v = ir_idx(b, vector);
    const int64_t keys = t->product.rows, seen = min_of(count, keys);
    for (int64_t first = TOGETHER; first < seen; first += TOGETHER) {
        const key_pair pair = pair_at(c, tile, ir_plus(b, t->first, first), min_of(TOGETHER, seen - first));
        multiply_pair(c, &pair, rows, vector, first, count);
    }
    for (int64_t jj = seen; jj < keys; jj++) {
        const ir_expr *last = ir_load(b, ql_score_at(c, v, ir_plus(b, t->first, seen - 1)));
        ir_store(b, ql_score_at(c, v, ir_plus(b, t->first, jj)), last);
    }
}

/* Sums go through scratch, so that one loop multiplies all pairs of keys, and its code is emitted once. */
static void multiply_many(q_lanes *c, const q_lanes_tile *tile, const ql_score_tile *t, int64_t vector, int64_t count,
                          const ir_expr *is_diagonal) {
    ir_builder *b = c->b;
    const column_rows rows = rows_from(c, tile, vector * c->m->lanes, count);
    const ir_expr *end = ir_idx(b, t->product.rows);
    if (is_diagonal) end = ir_let(b, "end", ir_select(b, is_diagonal, ir_idx(b, TOGETHER), end));
    IR_FOR(b, first, ir_idx(b, 0), end, TOGETHER) {
        const key_pair pair = pair_at(c, tile, ir_add(b, t->first, first), TOGETHER);
        multiply_pair(c, &pair, &rows, vector, 0, count);
    }
    if (is_diagonal)
        IR_IF(b, is_diagonal) multiply_diagonal(c, tile, t, &rows, vector, count);
    for (int64_t jj = 0; jj < t->product.rows; jj++)
        ir_store(b, mha_product_at(&t->product, jj, vector),
                 ir_load(b, ql_score_at(c, ir_idx(b, vector), ir_plus(b, t->first, jj))));
}

/* ---- A vector of rows ---- */

/* A vector without rows repeats the products of the last row. */
static void repeat_row(q_lanes *c, const ql_score_tile *t, int64_t vector) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    for (int64_t jj = 0; jj < t->product.rows; jj++) {
        const ir_expr *last = mha_lanes_of(b, mha_product_sum(&t->product, jj, vector - 1), lanes - 1, 1);
        ir_store(b, mha_product_at(&t->product, jj, vector), ir_splat(b, last, lanes));
    }
}

static void multiply_few_visible(q_lanes *c, const q_lanes_tile *tile, const ql_score_tile *t, int64_t vector,
                                 int64_t count) {
    const int64_t seen = min_of(count, t->product.rows);
    multiply_few(c, tile, t, vector, count, seen);
    for (int64_t jj = seen; jj < t->product.rows; jj++)
        ir_store(c->b, mha_product_at(&t->product, jj, vector), mha_product_sum(&t->product, seen - 1, vector));
}

/* Vectors before `first` have lanes along rows; the others go by columns. In the register tile on the diagonal of a
 * square, row r attends to the first r + 1 keys, and the products of hidden keys may be anything. */
static void multiply_columns(q_lanes *c, const q_lanes_tile *tile, ql_score_tile *t) {
    enum { FEW = 3 };
    ir_builder *b = c->b;
    const mha_variant *v = c->v;
    const int64_t first = ql_whole_vectors(c, t->is_last), all = c->m->p->seq_q * c->m->group;
    const int64_t stripe = t->is_last ? all - (c->num_stripes - 1) * c->stripe_rows : c->stripe_rows;
    const int64_t rows = v->scores_by_columns ? stripe : v->rest_rows;
    const ir_expr *is_diagonal = NULL;
    mha_product_clear(&t->product);
    if (first) ql_multiply_rows(c, tile, t, first);
    if (first == t->product.vectors) return;
    /* Register tile n is on the diagonal of stripe n. */
    if (v->is_square) is_diagonal = ir_eq(b, t->number, ir_add(b, c->first_stripe, tile->stripe));
    if (is_diagonal) is_diagonal = ir_let(b, "is_diagonal", is_diagonal);
    for (int64_t vector = first; vector < t->product.vectors; vector++) {
        const int64_t count = min_of(c->m->lanes, rows - (vector - first) * c->m->lanes);
        if (count <= 0) {
            repeat_row(c, t, vector);
        } else if (count > FEW && v->scores_by_columns) {
            multiply_many(c, tile, t, vector, count, is_diagonal);
        } else if (is_diagonal) {
            IR_IF(b, is_diagonal) multiply_few_visible(c, tile, t, vector, count);
            IR_ELSE(b) multiply_few(c, tile, t, vector, count, t->product.rows);
        } else {
            multiply_few(c, tile, t, vector, count, t->product.rows);
        }
    }
}

void ql_column_scores(q_lanes *c, const q_lanes_tile *tile) { ql_score_tiles(c, tile, multiply_columns); }
