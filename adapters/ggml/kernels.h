/* Kernels by the kind of node. Background threads compile them. Until one is compiled, a general kernel computes,
 * which was compiled when the plug-in was built (scripts/tier0_kernels.sh lists them), or else the host's backend. */
#ifndef ATTUNE_GGML_KERNELS_H
#define ATTUNE_GGML_KERNELS_H

#include "common/plans.h"

typedef enum kernel_class {
    KERNEL_ONE,   /* one row, which attends to all keys */
    KERNEL_PLAIN, /* all rows attend to all keys */
    KERNEL_CAUSAL,
    KERNEL_WINDOW,           /* causal, with a window */
    KERNEL_RANGES,           /* row r attends to keys lo[r] to hi[r] - 1: a mask_mod with two tensors */
    KERNEL_HOLES,            /* the same without keys mid[r] to next[r] - 1: four tensors */
    KERNEL_LISTS,            /* each row has a list of keys (kv_ids) */
    KERNEL_LISTS_BIAS,       /* the same, and a bias for each listed key */
    KERNEL_LISTS_HEADS_BIAS, /* the same, and a bias for each listed key and head */
    KERNEL_PAGES,  /* each row is a sequence, whose pages have one key: slower than kv_ids, but needs no compiler */
    KERNEL_GROUPS, /* each group of rows is a sequence of a ragged batch with such pages, causal, perhaps a window */
    KERNEL_BIAS,   /* the mask is attn_bias */
    KERNEL_HEADS_BIAS,  /* the same with a mask for each head */
    KERNEL_ALIBI,       /* causal, with alibi_slopes */
    KERNEL_WHOLE_ALIBI, /* all rows attend to all keys, with alibi_slopes */
    KERNEL_SLOPES,      /* the mask times a slope for each head: a score_mod with two tensors */
    KERNEL_NUM_CLASSES
} kernel_class;

/* Compared as bytes, so it has no padding. */
typedef struct ggml_kind {
    int32_t dim, dim_v, group;
    int32_t heads;  /* of KERNEL_SLOPES, whose tensor is indexed by head; else 0 */
    int32_t window; /* of KERNEL_WINDOW and KERNEL_GROUPS; 0: none */
    float soft_cap;
    uint8_t class, k_cache, v_cache; /* ggml_cache after conversion: cache_formats[].becomes */
    uint8_t has_sinks, v_in_k, has_lens, reserved[2];
} ggml_kind;
_Static_assert(sizeof(ggml_kind) == 32, "a ggml_kind has no padding");

typedef enum kernel_state { KERNEL_COMPILES, KERNEL_READY, KERNEL_REFUSED } kernel_state;

/* The state of a kind. KERNEL_READY sets *plan, which runs without waiting for a compiler. The first call of a kind
 * begins to compile, and waits up to ATTUNE_DEADLINE_US (3 ms) for that. Thread-safe, without a lock. */
kernel_state kernel_of(const ggml_kind *kind, const common_plan **plan);

#endif
