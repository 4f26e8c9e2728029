/* A block at run time: packed weights, and the indices of its inputs. */
#ifndef ATTUNE_ORT_BLOCK_H
#define ATTUNE_ORT_BLOCK_H

#include "common/kind.h"
#include "ort/tensor.h"

/* Sizes of a block, and the indices of its inputs. */
typedef struct block_shape {
    attune_dtype dtype;
    attune_weight_layout layout;
    int64_t width, num_heads, head_width, v_head_width;
    int64_t out_width;    /* 0: no product after attention; the result is [batch, rows, heads and columns] */
    int x, bias, padding; /* -1: there is none */
    const char *bias_name, *padding_name; /* static storage */
} block_shape;

typedef struct block block;

/* Whether attune can compute a block of these sizes. */
bool block_is_supported(const block_shape *shape);

/* Packs the weights, indexed by attune_weight_id; data NULL: absent. NULL after a failure, with a sentence. */
block *block_create(const block_shape *shape, const tensor weights[ATTUNE_NUM_WEIGHTS],
                    char message[ATTUNE_MESSAGE_BYTES]);
void block_free(block *b);

const void *block_packed(const block *b);
const block_shape *block_shape_of(const block *b);

/* Sets the fields of a kind of call that belong to a block. */
void block_kind(const block *b, common_kind *kind);

#endif
