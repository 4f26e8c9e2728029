/* Hidden keys, at three levels. Causality, windows, key lengths and the table of mask_mod (shared/mask_table.h) give
 * intervals of keys (shared/sight.h):
 *
 *     keys of a tile    |- - - - |===========|xxxxxxxxxx|===========|- - - - |
 *     visible to         no row   some rows   all rows   some rows   no row      of the stripe
 *                        skipped  compared    computed   compared    skipped
 *
 *   task           skips tiles that are hidden from all of its rows
 *   stripe         skips register tiles that are hidden from all of its rows
 *   register tile  compares each key with each row's range, unless all of its keys are visible to all rows
 *
 * Without a table, mask_mod is evaluated for each score. mask_elements.c has attn_mask and attn_bias. */
#include "attend/shared/mask_table.h"
#include "attend/prefill/layout.h"

#include <math.h>

static const ir_expr *plus(const q_lanes *c, const ir_expr *x, int64_t y) { return ir_plus(c->b, x, y); }

static const ir_expr *at_least_0(const q_lanes *c, const ir_expr *x) { return ir_max(c->b, ir_idx(c->b, 0), x); }

/* The position of a row's query. */
static const ir_expr *position_of(q_lanes *c, const ir_expr *row) {
    return ir_add(c->b, ir_div(c->b, ql_clamp_row(c, row), c->m->params.size[MHA_GROUP]), c->e.base);
}

/* The visible ranges of rows first_row … end_row - 1. */
static mha_sights ranges_of(q_lanes *c, const ir_expr *first_row, const ir_expr *end_row) {
    const ir_expr *first = ir_let(c->b, "first_position", position_of(c, first_row));
    const ir_expr *last = ir_let(c->b, "last_position", position_of(c, plus(c, end_row, -1)));
    return mha_sights_of(c->m, &c->e, first, last);
}

mha_sights ql_sights_of_task(q_lanes *c) {
    return ranges_of(c, ql_first_row(c, ir_idx(c->b, 0)), ql_first_row(c, c->stripes));
}

/* ---- tiles of a task ---- */

const ir_expr *ql_begin_tiles(q_lanes *c) {
    ir_builder *b = c->b;
    const int64_t size = c->m->s->kv_tile;
    const ir_expr *zero = ir_idx(b, 0);
    if (!ql_has_edges(c)) return ir_for_begin(b, "tile", zero, ir_ceil_div(b, c->e.seq_kv, size), 1, false);
    const mha_sights s = ql_sights_of_task(c);
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

/* What mask_mod shows of a tile to a stripe: a member of their element of the table. */
static const ir_expr *by_mask(q_lanes *c, const q_lanes_tile *t, const ir_expr *stripe, int member) {
    return mha_mask_table_member(c->m, &c->e, c->kv_head, ir_add(c->b, c->first_stripe, stripe), t->number, member);
}

static const ir_expr *end_by_mask(q_lanes *c, const q_lanes_tile *t, int member) {
    return ir_cast(c->b, IR_IDX, by_mask(c, t, t->stripe, member));
}

/* To a multiple of mask_unit, at which register tiles, and pairs, begin. */
static const ir_expr *round_down(const q_lanes *c, const ir_expr *key) {
    const ir_expr *unit = ir_idx(c->b, c->m->variant.mask_unit);
    return ir_mul(c->b, ir_div(c->b, key, unit), unit);
}

/* By window and causality, rounded to whole register tiles. */
q_lanes_keys ql_keys_of_task(q_lanes *c, const q_lanes_tile *t) {
    ir_builder *b = c->b;
    q_lanes_keys keys = {ir_idx(b, 0), t->room};
    if (!ql_has_edges(c) || c->m->has_global) return keys;
    const mha_sights s = ql_sights_of_task(c);
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

/* Joins what the table says of the tile for each stripe of the task. */
static void collect_stripes(q_lanes *c, q_lanes_tile *t) {
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
    if (ql_has_table(c)) collect_stripes(c, t);
}

/* ---- a tile and a stripe ---- */

/* Adds the tile's global keys, those before `end`, to the stripe's range. The tile may have none. */
static void widen(q_lanes *c, q_lanes_tile *t, const ir_expr *end) {
    ir_builder *b = c->b;
    end = ir_let(b, "end_globals", ir_sub(b, end, t->first_key));
    const ir_expr *none = ir_le(b, end, ir_idx(b, 0));
    const ir_expr *window_begins = ir_lt(b, t->from, t->room);
    t->to = ir_min(b, t->room, ir_select(b, window_begins, ir_max(b, t->to, end), end));
    if (c->m->has_first) t->from = ir_select(b, none, t->from, ir_idx(b, 0));
}

/* Narrows the stripe's range by the table, rounds its beginning down to a register tile, and finds the keys that all
 * rows attend to, whose register tiles compare nothing. `s`: the visible ranges of the stripe's rows; NULL without
 * ql_has_edges(c). */
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

/* The stripe's keys by window and causality, and then by the table. */
static void find_range(q_lanes *c, q_lanes_tile *t) {
    ir_builder *b = c->b;
    const mha_context *m = c->m;
    const ir_expr *row = ir_let(b, "row", ql_first_row(c, t->stripe));
    const mha_sights s = ranges_of(c, row, plus(c, row, c->stripe_rows));
    if (m->has_last) t->to = ir_min(b, t->room, ir_sub(b, s.some_end, t->first_key));
    if (m->has_first) t->from = ir_let(b, "sight_from", at_least_0(c, ir_sub(b, s.some_first, t->first_key)));
    if (s.globals_end) widen(c, t, s.globals_end);
    find_keys(c, t, &s);
}

void ql_open_stripe(q_lanes *c, q_lanes_tile *t) {
    t->from = ir_idx(c->b, 0);
    t->to = t->room;
    if (ql_has_edges(c))
        find_range(c, t);
    else if (ql_has_table(c))
        find_keys(c, t, NULL);
}

/* ---- one row ---- */

/* Stores a key number, clamped to -1 … seq_kv: it fits into 32 bits at any position. */
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

const ir_expr *ql_is_visible(q_lanes *c, const q_lanes_sight *sight, const ir_expr *at, const ir_expr *key,
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
