/* Finds whole blocks of attention in the graph of a model: x, products with constant weights, attention, and the
 * product after it, as exporters write them. Attention is either the nodes that PyTorch exports (MatMul, Softmax,
 * MatMul …), or a node of com.microsoft, MultiHeadAttention or Attention. */
#ifndef ATTUNE_ORT_BLOCK_MATCH_H
#define ATTUNE_ORT_BLOCK_MATCH_H

#include "ort/operators/node.h"
#include "trace.h"

/* The inputs and outputs of a block. Weights are indexed by attune_weight_id. */
enum {
    BLOCK_X = ATTUNE_NUM_WEIGHTS,
    BLOCK_BIAS,    /* added to the scores */
    BLOCK_PADDING, /* the key_padding_mask, or mask_index */
    BLOCK_RESULT,
    BLOCK_NUM_VALUES
};

typedef struct block_match {
    const ort_value_info *value[BLOCK_NUM_VALUES]; /* NULL: there is none */
    node_spec spec;
    attune_weight_layout layout;
    int type; /* of ONNX Runtime */
    int64_t width, num_heads, head_width, v_head_width, out_width;
    bool has_product; /* after attention */
    const ort_node *nodes[TRACE_MAX_NODES];
    size_t num_nodes;
} block_match;

/* Whether the node is the middle of a block that attune can compute. pairs: inputs and results of earlier blocks. */
bool block_match_at(const ort_api *api, const ort_node *n, const trace_pair *pairs, size_t num_pairs, block_match *m);

#endif
