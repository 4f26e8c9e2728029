/* S = Q K^T for one tile with the bits of prefill (reproducible): each score is summed serially along head_dim. Lanes
 * run along keys, so K is transposed in registers, `lanes` keys and a quarter of as many columns at a time:
 *
 *     keys 0 … L-1    [ a a a a a a a ]        a += K[keys][d] * Q[row][d] in all lanes, for d = 0, 1, … */
#include "attend/decode/layout.h"
#include "nest/transpose.h"

typedef struct serial_tile {
    const ir_expr *first_key; /* within the tile */
    mha_kv_row key[IR_MAX_LANES];
} serial_tile;

/* acc += K[keys, column] * Q[row, column] for `width` columns, which is a quarter of the lanes or 1; lanes are keys. */
static void multiply(d_lanes *d, const serial_tile *t, mha_product *p, const ir_expr *first_row, const ir_expr *column,
                     int width) {
    const ir_expr *columns[4];
    mha_transposed_keys(d->c, t->key, column, width, columns);
    for (int i = 0; i < width; i++) {
        const ir_expr *at = ir_plus(d->b, column, i);
        mha_product_vector(p, NULL, 0, columns[i]);
        for (int r = 0; r < p->rows; r++)
            mha_product_repeat(p, NULL, r, ir_at(d->b, d->q, 1, 2, ir_plus(d->b, first_row, r), at));
    }
}

void dl_serial_scores(d_lanes *d, const dl_tile *tile) {
    ir_builder *b = d->b;
    const int quarter = mha_quarter(d->lanes);
    const int64_t dim = d->c->p->head_dim, whole = dim - dim % quarter;
    serial_tile t;
    IR_FOR(b, i, ir_idx(b, 0), tile->keys, d->lanes) {
        const ir_expr *last = ir_plus(b, tile->keys, -1);
        t.first_key = i;
        for (int l = 0; l < d->lanes; l++) {
            const ir_expr *own = ir_min(b, ir_plus(b, i, l), last);
            t.key[l] = d->is_listed
                           ? dl_listed_key(d, ir_let(b, "j", own))
                           : mha_kv_row_at(d->c, &d->sequence, d->kv_head, ir_let(b, "j", ir_add(b, tile->first, own)));
        }
        DL_ROWS(d, rows, d->c->s->score_rows) {
            mha_product p = mha_product_of(d->c, dl_kind(d), rows.count, 1);
            p.vectors_first = true;
            mha_product_clear(&p);
            if (whole) {
                IR_LOOP(b, column, ir_for_begin(b, "d", ir_idx(b, 0), ir_idx(b, whole), quarter, false))
                    multiply(d, &t, &p, rows.first, column, quarter);
            }
            for (int64_t at = whole; at < dim; at++) multiply(d, &t, &p, rows.first, ir_idx(b, at), 1);
            for (int64_t r = 0; r < rows.count; r++)
                ir_store(b, ir_at(b, d->scores, d->lanes, 2, ir_plus(b, rows.first, r), t.first_key),
                         mha_product_sum(&p, r, 0));
        }
    }
}
