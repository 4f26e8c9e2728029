/* Kernels by the kind of node. They are compiled on a thread of their own. Until they are there, kernels that were
 * compiled when the plug-in was built compute (scripts/tier0_kernels.sh lists them), else the host's CPU backend. */
#ifndef ATTUNE_GGML_KERNELS_H
#define ATTUNE_GGML_KERNELS_H

#include "common/plans.h"

typedef enum kernel_class {
    KERNEL_ONE,   /* one row, which sees all keys */
    KERNEL_PLAIN, /* all rows see all keys */
    KERNEL_CAUSAL,
    KERNEL_WINDOW,           /* causal, with a window */
    KERNEL_RANGES,           /* tensors lo, hi */
    KERNEL_HOLES,            /* tensors lo, mid, next, hi */
    KERNEL_LISTS,            /* a list of keys for each row */
    KERNEL_LISTS_BIAS,       /* the same, and their biases */
    KERNEL_LISTS_HEADS_BIAS, /* the same, for each head */
    KERNEL_PAGES,       /* such lists as pages of one key, where rows are sequences: slower, and needs no compiler */
    KERNEL_GROUPS,      /* such pages; groups of rows are sequences of a ragged batch, causal, with a window if any */
    KERNEL_BIAS,        /* the mask as attn_bias */
    KERNEL_HEADS_BIAS,  /* the same, one for each head */
    KERNEL_ALIBI,       /* causal; alibi_slopes */
    KERNEL_WHOLE_ALIBI, /* alibi_slopes, all keys */
    KERNEL_SLOPES,      /* tensors slope, mask */
    KERNEL_NUM_CLASSES
} kernel_class;

/* Compared as bytes, so it has no padding. */
typedef struct ggml_kind {
    int32_t dim, dim_v, group;
    int32_t heads;  /* with KERNEL_SLOPES, else 0 */
    int32_t window; /* of KERNEL_WINDOW and KERNEL_GROUPS; 0: none */
    float soft_cap;
    uint8_t class, k_cache, v_cache; /* ggml_cache of types that attune computes with */
    uint8_t has_sinks, v_in_k, has_lens, reserved[2];
} ggml_kind;
_Static_assert(sizeof(ggml_kind) == 32, "a ggml_kind has no padding");

typedef enum kernel_state { KERNEL_COMPILES, KERNEL_READY, KERNEL_REFUSED } kernel_state;

/* Whether there is a plan for a kind, which needs no compiler to run: KERNEL_READY sets *plan. Thread-safe, without a
 * lock. The first call for a kind begins to compile, and waits a few milliseconds for kernels that are there. */
kernel_state kernel_of(const ggml_kind *kind, const common_plan **plan);

#endif
