/* Quantised caches of GroupQueryAttention: appending to them in ONNX Runtime's form, so that present has the bytes that
 * ONNX Runtime would write. */
#ifndef ATTUNE_ORT_QUANTISED_CACHE_H
#define ATTUNE_ORT_QUANTISED_CACHE_H

#include "call.h"

typedef struct quantised_cache {
    call *c;
    int bits;               /* 8 or 4 */
    const int32_t *lengths; /* of the sequences, where they differ; otherwise NULL */
    tensor k_scale, v_scale;
    float q_norm_eps, k_norm_eps;
    heads out; /* the caller's, where attune writes another one */
} quantised_cache;

/* Normalises and rotates queries and new keys, as the call says, and writes new keys and values into c->k_cache and
 * c->v_cache. Afterwards the call attends to these caches and appends nothing. False after a failure. */
bool quantised_append(quantised_cache *cache);

/* Gives the caller its outputs, after call_attend. */
void quantised_finish(const quantised_cache *cache);

#endif
