/* The independent truth: attention as the formula has it, in plain loops that share no code with the library.
 *
 * Inputs lie as the problem's strides say (zero strides: contiguous); outputs are always contiguous:
 * out [batch, num_heads, seq_q, head_dim_v], lse [batch, num_heads, seq_q] (lse may be NULL).
 * Keys that causality hides are never read. A row without a key, or with no score above
 * -infinity, gives 0, and -infinity in lse. */
#ifndef ATTUNE_TESTS_REF_ATTENTION_H
#define ATTUNE_TESTS_REF_ATTENTION_H

#include <attune.h>
#include <stdbool.h>

/* In double throughout. false: out of memory. */
bool ref_attention(const attune_problem *problem, const float *q, const float *k, const float *v, double *out,
                   double *lse);

/* What anyone would write first, in f32 with serial sums and expf: the yardstick for rounding errors. */
bool ref_attention_plain(const attune_problem *problem, const float *q, const float *k, const float *v, float *out,
                         float *lse);

#endif
