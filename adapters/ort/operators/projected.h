/* com.microsoft Attention: attention with input projections, whose weights are one matrix [in, q and k and v]. It is a
 * block without an output projection. */
#ifndef ATTUNE_ORT_PROJECTED_H
#define ATTUNE_ORT_PROJECTED_H

#include "ort/model/source.h"

enum { PROJECTED_X, PROJECTED_WEIGHT, PROJECTED_BIAS, PROJECTED_MASK, PROJECTED_PAST, PROJECTED_SCORE_BIAS };

/* The columns of queries, keys and values. False if the weights are not constant or do not fit, with a sentence. */
bool projected_sizes(const node_source *source, int64_t num_heads, int64_t sizes[3],
                     char message[ATTUNE_MESSAGE_BYTES]);

/* Packs the weights of a node. NULL after a failure, with a sentence. */
struct block *projected_create(const node_source *source, int64_t num_heads, char message[ATTUNE_MESSAGE_BYTES]);

#endif
