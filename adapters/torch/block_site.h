/* Kernels of whole blocks, by the kind of call. Batch, length and outer strides vary from call to call. */
#ifndef ATTUNE_TORCH_BLOCK_SITE_H
#define ATTUNE_TORCH_BLOCK_SITE_H

#include "adapter.h"

/* One kind of call. Compared as bytes: begin with all zeros. */
typedef struct block_key {
    int64_t embed_dim, num_heads;
    uint8_t dtype; /* attune_dtype */
    uint8_t is_causal, has_lengths, is_ragged;
    uint8_t has_mask, mask_per_batch, mask_per_head, mask_per_row;
    uint8_t has_weights, average_weights;
    uint8_t reserved[6];
} block_key;

typedef struct block_site block_site;

/* The site of a kind of call, made on the first call; NULL if there are too many or memory is short. Thread-safe, and
 * without a lock once the site is there. */
block_site *block_site_find(const block_key *key);

/* Lets children of fork() make sites, too. Called under one lock. */
void block_site_open(void);

const attune_problem *block_site_problem(const block_site *site);

/* Arguments with everything that does not vary set. */
void block_site_arguments(const block_site *site, attune_arguments *arguments);

/* Runs the call on PyTorch's threads. *message has the reason of a failure. */
attune_status block_site_run(block_site *site, const attune_arguments *arguments, const char **message);

#endif
