/* Merges the parts of a row, in their order:
 *
 *     max      = the largest max[part]
 *     share    = exp(max[part] - max)
 *     sum      = sum of share * sum[part]
 *     out      = (sum of share * values[part]) / sum */
#include "attend/around/merge.h"
#include "attend/around/around.h"
#include "nest/columns.h"

#include <math.h>

static const ir_access *part_at(const mha_context *c, const mha_parts *parts, const ir_buffer *buffer,
                                const ir_expr *part) {
    const ir_expr *index[IR_MAX_DIMS];
    for (int i = 0; i < parts->rank; i++) index[i] = i == parts->part_dim ? part : parts->index[i];
    return ir_access_make(c->b, buffer, 1, -1, parts->rank, index, NULL);
}

static const ir_expr *largest(const mha_context *c, const mha_parts *parts) {
    ir_builder *b = c->b;
    const ir_expr *first = mha_first_sink(c, parts->sink);
    const ir_access *best = ir_mutable(b, "best", first ? first : mha_number(c, -INFINITY, 1));
    IR_FOR(b, part, ir_idx(b, 0), parts->count, 1) {
        ir_store(b, best, ir_max(b, ir_load(b, best), mha_load(c, part_at(c, parts, parts->max, part))));
    }
    return ir_let(b, "largest", ir_load(b, best));
}

/* exp(max - base). A part with the largest maximum has the share 1, even if that is infinite. */
static const ir_expr *share_of(const mha_context *c, const ir_expr *max, const ir_expr *base) {
    const ir_expr *equal = ir_eq(c->b, max, base);
    return ir_let(c->b, "share", ir_select(c->b, equal, mha_number(c, 1, 1), mha_exp(c, max, base)));
}

/* value[0, column] += share * values of the part, for all columns. */
static void add_values(const mha_context *c, const mha_parts *parts, const ir_expr *part, const ir_expr *share,
                       const ir_buffer *value) {
    ir_builder *b = c->b;
    const ir_expr *index[IR_MAX_DIMS];
    for (int i = 0; i < parts->rank; i++) index[i] = i == parts->part_dim ? part : parts->index[i];
    const ir_expr *factor = ir_let(b, "factor", ir_splat(b, share, c->lanes));
    MHA_VECTORS(c, v, parts->columns, c->lanes) {
        const ir_access *sum = ir_at(b, value, c->lanes, 2, ir_idx(b, 0), v.at);
        const ir_expr *term = mha_load_columns(c, parts->values, index, v.at, v.count);
        ir_store(b, sum, mha_madd(c, factor, term, ir_load(b, sum)));
    }
}

void mha_store_divided(const mha_context *c, const ir_buffer *out, const ir_expr *const index[3],
                       const ir_buffer *values, const ir_expr *row, int64_t columns, const ir_expr *sum) {
    ir_builder *b = c->b;
    const ir_expr *none = ir_eq(b, sum, mha_number(c, 0, 1));
    const ir_expr *inverse = ir_select(b, none, mha_number(c, 0, 1), ir_div(b, mha_number(c, 1, 1), sum));
    inverse = ir_let(b, "inverse", ir_splat(b, inverse, c->lanes));
    MHA_VECTORS(c, v, columns, c->lanes) {
        const ir_expr *value = ir_load(b, ir_at(b, values, c->lanes, 2, row, v.at));
        value = ir_let(b, "o", mha_madd(c, value, inverse, mha_number(c, 0, c->lanes)));
        mha_store_columns(c, out, index, v.at, v.count, value);
    }
}

/* Scratch for a row of values, initialised with 0. */
static const ir_buffer *new_row(const mha_context *c, const mha_parts *parts) {
    ir_builder *b = c->b;
    const int64_t columns = (parts->columns + c->lanes - 1) / c->lanes * c->lanes;
    const ir_buffer *value = ir_scratch(b, "value", c->elem, 2, (int64_t[]){1, columns});
    IR_FOR(b, at, ir_idx(b, 0), ir_idx(b, columns), c->lanes) {
        ir_store(b, ir_at(b, value, c->lanes, 2, ir_idx(b, 0), at), mha_number(c, 0, c->lanes));
    }
    return value;
}

/* The row of values, and the LSE, of all parts. */
static void store_merged(const mha_context *c, const mha_parts *parts, const ir_buffer *out, const ir_buffer *lse,
                         const ir_expr *const index[3], const ir_expr *max, const ir_access *total,
                         const ir_buffer *value) {
    ir_builder *b = c->b;
    const ir_expr *sum = ir_load(b, total);
    if (parts->sink) sum = ir_let(b, "sum_of_keys", sum);
    const ir_expr *whole = ir_let(b, "whole", mha_sum_with_sink(c, sum, parts->sink));
    if (lse) mha_store(c, ir_at(b, lse, 1, 3, index[0], index[1], index[2]), mha_log_sum(c, max, whole, parts->sink));
    mha_store_divided(c, out, index, value, ir_idx(b, 0), c->p->head_dim_v, whole);
}

void mha_merge_parts(const mha_context *c, const mha_parts *parts, const ir_buffer *out, const ir_buffer *lse,
                     const ir_expr *const index[3]) {
    ir_builder *b = c->b;
    const ir_buffer *value = new_row(c, parts);
    const ir_expr *base = largest(c, parts);
    const ir_access *total = ir_at(b, ir_registers(b, "total", c->elem, 1, 0, NULL), 1, 0);
    const ir_expr *sink = mha_first_sink(c, parts->sink);
    ir_store(b, total, sink ? ir_mul(b, share_of(c, sink, base), mha_first_sum(c, sink)) : mha_number(c, 0, 1));
    IR_FOR(b, part, ir_idx(b, 0), parts->count, 1) {
        const ir_expr *max = ir_let(b, "max", mha_load(c, part_at(c, parts, parts->max, part)));
        const ir_expr *sum = parts->sum ? ir_let(b, "sum", ir_load(b, part_at(c, parts, parts->sum, part))) : NULL;
        const ir_expr *empty = mha_number(c, sum ? 0 : -INFINITY, 1);
        IR_IF(b, ir_ne(b, sum ? sum : max, empty)) {
            const ir_expr *share = share_of(c, max, base);
            const ir_expr *term = sum ? ir_mul(b, share, sum) : share;
            ir_store(b, total, ir_add(b, ir_load(b, total), term));
            add_values(c, parts, part, share, value);
        }
    }
    store_merged(c, parts, out, lse, index, base, total, value);
}

/* ---- Part by part ---- */

mha_joining mha_join_of(const mha_context *c, const ir_expr *old, const ir_expr *max) {
    ir_builder *b = c->b;
    const ir_expr *new = ir_let(b, "new_max", ir_max(b, old, max));
    const ir_expr *empty = ir_eq(b, new, mha_number(c, -INFINITY, 1));
    const ir_expr *base = ir_let(b, "new_base", ir_select(b, empty, mha_number(c, 0, 1), new));
    return (mha_joining){new, ir_let(b, "kept", mha_exp(c, old, base)), ir_let(b, "share", mha_exp(c, max, base))};
}

const ir_expr *mha_joined(const mha_context *c, const mha_joining *join, const ir_expr *old, const ir_expr *part) {
    ir_builder *b = c->b;
    const int lanes = old ? old->type.lanes : 1;
    const ir_expr *kept = ir_mul(b, old, mha_in_lanes(c, join->kept, lanes));
    return ir_add(b, kept, ir_mul(b, part, mha_in_lanes(c, join->share, lanes)));
}

/* A part without a visible key has no values. */
static void join_part(const mha_context *c, const mha_parts *parts, const ir_expr *part, const ir_access *row_max,
                      const ir_access *row_sum, const ir_buffer *value) {
    ir_builder *b = c->b;
    const ir_expr *sum = ir_let(b, "sum", ir_load(b, part_at(c, parts, parts->sum, part))), *index[IR_MAX_DIMS];
    for (int i = 0; i < parts->rank; i++) index[i] = i == parts->part_dim ? part : parts->index[i];
    IR_IF(b, ir_ne(b, sum, mha_number(c, 0, 1))) {
        const ir_expr *max = ir_load(b, part_at(c, parts, parts->max, part));
        const mha_joining join = mha_join_of(c, ir_let(b, "old_max", ir_load(b, row_max)), ir_let(b, "max", max));
        ir_store(b, row_max, join.max);
        ir_store(b, row_sum, mha_joined(c, &join, ir_load(b, row_sum), sum));
        MHA_VECTORS(c, v, parts->columns, c->lanes) {
            const ir_access *at = ir_at(b, value, c->lanes, 2, ir_idx(b, 0), v.at);
            const ir_expr *term = mha_load_columns(c, parts->values, index, v.at, v.count);
            ir_store(b, at, mha_joined(c, &join, ir_load(b, at), term));
        }
    }
}

void mha_join_parts(const mha_context *c, const mha_parts *parts, const ir_buffer *out, const ir_buffer *lse,
                    const ir_expr *const index[3]) {
    ir_builder *b = c->b;
    const ir_expr *sink = mha_first_sink(c, parts->sink);
    const ir_buffer *value = new_row(c, parts);
    const ir_access *max = ir_mutable(b, "row_max", sink ? sink : mha_number(c, -INFINITY, 1));
    const ir_access *sum = ir_mutable(b, "row_sum", sink ? mha_first_sum(c, sink) : mha_number(c, 0, 1));
    IR_FOR(b, part, ir_idx(b, 0), parts->count, 1) join_part(c, parts, part, max, sum, value);
    store_merged(c, parts, out, lse, index, ir_load(b, max), sum, value);
}

/* A task is a few queries of one head. */
void mha_merge_op(mha_context *c) {
    enum { QUERIES = 16 };
    ir_builder *b = c->b;
    const ir_expr *seq_q = c->params.size[MHA_SEQ_Q], *heads = c->params.size[MHA_HEADS];
    IR_PHASE(b) {
        const ir_expr *batch = ir_parallel(b, "b", c->params.size[MHA_BATCH]);
        const ir_expr *head = ir_parallel(b, "h", heads);
        const ir_expr *tasks = ir_div(b, ir_plus(b, seq_q, QUERIES - 1), ir_idx(b, QUERIES));
        const ir_expr *first = ir_times(b, ir_parallel(b, "t", tasks), QUERIES);
        const ir_expr *end = ir_min(b, seq_q, ir_plus(b, first, QUERIES));
        IR_FOR(b, query, first, end, 1) {
            const ir_expr *of_head = ir_add(b, ir_mul(b, batch, heads), head);
            const ir_expr *number = ir_add(b, ir_mul(b, of_head, seq_q), query);
            const ir_expr *row = ir_let_index(b, "row", c->params.size[MHA_PART_ROWS], number);
            const mha_parts parts = {
                .max = c->params.tensor[MHA_PARTS_LSE],
                .values = c->params.tensor[MHA_PARTS],
                .rank = 2,
                .part_dim = 0,
                .index = {NULL, row},
                .count = c->params.size[MHA_NUM_PARTS],
                .columns = c->p->head_dim_v,
            };
            mha_merge_parts(c, &parts, c->out, c->lse, (const ir_expr *const[]){batch, head, query});
        }
    }
}
