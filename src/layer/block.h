/* The whole block as phases around attention:
 *
 *   projections   x Wq, x_kv Wk, x_v Wv, each a product of gemm.h. Its epilogue makes rotated heads of a row, in shared
 *                 memory or in the caches. Projections of the same input are one phase
 *   low rank      K and V of each head multiplied from the left
 *   attention     what build.c strings together for attention alone, with c->q, c->k, c->v and c->out in shared memory
 *   output        heads, row by row, times Wo
 *
 * Rows of the products are all tokens of the batch one after the other, so that small sequences fill register tiles
 * together. Of a ragged batch no row knows its sequence: rotary embedding and appending are phases of their own there,
 * as without a block. */
#ifndef ATTUNE_LAYER_BLOCK_H
#define ATTUNE_LAYER_BLOCK_H

#include "nest/gemm.h"
#include "nest/rows.h"
#include "problem/weights_layout.h"

typedef struct mha_block {
    mha_context *c;
    mha_packed_layout layout;
    /* The projections write these, [batch, head, token, column]; NULL: there is no such projection. k and v are the
     * caches where c->k and c->v are. */
    const ir_buffer *q, *k, *v;
    /* Quantised inputs, of the first projection of each product; else empty. */
    mha_quantised_left left[MHA_NUM_PROJECTIONS];
    attune_problem attention; /* c->p of the phases after the projections */
} mha_block;

/* Declares the shared memory between the phases, and points c->q, c->k, c->v and c->out there. Then c->p and c->params
 * are those of attention. */
void mha_block_shared(mha_block *block, mha_context *c);
/* The phases before attention, and the one after it. */
void mha_block_inputs(mha_block *block);
void mha_block_output(mha_block *block);

/* ---- Shared by the files of the block ---- */

/* block_low_rank.c */
void mha_block_low_rank(mha_block *block);

/* The input of a projection: x, x_kv or x_v. */
const ir_buffer *mha_input_of(const mha_context *c, mha_projection projection);

/* A row of a product as sequence and token of x, [batch, token, column]. */
mha_token mha_token_of(const mha_context *c, const ir_buffer *x, const ir_expr *row);
/* All of them. */
const ir_expr *mha_tokens_of(const mha_context *c, const ir_buffer *x);

/* Columns, rounded up to those of register tiles. */
int64_t mha_whole_tiles(const mha_context *c, int64_t columns);

/* gemm_groups=narrow: a task gets no more columns than it must: whole heads and whole register tiles. A column
 * group of the kernel is then a part of a column group of the blob, and lies where a group of that width would. */
void mha_narrow_groups(const mha_context *c, mha_packed_section *s);

/* start and right of a product whose weights are packed: those of g->packed, or of several sections of the same width
 * that follow it. */
const ir_expr *mha_packed_bias(mha_context *c, const mha_gemm *g, const ir_expr *column, int lanes);
const ir_expr *mha_packed_weight(mha_context *c, const mha_gemm *g, const ir_expr *k, const ir_expr *column, int lanes);
/* How the phase of a projection takes its weights: mha_gemm's inputs and codes. NULL: they are not quantised; else the
 * struct that was passed, filled. */
int64_t mha_inputs_of_step(const mha_packed_section *s);
const mha_quantised_weights *mha_quantised_weights_of(const mha_block *block, mha_projection projection,
                                                      mha_quantised_weights *codes);

/* Whether `next` is more column groups of the same product, as far as its input and its weights go. */
bool mha_block_continues(const mha_block *block, mha_projection which, mha_projection next);

#endif
