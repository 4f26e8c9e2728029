/* Between rows in memory and rows in lanes: Q is transposed into scratch once for each task, O back out of it. Both go
 * by `lanes` rows and 4 columns at a time, in a rolled loop (a transpose costs milliseconds of compile time); columns
 * that 4 does not divide overlap the step before. Heads narrower than that are copied one element at a time. */
#include "mha/q_lanes.h"

#include <math.h>

typedef struct row_ref {
    const ir_expr *head, *query;
} row_ref;

/* Where the row number `row` lies, clamped to the last row. */
static row_ref row_of(q_lanes *c, const ir_expr *row) {
    ir_builder *b = c->b;
    row = ir_let(b, "row", ql_clamp_row(c, row));
    const ir_expr *first_head = ir_mul(b, c->kv_head, ql_i(c, c->group));
    return (row_ref){ir_let(b, "head", ir_add(b, first_head, ir_mod(b, row, ql_i(c, c->group)))),
                     ir_let(b, "query", ir_div(b, row, ql_i(c, c->group)))};
}

static const ir_expr *row_number(q_lanes *c, const ir_expr *block, const ir_expr *in_block) {
    return ir_add(c->b, ql_first_row(c, block), in_block);
}

/* ---- transposing ---- */

/* Columns that one step transposes: those of a quarter, the 4 lanes within which unpack instructions work. A step of
 * `lanes` columns is no faster where it counts and takes LLVM twice as long to compile. */
static int quarter_of(const q_lanes *c) { return c->s->lanes < 4 ? c->s->lanes : 4; }

/* Rows x and y trade groups of `width` lanes within each quarter, as unpcklps (1) and unpcklpd (2) do: *low takes the
 * lower halves of both alternately, *high the upper ones. */
static void unpack(ir_builder *b, int lanes, int quarter, int width, const ir_expr **x, const ir_expr **y) {
    uint8_t low[IR_MAX_LANES], high[IR_MAX_LANES];
    int n = 0;
    for (int start = 0; start < lanes; start += quarter)
        for (int at = 0; at < quarter / 2; at += width)
            for (int side = 0; side < 2; side++)
                for (int l = 0; l < width; l++, n++) {
                    low[n] = (uint8_t)(side * lanes + start + at + l);
                    high[n] = (uint8_t)(low[n] + quarter / 2);
                }
    const ir_expr *first = *x, *second = *y;
    *x = ir_let(b, "t", ir_shuffle(b, first, second, lanes, low));
    *y = ir_let(b, "t", ir_shuffle(b, first, second, lanes, high));
}

/* Transposes each square of quarter x quarter lanes in rows[quarter]. */
static void transpose_quarters(ir_builder *b, int lanes, int quarter, const ir_expr **rows) {
    for (int width = 1; width < quarter; width *= 2)
        for (int i = 0; i < quarter; i++)
            if (!(i & width)) unpack(b, lanes, quarter, width, &rows[i], &rows[i + width]);
    if (quarter == 4) { /* two unpacks leave the middle rows swapped */
        const ir_expr *swap = rows[1];
        rows[1] = rows[2];
        rows[2] = swap;
    }
}

/* The vector whose quarters are parts[0], parts[1], …; a balanced tree of concatenations. */
static const ir_expr *join(ir_builder *b, const ir_expr *const *parts, int num, int part_lanes) {
    if (num == 1) return parts[0];
    uint8_t pick[IR_MAX_LANES];
    for (int l = 0; l < num * part_lanes; l++) pick[l] = (uint8_t)l;
    const ir_expr *low = join(b, parts, num / 2, part_lanes), *high = join(b, parts + num / 2, num / 2, part_lanes);
    return ir_shuffle(b, low, high, num * part_lanes, pick);
}

static const ir_expr *quarter_at(ir_builder *b, const ir_expr *x, int first, int quarter) {
    uint8_t pick[IR_MAX_LANES];
    for (int l = 0; l < quarter; l++) pick[l] = (uint8_t)(first + l);
    return ir_shuffle(b, x, x, quarter, pick);
}

/* Opens the loop over steps of columns; the last one overlaps the one before. */
static const ir_expr *begin_columns(q_lanes *c, int64_t columns) {
    ir_builder *b = c->b;
    const int quarter = quarter_of(c);
    const ir_expr *at = ir_for_begin(b, "column", ql_i(c, 0), ql_i(c, columns), quarter, false);
    return columns % quarter ? ir_let(b, "d", ir_min(b, at, ql_i(c, columns - quarter))) : at;
}

static void refer_rows(q_lanes *c, const ir_expr *block, const ir_expr *at, row_ref *refs) {
    for (int l = 0; l < c->s->lanes; l++) refs[l] = row_of(c, row_number(c, block, ir_add(c->b, at, ql_i(c, l))));
}

/* ---- Q ---- */

static void load_vectors(q_lanes *c, const ir_expr *block, const ir_expr *at, const ir_expr *scale) {
    ir_builder *b = c->b;
    const int lanes = c->s->lanes, quarter = quarter_of(c);
    row_ref refs[IR_MAX_LANES];
    const ir_expr *rows[4], *parts[IR_MAX_LANES];
    refer_rows(c, block, at, refs);
    const ir_expr *d = begin_columns(c, c->p->head_dim);
    for (int i = 0; i < quarter; i++) {
        for (int part = 0; part < lanes / quarter; part++) {
            const row_ref *ref = &refs[part * quarter + i];
            parts[part] = ir_load(b, ir_at(b, c->q, quarter, 4, c->batch, ref->head, ref->query, d));
        }
        rows[i] = ir_let(b, "q", join(b, parts, lanes / quarter, quarter));
    }
    transpose_quarters(b, lanes, quarter, rows);
    for (int i = 0; i < quarter; i++)
        ir_store(b, ir_at(b, c->qt, lanes, 3, block, ir_add(b, d, ql_i(c, i)), at),
                 scale ? ir_mul(b, rows[i], ir_splat(b, scale, lanes)) : rows[i]);
    ir_for_end(b);
}

static void load_elements(q_lanes *c, const ir_expr *block, const ir_expr *row, const ir_expr *scale) {
    ir_builder *b = c->b;
    const row_ref ref = row_of(c, row_number(c, block, row));
    const ir_expr *d = ir_for_begin(b, "d", ql_i(c, 0), ql_i(c, c->p->head_dim), 1, false);
    const ir_expr *q = ir_load(b, ir_at(b, c->q, 1, 4, c->batch, ref.head, ref.query, d));
    ir_store(b, ir_at(b, c->qt, 1, 3, block, d, row), scale ? ir_mul(b, q, scale) : q);
    ir_for_end(b);
}

void ql_load_queries(q_lanes *c, const ir_expr *block) {
    const double sign = c->p->softmax_scale > 0 ? 1 : c->p->softmax_scale < 0 ? -1 : 0;
    const ir_expr *scale = sign == 1 ? NULL : ir_float(c->b, IR_F32, sign);
    const bool vectors = c->p->head_dim >= quarter_of(c);
    const ir_expr *at = ir_for_begin(c->b, "at", ql_i(c, 0), ql_i(c, c->block_rows), vectors ? c->s->lanes : 1, false);
    if (vectors)
        load_vectors(c, block, at, scale);
    else
        load_elements(c, block, at, scale);
    ir_for_end(c->b);
}

/* ---- O and LSE ---- */

/* 1 / sum in row_sum's place; a row that saw no key gets 0, and thus an output of 0. LSE = scale max + ln 2 log2 sum.
 */
static void invert_sums(q_lanes *c, const ir_expr *block) {
    ir_builder *b = c->b;
    const int lanes = c->s->lanes;
    const ir_expr *at = ir_for_begin(b, "at", ql_i(c, 0), ql_i(c, c->block_rows), lanes, false);
    const ir_access *row_sum = ir_at(b, c->row_sum, lanes, 2, block, at);
    const ir_expr *sum = ir_let(b, "total", ir_load(b, row_sum));
    if (c->lse) {
        const ir_access *row_max = ir_at(b, c->row_max, lanes, 2, block, at);
        const ir_expr *log = ir_mul(b, ir_apply(b, IR_LOG2, sum, NULL, NULL), ql_splat(c, (float)M_LN2));
        ir_store(b, row_max, ql_madd(c, ir_load(b, row_max), ql_splat(c, ql_score_scale(c)), log));
    }
    const ir_expr *none = ir_apply(b, IR_EQ, sum, ql_splat(c, 0), NULL);
    ir_store(b, row_sum, ir_select(b, none, ql_splat(c, 0), ir_div(b, ql_splat(c, 1), sum)));
    ir_for_end(b);
}

static void store_vectors(q_lanes *c, const ir_expr *block, const ir_expr *at) {
    ir_builder *b = c->b;
    const int lanes = c->s->lanes, quarter = quarter_of(c);
    row_ref refs[IR_MAX_LANES];
    const ir_expr *rows[4];
    refer_rows(c, block, at, refs);
    const ir_expr *inverse = ir_let(b, "inverse", ir_load(b, ir_at(b, c->row_sum, lanes, 2, block, at)));
    const ir_expr *d = begin_columns(c, c->p->head_dim_v);
    for (int i = 0; i < quarter; i++) {
        const ir_expr *o = ir_load(b, ir_at(b, c->ot, lanes, 3, block, ir_add(b, d, ql_i(c, i)), at));
        rows[i] = ir_let(b, "o", ir_mul(b, o, inverse));
    }
    transpose_quarters(b, lanes, quarter, rows);
    for (int l = 0; l < lanes; l++)
        ir_store(b, ir_at(b, c->out, quarter, 4, c->batch, refs[l].head, refs[l].query, d),
                 quarter_at(b, rows[l % quarter], l / quarter * quarter, quarter));
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
    ir_store(b, ir_at(b, c->lse, 1, 3, c->batch, ref.head, ref.query),
             ir_load(b, ir_at(b, c->row_max, 1, 2, block, row)));
    ir_for_end(b);
}

void ql_store_rows(q_lanes *c, const ir_expr *block) {
    const bool vectors = c->p->head_dim_v >= quarter_of(c);
    invert_sums(c, block);
    if (c->lse) store_lse(c, block);
    const ir_expr *at = ir_for_begin(c->b, "at", ql_i(c, 0), ql_i(c, c->block_rows), vectors ? c->s->lanes : 1, false);
    if (vectors)
        store_vectors(c, block, at);
    else
        store_elements(c, block, at);
    ir_for_end(c->b);
}
