/* A node FLASH_ATTN_EXT: its tensors, and whether attune can compute it. */
#ifndef ATTUNE_GGML_NODE_H
#define ATTUNE_GGML_NODE_H

#include "host.h"

#include "attune.h"

/* How K or V of a type is stored. Strides are in `unit` bytes. */
typedef struct cache_format {
    const char *name;       /* as in text of problems, its scales included */
    int32_t columns, bytes; /* of a block */
    int32_t unit;
    ggml_cache becomes; /* itself, or the type that its rows are converted to first */
} cache_format;
extern const cache_format cache_formats[GGML_NUM_CACHES];

typedef struct ggml_node {
    const ggml_tensor *q, *k, *v, *mask, *sinks, *out; /* mask, sinks: NULL if there is none */
    ggml_cache k_cache, v_cache;
    int64_t streams, heads, kv_heads, rows, keys, dim, dim_v;
    float scale, max_bias, soft_cap;
} ggml_node;

/* Reads shapes and types of a node, no data. NULL: attune can compute it; else the reason why it cannot. */
const char *node_read(const ggml_tensor *op, ggml_node *node);

#endif
