/* Converts tensors of PyTorch to arguments of attention. */
#ifndef ATTUNE_TORCH_ATTENTION_TENSORS_H
#define ATTUNE_TORCH_ATTENTION_TENSORS_H

#include "adapter.h"
#include "common/plans.h"

/* The plans for all calls of attention. */
extern common_plans attention_plans;

/* Whether `scale` is the default, 1 / sqrt(head_dim) or NaN, which is compiled in. Any other scale is an argument of
 * the call, as there may be any number of scales. */
bool attention_is_default_scale(double scale, int32_t head_dim);

/* Describes `mask` of a call. strides: of four dims, 0 for a broadcast dim. False if it cannot be broadcast to these
 * sizes, or if its innermost stride is neither 0 nor 1. */
bool attention_mask_of(const torch_view *view, const int64_t sizes[4], common_mask *mask, int64_t strides[4]);

/* Allocates lse, [batch, heads, rows] in PyTorch's layout [batch, rows, heads], and sets the argument. False if out of
 * memory. attention_lse_stride: its innermost stride, for the kind of call; with one row it may be anything. */
bool attention_make_lse(const int64_t sizes[3], attune_dtype dtype, torch_tensor *lse, attune_arguments *a);
static inline int64_t attention_lse_stride(int64_t heads, int64_t rows) { return rows == 1 ? 1 : heads; }

/* Strides of a tensor for attune. False if the innermost stride is not 1. */
bool attention_strides(const torch_view *view, int64_t strides[4]);

#endif
