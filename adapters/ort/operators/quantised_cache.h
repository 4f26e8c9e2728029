/* Quantised caches of GroupQueryAttention: appends to them in ONNX Runtime's format, so that present has the bytes that
 * ONNX Runtime would write. */
#ifndef ATTUNE_ORT_QUANTISED_CACHE_H
#define ATTUNE_ORT_QUANTISED_CACHE_H

#include "call.h"

typedef struct quantised_cache {
    call *c;
    int bits;               /* 8 or 4 */
    const int32_t *lengths; /* lengths of the sequences if they differ; otherwise NULL */
    tensor k_scale, v_scale;
    float q_norm_eps, k_norm_eps;
    heads out; /* the caller's output, if attune writes to other memory */
} quantised_cache;

/* Normalises and rotates queries and new keys, as the call requires, and writes new keys and values to c->k_cache and
 * c->v_cache. After that, the call attends to these caches and appends nothing. False after a failure. */
bool quantised_append(quantised_cache *cache);

/* Writes the caller's outputs, after call_attend. */
void quantised_finish(const quantised_cache *cache);

#endif
