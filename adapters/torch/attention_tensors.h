/* How tensors of PyTorch become arguments of attention. */
#ifndef ATTUNE_TORCH_ATTENTION_TENSORS_H
#define ATTUNE_TORCH_ATTENTION_TENSORS_H

#include "adapter.h"
#include "common/plans.h"

/* The plans of all calls of attention. */
extern common_plans attention_plans;

/* Whether `scale` is 1 / sqrt(head_dim): the scale that is compiled in. All others are arguments of the call, because
 * there may be any number of them. NaN is the default, too. */
bool attention_is_default_scale(double scale, int32_t head_dim);

/* Describes `mask` of a call. strides: of four dims, 0 where it is broadcast. False if it cannot be broadcast to these
 * sizes, or if its innermost stride is neither 0 nor 1. */
bool attention_mask_of(const torch_view *view, const int64_t sizes[4], common_mask *mask, int64_t strides[4]);

/* Allocates lse, [batch, heads, rows] in the layout [batch, rows, heads] of stock PyTorch, and sets the argument. False
 * if there is no memory. attention_lse_stride: its innermost stride, for the kind of call; of one row it may be any. */
bool attention_make_lse(const int64_t sizes[3], attune_dtype dtype, torch_tensor *lse, attune_arguments *a);
static inline int64_t attention_lse_stride(int64_t heads, int64_t rows) { return rows == 1 ? 1 : heads; }

/* Strides of a tensor for attune, which takes an innermost stride of 1. False if it has another. */
bool attention_strides(const torch_view *view, int64_t strides[4]);

#endif
