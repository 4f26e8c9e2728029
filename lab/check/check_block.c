/* Random blocks: the fields that attention alone lacks. check_problem.c draws masks, lengths, caches and the rest.
 */
#include "check/check_draft.h"

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

void draft_block(draft *d) {
    static const int8_t group_sizes[] = {1, 1, 1, 2, 3};
    attune_problem *const p = d->p;
    const bool may_cross = d->block == BLOCK_LOW_RANK && draft_chance(d, 40);
    p->num_kv_heads = draft_chance(d, 40) ? 1 : draft_between(d, 2, 4);
    p->num_heads = p->num_kv_heads * group_sizes[draft_between(d, 0, 4)];
    p->is_cross = d->block == BLOCK_CROSS || d->block == BLOCK_CROSS_CACHE || may_cross;
    p->kv_projected = d->block == BLOCK_PROJECTED;
    /* As in most models, or of any size. */
    if (draft_chance(d, 40)) p->head_dim = draft_size(d, 64);
    if (draft_chance(d, 40)) p->head_dim_v = p->head_dim;
    p->embed_dim = draft_chance(d, 40) ? p->num_heads * p->head_dim : draft_size(d, 200);
    if (p->is_cross && draft_chance(d, 60)) p->kv_embed_dim = draft_size(d, 160);
    if (!p->kv_projected && draft_feature(d)) p->v_embed_dim = draft_size(d, 160);
    if (draft_chance(d, 50)) p->out_dim = draft_size(d, draft_chance(d, 20) ? 700 : 200);
    p->no_out_projection = draft_chance(d, 8);
    if (p->no_out_projection) p->out_dim = 0;
    if (d->block == BLOCK_LOW_RANK) p->low_rank = draft_size(d, 60);
}

double draft_block_work(const draft *d) {
    const attune_problem *const p = d->p;
    const double heads = (double)p->num_heads, kv_heads = (double)p->num_kv_heads;
    const double rows = (double)(p->batch * larger(d->rows, 1)), keys = (double)(p->batch * larger(d->keys, 1));
    const double kv_embed = (double)(p->kv_embed_dim ? p->kv_embed_dim : p->embed_dim);
    const double out = (double)(p->out_dim ? p->out_dim : p->embed_dim), dims = (double)(p->head_dim + p->head_dim_v);
    if (!d->block) return 0;
    return 2 * (rows * heads * ((double)p->embed_dim * (double)p->head_dim + out * (double)p->head_dim_v) +
                keys * kv_heads * dims * (kv_embed + (double)p->low_rank));
}

/* A block that takes its keys from x has as many keys as queries. */
void draft_tie_lengths(draft *d) {
    attune_problem *const p = d->p;
    if (d->block != BLOCK_SELF) return;
    d->keys = d->rows;
    p->seq_kv = p->seq_q;
    p->max_seq_kv = 0;
}

/* Low-rank keys have no order, and the number of keys that they mix is known when compiling. */
void draft_low_rank(draft *d) {
    attune_problem *const p = d->p;
    if (!p->is_cross) d->keys = d->rows;
    p->seq_q = d->rows;
    p->seq_kv = d->keys;
    if (p->is_cross && draft_feature(d)) {
        if (draft_chance(d, 8)) d->rows = 0;
        p->seq_q = ATTUNE_DYNAMIC;
    }
    p->low_rank_heads = draft_chance(d, 40);
    p->low_rank_shared = draft_chance(d, 40);
    draft_numbers(d, 0);
    if (p->low_rank_shared && p->head_dim_v <= p->head_dim && !p->v_embed_dim && draft_feature(d)) p->v_in_k = 1;
    if (p->v_in_k) p->v_dtype = ATTUNE_DTYPE_DEFAULT;
    p->has_lse = draft_chance(d, 50);
    draft_flags(d);
    if (!draft_feature(d)) return;
    p->weights_mode = (attune_weights_mode)draft_between(d, ATTUNE_WEIGHTS_SCALED, ATTUNE_WEIGHTS_SOFTMAX);
    p->weights_average = draft_chance(d, 40);
}

/* Leaves out sizes that equal their defaults. */
void draft_leave_out(draft *d) {
    attune_problem *const p = d->p;
    if (p->head_dim_v == p->head_dim && draft_chance(d, 50)) p->head_dim_v = 0;
    if (p->head_dim * p->num_heads == p->embed_dim && draft_chance(d, 50)) p->head_dim = 0;
    if (d->block == BLOCK_SELF && draft_chance(d, 50)) p->seq_kv = 0;
}
