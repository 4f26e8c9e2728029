/* S = Q K^T for one tile with the bits of q-lanes: each score is summed serially along head_dim. Lanes run along keys,
 * and K is transposed on the way, 4 columns of `lanes` keys at a time. */
#include "attend/d_lanes.h"
#include "nest/transpose.h"

typedef struct serial_tile {
    const ir_expr *first_key; /* within the tile */
    mha_kv_row key[IR_MAX_LANES];
} serial_tile;

typedef struct row_span {
    const ir_expr *first;
    int64_t count;
    const ir_buffer *acc; /* registers [count] */
} row_span;

static const ir_expr *load_key(const d_lanes *d, const serial_tile *t, int lane, const ir_expr *column, int lanes) {
    return mha_load(d->c, mha_kv_access(d->c, d->c->k, &t->key[lane], column, lanes));
}

/* acc += K[keys, column] * Q[row, column], with the column of K in lanes. */
static void multiply(d_lanes *d, const row_span *rows, const ir_expr *keys, const ir_expr *column) {
    ir_builder *b = d->b;
    for (int64_t r = 0; r < rows->count; r++) {
        const ir_access *query = ir_at(b, d->q, 1, 2, ir_add(b, rows->first, dl_i(d, r)), column);
        const ir_access *acc = ir_at(b, rows->acc, d->lanes, 1, dl_i(d, r));
        ir_store(b, acc, mha_madd(d->c, keys, ir_splat(b, ir_load(b, query), d->lanes), ir_load(b, acc)));
    }
}

/* Columns in squares. */
static void multiply_squares(d_lanes *d, const serial_tile *t, const row_span *rows, int64_t columns) {
    ir_builder *b = d->b;
    const int lanes = d->lanes, quarter = mha_quarter(lanes);
    const ir_expr *column = ir_for_begin(b, "d", dl_i(d, 0), dl_i(d, columns), quarter, false);
    const ir_expr *squares[4], *parts[IR_MAX_LANES];
    for (int i = 0; i < quarter; i++) {
        for (int part = 0; part < lanes / quarter; part++)
            parts[part] = load_key(d, t, part * quarter + i, column, quarter);
        squares[i] = ir_let(b, "k", mha_join(b, parts, lanes / quarter, quarter));
    }
    mha_transpose_quarters(b, lanes, squares);
    for (int i = 0; i < quarter; i++) multiply(d, rows, squares[i], ir_add(b, column, dl_i(d, i)));
    ir_for_end(b);
}

static void multiply_column(d_lanes *d, const serial_tile *t, const row_span *rows, const ir_expr *column) {
    const ir_expr *parts[IR_MAX_LANES];
    for (int l = 0; l < d->lanes; l++) parts[l] = load_key(d, t, l, column, 1);
    multiply(d, rows, ir_let(d->b, "k", mha_join(d->b, parts, d->lanes, 1)), column);
}

static void register_tile(d_lanes *d, const void *user, const ir_expr *first_row, int64_t count) {
    ir_builder *b = d->b;
    const serial_tile *t = user;
    const row_span rows = {first_row, count, dl_registers(d, "acc", d->lanes, 1, &count)};
    for (int64_t r = 0; r < count; r++)
        ir_store(b, ir_at(b, rows.acc, d->lanes, 1, dl_i(d, r)), mha_number(d->c, 0, d->lanes));
    const int64_t dim = d->c->p->head_dim, whole = dim - dim % mha_quarter(d->lanes);
    if (whole) multiply_squares(d, t, &rows, whole);
    for (int64_t column = whole; column < dim; column++) multiply_column(d, t, &rows, dl_i(d, column));
    for (int64_t r = 0; r < count; r++)
        ir_store(b, ir_at(b, d->scores, d->lanes, 2, ir_add(b, first_row, dl_i(d, r)), t->first_key),
                 ir_load(b, ir_at(b, rows.acc, d->lanes, 1, dl_i(d, r))));
}

void dl_serial_scores(d_lanes *d, const dl_tile *tile) {
    ir_builder *b = d->b;
    serial_tile t;
    t.first_key = ir_for_begin(b, "i", dl_i(d, 0), tile->keys, d->lanes, false);
    const ir_expr *last = ir_sub(b, tile->keys, dl_i(d, 1));
    for (int l = 0; l < d->lanes; l++) {
        const ir_expr *i = ir_min(b, ir_add(b, t.first_key, dl_i(d, l)), last);
        t.key[l] = mha_kv_row_at(d->c, &d->entry, d->kv_head, ir_let(b, "j", ir_add(b, tile->first, i)));
    }
    dl_each_rows(d, d->c->s->score_vectors, register_tile, &t);
    ir_for_end(b);
}
