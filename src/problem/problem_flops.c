/* How much work a problem is. */
#include "problem/problem_sight.h"
#include "problem/signature.h"

static double known(int64_t size) { return size > 0 ? (double)size : 0; }

/* Pairs of all heads and sequences. */
static double all_pairs(const attune_problem *p, const mha_sizes *sizes) {
    const int64_t *of = sizes->of;
    const int64_t seq_kv = p->low_rank ? p->low_rank : of[MHA_SEQ_KV];
    const double keys = known(seq_kv), heads = known(of[MHA_HEADS]);
    if (p->kv_ids) {
        const double rows = p->is_ragged ? known(of[MHA_TOTAL_Q]) : known(of[MHA_BATCH]) * known(of[MHA_SEQ_Q]);
        return heads * rows * known(of[MHA_NUM_IDS]);
    }
    if (p->is_ragged) return heads * known(of[MHA_TOTAL_Q]) * keys;
    if (p->has_row_ids) return heads * known(of[MHA_BATCH]) * known(of[MHA_NUM_ROWS]) * keys;
    if (of[MHA_SEQ_Q] <= 0 || seq_kv <= 0) return 0;
    const mha_queries all = {.seq_q = of[MHA_SEQ_Q], .seq_kv = seq_kv, .end = of[MHA_SEQ_Q]};
    return heads * known(of[MHA_BATCH]) * mha_sight_of_queries(p, &all).pairs;
}

/* Rows of keys that a block projects. */
static double projected_keys(const attune_problem *p, const int64_t *of) {
    if (p->kv_projected) return 0;
    if (p->is_ragged) return known(of[p->seq_new ? MHA_TOTAL_Q : MHA_TOTAL_KV]);
    return known(of[MHA_BATCH]) * known(of[p->seq_new ? MHA_SEQ_NEW : MHA_SEQ_KV]);
}

/* A product and a sum for each element of a projection's weights and each row. */
static double projection_flops(const attune_problem *p, const int64_t *of) {
    const double queries = p->is_ragged ? known(of[MHA_TOTAL_Q]) : known(of[MHA_BATCH]) * known(of[MHA_SEQ_Q]);
    const double q_columns = (double)(p->num_heads * p->head_dim), k_columns = (double)(p->num_kv_heads * p->head_dim);
    const double v_columns = p->v_in_k ? 0 : (double)(p->num_kv_heads * p->head_dim_v);
    const double v_depth = (double)(p->v_embed_dim ? p->v_embed_dim : p->kv_embed_dim);
    double sum = queries * (double)p->embed_dim * q_columns;
    sum += projected_keys(p, of) * ((double)p->kv_embed_dim * k_columns + v_depth * v_columns);
    if (!p->no_out_projection) sum += queries * (double)(p->num_heads * p->head_dim_v) * (double)p->out_dim;
    sum += known(of[MHA_BATCH]) * (double)p->low_rank * known(of[MHA_SEQ_KV]) * (k_columns + v_columns);
    return 2 * sum;
}

double mha_call_flops(const attune_problem *p, const mha_sizes *sizes) {
    const int64_t *of = sizes->of;
    const double rows = known(of[MHA_BATCH]) * known(of[MHA_HEADS]) * known(of[MHA_SEQ_Q]);
    switch (p->op) {
    case ATTUNE_ROTARY: return 3.0 * (double)p->rotary_dim * rows; /* two products and a sum for each element */
    case ATTUNE_MERGE: return 2.0 * (double)p->num_parts * (double)p->head_dim_v * rows;
    case ATTUNE_WEIGHTS: return 2.0 * (double)p->head_dim * all_pairs(p, sizes);
    default: break;
    }
    const double attention = 2.0 * (double)(p->head_dim + p->head_dim_v) * all_pairs(p, sizes);
    return mha_is_block(p) ? attention + projection_flops(p, of) : attention;
}

double mha_problem_flops(const attune_problem *p) {
    mha_sizes sizes;
    mha_compiled_sizes(p, &sizes);
    sizes.of[MHA_BATCH] = p->batch;
    sizes.of[MHA_KV_HEADS] = p->num_kv_heads;
    mha_derive_sizes(p, &sizes);
    return mha_call_flops(p, &sizes);
}
