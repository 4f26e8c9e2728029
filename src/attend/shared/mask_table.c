/* The phase that fills the table of mask_mod. A task evaluates mask_mod for one stripe of rows, tile by tile. Lanes run
 * along the rows of the stripe. Keys come in units, those of a register tile of scores: the phase counts the visible
 * pairs of a unit, and the count tells which of the tile's ranges the unit belongs to:
 *
 *     visible pairs of a unit     0         some         all
 *     it joins                    none      from … to    from … to, and full_from … full_to
 */
#include "attend/shared/mask_table.h"
#include "attend/shared/functions.h"
#include "schedule/variant.h"

/* State of the loop over tiles of a stripe. */
typedef struct tile_builder {
    const mha_context *c;
    ir_builder *b;
    mha_sequence e;
    const ir_expr *kv_head, *first_row; /* of the stripe */
    const ir_expr *first_key, *room;    /* of the tile; room > 0 */
    mha_values values_of_task;
    const ir_buffer *kept[EX_MAX_NODES]; /* values of the stripe's rows, by node [stripe_rows] */
} tile_builder;

static int64_t stripe_rows(const mha_context *c) { return (int64_t)c->s->score_row_vectors * c->lanes; }

/* Whether mask_mod depends on one of the variables. */
static bool depends(const mha_context *c, unsigned vars) {
    return c->functions->nodes[c->functions->mask].needs & vars;
}

static bool has_sequences(const mha_context *c) {
    return depends(c, 1U << EX_V_B | 1U << EX_V_SEQ_Q | 1U << EX_V_SEQ_KV);
}

static bool has_heads(const mha_context *c) { return depends(c, 1U << EX_V_H | 1U << EX_V_KV_H); }

static const ir_expr *num_stripes(const mha_context *c) {
    return ir_ceil_div(c->b, ir_times(c->b, c->params.size[MHA_SEQ_Q], c->group), stripe_rows(c));
}

static const ir_expr *num_tiles(const mha_context *c) {
    return ir_ceil_div(c->b, c->params.size[MHA_SEQ_KV], c->s->kv_tile);
}

static const ir_expr *num_sequences(const mha_context *c) {
    return has_sequences(c) ? c->params.size[MHA_BATCH] : ir_idx(c->b, 1);
}

static const ir_expr *num_heads(const mha_context *c) {
    return has_heads(c) ? c->params.size[MHA_KV_HEADS] : ir_idx(c->b, 1);
}

_Static_assert(MHA_TILE_MEMBERS * sizeof(int32_t) == MHA_MASK_TILE_BYTES, "who keeps a table knows its size");

void mha_mask_table_shared(mha_context *c) {
    const ir_expr *const dims[] = {num_sequences(c), num_heads(c), num_stripes(c), num_tiles(c),
                                   ir_idx(c->b, MHA_TILE_MEMBERS)};
    c->mask_table = ir_shared(c->b, "mask_tiles", IR_I32, 5, dims);
}

static int64_t unit_of(const mha_context *c) { return c->variant.mask_unit; }

/* ---- Masks that are constant over runs of keys or queries ---- */

static int64_t run_length(const mha_context *c, ex_var var) {
    return ex_run_length(c->functions, c->functions->mask, var);
}

/* Whether the mask is the same for all keys of a unit. Units begin at multiples of their length. */
static bool has_equal_keys(const mha_context *c) {
    const int64_t unit = unit_of(c);
    return run_length(c, EX_V_KV) % unit == 0 && c->s->kv_tile % unit == 0;
}

/* Whether the mask is the same for all rows of a stripe; each query has `group` rows. */
static bool has_equal_rows(const mha_context *c) {
    const bool has_one_head = c->group == 1 || !depends(c, 1U << EX_V_H);
    return has_one_head && run_length(c, EX_V_Q) * c->group % stripe_rows(c) == 0;
}

/* ---- Visible keys of a stripe ---- */

static const ir_expr *i32(const tile_builder *t, int value) { return ir_int(t->b, IR_I32, value); }

static const ir_expr *rows_of_sequence(const tile_builder *t) { return ir_times(t->b, t->e.seq_q, t->c->group); }

static mha_place place_of_task(const tile_builder *t) {
    const bool has_one_head = t->c->group == 1;
    return (mha_place){.sequence = &t->e, .kv_head = t->kv_head, .head = has_one_head ? t->kv_head : NULL, .lanes = 1};
}

/* Saves the values of mask_mod that depend on the row, for each row of the stripe. Rows beyond the last one repeat it.
 */
static void keep_rows(tile_builder *t) {
    ir_builder *b = t->b;
    const ir_expr *group = ir_idx(b, t->c->group), *last = ir_plus(b, rows_of_sequence(t), -1);
    int nodes[EX_MAX_NODES];
    const int count = mha_row_values(t->c, MHA_MASK_FUNCTION, t->c->group > 1, nodes);
    const int64_t rows = stripe_rows(t->c);
    for (int i = 0; i < count; i++)
        t->kept[nodes[i]] = ir_scratch(b, "of_rows", mha_kept_elem(t->c, nodes[i]), 1, &rows);
    IR_FOR(b, at, ir_idx(b, 0), ir_idx(b, rows), 1) {
        mha_values values = t->values_of_task;
        mha_place place = place_of_task(t);
        const ir_expr *row = ir_let(b, "row", ir_min(b, last, ir_add(b, t->first_row, at)));
        place.head = ir_let(b, "head", ir_add(b, ir_mul(b, t->kv_head, group), ir_mod(b, row, group)));
        place.query = ir_let_index(b, "query", t->e.seq_q, ir_div(b, row, group));
        mha_fill_values(t->c, MHA_MASK_FUNCTION, &place, &values);
        for (int i = 0; i < count; i++)
            ir_store(b, ir_at(b, t->kept[nodes[i]], 1, 1, at), mha_keep_value(t->c, nodes[i], &values));
    }
}

static mha_values values_of_rows(const tile_builder *t, const mha_values *of_key, const ir_expr *at) {
    mha_values values = *of_key;
    for (int i = 0; i < EX_MAX_NODES; i++) {
        if (!t->kept[i]) continue;
        const ir_expr *kept = ir_load(t->b, ir_at(t->b, t->kept[i], t->c->lanes, 1, at));
        values.of[i] = ir_let(t->b, "of_rows", mha_kept_value(t->c, i, kept));
    }
    return values;
}

/* The number of visible pairs of a row of the stripe and a key of the unit. Equal keys or rows are evaluated once and
 * counted as often as they occur. */
static const ir_expr *count_unit(const tile_builder *t, const ir_expr *first) {
    ir_builder *b = t->b;
    const int lanes = t->c->lanes;
    const int64_t keys = has_equal_keys(t->c) ? 1 : unit_of(t->c);
    const int64_t rows = has_equal_rows(t->c) ? lanes : stripe_rows(t->c);
    const int alike = (int)(unit_of(t->c) / keys * (stripe_rows(t->c) / rows));
    const ir_expr *zero = ir_splat(b, i32(t, 0), lanes), *each = ir_splat(b, i32(t, alike), lanes);
    const ir_access *count = ir_mutable(b, "count", zero);
    IR_FOR(b, i, ir_idx(b, 0), ir_idx(b, keys), 1) {
        mha_place place = place_of_task(t);
        mha_values of_key = t->values_of_task;
        const ir_expr *last = ir_plus(b, t->room, -1);
        place.key = ir_let(b, "key", ir_add(b, t->first_key, ir_min(b, last, ir_add(b, first, i))));
        mha_fill_values(t->c, MHA_MASK_FUNCTION, &place, &of_key);
        IR_FOR(b, at, ir_idx(b, 0), ir_idx(b, rows), lanes) {
            const mha_values values = values_of_rows(t, &of_key, at);
            const ir_expr *sees = mha_function_sees(t->c, &place, &values, lanes);
            ir_store(b, count, ir_add(b, ir_load(b, count), ir_select(b, sees, each, zero)));
        }
    }
    return ir_let(b, "seen", ir_reduce(b, IR_ADD, ir_let(b, "counts", ir_load(b, count))));
}

/* ---- Ranges ---- */

/* The ranges of a tile so far, and where the current run of fully visible units began. */
typedef struct tile_ends {
    const ir_access *end[MHA_TILE_IS_MIXED], *start;
} tile_ends;

static void put(const tile_builder *t, const ir_access *to, const ir_expr *condition, const ir_expr *value) {
    ir_store(t->b, to, ir_select(t->b, condition, value, ir_load(t->b, to)));
}

/* Joins a unit to the ranges. The full range is the longest run of fully visible units. */
static void join_unit(const tile_builder *t, const tile_ends *e, const ir_expr *first, const ir_expr *seen) {
    ir_builder *b = t->b;
    const int64_t unit = unit_of(t->c);
    const ir_expr *from = ir_let(b, "unit_from", ir_cast(b, IR_I32, first));
    const ir_expr *to = ir_let(b, "unit_to", ir_cast(b, IR_I32, ir_min(b, t->room, ir_plus(b, first, unit))));
    const ir_expr *some = ir_gt(b, seen, i32(t, 0));
    put(t, e->end[MHA_TILE_FROM], some, ir_min(b, from, ir_load(b, e->end[MHA_TILE_FROM])));
    put(t, e->end[MHA_TILE_TO], some, to);
    put(t, e->start, ir_lt(b, seen, i32(t, (int)(unit * stripe_rows(t->c)))), to);
    const ir_expr *start = ir_let(b, "start", ir_load(b, e->start));
    const ir_expr *longest = ir_sub(b, ir_load(b, e->end[MHA_TILE_FULL_TO]), ir_load(b, e->end[MHA_TILE_FULL_FROM]));
    const ir_expr *is_longer = ir_let(b, "is_longer", ir_gt(b, ir_sub(b, to, start), longest));
    put(t, e->end[MHA_TILE_FULL_FROM], is_longer, start);
    put(t, e->end[MHA_TILE_FULL_TO], is_longer, to);
}

static void build_tile(const tile_builder *t, const ir_expr *const index[4]) {
    ir_builder *b = t->b;
    const int64_t unit = unit_of(t->c);
    const ir_expr *members[MHA_TILE_MEMBERS];
    tile_ends e = {.start = ir_mutable(b, "start", i32(t, 0))};
    for (int i = 0; i < MHA_TILE_IS_MIXED; i++)
        e.end[i] = ir_mutable(b, "end", i == MHA_TILE_FROM ? ir_cast(b, IR_I32, t->room) : i32(t, 0));
    IR_FOR(b, n, ir_idx(b, 0), ir_ceil_div(b, t->room, unit), 1) {
        const ir_expr *first = ir_let(b, "first", ir_times(b, n, unit));
        join_unit(t, &e, first, count_unit(t, first));
    }
    for (int i = 0; i < MHA_TILE_IS_MIXED; i++) members[i] = ir_let(b, "end", ir_load(b, e.end[i]));
    const ir_expr *some = ir_sub(b, members[MHA_TILE_TO], members[MHA_TILE_FROM]);
    const ir_expr *all = ir_sub(b, members[MHA_TILE_FULL_TO], members[MHA_TILE_FULL_FROM]);
    members[MHA_TILE_IS_MIXED] = ir_select(b, ir_lt(b, all, some), i32(t, 1), i32(t, 0));
    for (int i = 0; i < MHA_TILE_MEMBERS; i++)
        ir_store(b, ir_at(b, t->c->mask_table, 1, 5, index[0], index[1], index[2], index[3], ir_idx(b, i)), members[i]);
}

/* ---- The phase ---- */

static void build_stripe(tile_builder *t, const ir_expr *number, const ir_expr *head, const ir_expr *stripe) {
    ir_builder *b = t->b;
    const mha_context *c = t->c;
    keep_rows(t);
    IR_FOR(b, tile, ir_idx(b, 0), num_tiles(c), 1) {
        t->first_key = ir_let(b, "first_key", ir_times(b, tile, c->s->kv_tile));
        const ir_expr *keys_left = ir_sub(b, c->params.size[MHA_SEQ_KV], t->first_key);
        t->room = ir_let(b, "room", ir_min(b, keys_left, ir_idx(b, c->s->kv_tile)));
        build_tile(t, (const ir_expr *const[]){number, head, stripe, tile});
    }
}

/* If the mask does not depend on the sequence, one sequence of the greatest length stands for all. */
static mha_sequence sequence_of(const mha_context *c, const ir_expr *number) {
    if (has_sequences(c)) return mha_sequence_open(c, number);
    return (mha_sequence){.number = number, .seq_q = c->params.size[MHA_SEQ_Q], .seq_kv = c->params.size[MHA_SEQ_KV]};
}

void mha_mask_table(mha_context *c) {
    ir_builder *b = c->b;
    tile_builder t = {.c = c, .b = b};
    IR_PHASE(b) {
        const ir_expr *number = ir_parallel(b, "mask_b", num_sequences(c));
        const ir_expr *head = ir_parallel(b, "mask_h", num_heads(c));
        const ir_expr *stripe = ir_parallel(b, "mask_t", num_stripes(c));
        t.e = sequence_of(c, number);
        t.kv_head = head;
        t.first_row = ir_let(b, "first_row", ir_times(b, stripe, stripe_rows(c)));
        const mha_place place = place_of_task(&t);
        mha_fill_values(c, MHA_MASK_FUNCTION, &place, &t.values_of_task);
        /* A short sequence has no rows in the last stripes. */
        IR_GUARD(b, has_sequences(c), ir_lt(b, t.first_row, rows_of_sequence(&t)))
            build_stripe(&t, number, head, stripe);
    }
}

const ir_expr *mha_mask_table_member(const mha_context *c, const mha_sequence *e, const ir_expr *kv_head,
                                     const ir_expr *stripe, const ir_expr *tile, int member) {
    const ir_expr *zero = ir_idx(c->b, 0);
    return ir_load(c->b, ir_at(c->b, c->mask_table, 1, 5, has_sequences(c) ? e->number : zero,
                               has_heads(c) ? kv_head : zero, stripe, tile, ir_idx(c->b, member)));
}
