/* Online softmax: over keys that come tile by tile, for one row or a vector of rows. For each tile:
 *
 *   mha_take_maximum   the running maximum, and the base of the exponentials
 *   mha_exp            p = exp(score - base)
 *   MHA_CHUNKS         their sum, in chunks
 *   mha_join_sum       adds the tile's sum to the earlier sum, which is rescaled
 *
 * and at the end mha_load_sum and mha_log_sum. */
#ifndef ATTUNE_ATTEND_SHARED_SOFTMAX_H
#define ATTUNE_ATTEND_SHARED_SOFTMAX_H

#include "nest/context.h"

/* ---- Exponentials; any lanes ---- */

/* exp((score - base) * mha_score_scale), the difference being at most 0. */
const ir_expr *mha_exp(const mha_context *c, const ir_expr *score, const ir_expr *base);
/* The same for results that are then rounded to bf16; relative error at most 2^-13. */
const ir_expr *mha_short_exp(const mha_context *c, const ir_expr *score, const ir_expr *base);
/* exp(score - lse), for unscaled base-e scores. It may exceed 1 by rounding, or by far if lse belongs to other keys. */
const ir_expr *mha_probability(const mha_context *c, const ir_expr *score, const ir_expr *lse);

/* ---- One tile ---- */

/* The base of the tile's exponentials, and the factor that rescales earlier sums (NULL: there are none). */
typedef struct mha_shrink {
    const ir_expr *base, *factor;
} mha_shrink;

/* Joins the tile's maximum to the running one at `max`, which was `old` before the tile (NULL: this is the first tile).
 * While a row has no visible key, its maximum is -inf and its base 0, so that its exponentials are 0 and not NaN. */
mha_shrink mha_take_maximum(const mha_context *c, const ir_access *max, const ir_expr *old, const ir_expr *tile_max);

/* A sum in registers, beginning with 0; and adding a term to it. */
const ir_access *mha_new_sum(const mha_context *c, const char *name, int lanes);
void mha_add_term(const mha_context *c, const ir_access *sum, const ir_expr *term);

/* Two nested loops over the keys from … to - 1 of the tile: the C block adds the term of a key to `part`, the sum of a
 * chunk of keys; `sum` is the sum of all parts. In one long serial sum, rounding errors would dominate all others.
 * Chunks are counted from the tile's first key, even if the loop begins later. */
enum { MHA_CHUNK = 16 };
typedef struct mha_chunk {
    const ir_expr *key;
    const ir_access *part, *sum;
} mha_chunk;
mha_chunk mha_chunk_begin(const mha_context *c, const ir_access *sum, const ir_expr *from, const ir_expr *to);
void mha_chunk_end(const mha_context *c, const mha_chunk *chunk);
#define MHA_CHUNKS(c, chunk, sum, from, to)                                                                            \
    for (mha_chunk chunk = mha_chunk_begin(c, sum, from, to), *chunk##_is_open = &chunk; chunk##_is_open;              \
         mha_chunk_end(c, &chunk), chunk##_is_open = NULL)

/* ---- Sums over all tiles, of exponentials and of values. With `reproducible`, the low-order parts that additions lose
 * are kept (compensated summation) at the same indices of a buffer `lost`; NULL: they are not kept. ---- */

void mha_clear_sum(const mha_context *c, const ir_access *sum, const ir_buffer *lost);
/* sum = sum * factor + term; factor NULL: sum = term. */
void mha_join_sum(const mha_context *c, const ir_access *sum, const ir_buffer *lost, const ir_expr *factor,
                  const ir_expr *term);
const ir_expr *mha_load_sum(const mha_context *c, const ir_access *sum, const ir_buffer *lost);

/* ---- A sink: the logit of one more key, which comes before all others and has the value 0 ----
 *
 * A sink of +inf or NaN joins at the end instead: the sum of a row with a visible key becomes +inf (so its output
 * becomes 0) or NaN. The output of a row without a visible key is 0 in any case, and its LSE is the sink. */

/* The maximum that a row begins with, which is the sink in the units of scores, and its sum of exponentials with that
 * base. A sink of -inf changes no bit of a row. */
const ir_expr *mha_first_sink(const mha_context *c, const ir_expr *sink);
const ir_expr *mha_first_sum(const mha_context *c, const ir_expr *first_sink);
/* The sum over all keys and the sink; unchanged if `sink` is NULL. Any lanes. */
const ir_expr *mha_sum_with_sink(const mha_context *c, const ir_expr *sum, const ir_expr *sink);

/* ---- The end ---- */

/* scale * max + ln(sum): the logarithm of the sum of exponentials, with the sink if it is not NULL. -inf if sum is 0.
 * If no score is above the sink, it is sink + ln(sum). Any lanes. */
const ir_expr *mha_log_sum(const mha_context *c, const ir_expr *max, const ir_expr *sum, const ir_expr *sink);

#endif
