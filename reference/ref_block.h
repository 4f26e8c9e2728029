/* The same for the whole block: projections, heads, attention, output projection, from weights that were never packed.
 * Attention itself is that of ref_attention.h, on projections that are kept in long double. */
#ifndef ATTUNE_REF_BLOCK_H
#define ATTUNE_REF_BLOCK_H

#include "ref_attention.h"

/* Whether a problem is a block; these functions then need call->weights. */
bool ref_is_block(const attune_problem *problem);

/* ref_attention and ref_attention_plain for any problem, block or not. */
bool ref_compute(const ref_call *call, ref_result *result);
bool ref_compute_plain(const ref_call *call, ref_result *result);

/* ref_mark_seen for a block: seen->k and seen->v are the caches, if there are any, seen->k_new the rows of the keys'
 * input, a byte for each token in the order of its dims; seen->v_new is not looked at. false: out of memory. */
bool ref_block_mark_seen(const ref_call *call, const ref_seen *seen);

#endif
