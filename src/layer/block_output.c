/* The output projection: the heads of a token, one after the other, times Wo. */
#include "layer/block.h"
#include "nest/rows.h"

/* Whether some entry of a ragged batch owns the token. Nothing has been computed of those between and behind. */
static const ir_expr *is_owned(mha_context *c, const ir_expr *token) {
    ir_builder *b = c->b;
    const ir_buffer *table = c->params.tensor[MHA_CU_SEQLENS_Q];
    const ir_expr *first = ir_cast(b, IR_IDX, ir_load(b, ir_at(b, table, 1, 1, mha_i(c, 0))));
    const ir_expr *end = ir_cast(b, IR_IDX, ir_load(b, ir_at(b, table, 1, 1, c->params.size[MHA_BATCH])));
    return ir_apply(b, IR_AND, ir_apply(b, IR_GE, token, first, NULL), ir_apply(b, IR_LT, token, end, NULL), NULL);
}

static void load_heads(mha_context *c, const mha_gemm *g, const ir_expr *row, const ir_buffer *slab,
                       const ir_expr *slab_row) {
    ir_builder *b = c->b;
    const mha_token t = mha_token_of(c, c->params.tensor[MHA_OUT], row);
    const int64_t dim = c->p->head_dim_v;
    if (c->p->is_ragged) ir_if_begin(b, is_owned(c, t.token));
    const ir_expr *head = ir_for_begin(b, "head", mha_i(c, 0), c->params.size[MHA_HEADS], 1, false);
    const mha_row from = {c->out, {t.entry, head, t.token}, NULL};
    const mha_row to = {slab, {slab_row}, ir_mul(b, head, mha_i(c, dim))};
    mha_copy_row(c, &from, &to, 0, dim);
    ir_for_end(b);
    if (!c->p->is_ragged) return;
    ir_if_else(b);
    const mha_columns d = mha_columns_begin(c, g->depth, c->lanes);
    mha_store(c, ir_at(b, slab, d.lanes, 2, slab_row, d.at), mha_number(c, 0, d.lanes));
    ir_for_end(b);
    ir_if_end(b);
}

static mha_token locate_heads(mha_context *c, const mha_gemm *g, const ir_expr *row) {
    (void)g;
    return mha_token_of(c, c->params.tensor[MHA_OUT], row);
}

static const ir_access *heads_at(mha_context *c, const mha_gemm *g, const mha_token *t, const ir_expr *k) {
    (void)g;
    const ir_expr *dim = mha_i(c, c->p->head_dim_v);
    return ir_at(c->b, c->out, 1, 4, t->entry, ir_div(c->b, k, dim), t->token, ir_mod(c->b, k, dim));
}

static const ir_access *result_at(mha_context *c, const mha_gemm *g, const ir_expr *group, const mha_token *t,
                                  const ir_expr *column) {
    const mha_pack_section *s = g->user;
    const ir_expr *first = ir_mul(c->b, group, mha_i(c, s->group_columns));
    return ir_at(c->b, c->params.tensor[MHA_OUT], 1, 3, t->entry, t->token, ir_add(c->b, first, column));
}

/* The last group may have fewer columns. */
static void store_output(mha_context *c, const mha_gemm *g, const ir_expr *group, const ir_expr *row,
                         const ir_buffer *tile, const ir_expr *tile_row) {
    ir_builder *b = c->b;
    const mha_pack_section *s = g->user;
    const ir_buffer *out = c->params.tensor[MHA_OUT];
    const int64_t whole = s->group_columns, rest = s->columns % whole;
    const mha_token t = mha_token_of(c, out, row);
    const mha_row from = {tile, {tile_row}, NULL};
    const mha_row to = {out, {t.entry, t.token}, ir_mul(b, group, mha_i(c, whole))};
    if (c->p->is_ragged) ir_if_begin(b, is_owned(c, t.token));
    if (rest) ir_if_begin(b, ir_apply(b, IR_LT, group, mha_i(c, s->num_groups - 1), NULL));
    mha_copy_row(c, &from, &to, 0, whole);
    if (rest) {
        const mha_row last = {out, {t.entry, t.token}, mha_i(c, s->columns - rest)};
        ir_if_else(b);
        mha_copy_row(c, &from, &last, 0, rest);
        ir_if_end(b);
    }
    if (c->p->is_ragged) ir_if_end(b);
}

void mha_block_output(mha_block *block) {
    mha_context *c = block->c;
    if (c->p->no_out_projection) return;
    mha_pack_section *s = &block->layout.section[MHA_PROJECT_OUT];
    mha_gemm g = {.name = "concatenated",
                  .rows = mha_tokens_of(c, c->params.tensor[MHA_OUT]),
                  .depth = s->depth,
                  .right_is_paired = s->inputs == 2,
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
