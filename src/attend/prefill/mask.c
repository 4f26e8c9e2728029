/* Hidden keys, at three levels. Causality, windows and key lengths are intervals (shared/sight.h), and so is what the
 * table of mask_mod says (shared/mask_table.h):
 *
 *     keys of a tile    |- - - -|=========|xxxxxxxxxxx|=========|- - - -|
 *     seen by             no row    some rows   all rows    some rows   no row        of the stripe
 *                         left out  compared    computed    compared    left out
 *
 *   task           tiles that no row sees are not visited
 *   stripe         register tiles that none of its rows sees are not computed
 *   register tile  rows compare, unless all of them see all of its keys
 *
 * attn_mask and attn_bias vary along the lanes: a tile's part of them is brought into scratch for each stripe,
 * transposed unless rows or keys are alike. Without a table each score evaluates mask_mod. */
#include "attend/shared/mask_table.h"
#include "attend/prefill/layout.h"

#include <math.h>

static const ir_expr *plus(const q_lanes *c, const ir_expr *x, int64_t y) { return ir_plus(c->b, x, y); }

static const ir_expr *at_least_0(const q_lanes *c, const ir_expr *x) { return ir_max(c->b, ir_idx(c->b, 0), x); }

/* The position of a row's query. */
static const ir_expr *position_of(q_lanes *c, const ir_expr *row) {
    return ir_add(c->b, ir_div(c->b, ql_clamp_row(c, row), ir_idx(c->b, c->m->group)), c->e.base);
}

/* The sights of rows first_row … end_row - 1. */
static mha_sights sights_of(q_lanes *c, const ir_expr *first_row, const ir_expr *end_row) {
    const ir_expr *first = ir_let(c->b, "first_position", position_of(c, first_row));
    const ir_expr *last = ir_let(c->b, "last_position", position_of(c, plus(c, end_row, -1)));
    return mha_sights_of(c->m, &c->e, first, last);
}

static mha_sights sights_of_task(q_lanes *c) {
    return sights_of(c, ql_first_row(c, ir_idx(c->b, 0)), ql_first_row(c, c->stripes));
}

/* ---- tiles of a task ---- */

const ir_expr *ql_begin_tiles(q_lanes *c) {
    ir_builder *b = c->b;
    const int64_t size = c->m->s->kv_tile;
    const ir_expr *zero = ir_idx(b, 0);
    if (!ql_has_edges(c)) return ir_for_begin(b, "tile", zero, ir_ceil_div(b, c->e.seq_kv, size), 1, false);
    const mha_sights s = sights_of_task(c);
    const ir_expr *end = ir_let(b, "tiles", ir_ceil_div(b, at_least_0(c, s.some_end), size));
    const ir_expr *first = ir_let(b, "first_tile", ir_div(b, s.some_first, ir_idx(b, size)));
    if (!c->m->has_global) return ir_for_begin(b, "tile", first, end, 1, false);
    /* The tiles of the global keys come first, then those of the window that are not among them. */
    const ir_expr *globals = ir_let(b, "globals", ir_ceil_div(b, at_least_0(c, s.globals_end), size));
    first = ir_let(b, "first_other", ir_max(b, first, globals));
    const ir_expr *count = ir_add(b, globals, at_least_0(c, ir_sub(b, end, first)));
    const ir_expr *n = ir_for_begin(b, "n", zero, ir_let(b, "num_tiles", count), 1, false);
    const ir_expr *other = ir_add(b, first, ir_sub(b, n, globals));
    return ir_let(b, "tile", ir_select(b, ir_lt(b, n, globals), n, at_least_0(c, other)));
}

/* ---- hidden values ---- */

/* Whether some row of the task does not see all of the tile, as far as window and causality go. */
static const ir_expr *is_partial(q_lanes *c, const q_lanes_tile *t) {
    ir_builder *b = c->b;
    const mha_sights s = sights_of_task(c);
    const ir_expr *partial = NULL;
    if (c->m->has_last) partial = ir_gt(b, ir_add(b, t->first_key, t->room), s.all_end);
    if (!c->m->has_first) return partial;
    const ir_expr *begins = ir_lt(b, t->first_key, s.all_first);
    return partial ? ir_or(b, partial, begins) : begins;
}

/* Sums of 0 * V over a tile's keys: NaN if there is a NaN or an infinity among them. Lanes run along the columns. There
 * are up to two sums, because each waits for its own last addition. */
typedef struct zero_sums {
    const ir_buffer *registers; /* [count] */
    int lanes, count;
} zero_sums;

static const ir_access *sum_at(q_lanes *c, const zero_sums *sums, int i) {
    return ir_at(c->b, sums->registers, sums->lanes, 1, ir_idx(c->b, i));
}

static zero_sums new_zero_sums(q_lanes *c) {
    const int64_t columns = c->m->p->head_dim_v;
    zero_sums sums = {.lanes = mha_column_lanes(columns, c->m->lanes)};
    sums.count = columns >= 2 * sums.lanes ? 2 : 1;
    sums.registers = ir_registers(c->b, "zeros", c->m->elem, sums.lanes, 1, (int64_t[]){sums.count});
    for (int i = 0; i < sums.count; i++) ir_store(c->b, sum_at(c, &sums, i), mha_number(c->m, 0, sums.lanes));
    return sums;
}

/* The columns of a key from `column` on, one vector for each sum. Vectors overlap at the end of the row if they do not
 * fill it. */
static void add_vectors(q_lanes *c, const zero_sums *sums, const mha_kv_row *row, const ir_expr *scale,
                        const ir_expr *column) {
    ir_builder *b = c->b;
    const int64_t columns = c->m->p->head_dim_v;
    const int lanes = sums->lanes;
    for (int i = 0; i < sums->count; i++) {
        const ir_access *sum = sum_at(c, sums, i);
        const ir_expr *at = plus(c, column, (int64_t)i * lanes);
        if (columns % (lanes * sums->count)) at = ir_min(b, at, ir_idx(b, columns - lanes));
        const ir_expr *value = mha_load_kv(c->m, c->m->v, row, at, lanes);
        if (scale) value = ir_mul(b, value, ir_splat(b, scale, lanes));
        ir_store(b, sum, mha_madd(c->m, value, mha_number(c->m, 0, lanes), ir_load(b, sum)));
    }
}

static void add_zeros(q_lanes *c, const q_lanes_tile *t, const zero_sums *sums) {
    ir_builder *b = c->b;
    const int64_t step = (int64_t)sums->lanes * sums->count;
    IR_FOR(b, j, ir_idx(b, 0), t->room, 1) {
        const mha_kv_row row = mha_kv_row_at(c->m, &c->e, c->kv_head, ir_add(b, t->first_key, j));
        const ir_expr *scale = mha_v_scale(c->m, &row);
        if (scale) scale = ir_let(b, "scale", scale);
        IR_FOR(b, column, ir_idx(b, 0), ir_idx(b, c->m->p->head_dim_v), step) {
            add_vectors(c, sums, &row, scale, column);
        }
    }
}

/* Whether a key of the tile is hidden from a row that sees others of it, as far as that is known; NULL: it is not. */
static const ir_expr *hides_some(q_lanes *c, const q_lanes_tile *t) {
    if (ql_has_elements(c) || c->m->has_global || (ql_asks_all(c) && !ql_has_table(c))) return NULL;
    const ir_expr *partial = ql_has_edges(c) ? is_partial(c, t) : NULL;
    return !t->is_mixed ? partial : partial ? ir_or(c->b, partial, t->is_mixed) : t->is_mixed;
}

/* Whether the tile's values are finite. A hidden key has the probability 0, and 0 times a finite value is 0. */
static const ir_expr *is_harmless(q_lanes *c, const q_lanes_tile *t) {
    ir_builder *b = c->b;
    const zero_sums sums = new_zero_sums(c);
    const ir_expr *hides = hides_some(c, t);
    IR_GUARD(b, hides, hides) add_zeros(c, t, &sums);
    const ir_expr *total = ir_load(b, sum_at(c, &sums, 0));
    if (sums.count > 1) total = ir_add(b, total, ir_load(b, sum_at(c, &sums, 1)));
    return ir_let(b, "is_harmless", ir_eq(b, ir_reduce(b, IR_ADD, total), mha_number(c->m, 0, 1)));
}

/* A member of the table of what a stripe sees of the tile by mask_mod. */
static const ir_expr *by_mask(q_lanes *c, const q_lanes_tile *t, const ir_expr *stripe, int member) {
    return mha_mask_tile(c->m, &c->e, c->kv_head, ir_add(c->b, c->first_stripe, stripe), t->number, member);
}

static const ir_expr *end_by_mask(q_lanes *c, const q_lanes_tile *t, int member) {
    return ir_cast(c->b, IR_IDX, by_mask(c, t, t->stripe, member));
}

/* Register tiles, and pairs, begin at multiples of it. */
static const ir_expr *round_down(const q_lanes *c, const ir_expr *key) {
    const ir_expr *unit = ir_idx(c->b, c->m->variant.mask_unit);
    return ir_mul(c->b, ir_div(c->b, key, unit), unit);
}

/* By window and causality. Register tiles that are seen in part are computed whole. */
q_lanes_keys ql_keys_of_task(q_lanes *c, const q_lanes_tile *t) {
    ir_builder *b = c->b;
    q_lanes_keys keys = {ir_idx(b, 0), t->room};
    if (!ql_has_edges(c) || c->m->has_global) return keys;
    const mha_sights s = sights_of_task(c);
    if (c->m->has_first) {
        const ir_expr *first = at_least_0(c, ir_sub(b, s.some_first, t->first_key));
        if (c->v->score_tiles_overlap) first = ir_min(b, first, ir_plus(b, t->room, -c->m->s->score_keys));
        keys.from = ir_let(b, "load_from", round_down(c, first));
    }
    if (c->m->has_last) {
        const int64_t unit = c->m->variant.mask_unit;
        const ir_expr *end = at_least_0(c, ir_sub(b, s.some_end, t->first_key));
        keys.to = ir_let(b, "load_to", ir_min(b, t->room, ir_times(b, ir_ceil_div(b, end, unit), unit)));
    }
    return keys;
}

/* What the stripes of the task see of the tile. */
static void ask_stripes(q_lanes *c, q_lanes_tile *t) {
    ir_builder *b = c->b;
    const ir_expr *no = ir_int(b, IR_I32, 0);
    const ir_access *visited = ir_mutable(b, "visited", no), *mixed = ir_mutable(b, "mixed", no);
    IR_FOR(b, stripe, ir_idx(b, 0), c->stripes, 1) {
        ir_store(b, visited, ir_or(b, ir_load(b, visited), by_mask(c, t, stripe, MHA_TILE_TO)));
        ir_store(b, mixed, ir_or(b, ir_load(b, mixed), by_mask(c, t, stripe, MHA_TILE_IS_MIXED)));
    }
    t->is_visited = ir_let(b, "is_visited", ir_ne(b, ir_load(b, visited), no));
    t->is_mixed = ir_let(b, "is_mixed", ir_ne(b, ir_load(b, mixed), no));
}

void ql_open_tile(q_lanes *c, q_lanes_tile *t) {
    const ir_expr *left = ir_sub(c->b, c->e.seq_kv, t->first_key);
    ir_assume(c->b, ir_gt(c->b, left, ir_idx(c->b, 0)));
    t->room = ir_let(c->b, "room", ir_min(c->b, left, ir_idx(c->b, c->m->s->kv_tile)));
    if (ql_has_table(c)) ask_stripes(c, t);
}

void ql_find_harmless(q_lanes *c, q_lanes_tile *t) {
    const bool by_interval = c->v->values != MHA_VALUES_TRANSPOSED && !ql_asks_all(c) && !c->m->has_global;
    if ((ql_has_edges(c) || ql_asks_all(c)) && !by_interval) t->is_harmless = is_harmless(c, t);
}

/* ---- a tile and a stripe ---- */

/* Takes in the global keys of the tile: all before `end`, which may be none. */
static void widen(q_lanes *c, q_lanes_tile *t, const ir_expr *end) {
    ir_builder *b = c->b;
    end = ir_let(b, "end_globals", ir_sub(b, end, t->first_key));
    const ir_expr *none = ir_le(b, end, ir_idx(b, 0));
    const ir_expr *window_begins = ir_lt(b, t->from, t->room);
    t->to = ir_min(b, t->room, ir_select(b, window_begins, ir_max(b, t->to, end), end));
    if (c->m->has_first) t->from = ir_select(b, none, t->from, ir_idx(b, 0));
}

/* Register tiles begin at whole units, and those that all rows see in full compare nothing. `s`: the sights of the
 * stripe's rows; NULL without ql_has_edges(c). */
static void find_keys(q_lanes *c, q_lanes_tile *t, const mha_sights *s) {
    ir_builder *b = c->b;
    const mha_context *m = c->m;
    if (ql_has_table(c)) {
        t->from = ir_max(b, t->from, end_by_mask(c, t, MHA_TILE_FROM));
        t->to = ir_min(b, t->to, at_least_0(c, end_by_mask(c, t, MHA_TILE_TO)));
    }
    t->from = ir_let(b, "from", round_down(c, t->from));
    t->to = ir_let(b, "to", t->to);
    t->full_to = m->has_last ? ir_let(b, "full_to", ir_min(b, ir_sub(b, s->all_end, t->first_key), t->to)) : t->to;
    t->full_from = m->has_first ? ir_let(b, "full_from", ir_sub(b, s->all_first, t->first_key)) : ir_idx(b, 0);
    if (!ql_has_table(c)) return;
    t->full_from = ir_let(b, "full_from", ir_max(b, t->full_from, end_by_mask(c, t, MHA_TILE_FULL_FROM)));
    t->full_to = ir_let(b, "full_to", ir_min(b, t->full_to, end_by_mask(c, t, MHA_TILE_FULL_TO)));
}

/* By window and causality. */
static void find_sight(q_lanes *c, q_lanes_tile *t) {
    ir_builder *b = c->b;
    const mha_context *m = c->m;
    const ir_expr *row = ir_let(b, "row", ql_first_row(c, t->stripe));
    const mha_sights s = sights_of(c, row, plus(c, row, c->stripe_rows));
    if (m->has_last) t->to = ir_min(b, t->room, ir_sub(b, s.some_end, t->first_key));
    if (m->has_first) t->from = ir_let(b, "sight_from", at_least_0(c, ir_sub(b, s.some_first, t->first_key)));
    if (s.globals_end) widen(c, t, s.globals_end);
    find_keys(c, t, &s);
}

void ql_open_stripe(q_lanes *c, q_lanes_tile *t) {
    t->from = ir_idx(c->b, 0);
    t->to = t->room;
    if (ql_has_edges(c))
        find_sight(c, t);
    else if (ql_has_table(c))
        find_keys(c, t, NULL);
}

/* ---- one row ---- */

/* A key number, -1, or the number after the last one: 32 bits, whatever the position. */
static void store_key(q_lanes *c, const ir_buffer *table, const ir_expr *stripe, const ir_expr *at,
                      const ir_expr *key) {
    if (!table) return;
    if (!c->e.positions_are_keys) key = ir_min(c->b, ir_max(c->b, ir_idx(c->b, -1), key), c->e.seq_kv);
    ir_store(c->b, ir_at(c->b, table, 1, 2, stripe, at), ir_cast(c->b, IR_I32, key));
}

void ql_init_sight(q_lanes *c, const ir_expr *stripe) {
    ir_builder *b = c->b;
    const ir_expr *row = ir_let(b, "row", ql_first_row(c, stripe));
    IR_FOR(b, r, ir_idx(b, 0), ir_idx(b, c->stripe_rows), 1) {
        const ir_expr *position = ir_let(b, "position", position_of(c, ir_add(b, row, r)));
        const mha_sight sight = mha_sight_at(c->m, &c->e, position);
        store_key(c, c->first_key, stripe, r, sight.first);
        store_key(c, c->last_key, stripe, r, sight.last);
        store_key(c, c->last_global, stripe, r, sight.last_global);
    }
}

static const ir_expr *limit(q_lanes *c, const ir_buffer *table, const ir_expr *stripe, const ir_expr *at) {
    return table ? ir_let(c->b, "limit", ir_load(c->b, ir_at(c->b, table, c->m->lanes, 2, stripe, at))) : NULL;
}

q_lanes_sight ql_sight(q_lanes *c, const q_lanes_tile *t, const ir_expr *at) {
    q_lanes_sight sight = {.by_position = {limit(c, c->first_key, t->stripe, at), limit(c, c->last_key, t->stripe, at),
                                           limit(c, c->last_global, t->stripe, at)}};
    if (mha_has_function(c->m, MHA_MASK_FUNCTION))
        sight.values = ql_values_of_rows(c, MHA_MASK_FUNCTION, t->stripe, at, c->m->lanes);
    return sight;
}

const ir_expr *ql_sees(q_lanes *c, const q_lanes_sight *sight, const ir_expr *at, const ir_expr *key,
                       const ir_expr *j) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    mha_hiding hiding = {.sight = sight->by_position, .key = ir_cast(b, IR_I32, key)};
    mha_values values = sight->values;
    ql_put_distances(c, MHA_MASK_FUNCTION, at, j, &values);
    hiding.by_function = ql_function_sees(c, &values, key, lanes);
    if (c->bias) hiding.bias = ir_load(b, ir_at(b, c->bias, lanes, 2, j, at));
    if (c->keep) hiding.mask = ir_cast(b, IR_I32, ir_load(b, ir_at(b, c->keep, lanes, 2, j, at)));
    return mha_sees(c->m, &hiding, lanes);
}

/* ---- attn_mask and attn_bias ---- */

static void store_element(q_lanes *c, const ir_expr *j, const ir_expr *at, const ir_expr *keep, const ir_expr *bias) {
    ir_builder *b = c->b;
    if (!bias) {
        if (keep) ir_store(b, ir_at(b, c->keep, keep->type.lanes, 2, j, at), keep);
        return;
    }
    const int lanes = bias->type.lanes;
    if (keep) {
        const ir_expr *keeps = ir_ne(b, ir_cast(b, IR_I32, keep), ir_splat(b, ir_int(b, IR_I32, 0), lanes));
        bias = ir_select(b, keeps, bias, mha_number(c->m, -INFINITY, lanes));
    }
    ir_store(b, ir_at(b, c->bias, lanes, 2, j, at), bias);
}

/* How a mask or bias changes along the rows of a stripe and along the keys. */
typedef enum variation {
    ALONG_KEYS, /* alike for all rows, such as padding: one element for each key */
    ALONG_ROWS, /* alike for all keys: one vector for all of them */
    ALONG_BOTH, /* and its keys lie side by side: transposed */
    SCATTERED   /* the same, element by element */
} variation;

typedef struct elements {
    const ir_buffer *tensor; /* NULL: the problem has none */
    variation varies;
    int lanes;              /* rows that are loaded at once */
    const ir_expr *of_rows; /* their vector, if it varies ALONG_ROWS */
} elements;

static elements elements_of(const q_lanes *c, mha_tensor_id id) {
    const attune_problem *p = c->m->p;
    const int64_t *dims = id == MHA_ATTN_MASK ? p->attn_mask_dims : p->attn_bias_dims;
    const ir_buffer *tensor = c->m->params.tensor[id];
    elements e = {.tensor = tensor, .varies = SCATTERED, .lanes = c->m->lanes};
    if (!tensor) return e;
    const ir_expr *inner = tensor->strides[3];
    if (dims[2] == 1 && (dims[1] == 1 || c->m->group == 1))
        e.varies = ALONG_KEYS;
    else if (dims[3] == 1)
        e.varies = ALONG_ROWS;
    else if (!inner || ir_is(inner, 1))
        e.varies = ALONG_BOTH;
    return e;
}

/* Rows at a key, each element loaded by itself, or one for all. */
static const ir_expr *load_rows(q_lanes *c, const elements *e, const q_lanes_row *rows, const ir_expr *key) {
    ir_builder *b = c->b;
    const ir_expr *parts[IR_MAX_LANES];
    const int count = e->varies == ALONG_KEYS ? 1 : e->lanes;
    for (int l = 0; l < count; l++) {
        const ir_access *at = ir_at(b, e->tensor, 1, 4, c->e.number, rows[l].head, rows[l].query, key);
        parts[l] = e->tensor->type.elem == IR_I8 ? ir_load(b, at) : mha_load(c->m, at);
    }
    if (e->lanes == 1) return parts[0];
    return ir_let(b, "elements", count == 1 ? ir_splat(b, parts[0], e->lanes) : mha_join(b, parts, count, 1));
}

/* Prefetches the same rows of the next tile: the hardware does not foresee accesses of a few bytes here and there. */
static void prefetch_next(q_lanes *c, const q_lanes_tile *t, const ir_buffer *tensor, const q_lanes_row *rows) {
    enum { LINE_BYTES = 64 };
    ir_builder *b = c->b;
    const ir_expr *next = plus(c, t->first_key, c->m->s->kv_tile);
    const int64_t step = LINE_BYTES / ir_elem_get(tensor->type.elem)->bytes;
    IR_LOOP(b, j, ir_for_begin(b, "ahead", ir_idx(b, 0), ir_idx(b, c->m->s->kv_tile), step, false)) {
        for (int l = 0; l < c->m->lanes; l++)
            ir_prefetch(b, ir_at(b, tensor, 1, 4, c->e.number, rows[l].head, rows[l].query, ir_add(b, next, j)));
    }
}

/* Opens the loop over the stripe's rows, mask->lanes at once, and loads elements that all keys share. */
static const ir_expr *begin_rows(q_lanes *c, const q_lanes_tile *t, elements *mask, elements *bias, q_lanes_row *rows) {
    const ir_expr *at = ir_for_begin(c->b, "at", ir_idx(c->b, 0), ir_idx(c->b, c->stripe_rows), mask->lanes, false);
    elements *const both[2] = {mask, bias};
    const bool alike = (!mask->tensor || mask->varies == ALONG_KEYS) && (!bias->tensor || bias->varies == ALONG_KEYS);
    for (int l = 0; l < (alike ? 1 : mask->lanes); l++) rows[l] = ql_row(c, t->stripe, plus(c, at, l));
    for (int i = 0; i < 2; i++)
        if (both[i]->tensor && both[i]->varies == ALONG_ROWS)
            both[i]->of_rows = load_rows(c, both[i], rows, ir_let_index(c->b, "any_key", c->e.seq_kv, t->first_key));
    return at;
}

static const ir_expr *load_key(q_lanes *c, const elements *e, const q_lanes_row *rows, const ir_expr *key) {
    if (!e->tensor) return NULL;
    return e->of_rows ? e->of_rows : load_rows(c, e, rows, key);
}

/* Keys lo … hi - 1, one by one; those beyond the last one repeat it, as in the register tile. */
static void load_keys(q_lanes *c, const q_lanes_tile *t, elements mask, elements bias, const ir_expr *lo,
                      const ir_expr *hi) {
    ir_builder *b = c->b;
    q_lanes_row rows[IR_MAX_LANES];
    IR_LOOP(b, at, begin_rows(c, t, &mask, &bias, rows)) {
        IR_FOR(b, j, lo, hi, 1) {
            const ir_expr *key = ir_let(b, "column", ql_clamp_key(c, ir_add(b, t->first_key, j)));
            store_element(c, j, at, load_key(c, &mask, rows, key), load_key(c, &bias, rows, key));
        }
    }
}

/* A quarter of keys from `column` on. */
static void load_quarter(q_lanes *c, const elements *e, const q_lanes_row *rows, const ir_expr *column,
                         const ir_expr *vectors[4]) {
    if (!e->tensor) return;
    if (e->varies != ALONG_BOTH)
        for (int i = 0; i < mha_quarter(c->m->lanes); i++) vectors[i] = load_key(c, e, rows, plus(c, column, i));
    else if (e->tensor->type.elem == IR_I8)
        ql_load_bytes_transposed(c, e->tensor, c->e.number, rows, column, vectors);
    else
        ql_load_transposed(c, &(q_lanes_tensor){e->tensor, c->e.number, ir_idx(c->b, 0), false, NULL}, rows, column,
                           vectors);
}

/* Keys lo, lo + 4, … < hi - 3, for all rows of the stripe. */
static void load_columns(q_lanes *c, const q_lanes_tile *t, elements mask, elements bias, const ir_expr *lo,
                         const ir_expr *hi) {
    ir_builder *b = c->b;
    const int quarter = mha_quarter(c->m->lanes);
    q_lanes_row rows[IR_MAX_LANES];
    const ir_expr *kept[4] = {0}, *biases[4] = {0};
    IR_LOOP(b, at, begin_rows(c, t, &mask, &bias, rows)) {
        if (mask.tensor && mask.varies == ALONG_BOTH) prefetch_next(c, t, mask.tensor, rows);
        IR_FOR(b, j, lo, plus(c, hi, 1 - quarter), quarter) {
            const ir_expr *column = ir_let(b, "column", ir_add(b, t->first_key, j));
            load_quarter(c, &mask, rows, column, kept);
            load_quarter(c, &bias, rows, column, biases);
            for (int i = 0; i < quarter; i++) store_element(c, plus(c, j, i), at, kept[i], biases[i]);
        }
    }
}

void ql_load_elements(q_lanes *c, const q_lanes_tile *t, const ir_expr *to) {
    ir_builder *b = c->b;
    elements mask = elements_of(c, MHA_ATTN_MASK), bias = elements_of(c, MHA_ATTN_BIAS);
    const bool scattered = (mask.tensor && mask.varies == SCATTERED) || (bias.tensor && bias.varies == SCATTERED);
    if (scattered || (mask.varies != ALONG_BOTH && bias.varies != ALONG_BOTH)) {
        load_keys(c, t, mask, bias, t->from, to);
        return;
    }
    const ir_expr *quarter = ir_idx(b, mha_quarter(c->m->lanes));
    const ir_expr *end = ir_let(b, "columns_end", ir_min(b, t->room, to));
    load_columns(c, t, mask, bias, t->from, end);
    const ir_expr *steps = ir_div(b, at_least_0(c, ir_sub(b, end, t->from)), quarter);
    /* The few keys that are left go row by row, which is little code. */
    mask.lanes = bias.lanes = 1;
    load_keys(c, t, mask, bias, ir_let(b, "columns_done", ir_add(b, t->from, ir_mul(b, steps, quarter))), to);
}
