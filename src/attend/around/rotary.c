/* Rotary position embedding (Su et al., "RoFormer", 2021): pairs of columns are rotated by an angle that depends on the
 * position. Rows may also be normalised before (qk_norm.c) and multiplied by the Hadamard matrix after (hadamard.c); a
 * problem has any of the three:
 *
 *     y[0] = x[0] cos - x[1] sin          x is columns (2d, 2d + 1), or (d, d + rotary_dim / 2)
 *     y[1] = x[1] cos + x[0] sin
 *
 * A phase prepares q, and k unless keys are appended, once in shared memory, unrounded. It costs one pass over both,
 * but every task reads them many times. Prepared keys have no pages: sequences may share a page and still differ in
 * cos, sin and positions. */
#include "attend/around/around.h"
#include "nest/pairs.h"

/* ---- One row ---- */

typedef struct rotation {
    const ir_expr *number, *position;
    const mha_normalised *source;
    const mha_row *target;
} rotation;

/* cos or sin of the pairs from `pair` on. */
static const ir_expr *cached(mha_context *c, mha_tensor_id id, const rotation *r, const ir_expr *pair, int lanes) {
    const ir_access *at = ir_at(c->b, c->params.tensor[id], lanes, 3, r->number, r->position, pair);
    return ir_let(c->b, id == MHA_COS ? "cos" : "sin", mha_load(c, at));
}

/* Rotates x[0] and x[1]. All products are rounded alike, so that an angle of 0 changes nothing. */
static void rotate(mha_context *c, const ir_expr *cos, const ir_expr *sin, const ir_expr *x[2]) {
    ir_builder *b = c->b;
    const ir_expr *first = ir_let(b, "first", x[0]), *second = ir_let(b, "second", x[1]);
    x[0] = mha_madd(c, first, cos, ir_neg(b, ir_mul(b, second, sin)));
    x[1] = mha_madd(c, second, cos, ir_mul(b, first, sin));
}

static void store_halves(mha_context *c, const mha_row *target, const ir_expr *const column[2],
                         const ir_expr *const x[2]) {
    uint8_t pick[IR_MAX_LANES];
    if (!x[0] || !x[1]) return;
    const int lanes = x[0]->type.lanes;
    const bool is_rounded = mha_rounds_by_pairs(c, target);
    const ir_expr *both = is_rounded ? ir_let(c->b, "both", mha_both_rounded(c, x[0], x[1])) : NULL;
    for (int i = 0; i < 2; i++) {
        const ir_access *at = mha_row_access(c, target, column[i], lanes);
        for (int l = 0; l < lanes; l++) pick[l] = (uint8_t)(i * lanes + l);
        if (is_rounded)
            ir_store(c->b, at, ir_shuffle(c->b, both, both, lanes, pick));
        else
            mha_store(c, at, x[i]);
    }
}

/* Pairs are (x[d], x[d + half]). */
static void rotate_halves(mha_context *c, const rotation *r, int64_t half) {
    MHA_COLUMNS(c, d, half, c->lanes) {
        const ir_expr *const column[2] = {d.at, ir_plus(c->b, d.at, half)};
        const ir_expr *x[2];
        for (int i = 0; i < 2; i++) x[i] = mha_normalised_load(c, r->source, column[i], d.lanes);
        const ir_expr *sin = cached(c, MHA_SIN, r, d.at, d.lanes), *cos = cached(c, MHA_COS, r, d.at, d.lanes);
        rotate(c, cos, sin, x);
        store_halves(c, r->target, column, x);
    }
}

/* Pairs (x[2d], x[2d + 1]): a vector of both is split into two vectors, and joined again. */
static void rotate_neighbours(mha_context *c, const rotation *r, int64_t half) {
    ir_builder *b = c->b;
    MHA_COLUMNS(c, d, half, c->lanes < IR_MAX_LANES ? c->lanes : IR_MAX_LANES / 2) {
        const ir_expr *column = ir_times(b, d.at, 2);
        uint8_t side[2][IR_MAX_LANES], both[IR_MAX_LANES];
        for (int l = 0; l < 2 * d.lanes; l++) {
            side[l % 2][l / 2] = (uint8_t)l;
            both[l] = (uint8_t)(l / 2 + l % 2 * d.lanes);
        }
        const ir_expr *pairs = ir_let(b, "pairs", mha_normalised_load(c, r->source, column, 2 * d.lanes));
        const ir_expr *x[2];
        for (int i = 0; i < 2; i++) x[i] = ir_shuffle(b, pairs, pairs, d.lanes, side[i]);
        const ir_expr *sin = cached(c, MHA_SIN, r, d.at, d.lanes), *cos = cached(c, MHA_COS, r, d.at, d.lanes);
        rotate(c, cos, sin, x);
        const ir_access *to = mha_row_access(c, r->target, column, 2 * d.lanes);
        for (int i = 0; i < 2; i++) x[i] = ir_let(b, "rotated", x[i]);
        if (mha_rounds_by_pairs(c, r->target))
            ir_store(b, to, ir_pack2(b, x[0], x[1]));
        else
            mha_store(c, to, ir_shuffle(b, x[0], x[1], 2 * d.lanes, both));
    }
}

static void rotate_columns(mha_context *c, const rotation *r) {
    if (c->p->rotary_interleaved)
        rotate_neighbours(c, r, c->p->rotary_dim / 2);
    else
        rotate_halves(c, r, c->p->rotary_dim / 2);
}

void mha_prepare_row(mha_context *c, mha_tensor_id norm, const ir_expr *number, const ir_expr *position,
                     const mha_row *source, const mha_row *target) {
    const mha_normalised row = mha_normalised_open(c, norm, source);
    const mha_row spread = c->p->qk_hadamard ? mha_hadamard_row(c) : *target;
    if (position) rotate_columns(c, &(rotation){number, position, &row, &spread});
    mha_normalised_copy(c, &row, &spread, position ? c->p->rotary_dim : 0, c->p->head_dim);
    if (c->p->qk_hadamard) mha_hadamard(c, &spread, target);
}

/* ---- Queries ---- */

static void prepare_queries(mha_context *c, const ir_buffer *source, const ir_buffer *target) {
    ir_builder *b = c->b;
    IR_PHASE(b) {
        const ir_expr *number = ir_parallel(b, "sequence", c->params.size[MHA_BATCH]);
        const ir_expr *head = ir_parallel(b, "head", c->params.size[MHA_HEADS]);
        const ir_expr *task = ir_parallel(b, "task", mha_row_tasks(c, c->params.size[MHA_SEQ_Q]));
        const mha_sequence e = mha_sequence_open(c, number);
        MHA_ROWS(c, query, task, e.seq_q) {
            const ir_expr *position =
                c->p->rotary_dim ? mha_token_position(c, &e, query, ir_add(b, e.base, query)) : NULL;
            const ir_expr *token = ir_add(b, e.first_q, query);
            const mha_row from = {source, {e.batch, head, token}, NULL}, to = {target, {e.batch, head, token}, NULL};
            mha_prepare_row(c, MHA_Q_NORM, number, position, &from, &to);
        }
    }
}

void mha_rotary_op(mha_context *c) { prepare_queries(c, c->q, c->out); }

/* ---- Keys ---- */

static void prepare_keys(mha_context *c) {
    ir_builder *b = c->b;
    IR_PHASE(b) {
        const ir_expr *number = ir_parallel(b, "sequence", c->params.size[MHA_BATCH]);
        const ir_expr *kv_head = ir_parallel(b, "kv_head", c->params.size[MHA_KV_HEADS]);
        const ir_expr *task = ir_parallel(b, "task", mha_row_tasks(c, c->params.size[MHA_SEQ_KV]));
        const mha_sequence e = mha_sequence_open(c, number);
        MHA_ROWS(c, key, task, e.seq_kv) {
            const ir_expr *position = c->p->rotary_dim ? mha_token_position(c, &e, key, key) : NULL;
            const mha_kv_row row = mha_kv_row_at(c, &e, kv_head, key);
            const mha_row given = mha_kv_row_of(c, c->given_k, &row), to = mha_kv_row_of(c, c->k, &row);
            const mha_row from = mha_dequantised_row(c, &given);
            mha_prepare_row(c, MHA_K_NORM, number, position, &from, &to);
        }
    }
}

void mha_prepare_shared(mha_context *c) {
    const mha_params *params = &c->params;
    const bool is_rotated = c->p->rotary_dim || c->p->qk_hadamard;
    if (ir_failed(c->b)) return;
    c->given_q = c->q;
    c->given_k = c->k;
    c->q = ir_shared(c->b, is_rotated ? "rotated_q" : "normalised_q", c->q_elem, 4, c->q->dims);
    if (!c->prepares_keys) return;
    const ir_expr *const linear[] = {params->size[MHA_BATCH], params->size[MHA_KV_HEADS], params->size[MHA_SEQ_KV],
                                     params->size[MHA_HEAD_DIM]};
    const ir_expr *const as_given[] = {c->k->dims[0], c->k->dims[1], c->k->dims[2], params->size[MHA_HEAD_DIM]};
    c->k_is_linear = c->p->page_size > 0;
    const char *name = is_rotated ? "rotated_k" : "normalised_k";
    c->k = ir_shared(c->b, name, c->k_elem, 4, c->k_is_linear ? linear : as_given);
}

void mha_prepare(mha_context *c) {
    prepare_queries(c, c->given_q, c->q);
    if (c->prepares_keys) prepare_keys(c);
}
