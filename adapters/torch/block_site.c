#include "block_site.h"

/* Two batch entries, so that nothing is taken as broadcast. The kernel serves any number. */
static void describe(const void *key_, attune_problem *p) {
    const block_key *const key = key_;
    p->batch = 2;
    p->num_heads = key->num_heads;
    p->embed_dim = key->embed_dim;
    p->dtype = key->dtype;
    p->seq_q = ATTUNE_DYNAMIC;
    p->is_causal = key->is_causal;
    p->causal_align = ATTUNE_TOP_LEFT; /* a matrix of PyTorch; lengths only end it */
    p->has_kv_lens = key->has_lengths;
    if (key->has_weights) p->weights_mode = ATTUNE_WEIGHTS_SOFTMAX;
    p->weights_average = key->average_weights;
    if (!key->has_mask) return;
    p->attn_mask_dims[0] = key->mask_per_batch ? p->batch : 1;
    p->attn_mask_dims[1] = key->mask_per_head ? p->num_heads : 1;
    p->attn_mask_dims[2] = key->mask_per_row ? ATTUNE_DYNAMIC : 1;
    p->attn_mask_dims[3] = ATTUNE_DYNAMIC;
}

site *block_site(const block_key *key) {
    static site_table table = {.key_bytes = sizeof *key, .describe = describe};
    return site_find(&table, key);
}
