/* The rows of a task before the first tile and after the last one: Q becomes Q^T in scratch, O^T / sum becomes O in
 * memory.
 *
 *     memory    row 0  [ d0 d1 d2 d3 … ]              scratch   d0  [ row 0  row 1  … ]
 *               row 1  [ d0 d1 d2 d3 … ]     <->                d1  [ row 0  row 1  … ]
 *               …                                               …
 *
 * Both transpose `lanes` rows and a quarter of as many columns at a time (transposed_rows.c). If that step does not
 * divide the columns, the last step overlaps the one before. Heads narrower than a step are copied one element at a
 * time. */
#include "attend/prefill/layout.h"

#include <math.h>

static void refer_rows(q_lanes *c, const ir_expr *stripe, const ir_expr *at, q_lanes_row *rows) {
    for (int l = 0; l < c->m->lanes; l++) rows[l] = ql_row(c, stripe, ir_plus(c->b, at, l));
}

/* A loop over the stripe's rows: by vectors, or one by one. */
static const ir_expr *begin_rows(q_lanes *c, bool vectors) {
    return ir_for_begin(c->b, "at", ir_idx(c->b, 0), ir_idx(c->b, c->stripe_rows), vectors ? c->m->lanes : 1, false);
}

/* ---- the beginning of rows ---- */

/* Positions and slopes for ALiBi, and sinks, which differ from row to row. */
static void init_single_rows(q_lanes *c, const ir_expr *stripe) {
    const mha_context *m = c->m;
    const ir_buffer *slopes = m->params.tensor[MHA_ALIBI_SLOPES], *sinks = m->params.tensor[MHA_SINKS];
    ir_builder *b = c->b;
    IR_LOOP(b, at, begin_rows(c, false)) {
        const q_lanes_row row = ql_row(c, stripe, at);
        if (slopes) {
            const ir_expr *position = ir_cast(b, m->elem, ir_add(b, row.query, c->e.base));
            ir_store(b, ir_at(b, c->position, 1, 2, stripe, at), position);
            ir_store(b, ir_at(b, c->slope, 1, 2, stripe, at), mha_load(m, ir_at(b, slopes, 1, 1, row.head)));
        }
        if (sinks) {
            const ir_expr *sink = ir_let(b, "sink", mha_load(m, ir_at(b, sinks, 1, 1, row.head)));
            const ir_expr *first = mha_first_sink(m, sink), *sum = ir_let(b, "first_sum", mha_first_sum(m, first));
            ir_store(b, ir_at(b, c->sink, 1, 2, stripe, at), sink);
            ir_store(b, ir_at(b, c->row_max, 1, 2, stripe, at), first);
            ir_store(b, ir_at(b, c->row_sum, 1, 2, stripe, at), sum);
            if (c->row_sum_lost) ir_store(b, ir_at(b, c->row_sum_lost, 1, 2, stripe, at), mha_number(m, 0, 1));
            if (c->lse_sum != c->row_sum) ir_store(b, ir_at(b, c->lse_sum, 1, 2, stripe, at), sum);
        }
    }
}

/* Maximum, sums and O before the first tile. */
static void clear_rows(q_lanes *c, const ir_expr *stripe) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    IR_LOOP(b, at, begin_rows(c, true)) {
        if (!c->m->p->has_sinks) {
            ir_store(b, ir_at(b, c->row_max, lanes, 2, stripe, at), ql_splat(c, -INFINITY));
            mha_clear_sum(c->m, ir_at(b, c->row_sum, lanes, 2, stripe, at), c->row_sum_lost);
            if (c->lse_sum != c->row_sum) ir_store(b, ir_at(b, c->lse_sum, lanes, 2, stripe, at), ql_splat(c, 0));
        }
        if (c->v->values == MHA_VALUES_TRANSPOSED) {
            IR_FOR(b, d, ir_idx(b, 0), ir_idx(b, c->m->p->head_dim_v), 1) {
                mha_clear_sum(c->m, ir_at(b, c->ot, lanes, 3, stripe, d, at), c->ot_lost);
            }
        }
    }
    if (c->o) ql_clear_kept(c, stripe);
}

void ql_init_rows(q_lanes *c, const ir_expr *stripe) {
    ql_init_functions(c, stripe);
    if (!mha_values_at_once(c->v)) clear_rows(c, stripe);
    if (c->m->p->has_alibi_slopes || c->m->p->has_sinks) init_single_rows(c, stripe);
    if (ql_has_edges(c)) ql_init_sight(c, stripe);
}

/* ---- Q ---- */

/* Prefetches the rows `lanes` rows further on: the hardware prefetcher does not predict the few lines of each row, and
 * with pairs there is too little work to hide the latency. */
static void prefetch_next(q_lanes *c, const q_lanes_row *rows) {
    enum { LINE_BYTES = 64 };
    ir_builder *b = c->b;
    const int64_t ahead = (c->m->lanes + c->m->group - 1) / c->m->group;
    const int64_t step = LINE_BYTES / ir_elem_get(c->m->q->type.elem)->bytes;
    IR_FOR(b, line, ir_idx(b, 0), ir_idx(b, c->m->p->head_dim), step) {
        for (int l = 0; l < c->m->lanes; l++) {
            const ir_expr *token = ir_plus(b, ir_add(b, c->e.first_q, rows[l].query), ahead);
            ir_prefetch(b, ir_at(b, c->m->q, 1, 4, c->e.batch, rows[l].head, token, line));
        }
    }
}

static void load_vectors(q_lanes *c, const ir_expr *stripe, const ir_expr *at, const ir_expr *sign) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes, quarter = mha_quarter(c->m->lanes), width = ql_width(c);
    const q_lanes_tensor q = {c->m->q, c->e.batch, c->e.first_q, width == 2, sign};
    q_lanes_row rows[IR_MAX_LANES];
    const ir_expr *columns[4];
    refer_rows(c, stripe, at, rows);
    if (width == 2) prefetch_next(c, rows);
    MHA_COLUMNS(c->m, d, c->m->p->head_dim / width, quarter) {
        ql_load_transposed(c, &q, rows, d.at, columns);
        for (int i = 0; i < quarter; i++)
            ir_store(b, ir_at(b, c->qt, lanes * width, 3, stripe, ir_plus(b, d.at, i), ir_times(b, at, width)),
                     width == 2 ? ir_bitcast(b, IR_BF16, columns[i]) : columns[i]);
    }
}

static void load_elements(q_lanes *c, const ir_expr *stripe, const ir_expr *at, const ir_expr *sign) {
    ir_builder *b = c->b;
    const q_lanes_row row = ql_row(c, stripe, at);
    const ir_expr *token = ir_add(b, c->e.first_q, row.query);
    const ir_expr *width = ir_idx(b, ql_width(c));
    IR_FOR(b, d, ir_idx(b, 0), ir_idx(b, c->m->p->head_dim), 1) {
        const ir_expr *q = mha_load(c->m, ir_at(b, c->m->q, 1, 4, c->e.batch, row.head, token, d));
        const ir_expr *lane = ir_add(b, ir_mul(b, at, width), ir_mod(b, d, width));
        mha_store(c->m, ir_at(b, c->qt, 1, 3, stripe, ir_div(b, d, width), lane), sign ? ir_mul(b, q, sign) : q);
    }
}

void ql_load_queries(q_lanes *c, const ir_expr *stripe) {
    if (c->v->scores_by_columns) return;
    if (ql_is_quantised(c)) {
        ql_quantise_queries(c, stripe);
        return;
    }
    const ir_expr *factor = mha_query_sign(c->m);
    const bool vectors = c->m->p->head_dim / ql_width(c) >= mha_quarter(c->m->lanes);
    ir_builder *b = c->b;
    const ir_expr *end = ir_idx(b, c->stripe_rows);
    if (c->v->rest_rows) {
        const ir_expr *whole = ir_idx(b, ql_whole_vectors(c, true) * c->m->lanes);
        end = ir_let(b, "rows_loaded", ir_select(b, ql_is_last(c, stripe), whole, end));
    }
    IR_LOOP(b, at, ir_for_begin(b, "at", ir_idx(b, 0), end, vectors ? c->m->lanes : 1, false)) {
        if (vectors)
            load_vectors(c, stripe, at, factor);
        else
            load_elements(c, stripe, at, factor);
    }
}

/* ---- O and LSE ---- */

static const ir_expr *total_with_sink(q_lanes *c, const ir_expr *sum, const ir_expr *sink) {
    if (sink) sum = ir_let(c->b, "sum_of_keys", sum);
    return ir_let(c->b, "total", mha_sum_with_sink(c->m, sum, sink));
}

/* row_sum becomes 1 / sum, and row_max the LSE. A row without a visible key gets 0 for 1 / sum, and so an output of 0.
 */
static void invert_sums(q_lanes *c, const ir_expr *stripe) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    IR_LOOP(b, at, begin_rows(c, true)) {
        const ir_access *row_sum = ir_at(b, c->row_sum, lanes, 2, stripe, at);
        const ir_expr *sink = c->sink ? ir_let(b, "sink", ir_load(b, ir_at(b, c->sink, lanes, 2, stripe, at))) : NULL;
        const ir_expr *sum = total_with_sink(c, mha_load_sum(c->m, row_sum, c->row_sum_lost), sink);
        if (c->m->lse) {
            const ir_access *row_max = ir_at(b, c->row_max, lanes, 2, stripe, at);
            const ir_expr *exact = sum;
            if (c->lse_sum != c->row_sum)
                exact = total_with_sink(c, ir_load(b, ir_at(b, c->lse_sum, lanes, 2, stripe, at)), sink);
            ir_store(b, row_max, mha_log_sum(c->m, ir_load(b, row_max), exact, sink));
        }
        const ir_expr *none = ir_eq(b, sum, ql_splat(c, 0));
        ir_store(b, row_sum, ir_select(b, none, ql_splat(c, 0), ir_div(b, ql_splat(c, 1), sum)));
    }
}

/* o * inverse + 0, for `lanes` rows from `at` on and column d. The sign of a sum that is 0 depends on which hidden keys
 * were added to it; adding 0 makes the sign the same. */
static const ir_expr *result(q_lanes *c, const ir_expr *stripe, const ir_expr *d, const ir_expr *at, int lanes,
                             const ir_expr *inverse) {
    const ir_expr *o = mha_load_sum(c->m, ir_at(c->b, c->ot, lanes, 3, stripe, d, at), c->ot_lost);
    return o ? mha_madd(c->m, o, inverse, mha_number(c->m, 0, lanes)) : NULL;
}

/* Stores `lanes` rows from `at` on, a quarter of a vector of columns at a time; with `pairs`, pairs of columns, which
 * pack2 rounds. */
static void store_vectors(q_lanes *c, const ir_expr *stripe, const ir_expr *at, bool pairs) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes, quarter = mha_quarter(c->m->lanes), width = pairs ? 2 : 1;
    const q_lanes_tensor out = {c->m->out, c->e.batch, c->e.first_q, pairs, NULL};
    q_lanes_row rows[IR_MAX_LANES];
    const ir_expr *columns[4];
    refer_rows(c, stripe, at, rows);
    const ir_expr *inverse = ir_let(b, "inverse", ir_load(b, ir_at(b, c->row_sum, lanes, 2, stripe, at)));
    MHA_COLUMNS(c->m, d, c->m->p->head_dim_v / width, quarter) {
        for (int i = 0; i < quarter; i++) {
            const ir_expr *column = ir_times(b, ir_plus(b, d.at, i), width);
            const ir_expr *o = result(c, stripe, column, at, lanes, inverse);
            if (pairs) {
                const ir_expr *next = result(c, stripe, ir_plus(b, column, 1), at, lanes, inverse);
                o = ir_bitcast(b, IR_I32, ir_pack2(b, o, next));
            }
            columns[i] = ir_let(b, "o", o);
        }
        ql_store_transposed(c, &out, rows, d.at, columns);
    }
}

static void store_elements(q_lanes *c, const ir_expr *stripe, const ir_expr *at) {
    ir_builder *b = c->b;
    const q_lanes_row row = ql_row(c, stripe, at);
    const ir_expr *token = ir_add(b, c->e.first_q, row.query);
    IR_FOR(b, d, ir_idx(b, 0), ir_idx(b, c->m->p->head_dim_v), 1) {
        const ir_expr *inverse = ir_load(b, ir_at(b, c->row_sum, 1, 2, stripe, at));
        const ir_expr *o = result(c, stripe, d, at, 1, inverse);
        mha_store(c->m, ir_at(b, c->m->out, 1, 4, c->e.batch, row.head, token, d), o);
    }
}

void ql_close_rows(q_lanes *c, const ir_expr *stripe) {
    ir_builder *b = c->b;
    invert_sums(c, stripe);
    if (!c->m->lse) return;
    IR_LOOP(b, at, begin_rows(c, false)) {
        const q_lanes_row row = ql_row(c, stripe, at);
        mha_store(c->m, ir_at(b, c->m->lse, 1, 3, c->e.batch, row.head, ir_add(b, c->e.first_q, row.query)),
                  ir_load(b, ir_at(b, c->row_max, 1, 2, stripe, at)));
    }
}

void ql_store_rows(q_lanes *c, const ir_expr *stripe) {
    const int64_t columns = c->m->p->head_dim_v;
    const int quarter = mha_quarter(c->m->lanes);
    const bool pairs = c->v->by_pairs && c->m->out->type.elem == IR_BF16 && columns % 2 == 0 && columns >= 2 * quarter;
    IR_LOOP(c->b, at, begin_rows(c, columns >= quarter)) {
        if (columns >= quarter)
            store_vectors(c, stripe, at, pairs);
        else
            store_elements(c, stripe, at);
    }
}
