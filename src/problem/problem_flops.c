/* How much work a problem is. */
#include "base/integers.h"
#include "problem/signature.h"

#include <math.h>

/* The queries and keys of one head of one batch entry. */
typedef struct pairs {
    const attune_problem *p;
    int64_t queries, keys, offset; /* query i stands at i + offset */
} pairs;

/* Keys that a query at position `at` sees. */
static int64_t keys_seen(const pairs *n, int64_t at) {
    const attune_problem *p = n->p;
    const int64_t end = p->is_causal ? max_of(0, min_of(at + 1, n->keys)) : n->keys;
    if ((p->window_left < 0 && p->window_right < 0) || (p->global_tokens && at < p->global_tokens)) return end;
    const int64_t first = p->window_left >= 0 ? max_of(0, at - p->window_left) : 0;
    const int64_t last = p->window_right >= 0 ? min_of(end, at + p->window_right + 1) : end;
    const int64_t everywhere = min_of(p->global_tokens, end); /* keys that all see */
    return everywhere + max_of(0, last - max_of(first, everywhere));
}

/* The sum over all queries. keys_seen is linear in the position between the places where one of its minima changes
 * sides, so each stretch between two of them is an arithmetic series. */
static double count_pairs(const pairs *n) {
    const attune_problem *p = n->p;
    if (!mha_hides_by_position(p)) return (double)n->queries * (double)n->keys;
    const int64_t begin = n->offset, end = n->offset + n->queries, global = p->global_tokens;
    const int64_t left = max_of(p->window_left, 0), right = max_of(p->window_right, 0);
    const int64_t turns[] = {-1,
                             0,
                             global,
                             n->keys - 1,
                             left,
                             global + left,
                             n->keys + left,
                             -1 - right,
                             global - 1 - right,
                             n->keys - 1 - right};
    double sum = 0;
    for (int64_t at = begin; at < end;) {
        int64_t next = end;
        for (size_t i = 0; i < sizeof turns / sizeof *turns; i++)
            for (int64_t turn = turns[i] - 1; turn <= turns[i] + 1; turn++)
                if (turn > at) next = min_of(next, turn);
        sum += (double)(next - at) * ((double)keys_seen(n, at) + (double)keys_seen(n, next - 1)) / 2;
        at = next;
    }
    return sum;
}

static double known(int64_t size) { return size > 0 ? (double)size : 0; }

/* Pairs of all heads and entries. */
static double all_pairs(const attune_problem *p, const mha_sizes *sizes) {
    const int64_t *of = sizes->of;
    const int64_t seq_kv = p->low_rank ? p->low_rank : of[MHA_SEQ_KV];
    const double keys = known(seq_kv), heads = known(of[MHA_HEADS]);
    if (p->is_ragged) return heads * known(of[MHA_TOTAL_Q]) * keys;
    if (p->has_row_ids) return heads * known(of[MHA_BATCH]) * known(of[MHA_NUM_ROWS]) * keys;
    if (of[MHA_SEQ_Q] <= 0 || seq_kv <= 0) return 0;
    const int64_t base = p->causal_align == ATTUNE_BOTTOM_RIGHT ? seq_kv - of[MHA_SEQ_Q] : 0;
    const pairs n = {p, of[MHA_SEQ_Q], seq_kv, base + p->causal_offset};
    return heads * known(of[MHA_BATCH]) * count_pairs(&n);
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
