/* The kernels around the attention of an MLA block, as loop IR: products with packed weights. */
#ifndef ATTUNE_MLA_KERNEL_H
#define ATTUNE_MLA_KERNEL_H

#include "problem/weights_layout.h"

#include <attune.h>

/* What a kernel computes, and its parameters in order. All tensors except q_low and kv_low have the dtype. */
typedef enum mla_kind {
    MLA_PROJECT, /* x: q of all heads, rotated, and the row of the cache */
    MLA_ABSORB,  /* q W_UK of each head, followed by the rotated part */
    MLA_VALUES,  /* latent outputs times W_UV of each head */
    MLA_EXPAND,  /* rows of the cache as keys and values of some heads */
    MLA_OUT,     /* heads times W_O */
    MLA_NUM_KINDS
} mla_kind;

/* The matrices of a block. A matrix for each head has as many adjacent sections of the same size. */
typedef enum mla_matrix {
    MLA_Q_LOW,   /* x to q_lora_rank */
    MLA_Q,       /* q_lora_rank, or x, to heads */
    MLA_KV_LOW,  /* x to kv_lora_rank and the rotated part */
    MLA_UK,      /* of a head: qk_nope_head_dim to kv_lora_rank */
    MLA_UK_BACK, /* of a head: kv_lora_rank to qk_nope_head_dim */
    MLA_UV,      /* of a head: kv_lora_rank to v_head_dim */
    MLA_O,       /* heads to out_dim */
    MLA_NUM_MATRICES
} mla_matrix;

static inline bool mla_is_of_heads(mla_matrix m) { return m == MLA_UK || m == MLA_UK_BACK || m == MLA_UV; }

/* Each kind is for 1 row, or for about 4, 16 or 512, by which register tiles are chosen. */
enum { MLA_NUM_SIZES = 4, MLA_NUM_KERNELS = MLA_NUM_KINDS * MLA_NUM_SIZES };
extern const int64_t mla_rows[MLA_NUM_SIZES];

static inline mla_kind mla_kind_of(uint32_t which) { return (mla_kind)(which / MLA_NUM_SIZES); }

/* Everything that a kernel is specialised for. */
typedef struct mla_kernel {
    attune_mla_desc desc;
    mla_kind kind;
    int64_t rows;
    int64_t heads; /* MLA_EXPAND: of a call */
} mla_kernel;

/* The unabsorbed form computes keys and values of some heads at a time: those of all heads would be large, 335 MB in
 * bf16 with 128 heads and 4096 tokens. */
int64_t mla_heads_at_once(const attune_mla_desc *d);

/* A matrix of a block. Its offset is *end, which then becomes the end of the first head's section. */
void mla_section_of(const attune_mla_desc *d, mla_matrix which, mha_packed_section *s, int64_t *end);

static inline int64_t mla_width(const attune_mla_desc *d) { return d->kv_lora_rank + d->qk_rope_head_dim; }

/* An attune_build_fn, whose user is the context. */
int mla_build(void *user, const attune_build_request *request, attune_ir_writer *w);

#endif
