/* Masks of nn.MultiheadAttention's fast path: which keys they hide, in the words of attune. */
#ifndef ATTUNE_TORCH_BLOCK_MASK_H
#define ATTUNE_TORCH_BLOCK_MASK_H

#include "torch_abi.h"

/* Elements other than zero hide a key, whatever their type: PyTorch converts the mask to bool. */
typedef enum block_mask_kind {
    BLOCK_MASK_NONE = 0, /* nothing is hidden */
    BLOCK_MASK_LENGTHS,  /* each sequence attends to its first keys: lengths */
    BLOCK_MASK_KEEP,     /* anything else: keep */
    BLOCK_MASK_EMPTY,    /* some query sees no key. PyTorch's fast path gives NaN there */
    BLOCK_MASK_FOREIGN,  /* a type or a shape that does not belong here */
    BLOCK_MASK_NO_MEMORY
} block_mask_kind;

typedef struct block_mask {
    block_mask_kind kind;
    bool is_causal;         /* besides: a query sees no key after its own position. Not with KEEP */
    bool per_batch;         /* `keep` has one for each sequence, otherwise one */
    bool per_head, per_row; /* the same for heads and queries */
    int32_t *lengths;       /* [batch] */
    uint8_t *keep;          /* [batch or 1, heads or 1, queries or 1, keys]: 1 is seen */
    int32_t few_lengths[16];
} block_mask;

/* Reads a mask of the types 0 ([queries, keys]), 1 ([batch, keys]) or 2 ([batch, heads, queries, keys]) of
 * _native_multi_head_attention, with as many keys as queries. Free the result. */
void block_mask_read(const torch_view *view, int64_t type, int64_t batch, int64_t heads, int64_t length,
                     block_mask *mask);
void block_mask_free(block_mask *mask);

#endif
