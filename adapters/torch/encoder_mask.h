/* Masks of nn.MultiheadAttention's fast path, converted to attune's lengths and masks. */
#ifndef ATTUNE_TORCH_ENCODER_MASK_H
#define ATTUNE_TORCH_ENCODER_MASK_H

#include "torch_abi.h"

/* Elements other than zero hide a key, whatever their type: PyTorch converts the mask to bool. */
typedef enum encoder_mask_kind {
    ENCODER_MASK_NONE = 0, /* nothing is hidden */
    ENCODER_MASK_LENGTHS,  /* each sequence attends to its first keys: lengths */
    ENCODER_MASK_KEEP,     /* anything else: keep */
    ENCODER_MASK_EMPTY,    /* some query has no visible key; PyTorch's fast path gives NaN there */
    ENCODER_MASK_FOREIGN,  /* a type or a shape that is not supported */
    ENCODER_MASK_NO_MEMORY
} encoder_mask_kind;

typedef struct encoder_mask {
    encoder_mask_kind kind;
    bool is_causal;         /* in addition: a query attends to no key after its own position. Not with KEEP */
    bool per_batch;         /* `keep` has one mask for each sequence; otherwise one for all */
    bool per_head, per_row; /* the same for heads and queries */
    int32_t *lengths;       /* [batch] */
    uint8_t *keep;          /* [batch or 1, heads or 1, queries or 1, keys]: 1: visible */
    int32_t few_lengths[16];
} encoder_mask;

/* Reads a mask of the types 0 ([queries, keys]), 1 ([batch, keys]) or 2 ([batch, heads, queries, keys]) of
 * _native_multi_head_attention, with as many keys as queries. Free the result. */
void encoder_mask_read(const torch_view *view, int64_t type, int64_t batch, int64_t heads, int64_t length,
                       encoder_mask *mask);
void encoder_mask_free(encoder_mask *mask);

#endif
