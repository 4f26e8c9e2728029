/* The whole block as phases around attention:
 *
 *   projections   x Wq, x_kv Wk, x_v Wv, each a product of gemm.h, of whose rows the epilogue makes rotated heads in
 *                 shared memory or in the caches; those of the same input are one phase
 *   low rank      K and V of each head multiplied from the left
 *   attention     what build.c strings together for attention alone, with c->q, c->k, c->v and c->out in shared memory
 *   output        heads, row by row, times Wo
 */
#ifndef ATTUNE_MHA_BLOCK_H
#define ATTUNE_MHA_BLOCK_H

#include "mha/context.h"

/* Declares what lies between the phases in shared memory and points c->q, c->k, c->v and c->out there. */
void mha_block_shared(mha_context *c);
/* The phases before attention, and the one behind it. */
void mha_block_inputs(mha_context *c);
void mha_block_output(mha_context *c);

#endif
