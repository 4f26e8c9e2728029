/* A kind of call of an engine, and the problem that computes calls of this kind. Batch, lengths and outer strides are
 * not in it, as they vary from call to call. */
#ifndef ATTUNE_COMMON_KIND_H
#define ATTUNE_COMMON_KIND_H

#include "attune.h"

#include <stdbool.h>

/* A mask or a bias, viewed as [batch, heads, queries, keys]. */
typedef struct common_mask {
    uint8_t dtype;               /* attune_dtype; 0: absent */
    uint8_t rows, columns;       /* 1: it varies along queries, keys */
    uint8_t one_batch, one_head; /* 1: a dim of 1 broadcasts it; 0: the call's stride, which may be 0 */
    uint8_t is_short;            /* it may end before the last key */
    uint8_t reserved[2];
} common_mask;

/* Compared as bytes, so it has no padding. Start from COMMON_KIND_INIT. */
typedef struct common_kind {
    double scale, soft_cap; /* scale NaN: 1 / sqrt(head_dim) */
    double qk_norm_eps;     /* epsilon of the norms of queries and keys; 0: there are none */
    int64_t window_left, window_right;
    int64_t lse_stride; /* stride of the innermost dim; 0: there is no lse */
    int32_t head_dim, head_dim_v, group, rotary_dim;
    int32_t embed_dim, out_dim;      /* of a block, else 0; out_dim 0: no product after attention */
    int32_t num_heads;               /* of a block and with functions, else 0 */
    int32_t batch;                   /* with functions, else 0 */
    uint8_t dtype, k_dtype, v_dtype; /* attune_dtype */
    uint8_t kv_scales;               /* attune_scales of quantised k and v; 0: by token */
    uint8_t has_scale;               /* each call passes its scale */
    uint8_t is_causal, bottom_right, has_causal_offsets, has_kv_lens, has_sinks;
    uint8_t appends, appends_one; /* keys are appended to k and v: any number, or exactly one */
    uint8_t rotary_interleaved, has_position_ids;
    uint8_t weights_mode, weights_average, is_f64, reproducible;
    uint8_t reserved[6];
    common_mask mask, bias;
} common_kind;
_Static_assert(sizeof(common_kind) == 104 + 2 * sizeof(common_mask), "a common_kind has no padding");

#define COMMON_KIND_INIT {.scale = ATTUNE_DEFAULT_SCALE, .window_left = -1, .window_right = -1}

/* Whether all kernels support queries of this type. */
static inline bool common_is_float(attune_dtype dtype) {
    return dtype == ATTUNE_F32 || dtype == ATTUNE_BF16 || dtype == ATTUNE_F16 || dtype == ATTUNE_F64;
}

/* Sets the fields of an initialised problem for a kind of call. functions: a problem with the functions of all calls,
 * and their tensors; or NULL. */
void common_describe(const common_kind *kind, const attune_problem *functions, attune_problem *problem);

#endif
