/* The output projection: the concatenated heads of a token, times Wo. */
#include "layer/block.h"

/* Whether a token belongs to a sequence of a ragged batch. Tokens between and after the sequences have not been
 * computed. */
static const ir_expr *is_owned(mha_context *c, const ir_expr *token) {
    ir_builder *b = c->b;
    const ir_buffer *table = c->params.tensor[MHA_CU_SEQLENS_Q];
    const ir_expr *first = ir_cast(b, IR_IDX, ir_load(b, ir_at(b, table, 1, 1, ir_idx(b, 0))));
    const ir_expr *end = ir_cast(b, IR_IDX, ir_load(b, ir_at(b, table, 1, 1, c->params.size[MHA_BATCH])));
    return ir_and(b, ir_ge(b, token, first), ir_lt(b, token, end));
}

static void load_heads(mha_context *c, const mha_gemm *g, const ir_expr *row, const mha_row *to) {
    ir_builder *b = c->b;
    const mha_token t = mha_token_of(c, c->params.tensor[MHA_OUT], row);
    const int64_t dim = c->p->head_dim_v;
    IR_GUARD(b, c->p->is_ragged, is_owned(c, t.token)) {
        IR_FOR(b, head, ir_idx(b, 0), c->params.size[MHA_HEADS], 1) {
            const mha_row from = {c->out, {t.sequence, head, t.token}, NULL};
            mha_copy_row(c, &from, &(mha_row){to->buffer, {to->index[0]}, ir_times(b, head, dim)}, 0, dim);
        }
    }
    if (!c->p->is_ragged) return;
    IR_ELSE(b) {
        MHA_COLUMNS(c, d, g->depth, c->lanes) {
            mha_store(c, mha_row_access(c, to, d.at, d.lanes), mha_number(c, 0, d.lanes));
        }
    }
}

static mha_token locate_heads(mha_context *c, const mha_gemm *g, const ir_expr *row) {
    (void)g;
    return mha_token_of(c, c->params.tensor[MHA_OUT], row);
}

static const ir_access *heads_at(mha_context *c, const mha_gemm *g, const mha_token *t, const ir_expr *k) {
    (void)g;
    const ir_expr *dim = ir_idx(c->b, c->p->head_dim_v);
    return ir_at(c->b, c->out, 1, 4, t->sequence, ir_div(c->b, k, dim), t->token, ir_mod(c->b, k, dim));
}

static const ir_access *result_at(mha_context *c, const mha_gemm *g, const mha_token *t, const ir_expr *column) {
    const mha_packed_section *s = g->user;
    const ir_expr *first = ir_times(c->b, g->column_group, s->group_columns);
    return ir_at(c->b, c->params.tensor[MHA_OUT], 1, 3, t->sequence, t->token, ir_add(c->b, first, column));
}

/* The last group may have fewer columns. */
static void store_output(mha_context *c, const mha_gemm *g, const ir_expr *row, const mha_row *from) {
    ir_builder *b = c->b;
    const mha_packed_section *s = g->user;
    const ir_buffer *out = c->params.tensor[MHA_OUT];
    const int64_t whole = s->group_columns, rest = s->columns % whole;
    const mha_token t = mha_token_of(c, out, row);
    const mha_row to = {out, {t.sequence, t.token}, ir_times(b, g->column_group, whole)};
    IR_GUARD(b, c->p->is_ragged, is_owned(c, t.token)) {
        IR_GUARD(b, rest, ir_lt(b, g->column_group, ir_idx(b, s->num_groups - 1))) mha_copy_row(c, from, &to, 0, whole);
        if (rest) {
            const mha_row last = {out, {t.sequence, t.token}, ir_idx(b, s->columns - rest)};
            IR_ELSE(b) mha_copy_row(c, from, &last, 0, rest);
        }
    }
}

void mha_block_output(mha_block *block) {
    mha_context *c = block->c;
    if (c->p->no_out_projection) return;
    mha_packed_section *s = &block->layout.section[MHA_PROJECT_OUT];
    mha_quantised_weights quantised;
    mha_gemm g = {.name = "concatenated",
                  .rows = mha_tokens_of(c, c->params.tensor[MHA_OUT]),
                  .depth = s->depth,
                  .inputs = mha_inputs_of_step(s),
                  .quantised = mha_quantised_weights_of(block, MHA_PROJECT_OUT, &quantised),
                  .num_groups = s->num_groups,
                  .group_columns = s->panels * MHA_PANEL,
                  .user = s,
                  .packed = s,
                  .load_row = load_heads,
                  .locate = locate_heads,
                  .left = heads_at,
                  .start = mha_packed_bias,
                  .right = mha_packed_weight,
                  .result = result_at,
                  .store_row = store_output};
    mha_gemm_phase(c, &g);
}
