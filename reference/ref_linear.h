/* Linear attention as attune/linear.h defines it, token after token, in f64. */
#ifndef ATTUNE_REF_LINEAR_H
#define ATTUNE_REF_LINEAR_H

#include <attune.h>

/* One sequence: dense rows [tokens, heads, columns] of the description's types, which names no size as 0. Tensors that
 * the description has not may be NULL. */
typedef struct ref_linear {
    const attune_linear_desc *desc;
    int64_t tokens;
    const void *q, *k, *v, *decay, *beta, *gate, *norm_weights;
} ref_linear;

/* Changes the state [num_kv_heads, head_dim, head_dim_v], and writes out [tokens, heads, head_dim_v]. */
void ref_linear_compute(const ref_linear *r, double *state, double *out);

#endif
