/* Between rows in memory and rows in lanes: Q is transposed into scratch once for each task, O back out of it. Both go
 * by squares of lanes x lanes, in a rolled loop (a transpose costs milliseconds of compile time); columns that lanes do
 * not divide overlap the square before. Heads narrower than a vector are copied one element at a time. */
#include "mha/q_lanes.h"

#include <math.h>

typedef struct row_ref {
    const ir_expr *head, *query;
} row_ref;

/* Where the row number `row` lies, clamped to the last row. */
static row_ref row_of(q_lanes *c, const ir_expr *row) {
    ir_builder *b = c->b;
    row = ir_let(b, "row", ir_min(b, row, ql_i(c, c->rows - 1)));
    const ir_expr *first_head = ir_mul(b, c->kv_head, ql_i(c, c->group));
    return (row_ref){ir_let(b, "head", ir_add(b, first_head, ir_mod(b, row, ql_i(c, c->group)))),
                     ir_let(b, "query", ir_div(b, row, ql_i(c, c->group)))};
}

static const ir_expr *row_number(q_lanes *c, const ir_expr *block, const ir_expr *in_block) {
    const ir_expr *first = ir_mul(c->b, ir_add(c->b, c->first_block, block), ql_i(c, c->block_rows));
    return ir_add(c->b, first, in_block);
}

/* ---- transposing a square of registers ---- */

/* One stage: rows i and i + distance trade their lanes in groups of `width`, as unpack instructions do: the low
 * result takes the even groups of both rows alternately, the high one the odd groups. With in_quarters the trade
 * stays within 4 lanes (unpcklps and unpcklpd work so), else it spans the vector. */
static void interleave(ir_builder *b, const ir_expr **rows, int lanes, int i, int distance, int width, int span) {
    uint8_t low[IR_MAX_LANES], high[IR_MAX_LANES];
    int n = 0;
    for (int start = 0; start < lanes; start += span)
        for (int at = 0; at < span / 2; at += width)
            for (int side = 0; side < 2; side++)
                for (int l = 0; l < width; l++, n++) {
                    low[n] = (uint8_t)(side * lanes + start + at + l);
                    high[n] = (uint8_t)(low[n] + span / 2);
                }
    const ir_expr *x = rows[i], *y = rows[i + distance];
    rows[i] = ir_let(b, "t", ir_shuffle(b, x, y, lanes, low));
    rows[i + distance] = ir_let(b, "t", ir_shuffle(b, x, y, lanes, high));
}

/* rows[] becomes its transpose. Quarters of 4 x 4 first, by two stages of unpacks, then whole quarters. */
static void transpose(ir_builder *b, const ir_expr **rows, int lanes) {
    const int quarter = lanes < 4 ? lanes : 4;
    for (int distance = 1; distance < quarter; distance *= 2)
        for (int i = 0; i < lanes; i++)
            if (!(i & distance)) interleave(b, rows, lanes, i, distance, distance, quarter);
    if (quarter == 4) /* the unpacks leave columns 1 and 2 of each quarter swapped */
        for (int i = 0; i < lanes; i += 4) {
            const ir_expr *swap = rows[i + 1];
            rows[i + 1] = rows[i + 2];
            rows[i + 2] = swap;
        }
    for (int distance = 4; distance < lanes; distance *= 2)
        for (int i = 0; i < lanes; i++)
            if (!(i & distance)) interleave(b, rows, lanes, i, distance, distance, 2 * distance);
}

/* ---- Q ---- */

static const ir_expr *begin_squares(q_lanes *c, int64_t columns) {
    ir_builder *b = c->b;
    const int lanes = c->s->lanes;
    const ir_expr *at = ir_for_begin(b, "column", ql_i(c, 0), ql_i(c, columns), lanes, false);
    return ir_let(b, "d", ir_min(b, at, ql_i(c, columns - lanes)));
}

static void load_squares(q_lanes *c, const ir_expr *block, const ir_expr *at, const ir_expr *scale) {
    ir_builder *b = c->b;
    const int lanes = c->s->lanes;
    row_ref refs[IR_MAX_LANES];
    const ir_expr *rows[IR_MAX_LANES];
    for (int l = 0; l < lanes; l++) refs[l] = row_of(c, row_number(c, block, ir_add(b, at, ql_i(c, l))));
    const ir_expr *d = begin_squares(c, c->p->head_dim);
    for (int l = 0; l < lanes; l++)
        rows[l] = ir_let(b, "q", ir_load(b, ir_at(b, c->q, lanes, 4, c->batch, refs[l].head, refs[l].query, d)));
    transpose(b, rows, lanes);
    for (int l = 0; l < lanes; l++)
        ir_store(b, ir_at(b, c->qt, lanes, 3, block, ir_add(b, d, ql_i(c, l)), at),
                 ir_mul(b, rows[l], ir_splat(b, scale, lanes)));
    ir_for_end(b);
}

static void load_elements(q_lanes *c, const ir_expr *block, const ir_expr *row, const ir_expr *scale) {
    ir_builder *b = c->b;
    const row_ref ref = row_of(c, row_number(c, block, row));
    const ir_expr *d = ir_for_begin(b, "d", ql_i(c, 0), ql_i(c, c->p->head_dim), 1, false);
    const ir_expr *q = ir_load(b, ir_at(b, c->q, 1, 4, c->batch, ref.head, ref.query, d));
    ir_store(b, ir_at(b, c->qt, 1, 3, block, d, row), ir_mul(b, q, scale));
    ir_for_end(b);
}

void ql_load_queries(q_lanes *c, const ir_expr *block) {
    const ir_expr *scale = ir_float(c->b, IR_F32, c->p->softmax_scale * M_LOG2E);
    const bool squares = c->p->head_dim >= c->s->lanes;
    const ir_expr *at = ir_for_begin(c->b, "at", ql_i(c, 0), ql_i(c, c->block_rows), squares ? c->s->lanes : 1, false);
    if (squares) load_squares(c, block, at, scale);
    else load_elements(c, block, at, scale);
    ir_for_end(c->b);
}

/* ---- O and LSE ---- */

/* 1 / sum in row_sum's place; a row that saw no key gets 0, and thus an output of 0. LSE = ln 2 (max + log2 sum). */
static void invert_sums(q_lanes *c, const ir_expr *block) {
    ir_builder *b = c->b;
    const int lanes = c->s->lanes;
    const ir_expr *at = ir_for_begin(b, "at", ql_i(c, 0), ql_i(c, c->block_rows), lanes, false);
    const ir_access *row_sum = ir_at(b, c->row_sum, lanes, 2, block, at);
    const ir_expr *sum = ir_let(b, "total", ir_load(b, row_sum));
    if (c->lse) {
        const ir_access *row_max = ir_at(b, c->row_max, lanes, 2, block, at);
        const ir_expr *log = ir_add(b, ir_load(b, row_max), ir_apply(b, IR_LOG2, sum, NULL, NULL));
        ir_store(b, row_max, ir_mul(b, log, ql_splat(c, (float)M_LN2)));
    }
    const ir_expr *none = ir_apply(b, IR_EQ, sum, ql_splat(c, 0), NULL);
    ir_store(b, row_sum, ir_select(b, none, ql_splat(c, 0), ir_div(b, ql_splat(c, 1), sum)));
    ir_for_end(b);
}

static void store_squares(q_lanes *c, const ir_expr *block, const ir_expr *at) {
    ir_builder *b = c->b;
    const int lanes = c->s->lanes;
    row_ref refs[IR_MAX_LANES];
    const ir_expr *rows[IR_MAX_LANES];
    for (int l = 0; l < lanes; l++) refs[l] = row_of(c, row_number(c, block, ir_add(b, at, ql_i(c, l))));
    const ir_expr *inverse = ir_let(b, "inverse", ir_load(b, ir_at(b, c->row_sum, lanes, 2, block, at)));
    const ir_expr *d = begin_squares(c, c->p->head_dim_v);
    for (int l = 0; l < lanes; l++) {
        const ir_expr *o = ir_load(b, ir_at(b, c->ot, lanes, 3, block, ir_add(b, d, ql_i(c, l)), at));
        rows[l] = ir_let(b, "o", ir_mul(b, o, inverse));
    }
    transpose(b, rows, lanes);
    for (int l = 0; l < lanes; l++)
        ir_store(b, ir_at(b, c->out, lanes, 4, c->batch, refs[l].head, refs[l].query, d), rows[l]);
    ir_for_end(b);
}

static void store_elements(q_lanes *c, const ir_expr *block, const ir_expr *row) {
    ir_builder *b = c->b;
    const row_ref ref = row_of(c, row_number(c, block, row));
    const ir_expr *d = ir_for_begin(b, "d", ql_i(c, 0), ql_i(c, c->p->head_dim_v), 1, false);
    const ir_expr *o = ir_load(b, ir_at(b, c->ot, 1, 3, block, d, row));
    ir_store(b, ir_at(b, c->out, 1, 4, c->batch, ref.head, ref.query, d),
             ir_mul(b, o, ir_load(b, ir_at(b, c->row_sum, 1, 2, block, row))));
    ir_for_end(b);
}

static void store_lse(q_lanes *c, const ir_expr *block) {
    ir_builder *b = c->b;
    const ir_expr *row = ir_for_begin(b, "r", ql_i(c, 0), ql_i(c, c->block_rows), 1, false);
    const row_ref ref = row_of(c, row_number(c, block, row));
    ir_store(b, ir_at(b, c->lse, 1, 3, c->batch, ref.head, ref.query), ir_load(b, ir_at(b, c->row_max, 1, 2, block, row)));
    ir_for_end(b);
}

void ql_store_rows(q_lanes *c, const ir_expr *block) {
    const bool squares = c->p->head_dim_v >= c->s->lanes;
    invert_sums(c, block);
    if (c->lse) store_lse(c, block);
    const ir_expr *at = ir_for_begin(c->b, "at", ql_i(c, 0), ql_i(c, c->block_rows), squares ? c->s->lanes : 1, false);
    if (squares) store_squares(c, block, at);
    else store_elements(c, block, at);
    ir_for_end(c->b);
}
