/* A node of a model: its operator and attributes, checked once. */
#ifndef ATTUNE_ORT_NODE_H
#define ATTUNE_ORT_NODE_H

#include "common/plans.h"
#include "ort/model/source.h"

typedef enum node_op {
    NODE_ATTENTION = 0, /* ai.onnx, opset 23 to 25 */
    NODE_MULTI_HEAD,    /* com.microsoft MultiHeadAttention */
    NODE_GROUP_QUERY,   /* com.microsoft GroupQueryAttention */
    NODE_PROJECTED,     /* com.microsoft Attention */
    NODE_LINEAR,        /* ai.onnx LinearAttention, opset 27 */
    NODE_MS_LINEAR,     /* com.microsoft LinearAttention */
    NODE_CONV,          /* ai.onnx CausalConvWithState, opset 27 */
    NODE_MS_CONV,       /* com.microsoft CausalConvWithState */
    NODE_OP_COUNT,
    NODE_BLOCK = NODE_OP_COUNT, /* a whole block, which the provider has found in a graph */
    NODE_FLEX,                  /* attune FlexAttention: a custom operator only, not in the provider */
    NODE_KIND_COUNT
} node_op;

/* The attributes of all operators; each operator has some of them. */
typedef struct node_attributes {
    int64_t num_heads, kv_num_heads; /* 0: not given */
    float scale;                     /* NaN: 1 / sqrt(head_dim) */
    float soft_cap;                  /* 0: none */
    int64_t is_causal;
    int64_t window_left, window_right; /* -1: open */
    int64_t weights_mode;              /* 0 to 3; only matters if that output is used */
    int64_t precision;                 /* of softmax, as a type of ONNX Runtime; 0: not given */
    int64_t do_rotary, rotary_interleaved;
    int64_t smooth_softmax; /* 1: a sink whose logit is 0 */
    float mask_filter_value;
    int64_t cache_bits;                     /* bits of quantised caches, 8 or 4; 0: not quantised */
    float norm_eps, q_norm_eps, k_norm_eps; /* epsilon of the norms of queries and keys; NaN: norm_eps */
    int64_t update_rule;                    /* an attune_linear_rule */
    int64_t activation, dilation, channels_last;
} node_attributes;

typedef struct node_spec {
    node_op op;
    char name[NODE_MAX_NAME]; /* "" if the model gives none */
    node_attributes attributes;
    bool wants_weights; /* the output of scores */
} node_spec;

/* The operator with this domain and name; NODE_OP_COUNT if attune does not compute it. */
node_op node_op_of(const char *domain, const char *type);

static inline bool node_is_linear(node_op op) { return op == NODE_LINEAR || op == NODE_MS_LINEAR; }
static inline bool node_is_conv(node_op op) { return op == NODE_CONV || op == NODE_MS_CONV; }

/* The registration of an operator. */
typedef struct node_rule {
    const char *domain, *type;
    int first_version, last_version;
    size_t num_inputs, num_required, num_outputs;
} node_rule;
const node_rule *node_rule_of(node_op op);

/* Reads and checks a node. False if attune cannot compute it; then message is a sentence. */
node_attributes node_default_attributes(void);
bool node_describe(const node_source *source, node_op op, node_spec *spec, char message[ATTUNE_MESSAGE_BYTES]);

/* A node that runs. */
typedef struct node {
    const ort_api *api;
    node_spec spec;
    common_plans plans;
    struct block *block;         /* weights and inputs of a block; otherwise NULL */
    attune_problem *functions;   /* of NODE_FLEX: what its functions and their tensors are; otherwise NULL */
    _Atomic(struct kept *) kept; /* of LinearAttention and CausalConvWithState: attune's object */
    node_places *places;         /* of an EPContext node; otherwise NULL: they are in order */
} node;

/* The inputs of an operator with their own types: lengths, positions, masks, caches that may be quantised, and states.
 */
uint32_t node_own_types(node_op op);

/* Those of them whose type an output has, too: caches of GroupQueryAttention, the state of LinearAttention. */
uint32_t node_carried(node_op op);

/* Puts the attributes of an operator's node, or those of a block, into the note of an EPContext node. */
void node_save(const node_source *source, node_op op, note *n);
void node_save_attributes(const node_attributes *a, note *n);

/* The attributes of a block from a note. False if they are invalid; then message is a sentence. */
bool node_recall_attributes(const note *n, node_attributes *a, char message[ATTUNE_MESSAGE_BYTES]);

#endif
