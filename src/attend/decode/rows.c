/* The rows of a task before the first tile and after the last one:
 *
 *     before    Q to scratch, lanes along head_dim; maximum, sum and O begin
 *     after     one chunk: O / sum to memory; several: the chunk's maximum, sum and O to shared memory
 *     merge     the parts of all chunks of a row: O / sum to memory */
#include "attend/decode/layout.h"
#include "attend/around/merge.h"
#include "nest/columns.h"
#include "problem/problem.h"

#include <math.h>

/* The logit of a row's sink; NULL: there are none. */
static const ir_expr *sink_of(const d_lanes *d, const dl_row *row) {
    const ir_buffer *sinks = d->c->params.tensor[MHA_SINKS];
    return sinks ? ir_let(d->b, "sink", mha_load(d->c, ir_at(d->b, sinks, 1, 1, row->head))) : NULL;
}

/* A vector of Q, times mha_query_sign, in the type of d->q. */
static const ir_expr *query_columns(const d_lanes *d, const ir_expr *const *index, const ir_expr *column,
                                    int64_t count) {
    const mha_context *c = d->c;
    const ir_expr *sign = mha_query_sign(c);
    if (!c->variant.by_pairs) {
        const ir_expr *q = mha_load_columns(c, c->q, index, column, count);
        return sign ? ir_mul(d->b, q, ir_splat(d->b, sign, d->lanes)) : q;
    }
    const ir_expr *q = mha_load_raw_columns(c, c->q, index, column, d->width, count);
    if (!sign) return q;
    q = ir_mul(d->b, ir_cast(d->b, IR_F32, q), ir_splat(d->b, sign, d->width));
    return ir_cast(d->b, IR_BF16, q);
}

void dl_init_row(d_lanes *d, const ir_expr *r) {
    ir_builder *b = d->b;
    const mha_context *c = d->c;
    const dl_row row = dl_row_at(d, r);
    const ir_expr *sink = d->one_chunk ? mha_first_sink(c, sink_of(d, &row)) : NULL;
    ir_store(b, ir_at(b, d->row_max, 1, 1, r), sink ? sink : mha_number(c, -INFINITY, 1));
    ir_store(b, ir_at(b, d->row_sum, 1, 1, r), sink ? mha_first_sum(c, sink) : mha_number(c, 0, 1));
    if (d->is_serial) ir_store(b, ir_at(b, d->row_sum_lost, 1, 1, r), mha_number(c, 0, 1));
    const ir_expr *const index[] = {d->sequence.batch, row.head, row.token};
    if (!d->planes) {
        MHA_VECTORS(c, q, c->p->head_dim, d->width) {
            ir_store(b, ir_at(b, d->q, d->width, 2, r, q.at), query_columns(d, index, q.at, q.count));
        }
        if (d->k_by == DL_F8_TABLES) dl_order_query(d, r);
        if (d->k_by == DL_WORDS) dl_part_columns(d, d->q, r, d->k_columns);
    }
    IR_FOR(b, at, ir_idx(b, 0), ir_idx(b, d->v_columns), d->lanes) {
        mha_clear_sum(c, ir_at(b, d->o, d->lanes, 2, r, at), d->o_lost);
    }
}

/* Adds the lost parts to O and to the sum. */
static void complete_row(d_lanes *d, const ir_expr *r) {
    ir_builder *b = d->b;
    const ir_access *sum = ir_at(b, d->row_sum, 1, 1, r);
    ir_store(b, sum, mha_load_sum(d->c, sum, d->row_sum_lost));
    IR_FOR(b, at, ir_idx(b, 0), ir_idx(b, d->v_columns), d->lanes) {
        const ir_access *o = ir_at(b, d->o, d->lanes, 2, r, at);
        ir_store(b, o, mha_load_sum(d->c, o, d->o_lost));
    }
}

/* O / sum and LSE of a row; 0 and -inf for a row without a visible key. */
static void store_row(d_lanes *d, const ir_expr *r) {
    ir_builder *b = d->b;
    const mha_context *c = d->c;
    const dl_row row = dl_row_at(d, r);
    const ir_expr *sink = sink_of(d, &row), *sum = ir_load(b, ir_at(b, d->row_sum, 1, 1, r));
    if (sink) sum = ir_let(b, "sum_of_keys", sum);
    sum = ir_let(b, "total", mha_sum_with_sink(c, sum, sink));
    if (c->lse) {
        const ir_expr *max = ir_load(b, ir_at(b, d->row_max, 1, 1, r));
        mha_store(c, ir_at(b, c->lse, 1, 3, d->sequence.batch, row.head, row.token), mha_log_sum(c, max, sum, sink));
    }
    const ir_expr *const index[] = {d->sequence.batch, row.head, row.token};
    mha_store_divided(c, c->out, index, d->o, r, c->p->head_dim_v, sum);
}

/* Stores a row's part for the merge. Unless `seen`, o, row_max and row_sum are not initialised. */
static void store_part(d_lanes *d, const ir_expr *r, bool seen) {
    ir_builder *b = d->b;
    const mha_context *c = d->c;
    const ir_expr *row = ir_let(b, "number", ir_add(b, d->first_row, r));
    const ir_access *max = ir_at(b, c->parts.max, 1, 4, d->sequence.number, d->kv_head, d->chunk, row);
    const ir_access *sum = ir_at(b, c->parts.sum, 1, 4, d->sequence.number, d->kv_head, d->chunk, row);
    ir_store(b, max, seen ? ir_load(b, ir_at(b, d->row_max, 1, 1, r)) : mha_number(c, -INFINITY, 1));
    ir_store(b, sum, seen ? ir_load(b, ir_at(b, d->row_sum, 1, 1, r)) : mha_number(c, 0, 1));
    if (!seen) return;
    IR_FOR(b, at, ir_idx(b, 0), ir_idx(b, d->v_columns), d->lanes) {
        ir_store(b, ir_at(b, c->parts.out, d->lanes, 5, d->sequence.number, d->kv_head, d->chunk, row, at),
                 ir_load(b, ir_at(b, d->o, d->lanes, 2, r, at)));
    }
}

void dl_finish_rows(d_lanes *d, bool seen) {
    IR_FOR(d->b, r, ir_idx(d->b, 0), d->rows, 1) {
        if (seen && d->v_by == DL_F8_TABLES)
            dl_order_output(d, r);
        else if (seen && d->v_by == DL_WORDS)
            dl_join_columns(d, d->o, r, d->v_columns);
        else if (seen && d->c->variant.by_pairs && !d->v_by_panels)
            dl_restore_order(d, r);
        if (d->is_serial) complete_row(d, r);
        if (d->one_chunk)
            store_row(d, r);
        else
            store_part(d, r, seen);
    }
}

void dl_merge_row(d_lanes *d, const ir_expr *r, const ir_expr *chunks) {
    ir_builder *b = d->b;
    const mha_context *c = d->c;
    const dl_row row = dl_row_at(d, r);
    const mha_parts parts = {
        .max = c->parts.max,
        .sum = c->parts.sum,
        .values = c->parts.out,
        .rank = 4,
        .part_dim = 2,
        .index = {d->sequence.number, d->kv_head, NULL, ir_let(b, "number", ir_add(b, d->first_row, r))},
        .count = chunks,
        .columns = d->v_columns,
        .sink = sink_of(d, &row),
    };
    if (c->p->integer == ATTUNE_INTEGER_ALL)
        mha_join_parts(c, &parts, c->out, c->lse, (const ir_expr *const[]){d->sequence.batch, row.head, row.token});
    else
        mha_merge_parts(c, &parts, c->out, c->lse, (const ir_expr *const[]){d->sequence.batch, row.head, row.token});
}
