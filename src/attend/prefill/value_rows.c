/* O = P V for one tile and stripe, lanes along the columns of V: O and V have that layout in memory, so nothing is
 * transposed, and no lane is wasted on rows beyond the last one.
 *
 *                columns 0 … L-1   columns L … 2L-1
 *     row 0    [ a a a a a a a ] [ a a a a a a a ]         a += P[row][j] * V[j][column], for keys j of the tile
 *     row 1    [ a a a a a a a ] [ a a a a a a a ]              in all lanes   one vector
 *
 * The loops, from the outside in: strips of columns, register tiles of rows, keys. If the keys are one tile, its sums
 * are the result: they are divided and stored. Otherwise O is kept in scratch from tile to tile, and divided at the
 * end.
 *
 * The order of the arithmetic is that of value.c, and so are the bits. That holds for pairs of bf16, too. */
#include "base/integers.h"
#include "problem/problem.h"
#include "problem/problem_sight.h"
#include "attend/prefill/layout.h"

/* A strip of columns, first … first + vectors * lanes - 1, of `alike` such strips in a row. */
typedef struct strip {
    const ir_expr *first;
    int vectors, lanes;
    int64_t alike;
} strip;

typedef struct row_tile {
    const strip *strip;
    const ir_expr *first; /* row within the stripe */
    mha_product product;
} row_tile;

static const ir_expr *column_of(const q_lanes *c, const row_tile *t, int64_t vector) {
    return ir_plus(c->b, t->strip->first, vector * t->strip->lanes);
}

static const ir_expr *row_at(const q_lanes *c, const row_tile *t, int64_t row) { return ir_plus(c->b, t->first, row); }

/* The probability of a row and a key, or a pair of keys. */
static const ir_access *probability_at(const q_lanes *c, const row_tile *t, const ir_expr *j, int64_t row) {
    ir_builder *b = c->b;
    const ir_expr *lanes = ir_idx(b, c->m->lanes), *width = ir_idx(b, ql_width(c));
    if (c->v->values == MHA_VALUES_WHOLE)
        return ir_at(b, c->probabilities, ql_width(c), 2, j, ir_mul(b, row_at(c, t, row), width));
    const ir_expr *in_vector = ir_plus(b, ir_mod(b, t->first, lanes), row);
    return ir_at(b, c->probabilities, ql_width(c), 3, ir_div(b, t->first, lanes), j, ir_mul(b, in_vector, width));
}

/* Key j of the tile. The prover cannot derive its bounds from a computed loop end, so two assumptions state them. The
 * key then stays a sum with the loop's variable, and codegen advances the address by additions. ir_let_index would hide
 * the expression, and codegen would multiply for the address of every key; in ragged batches only that can be proved.
 */
static const ir_expr *key_at(const q_lanes *c, const q_lanes_tile *tile, const ir_expr *j) {
    ir_builder *b = c->b;
    const ir_expr *sum = ir_add(b, tile->first_key, j);
    if (ql_has_edges(c) && c->m->p->is_ragged) return ir_let_index(b, "key", c->e.seq_kv, sum);
    const ir_expr *key = ir_let(b, "key", sum);
    if (!ql_has_edges(c)) return key;
    ir_assume(b, ir_le(b, ir_idx(b, 0), key));
    ir_assume(b, ir_lt(b, key, c->e.seq_kv));
    return key;
}

/* acc += P V of one key, or pair, for the rows first … end - 1 of the register tile. `seen`: the visible bits of a
 * pair; NULL: all. */
static void add_key(q_lanes *c, const q_lanes_tile *tile, row_tile *t, const ir_expr *j, int64_t first, int64_t end,
                    const ir_expr *seen) {
    ir_builder *b = c->b;
    mha_product *p = &t->product;
    mha_kv_row row = {0};
    const ir_expr *pair = c->v->by_pairs ? ql_pair_of(c, tile, j) : NULL;
    if (!pair) row = mha_kv_row_at(c->m, &c->e, c->kv_head, key_at(c, tile, j));
    for (int v = 0; v < p->vectors; v++) {
        const ir_expr *column = column_of(c, t, v);
        const ir_expr *value = pair ? ir_load(b, ql_pair_at(c, pair, column, p->lanes))
                                    : mha_load_kv(c->m, c->m->v, &row, column, p->lanes);
        if (seen) value = mha_where_seen(c->m, p->kind, ir_splat(b, seen, p->lanes), value);
        mha_product_vector(p, "value", v, value);
    }
    for (int64_t r = first; r < end; r++) mha_product_repeat(p, "p", r, probability_at(c, t, j, r));
}

/* Keys, or pairs, from … to - 1 for all rows of the register tile: value_keys of them in an iteration, and the
 * remaining ones one by one. */
static void add_keys(q_lanes *c, const q_lanes_tile *tile, row_tile *t, const ir_expr *from, const ir_expr *to) {
    ir_builder *b = c->b;
    const int64_t rows = t->product.rows, keys = c->m->s->value_keys;
    if (keys > 1) {
        MHA_STEPS(c->m, j, from, ir_plus(b, to, 1 - keys), keys) add_key(c, tile, t, j, 0, rows, NULL);
        /* `from` may exceed `to`. */
        const ir_expr *turns = ir_div(b, ir_max(b, ir_sub(b, to, from), ir_idx(b, 0)), ir_idx(b, keys));
        from = ir_let(b, "left_from", ir_add(b, from, ir_times(b, turns, keys)));
    }
    MHA_STEPS(c->m, j, from, to, 1) add_key(c, tile, t, j, 0, rows, NULL);
}

/* ---- rows that see different keys ---- */

/* A row's visible range within the tile, by window and causality: from … to - 1; empty if to <= from. */
typedef struct row_range {
    const ir_expr *from, *to;
} row_range;

/* A row's element of a table of key numbers, counted from the tile's first key. */
static const ir_expr *key_of(q_lanes *c, const q_lanes_tile *tile, const ir_buffer *table, const ir_expr *row) {
    ir_builder *b = c->b;
    const ir_expr *key = ir_cast(b, IR_IDX, ir_load(b, ir_at(b, table, 1, 2, tile->stripe, row)));
    return ir_sub(b, key, tile->first_key);
}

static row_range range_of(q_lanes *c, const q_lanes_tile *tile, const ir_expr *row) {
    ir_builder *b = c->b;
    row_range sight = {tile->from, tile->to};
    if (c->first_key) sight.from = ir_let(b, "row_from", ir_max(b, tile->from, key_of(c, tile, c->first_key, row)));
    if (!c->last_key) return sight;
    const ir_expr *end = ir_min(b, tile->to, ir_plus(b, key_of(c, tile, c->last_key, row), 1));
    sight.to = ir_let_index(b, "row_to", ir_idx(b, c->m->s->kv_tile + 1), ir_max(b, ir_idx(b, 0), end));
    return sight;
}

/* The visible bits of pair j; NULL if products are not of pairs. */
static const ir_expr *visible_bits(q_lanes *c, const row_range *sight, const ir_expr *j) {
    ir_builder *b = c->b;
    const ir_expr *seen[2];
    if (!c->v->by_pairs) return NULL;
    for (int i = 0; i < 2; i++) {
        const ir_expr *key = ir_plus(b, ir_times(b, j, 2), i);
        seen[i] = ir_and(b, ir_le(b, sight->from, key), ir_lt(b, key, sight->to));
    }
    return ir_let(b, "seen", mha_seen_bits(c->m, seen[0], seen[1]));
}

/* The end of a loop over keys, or pairs, clamped to the tile. */
static const ir_expr *end_of(q_lanes *c, const ir_expr *end) {
    const int64_t most = ceil_div(c->m->s->kv_tile, ql_width(c));
    return ir_let_index(c->b, "end", ir_idx(c->b, most + 1), end);
}

/* Keys, or pairs, that are visible to row r and not to all rows of the register tile. */
static void add_rest(q_lanes *c, const q_lanes_tile *tile, row_tile *t, int64_t r, const row_range *sight,
                     const ir_expr *from, const ir_expr *to) {
    IR_FOR(c->b, j, from, end_of(c, to), 1) {
        add_key(c, tile, t, j, r, r + 1, visible_bits(c, sight, j));
    }
}

/* Both ends of the visible range grow from row to row. So the keys from the last row's first one to the first row's
 * last one are visible to all rows:
 *
 *     row 0      [ = = x x x x ]
 *     row 1        [ = x x x x = ]              x  all rows together
 *     row 2          [ x x x x = = ]            =  one row at a time
 *
 * No hidden key is multiplied. With pairs of keys, half of a pair at either end may be visible, so the first and the
 * last row have keys of their own, too. */
static void multiply_visible(q_lanes *c, const q_lanes_tile *tile, row_tile *t) {
    ir_builder *b = c->b;
    const int64_t rows = t->product.rows, width = ql_width(c);
    row_range sights[IR_MAX_LANES];
    for (int64_t r = 0; r < rows; r++) sights[r] = range_of(c, tile, row_at(c, t, r));
    const ir_expr *from = ir_let(b, "all_from", ir_ceil_div(b, sights[rows - 1].from, width));
    const ir_expr *to = c->last_key ? ir_div(b, sights[0].to, ir_idx(b, width)) : ir_ceil_div(b, tile->to, width);
    to = end_of(c, to);
    for (int64_t r = 0; r < rows - (width == 1) && c->first_key; r++) {
        const ir_expr *end = ir_min(b, from, ir_ceil_div(b, sights[r].to, width));
        add_rest(c, tile, t, r, &sights[r], ir_div(b, sights[r].from, ir_idx(b, width)), end);
    }
    add_keys(c, tile, t, from, to);
    for (int64_t r = width == 1; r < rows && c->last_key; r++)
        add_rest(c, tile, t, r, &sights[r], ir_max(b, from, to), ir_ceil_div(b, sights[r].to, width));
}

/* ---- rows that see any keys ---- */

/* A row's element of a table of the stripe; NULL without the table. */
static const ir_expr *of_row(const q_lanes *c, const ir_buffer *table, const q_lanes_tile *tile, const ir_expr *row) {
    return table ? ir_load(c->b, ir_at(c->b, table, 1, 2, tile->stripe, row)) : NULL;
}

/* Whether a row attends to key j of the tile. */
static const ir_expr *is_visible(q_lanes *c, const q_lanes_tile *tile, const ir_expr *row, const ir_expr *j) {
    ir_builder *b = c->b;
    mha_hiding hiding = {.sight = {of_row(c, c->first_key, tile, row), of_row(c, c->last_key, tile, row),
                                   of_row(c, c->last_global, tile, row)},
                         .key = ir_cast(b, IR_I32, ir_add(b, tile->first_key, j))};
    if (mha_has_function(c->m, MHA_MASK_FUNCTION)) {
        const mha_values values = ql_values_of_rows(c, MHA_MASK_FUNCTION, tile->stripe, row, 1);
        hiding.by_function = ql_function_sees(c, &values, ir_let(b, "key", ir_add(b, tile->first_key, j)), 1);
    }
    if (c->bias) hiding.bias = ir_load(b, ir_at(b, c->bias, 1, 2, j, row));
    if (c->keep) hiding.mask = ir_cast(b, IR_I32, ir_load(b, ir_at(b, c->keep, 1, 2, j, row)));
    return mha_sees(c->m, &hiding, 1);
}

/* The same for a key, or the bits of a pair, as add_key's `seen`. The second key of a pair may be beyond the last one.
 */
static const ir_expr *visibility(q_lanes *c, const q_lanes_tile *tile, const ir_expr *row, const ir_expr *j) {
    ir_builder *b = c->b;
    if (!c->v->by_pairs) return ir_let(b, "sees", is_visible(c, tile, row, j));
    const ir_expr *first = ir_times(b, j, 2);
    const ir_expr *second = ir_let(b, "second", ir_min(b, ir_plus(b, first, 1), ir_plus(b, tile->to, -1)));
    const ir_expr *exists = ir_gt(b, second, first), *is_seen = is_visible(c, tile, row, second);
    return ir_let(b, "sees", mha_seen_bits(c->m, is_visible(c, tile, row, first), ir_and(b, is_seen, exists)));
}

/* acc += P V over all keys of the stripe's range. The probability of a hidden key is 0. `careful`: its value is
 * replaced by 0, too, as it may be NaN or infinite. */
static void multiply_all(q_lanes *c, const q_lanes_tile *tile, row_tile *t, bool careful) {
    ir_builder *b = c->b;
    const ir_expr *from = ir_div(b, tile->from, ir_idx(b, ql_width(c))), *to = ir_ceil_div(b, tile->to, ql_width(c));
    if (!careful) {
        add_keys(c, tile, t, from, to);
        return;
    }
    IR_FOR(b, j, from, to, 1) {
        add_key(c, tile, t, j, 0, t->product.rows, visibility(c, tile, t->first, j));
    }
}

/* ---- where the sums go ---- */

/* value.c rounds pairs of output columns by pack2; this must give the same bits. */
static void store_vector(const q_lanes *c, const ir_access *to, const ir_expr *value) {
    if (!c->v->by_pairs || to->buffer->type.elem != IR_BF16 || c->m->p->head_dim_v % 2)
        mha_store(c->m, to, value);
    else
        ir_store(c->b, to, mha_rounded(c->m, value));
}

/* acc * inverse + 0 is the output, as in rows.c. */
static void store(q_lanes *c, const q_lanes_tile *tile, const row_tile *t) {
    ir_builder *b = c->b;
    const int lanes = t->strip->lanes;
    for (int r = 0; r < t->product.rows; r++) {
        const q_lanes_row row = ql_row(c, tile->stripe, row_at(c, t, r));
        const ir_expr *token = ir_let(b, "token", ir_add(b, c->e.first_q, row.query));
        const ir_expr *inverse = ir_load(b, ir_at(b, c->row_sum, 1, 2, tile->stripe, row_at(c, t, r)));
        inverse = ir_let(b, "inverse", ir_splat(b, inverse, lanes));
        for (int v = 0; v < t->product.vectors; v++)
            store_vector(c, ir_at(b, c->m->out, lanes, 4, c->e.batch, row.head, token, column_of(c, t, v)),
                         mha_madd(c->m, mha_product_sum(&t->product, r, v), inverse, mha_number(c->m, 0, lanes)));
    }
}

/* Adds the sums of this tile to those of earlier tiles. */
static void keep(q_lanes *c, const q_lanes_tile *tile, const row_tile *t) {
    ir_builder *b = c->b;
    for (int r = 0; r < t->product.rows; r++) {
        const ir_expr *shrink = ir_load(b, ir_at(b, c->factor, 1, 1, row_at(c, t, r)));
        const ir_expr *factor = ir_let(b, "shrink", ir_splat(b, shrink, t->strip->lanes));
        for (int v = 0; v < t->product.vectors; v++)
            mha_join_sum(c->m, ir_at(b, c->o, t->strip->lanes, 3, tile->stripe, row_at(c, t, r), column_of(c, t, v)),
                         c->o_lost, factor, mha_product_sum(&t->product, r, v));
    }
}

static void register_tile(q_lanes *c, const q_lanes_tile *tile, const strip *s, const ir_expr *first, int64_t rows,
                          bool careful) {
    row_tile t = {.strip = s, .first = first, .product = mha_product_of(c->m, ql_kind(c), rows, s->vectors)};
    t.product.lanes = s->lanes;
    t.product.vectors_first = true;
    mha_product_clear(&t.product);
    if (ql_has_edges(c) && !tile->is_finite)
        multiply_visible(c, tile, &t);
    else
        multiply_all(c, tile, &t, careful);
    (c->o ? keep : store)(c, tile, &t);
}

/* All rows of the stripe, as many at a time as there are accumulators for, and then the remaining ones. */
static void all_rows(q_lanes *c, const q_lanes_tile *tile, const strip *s, bool careful) {
    ir_builder *b = c->b;
    const bool is_whole = c->v->values == MHA_VALUES_WHOLE;
    const int64_t all = c->num_tasks ? c->m->p->seq_q * c->m->group : c->stripe_rows;
    const int64_t rows = min_of(all, c->stripe_rows);
    const int64_t room = (int64_t)c->m->s->value_columns * c->m->s->value_row_vectors / s->vectors;
    int64_t step = is_whole ? min_of(max_of(room, 1), rows) : c->m->lanes;
    /* The rows of a register tile must lie within one vector of rows of P. */
    while (!is_whole && step > room && step > 1) step /= 2;
    if (careful) step = 1;
    const int64_t rest = rows % step;
    const ir_expr *end = ir_idx(b, rows - rest);
    if (!is_whole) end = ir_let(b, "rows_end", ir_min(b, end, ir_sub(b, c->rows, ql_first_row(c, tile->stripe))));
    IR_LOOP(b, row, ir_for_begin(b, "row_tile", ir_idx(b, 0), end, step, false))
        register_tile(c, tile, s, row, step, careful);
    if (rest) register_tile(c, tile, s, ir_idx(b, rows - rest), rest, careful);
}

/* The next strips: of whole vectors, and then of narrower ones for the remaining columns. A last vector that would
 * reach beyond the columns begins earlier instead, and computes some columns again, to the same bits. Sums in scratch
 * (c->o) must not be added twice, so there the remaining columns get a vector for each power of two. */
static strip next_strips(const q_lanes *c, int64_t *first, int *lanes, bool careful) {
    const int64_t columns = c->m->p->head_dim_v;
    const int64_t left = columns - *first;
    int wider = *lanes;
    while (wider / 2 >= left) wider /= 2;
    if (!c->o && wider > left && wider <= columns) {
        *first = columns - wider;
        *lanes = wider;
    }
    while (*lanes > columns - *first) *lanes /= 2;
    const int64_t whole = (columns - *first) / *lanes;
    if (careful) return (strip){.vectors = 1, .lanes = *lanes, .alike = whole};
    const mha_strips next = mha_next_strips(c->m->p, c->m->s, c->m->target, whole);
    return (strip){.vectors = next.vectors, .lanes = *lanes, .alike = next.alike};
}

static void all_columns(q_lanes *c, const q_lanes_tile *tile, bool careful) {
    ir_builder *b = c->b;
    const int64_t columns = c->m->p->head_dim_v;
    int lanes = c->m->target->vector_bytes / (c->m->elem == IR_F64 ? 8 : 4);
    for (int64_t first = 0; first < columns;) {
        strip s = next_strips(c, &first, &lanes, careful);
        const int64_t width = (int64_t)s.vectors * lanes;
        IR_LOOP(b, n, ir_for_begin(b, "strip", ir_idx(b, 0), ir_idx(b, s.alike), 1, false)) {
            s.first = ir_let(b, "strip_first", ir_plus(b, ir_times(b, n, width), first));
            all_rows(c, tile, &s, careful);
        }
        first += width * s.alike;
    }
}

/* Tiles with hidden values that are NaN or infinite are rare. They are computed row by row and vector by vector, which
 * is slow but little code. */
void ql_values_by_rows(q_lanes *c, const q_lanes_tile *tile) {
    IR_GUARD(c->b, tile->is_finite, tile->is_finite) all_columns(c, tile, false);
    if (!tile->is_finite) return;
    IR_ELSE(c->b) all_columns(c, tile, true);
}

/* ---- rows that are kept from tile to tile ---- */

void ql_clear_kept(q_lanes *c, const ir_expr *stripe) {
    ir_builder *b = c->b;
    IR_FOR(b, row, ir_idx(b, 0), ir_idx(b, c->stripe_rows), 1) {
        MHA_COLUMNS(c->m, d, c->m->p->head_dim_v, c->m->lanes) {
            mha_clear_sum(c->m, ir_at(b, c->o, d.lanes, 3, stripe, row, d.at), c->o_lost);
        }
    }
}

void ql_store_kept(q_lanes *c, const ir_expr *stripe) {
    ir_builder *b = c->b;
    const ir_expr *left = ir_sub(b, c->rows, ql_first_row(c, stripe));
    left = ir_let(b, "rows_left", ir_min(b, ir_idx(b, c->stripe_rows), left));
    IR_FOR(b, at, ir_idx(b, 0), left, 1) {
        const q_lanes_row row = ql_row(c, stripe, at);
        const ir_expr *token = ir_add(b, c->e.first_q, row.query);
        const ir_expr *inverse = ir_let(b, "inverse", ir_load(b, ir_at(b, c->row_sum, 1, 2, stripe, at)));
        MHA_COLUMNS(c->m, d, c->m->p->head_dim_v, c->m->lanes) {
            const ir_expr *o = mha_load_sum(c->m, ir_at(b, c->o, d.lanes, 3, stripe, at, d.at), c->o_lost);
            o = mha_madd(c->m, o, ir_splat(b, inverse, d.lanes), mha_number(c->m, 0, d.lanes));
            store_vector(c, ir_at(b, c->m->out, d.lanes, 4, c->e.batch, row.head, token, d.at), o);
        }
    }
}
