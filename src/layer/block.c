/* The shared memory between the phases of a block, and the common part of its products: rows as tokens, packed weights.
 */
#include "layer/block.h"
#include "nest/pairs.h"

#include <math.h>

/* ---- Shared memory ---- */

/* [batch, heads, tokens, columns]; of a ragged batch [1, heads, all tokens, columns]. */
static const ir_buffer *share(const mha_context *c, const char *name, ir_elem elem, mha_size heads,
                              const ir_expr *tokens, int64_t columns) {
    const ir_expr *batch = c->p->is_ragged ? ir_idx(c->b, 1) : c->params.size[MHA_BATCH];
    const ir_expr *const dims[] = {batch, c->params.size[heads], tokens, ir_idx(c->b, columns)};
    return ir_shared(c->b, name, elem, 4, dims);
}

/* Linformer: K and V as projected, with columns padded to whole register tiles, and the low_rank rows computed from
 * them. */
static void share_low_rank(mha_block *block, const ir_expr *tokens) {
    mha_context *c = block->c;
    const attune_problem *p = c->p;
    const ir_expr *rank = c->params.size[MHA_LOW_RANK];
    block->k = share(c, "projected_k", c->elem, MHA_KV_HEADS, tokens, mha_whole_tiles(c, p->head_dim));
    if (!p->v_in_k)
        block->v = share(c, "projected_v", c->elem, MHA_KV_HEADS, tokens, mha_whole_tiles(c, p->head_dim_v));
    c->k = share(c, "low_k", c->k_elem, MHA_KV_HEADS, rank, p->head_dim);
    c->v = p->v_in_k ? c->k : share(c, "low_v", c->v_elem, MHA_KV_HEADS, rank, p->head_dim_v);
}

/* K and V that no cache holds. */
static void share_keys(mha_block *block, const ir_expr *tokens) {
    mha_context *c = block->c;
    const attune_problem *p = c->p;
    const bool is_prepared_later = mha_prepares(p) && p->is_ragged;
    block->k = share(c, "projected_k", is_prepared_later ? c->elem : c->k_elem, MHA_KV_HEADS, tokens, p->head_dim);
    if (!p->v_in_k) block->v = share(c, "projected_v", c->v_elem, MHA_KV_HEADS, tokens, p->head_dim_v);
    c->k = block->k;
    c->v = p->v_in_k ? block->k : block->v;
}

/* New keys and values, for append.c, or in the caches, where the epilogue writes them. */
static void share_new_keys(mha_block *block, const ir_expr *tokens) {
    mha_context *c = block->c;
    const attune_problem *p = c->p;
    block->k = c->k;
    block->v = p->v_in_k ? NULL : c->v;
    if (!p->is_ragged && !mha_appends_quantised(p)) return;
    c->k_new = block->k = share(c, "projected_k", c->elem, MHA_KV_HEADS, tokens, p->head_dim);
    if (!p->v_in_k) c->v_new = block->v = share(c, "projected_v", c->elem, MHA_KV_HEADS, tokens, p->head_dim_v);
}

/* Attention sees low_rank keys. */
static void see_low_rank(mha_block *block) {
    mha_context *c = block->c;
    block->attention = *c->p;
    block->attention.seq_kv = c->p->low_rank;
    c->p = &block->attention;
    c->params.size[MHA_SEQ_KV] = c->params.size[MHA_LOW_RANK];
}

void mha_narrow_groups(const mha_context *c, mha_packed_section *s) {
    const int64_t width = s->panels * MHA_PANEL;
    if (c->s->gemm_groups != MHA_GROUPS_NARROW || !s->exists || s->columns != s->num_groups * width) return;
    int64_t parts = width / MHA_PANEL_TILE;
    while (width / MHA_PANEL_TILE % parts || s->heads % parts) parts--;
    s->heads /= parts;
    s->group_columns /= parts;
    s->panels /= parts;
    s->num_groups *= parts;
}

bool mha_block_continues(const mha_block *block, mha_projection which, mha_projection next) {
    const mha_packed_section *a = &block->layout.section[which], *b = &block->layout.section[next];
    return b->exists && mha_input_of(block->c, which) == mha_input_of(block->c, next) && a->depth == b->depth &&
           a->panels == b->panels && b->offset == a->offset + a->num_groups * a->panels * mha_packed_panel(a);
}

/* x_planes: the inputs of each product, and the heads, quantised. */
static void share_codes(mha_block *block) {
    mha_context *c = block->c;
    for (mha_projection i = 0; c->p->x_planes && i < MHA_NUM_PROJECTIONS; i++) {
        const mha_packed_section *s = &block->layout.section[i];
        const bool is_out = i == MHA_PROJECT_OUT;
        if (!s->exists || (i > 0 && !is_out && mha_block_continues(block, i - 1, i))) continue;
        const ir_expr *rows = mha_tokens_of(c, is_out ? c->params.tensor[MHA_OUT] : mha_input_of(c, i));
        block->left[i] = mha_quantised_left_of(c, rows, (s->depth + s->group - 1) / s->group, s->group, (int)s->inputs);
    }
}

void mha_block_shared(mha_block *block, mha_context *c) {
    const attune_problem *p = c->p;
    *block = (mha_block){.c = c};
    if (ir_failed(c->b)) return;
    mha_packed_layout_of(p, &block->layout);
    for (int i = 0; i < MHA_NUM_PROJECTIONS; i++) mha_narrow_groups(c, &block->layout.section[i]);
    const ir_expr *queries = c->params.tensor[MHA_X]->dims[1];
    const bool is_prepared_later = mha_prepares(p) && p->is_ragged;
    c->q = block->q = share(c, "projected_q", is_prepared_later ? c->elem : c->q_elem, MHA_HEADS, queries, p->head_dim);
    const ir_elem heads = c->variant.projects_by_pairs ? IR_BF16 : c->elem;
    share_codes(block);
    if (!p->no_out_projection) c->out = share(c, "heads", heads, MHA_HEADS, queries, p->head_dim_v);
    if (p->kv_projected) return;
    const ir_expr *tokens = mha_input_of(c, MHA_PROJECT_K)->dims[1];
    if (p->seq_new)
        share_new_keys(block, tokens);
    else if (p->low_rank)
        share_low_rank(block, tokens);
    else
        share_keys(block, tokens);
    if (p->low_rank) see_low_rank(block);
}

/* ---- Rows ---- */

const ir_buffer *mha_input_of(const mha_context *c, mha_projection projection) {
    const ir_buffer *const *tensor = c->params.tensor;
    if (projection == MHA_PROJECT_V && tensor[MHA_X_V]) return tensor[MHA_X_V];
    return projection != MHA_PROJECT_Q && tensor[MHA_X_KV] ? tensor[MHA_X_KV] : tensor[MHA_X];
}

const ir_expr *mha_tokens_of(const mha_context *c, const ir_buffer *x) {
    return x ? ir_mul(c->b, x->dims[0], x->dims[1]) : NULL;
}

mha_token mha_token_of(const mha_context *c, const ir_buffer *x, const ir_expr *row) {
    ir_builder *b = c->b;
    if (!x || !row) return (mha_token){NULL, NULL};
    const ir_expr *tokens = x->dims[1];
    if (c->p->is_ragged) return (mha_token){ir_idx(b, 0), row};
    if (ir_is(tokens, 1)) return (mha_token){row, ir_idx(b, 0)};
    if (!ir_is_const(tokens)) ir_assume(b, ir_ge(b, tokens, ir_idx(b, 1)));
    const ir_expr *sequence = ir_let_index(b, "sequence", x->dims[0], ir_div(b, row, tokens));
    return (mha_token){sequence, ir_let_index(b, "token", tokens, ir_sub(b, row, ir_mul(b, sequence, tokens)))};
}

/* ---- Packed weights ---- */

int64_t mha_whole_tiles(const mha_context *c, int64_t columns) {
    const int64_t tile = (int64_t)c->s->gemm_column_vectors * c->lanes;
    return (columns + tile - 1) / tile * tile;
}

/* Row 0 of a panel is the bias. The index is expanded into a sum of terms, most of which are added outside inner loops.
 */
static const ir_access *packed(mha_context *c, const mha_gemm *g, const ir_expr *row, const ir_expr *column,
                               int lanes) {
    ir_builder *b = c->b;
    const mha_packed_section *s = g->packed;
    const int64_t panel = mha_packed_panel(s);
    const ir_expr *at = ir_times(b, ir_div(b, column, ir_idx(b, MHA_PANEL)), panel);
    const ir_expr *within = ir_times(b, ir_mod(b, column, ir_idx(b, MHA_PANEL)), s->unit);
    if (lanes < MHA_PANEL) at = ir_add(b, at, within);
    at = ir_add(b, at, ir_times(b, g->column_group, s->panels * panel));
    at = ir_add(b, at, ir_times(b, row, mha_packed_row(s)));
    at = ir_plus(b, at, s->offset);
    return ir_at(b, c->params.tensor[MHA_PACKED_WEIGHTS], lanes * (int)s->unit, 1, at);
}

const ir_expr *mha_packed_bias(mha_context *c, const mha_gemm *g, const ir_expr *column, int lanes) {
    const ir_access *at = packed(c, g, ir_idx(c->b, 0), column, lanes);
    if (g->packed->group) return mha_widened(c, ir_bitcast(c->b, IR_F32, ir_load(c->b, at)));
    return g->packed->inputs == 2 ? mha_half_of_pairs(c, ir_load(c->b, at), 1) : mha_load(c, at);
}

const ir_expr *mha_packed_weight(mha_context *c, const mha_gemm *g, const ir_expr *k, const ir_expr *column,
                                 int lanes) {
    const ir_access *at = packed(c, g, ir_plus(c->b, k, 1 + g->packed->scale_rows), column, lanes);
    return g->packed->inputs == 1 ? mha_load(c, at) : ir_load(c->b, at);
}

/* f16 in the lower (1: the upper) halves of words, as f32. Sign, exponent and fraction are moved to their places in
 * f32; multiplying by a power of two then corrects the bias, for denormals, too. */
static const ir_expr *f16_of(mha_context *c, const ir_expr *words, const ir_expr *half) {
    enum { BITS = 16, LESS_EXPONENT = 3, BIAS = 127 - 15, FIELDS = (int)0x8fffe000 };
    ir_builder *b = c->b;
    if (!words) return NULL;
    const int lanes = words->type.lanes;
    const ir_expr *up = ir_cast(b, IR_I32, ir_times(b, ir_sub(b, ir_idx(b, 1), half), BITS));
    words = ir_apply(b, IR_SHL, words, ir_splat(b, up, lanes), NULL);
    words = ir_apply(b, IR_SHR, words, ir_splat(b, ir_int(b, IR_I32, LESS_EXPONENT), lanes), NULL);
    words = ir_and(b, words, ir_splat(b, ir_int(b, IR_I32, FIELDS), lanes));
    const ir_expr *by = ir_splat(b, ir_float(b, IR_F32, ldexp(1, BIAS)), lanes);
    return ir_mul(b, ir_bitcast(b, IR_F32, words), by);
}

static const ir_expr *packed_scale(mha_context *c, const mha_gemm *g, const ir_expr *step, const ir_expr *column,
                                   int lanes) {
    const ir_expr *two = ir_idx(c->b, 2);
    const ir_access *at = packed(c, g, ir_plus(c->b, ir_div(c->b, step, two), 1), column, lanes);
    return mha_widened(c, f16_of(c, ir_load(c->b, at), ir_mod(c->b, step, two)));
}

int64_t mha_inputs_of_step(const mha_packed_section *s) { return s->group ? s->group : s->inputs; }

const mha_quantised_weights *mha_quantised_weights_of(const mha_block *block, mha_projection projection,
                                                      mha_quantised_weights *weights) {
    const mha_packed_section *s = &block->layout.section[projection];
    const mha_quantised_left *left = &block->left[projection];
    if (!s->group) return NULL;
    *weights =
        (mha_quantised_weights){(int)s->inputs, (int)(s->group / s->inputs), left->values ? left : NULL, packed_scale};
    return weights;
}
