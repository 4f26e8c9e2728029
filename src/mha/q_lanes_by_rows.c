/* O = P V / sum for problems whose keys are one tile: register tiles of query rows by vectors of columns, as O and V
 * lie. The tile is the only one, so its sums are the result: no O^T in scratch, nothing to clear, rescale or transpose.
 * And rows are exact, where lanes along them would be filled up by clamped ones: with few rows that counts most.
 *
 * The order of the arithmetic is that of q_lanes_value.c, by pairs of bf16 as well: then V is c->values. */
#include "mha/integers.h"
#include "mha/problem.h"
#include "mha/q_lanes.h"

/* Columns first … first + vectors * lanes - 1. */
typedef struct strip {
    int64_t first;
    int vectors, lanes;
} strip;

typedef struct row_tile {
    const strip *strip;
    const ir_expr *first; /* row within the block */
    int64_t rows;
    const ir_buffer *acc; /* registers [rows, vectors] */
} row_tile;

static bool is_float(attune_dtype dtype) {
    return dtype == ATTUNE_F32 || dtype == ATTUNE_F16 || dtype == ATTUNE_BF16 || dtype == ATTUNE_F64;
}

static bool hides_keys(const attune_problem *p) {
    return p->is_causal || p->window_left >= 0 || p->window_right >= 0 || p->has_kv_lens ||
           mha_has_dims(p->attn_mask_dims) || mha_has_dims(p->attn_bias_dims);
}

bool mha_values_by_rows(const attune_problem *p, const attune_schedule *s) {
    const int64_t rows = p->seq_q * (p->num_heads / p->num_kv_heads);
    const int64_t block = (int64_t)s->score_vectors * s->lanes;
    return p->seq_q >= 1 && p->seq_kv >= 1 && p->seq_kv <= s->kv_tile && (rows <= block || rows % block == 0) &&
           !p->is_ragged && !p->page_size && !p->has_sinks && !hides_keys(p) && is_float(p->v_dtype) &&
           is_float(p->k_dtype);
}

static const ir_access *acc_at(q_lanes *c, const row_tile *t, int64_t row, int vector) {
    return ir_at(c->b, t->acc, t->strip->lanes, 2, ql_i(c, row), ql_i(c, vector));
}

static const ir_expr *column_of(q_lanes *c, const strip *s, int vector) {
    return ql_i(c, s->first + (int64_t)vector * s->lanes);
}

static const ir_expr *row_at(q_lanes *c, const row_tile *t, int64_t row) {
    return ir_add(c->b, t->first, ql_i(c, row));
}

/* A vector of the strip in row `j` of V, or of c->values, which may be pairs of keys. */
static const ir_expr *value_of(q_lanes *c, const strip *s, const mha_kv_row *row, const ir_expr *j, int vector) {
    const ir_expr *column = column_of(c, s, vector);
    if (c->width == 1) return mha_load(c->m, mha_kv_access(c->m, c->m->v, row, column, s->lanes));
    return ir_load(c->b, ir_at(c->b, c->values, 2 * s->lanes, 2, j, ir_mul(c->b, column, ql_i(c, 2))));
}

/* The weight of a row, or pair of weights, in all lanes. */
static const ir_expr *weight_of(q_lanes *c, const row_tile *t, const ir_expr *j, int64_t row) {
    ir_builder *b = c->b;
    const ir_expr *at = ir_mul(b, row_at(c, t, row), ql_i(c, c->width));
    const ir_expr *weight = ir_load(b, ir_at(b, c->weights, c->width, 2, j, at));
    if (c->width == 1) return ir_splat(b, weight, t->strip->lanes);
    return ir_bitcast(b, IR_BF16, ir_splat(b, ir_bitcast(b, IR_I32, weight), t->strip->lanes));
}

/* acc += P V, one key, or pair, after the other. */
static void multiply(q_lanes *c, const q_lanes_tile *tile, const row_tile *t) {
    ir_builder *b = c->b;
    const ir_expr *v[MHA_STRIP_VECTORS];
    const ir_expr *j = ir_for_begin(b, "j", ql_i(c, 0), ql_ceil_div(c, tile->to, c->width), 1, false);
    mha_kv_row row = {0};
    if (c->width == 1) row = mha_kv_row_at(c->m, &c->e, c->kv_head, ir_let(b, "key", ir_add(b, tile->first_key, j)));
    for (int i = 0; i < t->strip->vectors; i++) v[i] = ir_let(b, "value", value_of(c, t->strip, &row, j, i));
    for (int64_t r = 0; r < t->rows; r++) {
        const ir_expr *p = ir_let(b, "p", weight_of(c, t, j, r));
        for (int i = 0; i < t->strip->vectors; i++)
            ir_store(b, acc_at(c, t, r, i), ql_accumulate(c, v[i], p, ir_load(b, acc_at(c, t, r, i))));
    }
    ir_for_end(b);
}

/* Rounded as pack2 does, which is how the output of pairs is rounded where its columns come in pairs. */
static void store_vector(q_lanes *c, const ir_access *to, const ir_expr *value) {
    ir_builder *b = c->b;
    if (c->width == 1 || to->buffer->type.elem != IR_BF16 || c->m->p->head_dim_v % 2) {
        mha_store(c->m, to, value);
        return;
    }
    uint8_t pick[IR_MAX_LANES];
    for (int l = 0; l < value->type.lanes; l++) pick[l] = (uint8_t)(2 * l);
    value = ir_let(b, "o", value);
    const ir_expr *twice = ir_let(b, "rounded", ir_pack2(b, value, value));
    ir_store(b, to, ir_shuffle(b, twice, twice, value->type.lanes, pick));
}

/* acc * inverse + 0 is the output, as in q_lanes_rows.c. */
static void store(q_lanes *c, const q_lanes_tile *tile, const row_tile *t) {
    ir_builder *b = c->b;
    const int lanes = t->strip->lanes;
    for (int64_t r = 0; r < t->rows; r++) {
        const q_lanes_row row = ql_row(c, tile->block, row_at(c, t, r));
        const ir_expr *token = ir_let(b, "token", ir_add(b, c->e.first_q, row.query));
        const ir_expr *inverse = ir_load(b, ir_at(b, c->row_sum, 1, 2, tile->block, row_at(c, t, r)));
        inverse = ir_let(b, "inverse", ir_splat(b, inverse, lanes));
        for (int i = 0; i < t->strip->vectors; i++)
            store_vector(c, ir_at(b, c->m->out, lanes, 4, c->e.batch, row.head, token, column_of(c, t->strip, i)),
                         mha_madd(c->m, ir_load(b, acc_at(c, t, r, i)), inverse, mha_number(c->m, 0, lanes)));
    }
}

static void register_tile(q_lanes *c, const q_lanes_tile *tile, row_tile *t) {
    const int lanes = t->strip->lanes;
    t->acc = ir_alloc(c->b, "acc", IR_REG, ir_type_of(c->m->elem, lanes), 2, (int64_t[]){t->rows, t->strip->vectors});
    for (int64_t r = 0; r < t->rows; r++)
        for (int i = 0; i < t->strip->vectors; i++) ir_store(c->b, acc_at(c, t, r, i), mha_number(c->m, 0, lanes));
    multiply(c, tile, t);
    store(c, tile, t);
}

/* All rows of the block, as many at a time as there are accumulators for, and then those that are left over. */
static void all_rows(q_lanes *c, const q_lanes_tile *tile, const strip *s) {
    ir_builder *b = c->b;
    const int64_t all = c->m->p->seq_q * c->m->group, rows = min_of(all, c->block_rows);
    const int64_t room = (int64_t)c->m->s->value_rows * c->m->s->value_vectors / s->vectors;
    const int64_t step = min_of(max_of(room, 1), rows), rest = rows % step;
    row_tile t = {.strip = s, .rows = step};
    t.first = ir_for_begin(b, "row_tile", ql_i(c, 0), ql_i(c, rows - rest), step, false);
    register_tile(c, tile, &t);
    ir_for_end(b);
    if (!rest) return;
    t = (row_tile){.strip = s, .rows = rest, .first = ql_i(c, rows - rest)};
    register_tile(c, tile, &t);
}

/* Whole vectors of the target, a few at a time, and then ever narrower ones. */
void ql_values_by_rows(q_lanes *c, const q_lanes_tile *tile) {
    const int64_t columns = c->m->p->head_dim_v;
    int lanes = c->m->target->vector_bytes / (c->m->elem == IR_F64 ? 8 : 4);
    for (int64_t first = 0; first < columns;) {
        while (lanes > columns - first) lanes /= 2;
        const int64_t whole = (columns - first) / lanes;
        const strip s = {
            .first = first, .vectors = (int)ceil_div(whole, ceil_div(whole, MHA_STRIP_VECTORS)), .lanes = lanes};
        all_rows(c, tile, &s);
        first += (int64_t)s.vectors * s.lanes;
    }
}
