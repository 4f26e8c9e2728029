/* Linear attention as attune/linear.h defines it, token after token, in f64. */
#ifndef ATTUNE_REF_LINEAR_H
#define ATTUNE_REF_LINEAR_H

#include <attune.h>

#include <stdbool.h>

/* One sequence: dense rows [tokens, heads, columns] of the description's types, which names no size as 0. Tensors that
 * the description has not may be NULL. */
typedef struct ref_linear {
    const attune_linear_desc *desc;
    int64_t tokens;
    const void *q, *k, *v, *decay, *beta, *gate, *norm_weights;
} ref_linear;

/* Changes the state [num_kv_heads, head_dim, head_dim_v], and writes out [tokens, heads, head_dim_v]. limits: NULL, or
 * [tokens, heads, head_dim_v], how far rounding may take a kernel in f32 from out, token after token or in chunks of 8
 * (src/linear); infinite where sums may be beyond the range of f32. state_limits: NULL, or with limits the same for
 * each column of the state before it is stored, [num_kv_heads, head_dim_v]. false: out of memory. */
bool ref_linear_compute(const ref_linear *r, double *state, double *out, double *limits, double *state_limits);

#endif
