/* A whole block: phases around attention.
 *
 *   projections   x Wq, x_kv Wk, x_v Wv, each a product of gemm.h. Its epilogue splits a row into heads, rotates them
 *                 and writes them to shared memory or to the caches. Projections of the same input are one phase
 *   low rank      K and V of each head, multiplied from the left
 *   attention     the phases of attention alone, with c->q, c->k, c->v and c->out in shared memory
 *   output        the heads of a token, concatenated, times Wo
 *
 * The rows of the products are the tokens of all sequences, so that short sequences share register tiles. In a ragged
 * batch a row does not know its sequence: there, rotary embedding and appending are separate phases, as without a
 * block. */
#ifndef ATTUNE_LAYER_BLOCK_H
#define ATTUNE_LAYER_BLOCK_H

#include "nest/gemm.h"
#include "nest/rows.h"
#include "problem/weights_layout.h"

typedef struct mha_block {
    mha_context *c;
    mha_packed_layout layout;
    /* What the projections write, [batch, head, token, column]; NULL: there is no such projection. k and v are the
     * caches if c->k and c->v are. */
    const ir_buffer *q, *k, *v;
    /* Quantised inputs, at the first projection of each product; otherwise empty. */
    mha_quantised_left left[MHA_NUM_PROJECTIONS];
    attune_problem attention; /* c->p for the phases after the projections */
} mha_block;

/* Declares the shared memory between the phases, and sets c->q, c->k, c->v and c->out to it, and c->p and c->params to
 * those of attention. */
void mha_block_shared(mha_block *block, mha_context *c);
/* The phases before attention, and the one after it. */
void mha_block_inputs(mha_block *block);
void mha_block_output(mha_block *block);

/* ---- Shared by the files of the block ---- */

/* block_low_rank.c */
void mha_block_low_rank(mha_block *block);

/* The input of a projection: x, x_kv or x_v. */
const ir_buffer *mha_input_of(const mha_context *c, mha_projection projection);

/* The sequence and token of x, [batch, token, column], for a row of a product. */
mha_token mha_token_of(const mha_context *c, const ir_buffer *x, const ir_expr *row);
/* All of them. */
const ir_expr *mha_tokens_of(const mha_context *c, const ir_buffer *x);

/* Columns, rounded up to whole register tiles. */
int64_t mha_whole_tiles(const mha_context *c, int64_t columns);

/* gemm_groups=narrow: a task gets as few columns as possible: whole heads and whole register tiles. A column group of
 * the kernel is then a part of a column group of the blob. */
void mha_narrow_groups(const mha_context *c, mha_packed_section *s);

/* start and right of a product with packed weights: of g->packed, or of several adjacent sections of the same width. */
const ir_expr *mha_packed_bias(mha_context *c, const mha_gemm *g, const ir_expr *column, int lanes);
const ir_expr *mha_packed_weight(mha_context *c, const mha_gemm *g, const ir_expr *k, const ir_expr *column, int lanes);
/* Fills in how a projection's weights are packed: mha_gemm's inputs and quantised weights. Returns NULL if they are not
 * quantised, else the struct that was passed. */
int64_t mha_inputs_of_step(const mha_packed_section *s);
const mha_quantised_weights *mha_quantised_weights_of(const mha_block *block, mha_projection projection,
                                                      mha_quantised_weights *weights);

/* Whether the weights of `next` can be further column groups of the same product: same input, adjacent sections. */
bool mha_block_continues(const mha_block *block, mha_projection which, mha_projection next);

#endif
