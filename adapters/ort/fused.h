/* Blocks that ONNX Runtime fuses into one node each, which attune computes. */
#ifndef ATTUNE_ORT_FUSED_H
#define ATTUNE_ORT_FUSED_H

#include "block_match.h"

typedef struct fused_block fused_block;

/* The blocks that a provider has found in the graphs of its session. Zeros are an empty list. */
typedef struct fused_blocks {
    fused_block *first;
} fused_blocks;

/* Whether attune can compute blocks of these sizes. */
bool fused_is_supported(const block_match *m);

/* Remembers what is needed to compile a block: names, because the graph will be another one. False without memory. */
bool fused_add(fused_blocks *all, const ort_api *api, const block_match *m);

/* Packs the weights of a block, whose graph has its nodes only. */
ort_status *fused_compile(const fused_blocks *all, const ort_api *api, const ort_graph *graph, const ort_node *n,
                          ort_compute **compute);
void fused_release(ort_compute *compute);
void fused_free(fused_blocks *all);

#endif
