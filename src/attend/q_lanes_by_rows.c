/* O = P V by register tiles of query rows by vectors of columns, as O and V lie: nothing is transposed, and rows are
 * exact, where lanes along them would be filled up by clamped ones. For problems that hide nothing from any row.
 *
 * Where the keys are one tile (at_once) its sums are the result: nothing to clear, keep or rescale. Else the sums of
 * the rows are kept in c->o from tile to tile, and divided at the end.
 *
 * The order of the arithmetic is that of q_lanes_value.c, by pairs of bf16 as well: then V is c->values. */
#include "base/integers.h"
#include "problem/problem.h"
#include "problem/problem_sight.h"
#include "attend/q_lanes.h"
#include "nest/rows.h"

/* Columns first … first + vectors * lanes - 1. */
typedef struct strip {
    const ir_expr *first;
    int vectors, lanes;
} strip;

typedef struct row_tile {
    q_lanes *c;
    const q_lanes_tile *tile;
    const strip *strip;
    const ir_expr *first; /* row within the block */
    mha_kv_row row;       /* of V, at the key at hand; unless products are of pairs */
} row_tile;

static const ir_expr *column_of(const row_tile *t, int64_t vector) {
    return ir_add(t->c->b, t->strip->first, ql_i(t->c, vector * t->strip->lanes));
}

static const ir_expr *row_at(const row_tile *t, int64_t row) { return ir_add(t->c->b, t->first, ql_i(t->c, row)); }

static void find_row(const mha_product *p, const ir_expr *j) {
    row_tile *t = p->user;
    const q_lanes *c = t->c;
    if (p->kind == MHA_DOT2) return;
    t->row = mha_kv_row_at(c->m, &c->e, c->kv_head, ir_let(c->b, "key", ir_add(c->b, t->tile->first_key, j)));
}

/* A vector of the strip in row `j` of V, or of c->values, which may be pairs of keys. */
static const ir_expr *value(const mha_product *p, const ir_expr *j, int64_t vector) {
    const row_tile *t = p->user;
    const q_lanes *c = t->c;
    const ir_expr *column = column_of(t, vector);
    if (p->kind == MHA_MADD) return mha_load(c->m, mha_kv_access(c->m, c->m->v, &t->row, column, p->lanes));
    return ir_load(c->b, ir_at(c->b, c->values, 2 * p->lanes, 2, j, ir_mul(c->b, column, ql_i(c, 2))));
}

/* The weight of a row, or pair of weights, in all lanes. */
static const ir_expr *weight(const mha_product *p, const ir_expr *j, int64_t row) {
    const row_tile *t = p->user;
    const q_lanes *c = t->c;
    ir_builder *b = c->b;
    const ir_expr *lanes = ql_i(c, c->m->lanes), *width = ql_i(c, c->width);
    const ir_expr *in_vector = ir_add(b, ir_mod(b, t->first, lanes), ql_i(c, row));
    const ir_access *at =
        c->at_once ? ir_at(b, c->weights, c->width, 2, j, ir_mul(b, row_at(t, row), width))
                   : ir_at(b, c->weights, c->width, 3, ir_div(b, t->first, lanes), j, ir_mul(b, in_vector, width));
    return mha_load_repeated(c->m, p->kind, at, p->lanes);
}

/* Where columns of the output come in pairs, pack2 rounds them elsewhere: so it does here. */
static void store_vector(const q_lanes *c, const ir_access *to, const ir_expr *value) {
    if (c->width == 1 || to->buffer->type.elem != IR_BF16 || c->m->p->head_dim_v % 2)
        mha_store(c->m, to, value);
    else
        ir_store(c->b, to, mha_rounded(c->m, value));
}

/* acc * inverse + 0 is the output, as in q_lanes_rows.c. */
static void store(const mha_product *p) {
    const row_tile *t = p->user;
    q_lanes *c = t->c;
    ir_builder *b = c->b;
    for (int64_t r = 0; r < p->rows; r++) {
        const q_lanes_row row = ql_row(c, t->tile->block, row_at(t, r));
        const ir_expr *token = ir_let(b, "token", ir_add(b, c->e.first_q, row.query));
        const ir_expr *inverse = ir_load(b, ir_at(b, c->row_sum, 1, 2, t->tile->block, row_at(t, r)));
        inverse = ir_let(b, "inverse", ir_splat(b, inverse, p->lanes));
        for (int64_t v = 0; v < p->vectors; v++)
            store_vector(c, ir_at(b, c->m->out, p->lanes, 4, c->e.batch, row.head, token, column_of(t, v)),
                         mha_madd(c->m, mha_product_sum(p, r, v), inverse, mha_number(c->m, 0, p->lanes)));
    }
}

/* Adds the sums of this tile to those of the tiles before. */
static void keep(const mha_product *p) {
    const row_tile *t = p->user;
    const q_lanes *c = t->c;
    ir_builder *b = c->b;
    for (int64_t r = 0; r < p->rows; r++) {
        const ir_expr *shrink = ir_load(b, ir_at(b, c->factor, 1, 1, row_at(t, r))), *at[2];
        const ir_expr *factor = ir_let(b, "shrink", ir_splat(b, shrink, p->lanes));
        for (int64_t v = 0; v < p->vectors; v++) {
            at[0] = row_at(t, r), at[1] = column_of(t, v);
            const ir_access *lost = c->o_lost ? ir_at(b, c->o_lost, p->lanes, 3, t->tile->block, at[0], at[1]) : NULL;
            mha_join_sum(c->m, ir_at(b, c->o, p->lanes, 3, t->tile->block, at[0], at[1]), lost, factor,
                         mha_product_sum(p, r, v));
        }
    }
}

static void register_tile(q_lanes *c, const q_lanes_tile *tile, const strip *s, const ir_expr *first, int64_t rows) {
    row_tile t = {.c = c, .tile = tile, .strip = s, .first = first};
    mha_product p = {.c = c->m,
                     .kind = ql_kind(c),
                     .lanes = s->lanes,
                     .rows = rows,
                     .vectors = s->vectors,
                     .row_name = "p",
                     .vector_name = "value",
                     .vectors_first = true,
                     .user = &t,
                     .open = find_row,
                     .vector = value,
                     .row = weight};
    mha_product_begin(&p);
    mha_product_clear(&p);
    mha_product_steps(&p, "j", ql_i(c, 0), ql_ceil_div(c, tile->to, c->width), 1);
    if (c->o)
        keep(&p);
    else
        store(&p);
}

/* Rows of a register tile that are all in one vector of rows. */
static int64_t rows_of_kept(const q_lanes *c, int64_t room) {
    int64_t rows = c->m->lanes;
    while (rows > room && rows > 1) rows /= 2;
    return rows;
}

/* All rows of the block, as many at a time as there are accumulators for, and then those that are left over. */
static void all_rows(q_lanes *c, const q_lanes_tile *tile, const strip *s) {
    ir_builder *b = c->b;
    const int64_t all = c->num_tasks ? c->m->p->seq_q * c->m->group : c->block_rows, rows = min_of(all, c->block_rows);
    const int64_t room = (int64_t)c->m->s->value_rows * c->m->s->value_vectors / s->vectors;
    const int64_t step = c->o ? rows_of_kept(c, room) : min_of(max_of(room, 1), rows), rest = rows % step;
    const ir_expr *end = ql_i(c, rows - rest);
    if (c->o) end = ir_let(b, "rows_end", ir_min(b, end, ir_sub(b, c->rows, ql_first_row(c, tile->block))));
    register_tile(c, tile, s, ir_for_begin(b, "row_tile", ql_i(c, 0), end, step, false), step);
    ir_for_end(b);
    if (rest) register_tile(c, tile, s, ql_i(c, rows - rest), rest);
}

/* Whole vectors of the target, a few at a time, and then ever narrower ones. */
void ql_values_by_rows(q_lanes *c, const q_lanes_tile *tile) {
    ir_builder *b = c->b;
    const int64_t columns = c->m->p->head_dim_v;
    int lanes = c->m->target->vector_bytes / (c->m->elem == IR_F64 ? 8 : 4);
    for (int64_t first = 0; first < columns;) {
        while (lanes > columns - first) lanes /= 2;
        const int64_t whole = (columns - first) / lanes, strips = ceil_div(whole, MHA_STRIP_VECTORS);
        strip s = {.vectors = (int)ceil_div(whole, strips), .lanes = lanes};
        const int64_t width = (int64_t)s.vectors * lanes, alike = whole / s.vectors;
        const ir_expr *n = ir_for_begin(b, "strip", ql_i(c, 0), ql_i(c, alike), 1, false);
        s.first = ir_let(b, "strip_first", ir_add(b, ir_mul(b, n, ql_i(c, width)), ql_i(c, first)));
        all_rows(c, tile, &s);
        ir_for_end(b);
        first += width * alike;
    }
}

/* ---- rows that are kept from tile to tile ---- */

/* Each row of the block, as many vectors of columns as it has. */
static mha_columns each_row_begin(q_lanes *c, const ir_expr *count, const ir_expr **row) {
    *row = ir_for_begin(c->b, "row", ql_i(c, 0), count, 1, false);
    return mha_columns_begin(c->m, c->m->p->head_dim_v, c->m->lanes);
}

void ql_clear_kept(q_lanes *c, const ir_expr *block) {
    ir_builder *b = c->b;
    const ir_expr *row;
    const mha_columns d = each_row_begin(c, ql_i(c, c->block_rows), &row);
    ir_store(b, ir_at(b, c->o, d.lanes, 3, block, row, d.at), mha_number(c->m, 0, d.lanes));
    if (c->o_lost) ir_store(b, ir_at(b, c->o_lost, d.lanes, 3, block, row, d.at), mha_number(c->m, 0, d.lanes));
    ir_for_end(b);
    ir_for_end(b);
}

void ql_store_kept(q_lanes *c, const ir_expr *block) {
    ir_builder *b = c->b;
    const ir_expr *left = ir_sub(b, c->rows, ql_first_row(c, block)), *at;
    at = ir_for_begin(b, "at", ql_i(c, 0), ir_let(b, "rows_left", ir_min(b, ql_i(c, c->block_rows), left)), 1, false);
    const q_lanes_row row = ql_row(c, block, at);
    const ir_expr *token = ir_add(b, c->e.first_q, row.query);
    const ir_expr *inverse = ir_let(b, "inverse", ir_load(b, ir_at(b, c->row_sum, 1, 2, block, at)));
    const mha_columns d = mha_columns_begin(c->m, c->m->p->head_dim_v, c->m->lanes);
    const ir_access *lost = c->o_lost ? ir_at(b, c->o_lost, d.lanes, 3, block, at, d.at) : NULL;
    const ir_expr *o = ql_sums(c, ir_at(b, c->o, d.lanes, 3, block, at, d.at), lost);
    o = mha_madd(c->m, o, ir_splat(b, inverse, d.lanes), mha_number(c->m, 0, d.lanes));
    store_vector(c, ir_at(b, c->m->out, d.lanes, 4, c->e.batch, row.head, token, d.at), o);
    ir_for_end(b);
    ir_for_end(b);
}
