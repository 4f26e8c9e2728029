/* Prefetches the next head (task_prefetch=head), a few lines with each register tile of scores: its K, V and Q, and the
 * lines of O that its tasks will write. Hardware prefetchers start anew with each head, which is late for short heads.
 * With long heads, Q and O of the next stripe are prefetched instead of the next head's.
 *
 * Who prefetches what:
 *
 *     K, V of a register tile's keys    shared out among the stripes of the head
 *     Q, O of a stripe's rows           shared out among the register tiles of the head
 *
 * Tasks of the next head find the lines in the cache, whichever task prefetched them. If lengths are known at run time
 * only, shares are those of the usual length. Addresses beyond the last row are prefetched and never used.
 *
 * If stripes attend to a part of the keys only, each prefetches Q and O of the next task instead. With pairs, loading Q
 * does that (rows.c). */
#include "attend/prefill/layout.h"

#include "base/integers.h"
#include "problem/problem.h"
#include "problem/problem_sight.h"

enum { LINE_BYTES = 64 };

/* The share of one register tile: `lines` neighbouring cache lines of each of `rows` rows. */
typedef struct share {
    int64_t rows, lines, step;   /* step: elements in a line */
    const ir_expr *row, *column; /* the first ones */
} share;

/* Share number `part` of `parts`, of `rows` rows. A share is a part of a row, or whole rows, so that an address is a
 * few additions. If lines do not divide evenly, shares are larger than necessary and overlap. */
static share share_of(const q_lanes *c, const ir_buffer *buffer, int64_t columns, int64_t rows, const ir_expr *part,
                      int64_t parts) {
    ir_builder *b = c->b;
    const int64_t step = LINE_BYTES / ir_elem_get(buffer->type.elem)->bytes, in_row = ceil_div(columns, step);
    const int64_t count = ceil_div(rows * in_row, parts);
    share s = {.rows = ceil_div(count, in_row), .lines = in_row, .step = step, .column = ir_idx(b, 0)};
    if (count > in_row) {
        s.row = ir_let(b, "ahead_row", ir_times(b, part, s.rows));
        return s;
    }
    const int64_t of_row = in_row / count; /* shares of a row */
    s.lines = ceil_div(in_row, of_row);
    s.row = ir_let(b, "ahead_row", ir_div(b, part, ir_idx(b, of_row)));
    s.column = ir_let(b, "ahead_column", ir_times(b, ir_mod(b, part, ir_idx(b, of_row)), s.lines * step));
    return s;
}

/* A loop over `count` rows or lines. Unrolling it would take compile time and be no faster. */
static const ir_expr *each(const q_lanes *c, const char *name, int64_t count) {
    return ir_for_begin(c->b, name, ir_idx(c->b, 0), ir_idx(c->b, count), 1, count == 1);
}

static const ir_expr *column_at(const q_lanes *c, const share *s, const ir_expr *line) {
    return ir_add(c->b, s->column, ir_times(c->b, line, s->step));
}

/* Prefetches share `part` of `parts` of K or V of the next head: of the keys from `first` on that a register tile has.
 */
static void prefetch_keys(q_lanes *c, const ir_buffer *k_or_v, int64_t columns, const ir_expr *first,
                          const ir_expr *part, int64_t parts) {
    ir_builder *b = c->b;
    const share s = share_of(c, k_or_v, mha_row_elements(c->m, k_or_v, columns), c->m->s->score_keys, part, parts);
    mha_sequence next = c->e;
    next.kv_batch = c->next_kv_batch;
    IR_LOOP(b, r, each(c, "row_ahead", s.rows)) {
        const ir_expr *key = ir_add(b, first, ir_add(b, s.row, r));
        key = ir_let(b, "key_ahead", ir_min(b, key, ir_plus(b, c->e.seq_kv, -1)));
        const mha_kv_row row = mha_kv_row_at(c->m, &next, c->next_head, key);
        IR_LOOP(b, line, each(c, "line", s.lines)) {
            ir_prefetch(b, mha_kv_line(c->m, k_or_v, &row, column_at(c, &s, line)));
        }
    }
}

/* The same for V in pairs of keys. */
static void prefetch_pairs(q_lanes *c, const ir_expr *first, const ir_expr *part, int64_t parts) {
    ir_builder *b = c->b;
    const ir_buffer *pairs = c->m->v_pairs;
    const share s = share_of(c, pairs, 2 * c->m->p->head_dim_v, ceil_div(c->m->s->score_keys, 2), part, parts);
    first = ir_let(b, "first_pair", ir_div(b, first, ir_idx(b, 2)));
    IR_LOOP(b, r, each(c, "row_ahead", s.rows)) {
        const ir_expr *pair = ir_add(b, first, ir_add(b, s.row, r));
        pair = ir_let(b, "pair_ahead", ir_min(b, pair, ir_plus(b, pairs->dims[2], -1)));
        IR_LOOP(b, line, each(c, "line", s.lines)) {
            ir_prefetch(b, ir_at(b, pairs, 1, 4, c->next_kv_batch, c->next_head, pair, column_at(c, &s, line)));
        }
    }
}

/* A stripe that is computed after the one at hand. */
typedef struct stripe_ahead {
    const ir_expr *batch, *head, *first_row;
} stripe_ahead;

/* The same for the rows of a stripe, in Q or O. */
static void prefetch_rows(q_lanes *c, const ir_buffer *q_or_o, int64_t columns, const stripe_ahead *stripe,
                          const ir_expr *part, int64_t parts) {
    ir_builder *b = c->b;
    const ir_expr *group = c->m->params.size[MHA_GROUP];
    const share s = share_of(c, q_or_o, columns, c->stripe_rows, part, parts);
    IR_LOOP(b, r, each(c, "row_ahead", s.rows)) {
        const ir_expr *row = ir_let(b, "query_ahead", ir_add(b, stripe->first_row, ir_add(b, s.row, r)));
        const ir_expr *head = ir_add(b, ir_mul(b, stripe->head, group), ir_mod(b, row, group));
        const ir_expr *token = ir_add(b, c->e.first_q, ir_div(b, row, group));
        IR_LOOP(b, line, each(c, "line", s.lines)) {
            ir_prefetch(b, ir_at(b, q_or_o, 1, 4, stripe->batch, head, token, column_at(c, &s, line)));
        }
    }
}

/* The same stripe of the next head. */
static stripe_ahead stripe_of_next_head(q_lanes *c, const ir_expr *stripe) {
    const ir_expr *row = ir_let(c->b, "row_of_head", ir_times(c->b, stripe, c->stripe_rows));
    return (stripe_ahead){c->next_batch, c->next_head, row};
}

/* True if the prefetched head could be evicted before use and the next stripe is known. A task of
 * several stripes has read Q of all of them when it begins. */
static bool prefetches_next_stripe(const q_lanes *c) {
    enum { LONG_BYTES = 32 * 1024 };
    const mha_context *m = c->m;
    if (c->num_stripes < 2 || c->max_stripes > 1) return false;
    const int64_t in_row =
        m->p->head_dim * ir_elem_get(m->q->type.elem)->bytes + m->p->head_dim_v * ir_elem_get(m->out->type.elem)->bytes;
    return c->num_stripes * c->stripe_rows * in_row >= LONG_BYTES;
}

/* The next stripe of the head, and after its last one the first of the next head. Where later rows attend to more keys,
 * tasks go from the last rows to the first. */
static stripe_ahead next_stripe(q_lanes *c, const ir_expr *stripe) {
    ir_builder *b = c->b;
    const bool downwards = mha_sees_more_later(c->m->p);
    const ir_expr *zero = ir_idx(b, 0), *end = ir_idx(b, c->num_stripes - 1);
    const ir_expr *is_last = downwards ? ir_le(b, stripe, zero) : ir_ge(b, stripe, end);
    is_last = ir_let(b, "is_last_stripe", is_last);
    const ir_expr *next = ir_select(b, is_last, downwards ? end : zero, ir_plus(b, stripe, downwards ? -1 : 1));
    return (stripe_ahead){ir_let(b, "entry_ahead", ir_select(b, is_last, c->next_batch, c->e.batch)),
                          ir_let(b, "head_ahead", ir_select(b, is_last, c->next_head, c->kv_head)),
                          ir_let(b, "row_ahead", ir_times(b, next, c->stripe_rows))};
}

/* The next head of the sequence. After the last head it is the first one of the next sequence, if sequences are at
 * fixed strides, and the last head again otherwise. */
void ql_open_prefetch(q_lanes *c) {
    ir_builder *b = c->b;
    if (c->m->s->task_prefetch != MHA_PREFETCH_HEAD) return;
    const ir_expr *heads = c->m->params.size[MHA_KV_HEADS], *next = ir_plus(b, c->kv_head, 1);
    c->next_batch = c->e.batch;
    c->next_kv_batch = c->e.kv_batch;
    if (c->m->p->is_ragged || c->m->p->page_size) {
        c->next_head = ir_let(b, "next_head", ir_min(b, next, ir_plus(b, heads, -1)));
        return;
    }
    const ir_expr *is_last = ir_let(b, "is_last_head", ir_ge(b, next, heads));
    c->next_head = ir_let(b, "next_head", ir_select(b, is_last, ir_idx(b, 0), next));
    c->next_batch = ir_let(b, "next_entry", ir_select(b, is_last, ir_plus(b, c->e.batch, 1), c->e.batch));
    c->next_kv_batch = c->next_batch;
}

/* Whether a stripe may skip so many keys that its register tiles do not prefetch all shares. */
static bool skips_keys(const q_lanes *c) {
    return ql_has_table(c) ||
           (c->m->has_first && !c->m->p->is_general); /* general kernels are rarely called with a window */
}

/* The same stripe of the next task: of this head, or of the next head if a head has one task. */
static stripe_ahead stripe_of_next_task(q_lanes *c, const ir_expr *stripe) {
    ir_builder *b = c->b;
    const bool downwards = c->num_tasks && mha_sees_more_later(c->m->p);
    const ir_expr *number = ir_add(b, c->first_stripe, stripe);
    if (c->num_tasks == 1) return stripe_of_next_head(c, number);
    number = downwards ? ir_sub(b, number, c->stripes) : ir_add(b, number, c->stripes);
    const ir_expr *row = ir_max(b, ir_idx(b, 0), ir_times(b, number, c->stripe_rows));
    return (stripe_ahead){c->e.batch, c->kv_head, ir_let(b, "row_ahead", row)};
}

/* For a stripe that attends to a part of the keys: each run of SHARED_TILES register tiles prefetches all lines of the
 * same stripe of the next task. */
static void prefetch_next_task(q_lanes *c, const q_lanes_tile *tile, const ir_expr *first) {
    enum { SHARED_TILES = 16 };
    ir_builder *b = c->b;
    const stripe_ahead next = stripe_of_next_task(c, tile->stripe);
    const ir_expr *tiles = ir_div(b, ir_add(b, tile->first_key, first), ir_idx(b, c->m->s->score_keys));
    const ir_expr *part = ir_let(b, "part", ir_mod(b, tiles, ir_idx(b, SHARED_TILES)));
    prefetch_rows(c, c->m->q, c->m->p->head_dim, &next, part, SHARED_TILES);
    prefetch_rows(c, c->m->out, c->m->p->head_dim_v, &next, part, SHARED_TILES);
}

void ql_prefetch(q_lanes *c, const q_lanes_tile *tile, const ir_expr *first) {
    ir_builder *b = c->b;
    const mha_context *m = c->m;
    if (!c->next_head || (skips_keys(c) && c->v->by_pairs)) return;
    if (skips_keys(c)) {
        prefetch_next_task(c, tile, first);
        return;
    }
    const int64_t most = mha_likely_queries(m->p), queries = most < MHA_USUAL_LENGTH ? most : MHA_USUAL_LENGTH;
    const int64_t rows = m->s->score_keys, usual = ceil_div(queries * m->group, c->stripe_rows);
    const int64_t stripes = c->num_stripes ? c->num_stripes : usual;
    const int64_t tiles = ceil_div(ir_is_const(c->e.seq_kv) ? c->e.seq_kv->value.i : MHA_USUAL_LENGTH, rows);
    const ir_expr *stripe = ir_let(b, "stripe_of_head", ir_add(b, c->first_stripe, tile->stripe));
    const ir_expr *key = ir_let(b, "ahead_from", ir_add(b, tile->first_key, first));
    if (!ql_is_quantised(c)) prefetch_keys(c, m->k, m->p->head_dim, key, stripe, stripes);
    if (m->v_pairs)
        prefetch_pairs(c, key, stripe, stripes);
    else
        prefetch_keys(c, m->v, m->p->head_dim_v, key, stripe, stripes);
    const ir_expr *number = ir_let(b, "tile_of_head", ir_div(b, key, ir_idx(b, rows)));
    const stripe_ahead ahead = prefetches_next_stripe(c) ? next_stripe(c, stripe) : stripe_of_next_head(c, stripe);
    prefetch_rows(c, m->q, m->p->head_dim, &ahead, number, tiles);
    prefetch_rows(c, m->out, m->p->head_dim_v, &ahead, number, tiles);
}
