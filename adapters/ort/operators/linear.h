/* LinearAttention of ONNX and com.microsoft: describes attune's from the attributes and shapes of a node. */
#ifndef ATTUNE_ORT_LINEAR_H
#define ATTUNE_ORT_LINEAR_H

#include "ort/model/source.h"

enum {
    LINEAR_QUERY,
    LINEAR_KEY,
    LINEAR_VALUE,
    LINEAR_PAST,
    LINEAR_DECAY,
    LINEAR_BETA,
    LINEAR_NUM_INPUTS,
};

/* Values of update_rule in the order of attune_linear_rule, and a NULL. */
extern const char *const linear_rules[];

/* Whether the rule has a decay. */
bool linear_has_decay(int64_t rule);

/* Whether attune can compute a node with this update_rule; otherwise message is a sentence. */
bool linear_check(const node_source *source, int64_t rule, char *message);

#endif
