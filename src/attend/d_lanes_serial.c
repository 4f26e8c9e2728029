/* S = Q K^T for one tile with the bits of q-lanes: each score is summed serially along head_dim. Lanes run along keys,
 * and K is transposed on the way, 4 columns of `lanes` keys at a time. */
#include "attend/d_lanes.h"
#include "nest/transpose.h"

typedef struct serial_tile {
    d_lanes *d;
    const ir_expr *first_key; /* within the tile */
    mha_kv_row key[IR_MAX_LANES];
    const ir_expr *first_row;
    const ir_expr *column; /* of K, the one at hand, with its keys along the lanes */
} serial_tile;

static const ir_expr *keys(const mha_product *p, const ir_expr *column, int64_t vector) {
    (void)column, (void)vector;
    return ((const serial_tile *)p->user)->column;
}

static const ir_expr *row_at(const serial_tile *t, int64_t row) {
    return ir_add(t->d->b, t->first_row, dl_i(t->d, row));
}

static const ir_expr *query(const mha_product *p, const ir_expr *column, int64_t row) {
    const serial_tile *t = p->user;
    return mha_load_repeated(p->c, p->kind, ir_at(p->c->b, t->d->q, 1, 2, row_at(t, row), column), p->lanes);
}

static const ir_expr *load_key(const serial_tile *t, int lane, const ir_expr *column, int lanes) {
    return mha_load(t->d->c, mha_kv_access(t->d->c, t->d->c->k, &t->key[lane], column, lanes));
}

/* `width` columns, a quarter or 1. */
static void multiply(const mha_product *p, const ir_expr *column, int width) {
    serial_tile *t = p->user;
    ir_builder *b = p->c->b;
    const ir_expr *columns[4], *parts[IR_MAX_LANES];
    for (int i = 0; i < width; i++) {
        for (int part = 0; part < p->lanes / width; part++) parts[part] = load_key(t, part * width + i, column, width);
        columns[i] = ir_let(b, "k", mha_join(b, parts, p->lanes / width, width));
    }
    if (width > 1) mha_transpose_quarters(b, p->lanes, columns);
    for (int i = 0; i < width; i++) {
        t->column = columns[i];
        mha_product_step(p, ir_add(b, column, dl_i(t->d, i)));
    }
}

static void register_tile(d_lanes *d, const void *user, const ir_expr *first_row, int64_t count) {
    ir_builder *b = d->b;
    serial_tile t = *(const serial_tile *)user;
    t.first_row = first_row;
    mha_product p = dl_product(d, count, 1);
    p.user = &t, p.vector = keys, p.row = query;
    mha_product_begin(&p);
    mha_product_clear(&p);
    const int quarter = mha_quarter(d->lanes);
    const int64_t dim = d->c->p->head_dim, whole = dim - dim % quarter;
    if (whole) {
        multiply(&p, ir_for_begin(b, "d", dl_i(d, 0), dl_i(d, whole), quarter, false), quarter);
        ir_for_end(b);
    }
    for (int64_t column = whole; column < dim; column++) multiply(&p, dl_i(d, column), 1);
    for (int64_t r = 0; r < count; r++)
        ir_store(b, ir_at(b, d->scores, d->lanes, 2, row_at(&t, r), t.first_key), mha_product_sum(&p, r, 0));
}

void dl_serial_scores(d_lanes *d, const dl_tile *tile) {
    ir_builder *b = d->b;
    serial_tile t = {.d = d};
    t.first_key = ir_for_begin(b, "i", dl_i(d, 0), tile->keys, d->lanes, false);
    const ir_expr *last = ir_sub(b, tile->keys, dl_i(d, 1));
    for (int l = 0; l < d->lanes; l++) {
        const ir_expr *i = ir_min(b, ir_add(b, t.first_key, dl_i(d, l)), last);
        t.key[l] = mha_kv_row_at(d->c, &d->entry, d->kv_head, ir_let(b, "j", ir_add(b, tile->first, i)));
    }
    dl_each_rows(d, d->c->s->score_vectors, register_tile, &t);
    ir_for_end(b);
}
