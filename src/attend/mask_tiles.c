#include "attend/mask_tiles.h"
#include "attend/functions.h"
#include "problem/problem.h"

/* Vector lanes run along the keys of a tile, and rows come one by one: what they see is joined in scratch, [vector] of
 * i32 that are 0 or 1. */
typedef struct tile_builder {
    const mha_context *c;
    ir_builder *b;
    mha_entry e;
    const ir_expr *kv_head, *first_row, *rows; /* of the stripe; rows > 0 */
    const ir_expr *first_key, *room;           /* of the tile; room > 0 */
    mha_values values_of_task;
    const ir_buffer *some, *all; /* i32 [keys of a tile, rounded up to vectors] */
} tile_builder;

static int64_t stripe_rows(const mha_context *c) { return (int64_t)c->s->score_row_vectors * c->lanes; }

/* Whether the mask depends on one of the variables. */
static bool depends(const mha_context *c, unsigned vars) {
    return c->functions->nodes[c->functions->mask].needs & vars;
}

static bool has_entries(const mha_context *c) {
    return depends(c, 1U << EX_V_B | 1U << EX_V_SEQ_Q | 1U << EX_V_SEQ_KV);
}

static bool has_heads(const mha_context *c) { return depends(c, 1U << EX_V_H | 1U << EX_V_KV_H); }

/* A phase more does not pay for a handful of keys. Within a single tile the table says where its keys begin and end. */
bool mha_has_mask_tiles(const mha_context *c) {
    enum { FEW_KEYS = 64 };
    return c->s->strategy == ATTUNE_Q_LANES && mha_has_function(c, MHA_MASK_FUNCTION) && mha_most_keys(c->p) > FEW_KEYS;
}

static const ir_expr *num_stripes(const mha_context *c) {
    return ir_ceil_div(c->b, ir_times(c->b, c->params.size[MHA_SEQ_Q], c->group), stripe_rows(c));
}

static const ir_expr *num_tiles(const mha_context *c) {
    return ir_ceil_div(c->b, c->params.size[MHA_SEQ_KV], c->s->kv_tile);
}

static const ir_expr *num_entries(const mha_context *c) {
    return has_entries(c) ? c->params.size[MHA_BATCH] : ir_idx(c->b, 1);
}

static const ir_expr *num_heads(const mha_context *c) {
    return has_heads(c) ? c->params.size[MHA_KV_HEADS] : ir_idx(c->b, 1);
}

void mha_mask_tiles_shared(mha_context *c) {
    const ir_expr *const dims[] = {num_entries(c), num_heads(c), num_stripes(c), num_tiles(c),
                                   ir_idx(c->b, MHA_TILE_ENDS)};
    c->mask_tiles = ir_shared(c->b, "mask_tiles", IR_I32, 5, dims);
}

/* ---- What the rows of a stripe see ---- */

static const ir_expr *bits(const tile_builder *t, int value) {
    return ir_splat(t->b, ir_int(t->b, IR_I32, value), t->c->lanes);
}

static const ir_access *at(const tile_builder *t, const ir_buffer *buffer, const ir_expr *j) {
    return ir_at(t->b, buffer, t->c->lanes, 1, j);
}

static void clear(const tile_builder *t) {
    IR_FOR(t->b, j, ir_idx(t->b, 0), t->room, t->c->lanes) {
        ir_store(t->b, at(t, t->some, j), bits(t, 0));
        ir_store(t->b, at(t, t->all, j), bits(t, 1));
    }
}

static void join_row(const tile_builder *t, const ir_expr *row) {
    ir_builder *b = t->b;
    const ir_expr *group = ir_idx(b, t->c->group);
    mha_place place = {.entry = &t->e, .kv_head = t->kv_head, .lanes = 1};
    mha_values values = t->values_of_task;
    place.head = ir_let(b, "head", ir_add(b, ir_mul(b, t->kv_head, group), ir_mod(b, row, group)));
    place.query = ir_let_index(b, "query", t->e.seq_q, ir_div(b, row, group));
    mha_fill_values(t->c, MHA_MASK_FUNCTION, &place, &values);
    IR_FOR(b, j, ir_idx(b, 0), t->room, t->c->lanes) {
        place.key = ir_let(b, "key", ir_add(b, t->first_key, j));
        place.lanes = t->c->lanes;
        const ir_expr *sees = mha_function_sees(t->c, &place, &values, t->c->lanes);
        const ir_expr *bit = ir_let(b, "sees", ir_select(b, sees, bits(t, 1), bits(t, 0)));
        ir_store(b, at(t, t->some, j), ir_or(b, ir_load(b, at(t, t->some, j)), bit));
        ir_store(b, at(t, t->all, j), ir_and(b, ir_load(b, at(t, t->all, j)), bit));
    }
}

/* ---- Their ends ---- */

static const ir_expr *i32(const tile_builder *t, int value) { return ir_int(t->b, IR_I32, value); }

/* The first and last key that some row sees, as lanes of their own until the end. */
static void find_some(const tile_builder *t, const ir_access *from, const ir_access *to) {
    ir_builder *b = t->b;
    const int lanes = t->c->lanes;
    const ir_access *first = ir_mutable(b, "first", bits(t, INT32_MAX)), *end = ir_mutable(b, "end", bits(t, 0));
    IR_FOR(b, j, ir_idx(b, 0), t->room, lanes) {
        const ir_expr *key = ir_let(b, "lane", ir_ramp(b, ir_cast(b, IR_I32, j), i32(t, 1), lanes));
        const ir_expr *is_key = ir_lt(b, key, ir_splat(b, ir_cast(b, IR_I32, t->room), lanes));
        const ir_expr *is_seen = ir_ne(b, ir_load(b, at(t, t->some, j)), bits(t, 0));
        is_seen = ir_let(b, "is_seen", ir_and(b, is_key, is_seen));
        const ir_expr *next = ir_add(b, key, bits(t, 1));
        ir_store(b, first, ir_min(b, ir_load(b, first), ir_select(b, is_seen, key, bits(t, INT32_MAX))));
        ir_store(b, end, ir_max(b, ir_load(b, end), ir_select(b, is_seen, next, bits(t, 0))));
    }
    ir_store(b, from, ir_reduce(b, IR_MIN, ir_let(b, "firsts", ir_load(b, first))));
    ir_store(b, to, ir_reduce(b, IR_MAX, ir_let(b, "ends", ir_load(b, end))));
}

/* The first and last of the keys from … to - 1 that some row does not see. */
static void find_hidden(const tile_builder *t, const ir_expr *from, const ir_expr *to, const ir_expr **first_hidden,
                        const ir_expr **last_hidden) {
    ir_builder *b = t->b;
    const int lanes = t->c->lanes;
    const ir_access *first = ir_mutable(b, "first", bits(t, INT32_MAX)), *last = ir_mutable(b, "last", bits(t, -1));
    IR_FOR(b, j, ir_idx(b, 0), t->room, lanes) {
        const ir_expr *key = ir_let(b, "lane", ir_ramp(b, ir_cast(b, IR_I32, j), i32(t, 1), lanes));
        const ir_expr *is_key =
            ir_and(b, ir_ge(b, key, ir_splat(b, from, lanes)), ir_lt(b, key, ir_splat(b, to, lanes)));
        const ir_expr *is_hidden = ir_eq(b, ir_load(b, at(t, t->all, j)), bits(t, 0));
        is_hidden = ir_let(b, "is_hidden", ir_and(b, is_key, is_hidden));
        ir_store(b, first, ir_min(b, ir_load(b, first), ir_select(b, is_hidden, key, bits(t, INT32_MAX))));
        ir_store(b, last, ir_max(b, ir_load(b, last), ir_select(b, is_hidden, key, bits(t, -1))));
    }
    *first_hidden = ir_let(b, "first_hidden", ir_reduce(b, IR_MIN, ir_let(b, "firsts", ir_load(b, first))));
    *last_hidden = ir_let(b, "last_hidden", ir_reduce(b, IR_MAX, ir_let(b, "lasts", ir_load(b, last))));
}

/* All see the keys before the first hidden one, and those after the last: the longer of the two is kept. */
static void store_ends(const tile_builder *t, const ir_expr *const index[4]) {
    ir_builder *b = t->b;
    const ir_access *some_from = ir_mutable(b, "some_from", i32(t, 0)), *some_to = ir_mutable(b, "some_to", i32(t, 0));
    const ir_expr *first, *last, *ends[MHA_TILE_ENDS];
    find_some(t, some_from, some_to);
    const ir_expr *to = ir_let(b, "to", ir_load(b, some_to));
    const ir_expr *from = ir_let(b, "from", ir_min(b, ir_load(b, some_from), to));
    find_hidden(t, from, to, &first, &last);
    const ir_expr *before = ir_let(b, "before", ir_min(b, first, to));
    const ir_expr *after = ir_let(b, "after", ir_max(b, from, ir_add(b, last, i32(t, 1))));
    const ir_expr *takes_before = ir_ge(b, ir_sub(b, before, from), ir_sub(b, to, after));
    takes_before = ir_let(b, "takes_before", takes_before);
    ends[MHA_TILE_FROM] = from;
    ends[MHA_TILE_TO] = to;
    ends[MHA_TILE_FULL_FROM] = ir_select(b, takes_before, from, after);
    ends[MHA_TILE_FULL_TO] = ir_select(b, takes_before, before, to);
    for (int i = 0; i < MHA_TILE_ENDS; i++)
        ir_store(b, ir_at(b, t->c->mask_tiles, 1, 5, index[0], index[1], index[2], index[3], ir_idx(b, i)), ends[i]);
}

/* ---- The phase ---- */

static void build_stripe(tile_builder *t, const ir_expr *number, const ir_expr *head, const ir_expr *stripe) {
    ir_builder *b = t->b;
    const mha_context *c = t->c;
    const int64_t keys = (c->s->kv_tile + c->lanes - 1) / c->lanes * c->lanes;
    t->some = ir_scratch(b, "seen_by_some", IR_I32, 1, &keys);
    t->all = ir_scratch(b, "seen_by_all", IR_I32, 1, &keys);
    t->first_row = ir_let(b, "first_row", ir_times(b, stripe, stripe_rows(c)));
    const ir_expr *left = ir_sub(b, ir_times(b, t->e.seq_q, c->group), t->first_row);
    t->rows = ir_let(b, "rows", ir_min(b, left, ir_idx(b, stripe_rows(c))));
    IR_FOR(b, tile, ir_idx(b, 0), num_tiles(c), 1) {
        t->first_key = ir_let(b, "first_key", ir_times(b, tile, c->s->kv_tile));
        const ir_expr *keys_left = ir_sub(b, c->params.size[MHA_SEQ_KV], t->first_key);
        t->room = ir_let(b, "room", ir_min(b, keys_left, ir_idx(b, c->s->kv_tile)));
        clear(t);
        IR_FOR(b, r, ir_idx(b, 0), t->rows, 1) join_row(t, ir_let(b, "row", ir_add(b, t->first_row, r)));
        store_ends(t, (const ir_expr *const[]){number, head, stripe, tile});
    }
}

/* An entry that stands for all is as long as the longest. */
static mha_entry entry_of(const mha_context *c, const ir_expr *number) {
    if (has_entries(c)) return mha_entry_open(c, number);
    return (mha_entry){.number = number, .seq_q = c->params.size[MHA_SEQ_Q], .seq_kv = c->params.size[MHA_SEQ_KV]};
}

void mha_mask_tiles(mha_context *c) {
    ir_builder *b = c->b;
    tile_builder t = {.c = c, .b = b};
    IR_PHASE(b) {
        const ir_expr *number = ir_parallel(b, "mask_b", num_entries(c));
        const ir_expr *head = ir_parallel(b, "mask_h", num_heads(c));
        const ir_expr *stripe = ir_parallel(b, "mask_t", num_stripes(c));
        t.e = entry_of(c, number);
        t.kv_head = head;
        const mha_place place = {.entry = &t.e, .kv_head = head, .lanes = 1};
        mha_fill_values(c, MHA_MASK_FUNCTION, &place, &t.values_of_task);
        build_stripe(&t, number, head, stripe);
    }
}

const ir_expr *mha_mask_tile_end(const mha_context *c, const ir_expr *entry, const ir_expr *kv_head,
                                 const ir_expr *stripe, const ir_expr *tile, int which, const ir_expr *room) {
    ir_builder *b = c->b;
    const ir_expr *zero = ir_idx(b, 0);
    const ir_access *end = ir_at(b, c->mask_tiles, 1, 5, has_entries(c) ? entry : zero, has_heads(c) ? kv_head : zero,
                                 stripe, tile, ir_idx(b, which));
    return ir_let(b, "end", ir_max(b, zero, ir_min(b, room, ir_cast(b, IR_IDX, ir_load(b, end)))));
}
