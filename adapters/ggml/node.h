/* A node FLASH_ATTN_EXT: its tensors and numbers, and whether attune can compute it. */
#ifndef ATTUNE_GGML_NODE_H
#define ATTUNE_GGML_NODE_H

#include "host.h"

#include "attune.h"

/* How a type of K or V is stored. */
typedef struct cache_format {
    const char *name;       /* dtype and scales in the text of a problem; NULL: rows are converted first */
    int32_t columns, bytes; /* of a block */
    int32_t unit;           /* bytes that attune's strides count in */
    ggml_cache becomes;     /* the type that rows are converted to; itself if they are not */
} cache_format;
extern const cache_format cache_formats[GGML_NUM_CACHES];

typedef struct ggml_node {
    const ggml_tensor *q, *k, *v, *mask, *sinks, *out; /* mask, sinks: NULL if there is none */
    ggml_cache k_cache, v_cache;
    int64_t streams, heads, kv_heads, rows, keys, dim, dim_v;
    float scale, max_bias, soft_cap;
} ggml_node;

/* Reads shapes, types and parameters of a node, but no data. NULL: attune can compute it; else the reason why not. */
const char *node_read(const ggml_tensor *op, ggml_node *node);

#endif
