/* The layout of prefill: how many rows, stripes and tasks there are, the scratch of a task, and where a row, a key, a
 * score and a probability lie in it. All other files of the folder use it. */
#include "attend/prefill/layout.h"
#include "attend/prefill/quantised_keys.h"
#include "base/integers.h"

/* ---- sizes ---- */

void ql_derive_sizes(q_lanes *c) {
    const mha_context *m = c->m;
    const attune_problem *p = m->p;
    c->stripe_rows = (int64_t)m->s->score_row_vectors * m->lanes;
    c->max_stripes = mha_most_stripes(p, m->s);
    if (p->is_ragged || !ir_is_const(m->params.size[MHA_SEQ_Q])) return;
    const int64_t rows = p->seq_q * m->group;
    c->num_stripes = ceil_div(rows, c->stripe_rows);
    c->num_tasks = ceil_div(c->num_stripes, c->max_stripes);
    c->max_stripes = ceil_div(c->num_stripes, c->num_tasks);
    c->rows_fill_tasks = rows % c->stripe_rows == 0 && c->num_stripes % c->num_tasks == 0;
}

/* Scratch with an element for each key (or pair of keys) and row: each vector of rows is contiguous, except for
 * MHA_VALUES_WHOLE, where each key is. */
static const ir_buffer *by_vectors(q_lanes *c, const char *name, ir_elem elem, int64_t keys) {
    const int64_t lanes = elem == IR_BF16 ? 2 * c->m->lanes : c->m->lanes, vectors = c->m->s->score_row_vectors;
    if (c->v->values == MHA_VALUES_WHOLE) return ir_scratch(c->b, name, elem, 2, (int64_t[]){keys, vectors * lanes});
    return ir_scratch(c->b, name, elem, 3, (int64_t[]){vectors, keys, lanes});
}

/* Whether a tile of K or V is copied to scratch, in the type of the arithmetic. */
static bool is_copied(const mha_context *m, const ir_buffer *k_or_v) {
    return m->s->kv_copy == MHA_COPY_ALL || (m->s->kv_copy == MHA_COPY_CONVERTED && k_or_v->type.elem != m->elem);
}

static void alloc_quantised(q_lanes *c) {
    const int64_t rows[] = {c->max_stripes, c->stripe_rows};
    c->row_scale = ir_scratch(c->b, "row_scales", c->m->elem, 2, rows);
    c->row_mean = ir_scratch(c->b, "row_means", c->m->elem, 2, rows);
    c->row_quantised = ir_scratch(c->b, "quantised_row", IR_I8, 1, (int64_t[]){mha_quantised_columns(c->m)});
    c->row_numbers = mha_row_numbers(c->m);
}

void ql_alloc_scratch(q_lanes *c) {
    const mha_context *m = c->m;
    const int64_t stripes = c->max_stripes, count = c->stripe_rows;
    const int64_t rows[] = {stripes, count}, tile[] = {m->s->kv_tile, count};
    const int64_t pairs = ceil_div(m->s->kv_tile, 2);
    const int64_t units = ql_is_quantised(c) ? ql_quantised_units(c) : m->p->head_dim / ql_width(c);
    const mha_kind kind = ql_is_quantised(c) ? MHA_DOT4 : ql_kind(c);
    c->qt = ir_scratch(c->b, "qt", mha_factor_elem(m, kind), 3, (int64_t[]){stripes, units, count * kind});
    if (ql_is_quantised(c)) alloc_quantised(c);
    c->scores = by_vectors(c, "scores", m->elem, m->s->kv_tile + ql_width(c) - 1);
    c->probabilities = c->v->by_pairs ? by_vectors(c, "probabilities", IR_BF16, pairs) : c->scores;
    if (c->v->by_pairs && !m->v_pairs)
        c->values = ir_scratch(c->b, "values", IR_BF16, 2, (int64_t[]){pairs, 2 * m->p->head_dim_v});
    if (!ql_is_quantised(c) && (c->v->by_pairs ? m->k->type.elem != IR_BF16 : is_copied(m, m->k)))
        c->keys =
            ir_scratch(c->b, "keys", mha_factor_elem(m, ql_kind(c)), 2, (int64_t[]){m->s->kv_tile, m->p->head_dim});
    if (!c->v->by_pairs && is_copied(m, m->v) && c->v->values == MHA_VALUES_TRANSPOSED)
        c->values = ir_scratch(c->b, "values", m->elem, 2, (int64_t[]){m->s->kv_tile, m->p->head_dim_v});
    const int64_t by_row[] = {stripes, count, m->p->head_dim_v}, by_column[] = {stripes, m->p->head_dim_v, count};
    if (c->v->values == MHA_VALUES_KEPT) c->o = ir_scratch(c->b, "o", m->elem, 3, by_row);
    if (c->v->values == MHA_VALUES_TRANSPOSED) c->ot = ir_scratch(c->b, "ot", m->elem, 3, by_column);
    c->row_max = ir_scratch(c->b, "row_max", m->elem, 2, rows);
    c->row_sum = ir_scratch(c->b, "row_sum", m->elem, 2, rows);
    if (m->p->reproducible && !mha_values_at_once(c->v)) {
        if (c->v->values == MHA_VALUES_KEPT) c->o_lost = ir_scratch(c->b, "o_lost", m->elem, 3, by_row);
        if (c->v->values == MHA_VALUES_TRANSPOSED) c->ot_lost = ir_scratch(c->b, "ot_lost", m->elem, 3, by_column);
        c->row_sum_lost = ir_scratch(c->b, "row_sum_lost", m->elem, 2, rows);
    }
    c->lse_sum = c->v->by_pairs && m->lse ? ir_scratch(c->b, "lse_sum", m->elem, 2, rows) : c->row_sum;
    if (ql_has_prob(c) && !mha_values_at_once(c->v)) c->row_base = ir_scratch(c->b, "row_base", m->elem, 2, rows);
    c->tile_max = ir_scratch(c->b, "tile_max", m->elem, 1, &count);
    c->factor = ir_scratch(c->b, "factor", m->elem, 1, &count);
    if (m->has_first) c->first_key = ir_scratch(c->b, "first_keys", IR_I32, 2, rows);
    if (m->has_last) c->last_key = ir_scratch(c->b, "last_keys", IR_I32, 2, rows);
    if (m->has_global) c->last_global = ir_scratch(c->b, "last_globals", IR_I32, 2, rows);
    if (m->p->has_alibi_slopes) {
        c->position = ir_scratch(c->b, "positions", m->elem, 2, rows);
        c->slope = ir_scratch(c->b, "slopes", m->elem, 2, rows);
    }
    if (m->p->has_sinks) c->sink = ir_scratch(c->b, "sinks", m->elem, 2, rows);
    if (m->params.tensor[MHA_ATTN_BIAS])
        c->bias = ir_scratch(c->b, "bias", m->elem, 2, tile);
    else if (ql_has_elements(c))
        c->keep = ir_scratch(c->b, "keep", IR_I8, 2, tile);
}

/* ---- where things lie ---- */

int64_t ql_quantised_units(const q_lanes *c) { return ceil_div(c->m->p->head_dim, MHA_DOT4); }

static const ir_access *at_vector(const q_lanes *c, const ir_buffer *buffer, int lanes, const ir_expr *v,
                                  const ir_expr *j) {
    if (c->v->values == MHA_VALUES_WHOLE) return ir_at(c->b, buffer, lanes, 2, j, ir_times(c->b, v, lanes));
    return ir_at(c->b, buffer, lanes, 3, v, j, ir_idx(c->b, 0));
}

const ir_access *ql_score_at(const q_lanes *c, const ir_expr *v, const ir_expr *j) {
    return at_vector(c, c->scores, c->m->lanes, v, j);
}

const ir_access *ql_probability_at(const q_lanes *c, const ir_expr *v, const ir_expr *j) {
    return at_vector(c, c->probabilities, c->m->lanes * ql_width(c), v, j);
}

const ir_expr *ql_first_row(const q_lanes *c, const ir_expr *stripe) {
    return ir_times(c->b, ir_add(c->b, c->first_stripe, stripe), c->stripe_rows);
}

const ir_expr *ql_is_last(q_lanes *c, const ir_expr *stripe) {
    return ir_eq(c->b, ir_add(c->b, c->first_stripe, stripe), ir_idx(c->b, c->num_stripes - 1));
}

const ir_expr *ql_clamp_row(const q_lanes *c, const ir_expr *row) {
    return c->rows_fill_tasks ? row : ir_min(c->b, ir_plus(c->b, c->rows, -1), row);
}

q_lanes_row ql_row(q_lanes *c, const ir_expr *stripe, const ir_expr *in_stripe) {
    ir_builder *b = c->b;
    const ir_expr *group = c->m->params.size[MHA_GROUP];
    const ir_expr *row = ir_let(b, "row", ql_clamp_row(c, ir_add(b, ql_first_row(c, stripe), in_stripe)));
    const ir_expr *head = ir_add(b, ir_mul(b, c->kv_head, group), ir_mod(b, row, group));
    if (c->m->p->is_general) /* products of sizes are beyond the prover */
        return (q_lanes_row){ir_let_index(b, "head", c->m->params.size[MHA_HEADS], head),
                             ir_let_index(b, "query", c->e.seq_q, ir_div(b, row, group))};
    return (q_lanes_row){ir_let(b, "head", head), ir_let(b, "query", ir_div(b, row, group))};
}

const ir_expr *ql_clamp_key(const q_lanes *c, const ir_expr *key) {
    return c->keys_fill_tiles ? key : ir_min(c->b, ir_plus(c->b, c->e.seq_kv, -1), key);
}
