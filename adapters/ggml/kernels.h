/* Kernels by the kind of node. They are compiled on a thread of their own, while the host's CPU backend computes. */
#ifndef ATTUNE_GGML_KERNELS_H
#define ATTUNE_GGML_KERNELS_H

#include "common/plans.h"

typedef enum kernel_class {
    KERNEL_PLAIN,
    KERNEL_CAUSAL,
    KERNEL_RANGES,     /* tensors lo, hi */
    KERNEL_HOLES,      /* tensors lo, mid, next, hi */
    KERNEL_LISTS,      /* keys as pages of one key; rows are sequences */
    KERNEL_GROUPS,     /* the same; groups of rows are sequences of a ragged batch, each causal */
    KERNEL_BIAS,       /* the mask as attn_bias */
    KERNEL_HEADS_BIAS, /* the same, one for each head */
    KERNEL_ALIBI,      /* causal; alibi_slopes */
    KERNEL_SLOPES,     /* tensors slope, mask */
    KERNEL_NUM_CLASSES
} kernel_class;

/* Compared as bytes, so it has no padding. */
typedef struct ggml_kind {
    int32_t dim, dim_v, group;
    int32_t heads; /* with KERNEL_SLOPES, else 0 */
    float soft_cap;
    uint8_t class, k_cache, v_cache; /* ggml_cache of types that attune computes with */
    uint8_t has_sinks, v_in_k, has_lens, reserved[2];
} ggml_kind;
_Static_assert(sizeof(ggml_kind) == 28, "a ggml_kind has no padding");

/* The plan of a kind, whose kernels are there. NULL: not yet, or never; *reason says so. Thread-safe, without a lock.
 * The first call for a kind begins to compile, and waits a few milliseconds for kernels that a cache has. */
const common_plan *kernel_of(const ggml_kind *kind, const char **reason);

#endif
