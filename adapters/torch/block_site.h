/* Calls of whole blocks by kind. Batch, length and outer strides vary from call to call. */
#ifndef ATTUNE_TORCH_BLOCK_SITE_H
#define ATTUNE_TORCH_BLOCK_SITE_H

#include "site.h"

/* One kind of call. Compared as bytes: begin with all zeros. */
typedef struct block_key {
    int64_t embed_dim, num_heads;
    uint8_t dtype; /* attune_dtype */
    uint8_t is_causal, has_lengths;
    uint8_t has_mask, mask_per_batch, mask_per_head, mask_per_row;
    uint8_t has_weights, average_weights;
    uint8_t reserved[7];
} block_key;
_Static_assert(sizeof(block_key) % 8 == 0 && sizeof(block_key) <= SITE_KEY_WORDS * 8, "words of a key");

/* The site of a kind of call, by site_find. */
site *block_site(const block_key *key);

#endif
