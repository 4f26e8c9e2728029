/* The convolution, the index, the estimate of blocks and the MLA block as their headers define them, in plain loops in
 * f64. Linear attention has a file of its own, ref_linear.h.
 *
 * Descriptions name no size as 0. Tensors are dense. limits: how far rounding may take sums in f32 from the result,
 * before it is stored in its type. */
#ifndef ATTUNE_REF_DESCRIBED_H
#define ATTUNE_REF_DESCRIBED_H

#include <attune.h>

#include <stdbool.h>

/* One sequence of the convolution: x is [tokens, channels]. */
typedef struct ref_conv {
    const attune_conv_desc *desc;
    int64_t tokens;
    const void *x, *weights, *bias;
} ref_conv;

/* Changes the state [(taps - 1) dilation, channels], and writes out and limits [tokens, channels]. false: out of
 * memory. */
bool ref_conv_compute(const ref_conv *r, double *state, double *out, double *limits);

/* One query of an index, whose keys lie one after the other from k on, or in pages. */
typedef struct ref_index {
    const attune_index_desc *desc;
    const void *q, *k, *w;          /* [num_heads, head_dim], [keys, head_dim], [num_heads] */
    const float *q_scale, *k_scale; /* [num_heads], [keys]; of i8 and f8 */
    const int32_t *pages;           /* NULL: none */
} ref_index;

/* The scores of the first `keys` keys. */
void ref_index_compute(const ref_index *r, int64_t keys, double *scores, double *limits);

/* One query head of the estimate of blocks: q is [seq_q, head_dim], k [seq_kv, head_dim]. */
typedef struct ref_blocks {
    const attune_blocks_desc *desc;
    int64_t seq_q, seq_kv;
    const void *q, *k;
} ref_blocks;

/* Writes shares and limits [row blocks, key blocks]. false: out of memory. */
bool ref_blocks_compute(const ref_blocks *r, double *shares, double *limits);

/* One sequence of an MLA block, in the unabsorbed form: x is [tokens, embed_dim], the sequence's last tokens. */
typedef struct ref_mla {
    const attune_mla_desc *desc;
    const attune_mla_weights *weights;
    int64_t tokens, keys;
    const void *x;
    const float *cos, *sin;   /* [positions, qk_rope_head_dim / 2] */
    const int32_t *positions; /* [tokens]; NULL: each token's place in the sequence */
} ref_mla;

/* rows: [keys, kv_lora_rank + qk_rope_head_dim], the sequence's rows of the cache; those of the new tokens are written.
 * row_limits is of the same shape; out and limits are [tokens, out_dim]. Limits are eight times the rounding errors
 * that are expected in either form, taken as independent. false: out of memory. */
bool ref_mla_compute(const ref_mla *r, double *rows, double *row_limits, double *out, double *limits);

#endif
