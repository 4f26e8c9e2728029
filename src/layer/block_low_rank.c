/* Linformer (Wang et al., 2020, equation 7): K and V of each head are multiplied from the left by a matrix [low_rank,
 * seq_kv], so attention has low_rank keys. */
#include "layer/block.h"

typedef struct low_rank {
    const ir_buffer *left;    /* [heads or 1, low_rank, seq_kv] */
    const ir_buffer *right;   /* [batch, kv_head, seq_kv, whole tiles of columns] */
    const ir_buffer *product; /* [batch, kv_head, low_rank, columns] */
    int64_t columns;
} low_rank;

static void load_left(mha_context *c, const mha_gemm *g, const ir_expr *row, const mha_row *to) {
    const low_rank *l = g->user;
    const ir_expr *head = c->p->low_rank_heads ? g->outer[1] : ir_idx(c->b, 0);
    mha_copy_row(c, &(mha_row){l->left, {head, row}, NULL}, to, 0, g->depth);
}

static const ir_expr *zero(mha_context *c, const mha_gemm *g, const ir_expr *column, int lanes) {
    (void)g, (void)column;
    return mha_number(c, 0, lanes);
}

static const ir_expr *right(mha_context *c, const mha_gemm *g, const ir_expr *k, const ir_expr *column, int lanes) {
    const low_rank *l = g->user;
    return mha_load(c, ir_at(c->b, l->right, lanes, 4, g->outer[0], g->outer[1], k, column));
}

static void store(mha_context *c, const mha_gemm *g, const ir_expr *row, const mha_row *from) {
    const low_rank *l = g->user;
    const mha_row to = {l->product, {g->outer[0], g->outer[1], row}, NULL};
    mha_copy_row(c, from, &to, 0, l->columns);
}

static void multiply(mha_context *c, low_rank *l, const char *name) {
    mha_gemm g = {.name = name,
                  .num_outer = 2,
                  .outer_names = {"sequence", "kv_head"},
                  .outer_counts = {c->params.size[MHA_BATCH], c->params.size[MHA_KV_HEADS]},
                  .rows = c->params.size[MHA_LOW_RANK],
                  .depth = l->left && ir_is_const(l->left->dims[2]) ? l->left->dims[2]->value.i : 1,
                  .inputs = 1,
                  .num_groups = 1,
                  .group_columns = mha_whole_tiles(c, l->columns),
                  .user = l,
                  .load_row = load_left,
                  .start = zero,
                  .right = right,
                  .store_row = store};
    mha_gemm_phase(c, &g);
}

void mha_block_low_rank(mha_block *block) {
    mha_context *c = block->c;
    const ir_buffer *const *tensor = c->params.tensor;
    const ir_buffer *values = tensor[MHA_VALUES_LOW] ? tensor[MHA_VALUES_LOW] : tensor[MHA_KEYS_LOW];
    multiply(c, &(low_rank){tensor[MHA_KEYS_LOW], block->k, c->k, c->p->head_dim}, "keys_low_rows");
    if (block->v) multiply(c, &(low_rank){values, block->v, c->v, c->p->head_dim_v}, "values_low_rows");
}
