/* attune FlexAttention: ONNX's preview operator with its subgraphs as text. Python's attune.onnx.rewrite writes it.
 *     score_mod, mask_mod, prob_mod    functions, in the language of problems
 *     tensors                          declarations of what they read: inputs after Q, K and V, in this order
 *     sizes                            [batch, heads, queries, keys] that the functions are of, -1: any
 *     scale, softmax_precision         as ONNX's */
#ifndef ATTUNE_ORT_FLEX_H
#define ATTUNE_ORT_FLEX_H

#include "ort/model/source.h"

enum { FLEX_TENSORS = 3, FLEX_NUM_INPUTS = FLEX_TENSORS + ATTUNE_MAX_USER_TENSORS };

/* A problem that has the node's functions and their tensors; free it. NULL after a failure: message is a sentence. */
attune_problem *flex_create(const node_source *source, char message[ATTUNE_MESSAGE_BYTES]);

/* How many tensors functions read. */
int flex_count_tensors(const attune_problem *functions);

/* Sets the tensors that functions read. */
void flex_arguments(const attune_problem *functions, const tensor *users, attune_arguments *arguments);

#endif
