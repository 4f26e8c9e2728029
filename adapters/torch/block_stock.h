/* A call of aten::_native_multi_head_attention, and PyTorch's kernel for it. */
#ifndef ATTUNE_TORCH_BLOCK_STOCK_H
#define ATTUNE_TORCH_BLOCK_STOCK_H

#include "torch_abi.h"

typedef struct block_call {
    torch_tensor query, key, value, qkv_weight, qkv_bias, out_weight, out_bias, mask;
    int64_t embed_dim, num_heads, mask_type;
    bool has_mask, has_mask_type, need_weights, average_weights;
} block_call;

/* Takes ownership of the arguments; and releases them. */
void block_take(const torch_value *stack, block_call *call);
void block_drop(block_call *call);

/* Runs PyTorch's kernel. Its exceptions propagate to the caller. */
void block_stock(const block_call *call, torch_tensor *out, torch_tensor *weights);

/* Finds the kernel. Returns NULL, or a sentence. */
const char *block_stock_open(void);

#endif
