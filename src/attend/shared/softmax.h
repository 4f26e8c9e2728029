/* The softmax over keys that come tile by tile, of one row or of a vector of rows. For each tile:
 *
 *   mha_take_maximum   the largest score so far, and the base of the exponentials
 *   mha_exp            p = exp(score - base)
 *   MHA_CHUNKS         their sum, by chunks
 *   mha_join_sum       the tile's sum and the sums before, which shrink
 *
 * and at the end mha_load_sum and mha_log_sum. */
#ifndef ATTUNE_ATTEND_SHARED_SOFTMAX_H
#define ATTUNE_ATTEND_SHARED_SOFTMAX_H

#include "nest/context.h"

/* ---- Exponentials; any lanes ---- */

/* exp((score - base) * mha_score_scale), the difference being at most 0. */
const ir_expr *mha_exp(const mha_context *c, const ir_expr *score, const ir_expr *base);
/* The same for values that are rounded to bf16 at once: wrong by 2^-13 at most. */
const ir_expr *mha_short_exp(const mha_context *c, const ir_expr *score, const ir_expr *base);
/* exp(score - lse), of natural scores. A little above 1 at times, or far above if lse is not of these keys. */
const ir_expr *mha_probability(const mha_context *c, const ir_expr *score, const ir_expr *lse);

/* ---- One tile ---- */

/* The base of the tile's exponentials, and the factor by which sums so far shrink (NULL: there are none). */
typedef struct mha_shrink {
    const ir_expr *base, *factor;
} mha_shrink;

/* Joins the tile's maximum to the one at `max`, which was `old` before the tile (NULL: there was none). A row that has
 * seen no key keeps the maximum -inf. Its base is 0, so that its exponentials are 0 and not NaN. */
mha_shrink mha_take_maximum(const mha_context *c, const ir_access *max, const ir_expr *old, const ir_expr *tile_max);

/* A sum in registers that begins with 0, and one that a term is added to. */
const ir_access *mha_new_sum(const mha_context *c, const char *name, int lanes);
void mha_add_term(const mha_context *c, const ir_access *sum, const ir_expr *term);

/* Loops over the keys from … to - 1 of the tile, whose block adds a term for its key to `part`; `sum` is the sum of all
 * parts. Each part is a chunk of keys, because one long serial sum would be the largest rounding error of all. Chunks
 * are counted from the tile's first key, even if the loop begins later. */
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

/* ---- Sums over all tiles, of exponentials as well as of values. Their lost parts lie at the same places of a buffer
 * of their own, `lost` (NULL: there is none). ---- */

void mha_clear_sum(const mha_context *c, const ir_access *sum, const ir_buffer *lost);
/* The sum becomes itself * factor + term. factor NULL: there is no sum yet. */
void mha_join_sum(const mha_context *c, const ir_access *sum, const ir_buffer *lost, const ir_expr *factor,
                  const ir_expr *term);
const ir_expr *mha_load_sum(const mha_context *c, const ir_access *sum, const ir_buffer *lost);

/* ---- The end ---- */

/* scale * base + ln(sum): the logarithm of the sum of exponentials. -inf if sum is 0. Any lanes. */
const ir_expr *mha_log_sum(const mha_context *c, const ir_expr *base, const ir_expr *sum);

/* ---- A sink: the logit of one more key, which a row sees before all others ----
 *
 * One of +inf or NaN joins at the end instead: the sum of a row that sees a key becomes +inf (so its values become 0)
 * or NaN. A row that sees no key gives 0 in any case, and the sink as the logarithm. */

/* The maximum that a row begins with, and its sum of exponentials relative to that. */
const ir_expr *mha_first_sink(const mha_context *c, const ir_expr *sink);
const ir_expr *mha_first_sum(const mha_context *c, const ir_expr *first_sink);
/* The maximum and the sum of all keys, with the sink; as they are if `sink` is NULL. Any lanes. */
const ir_expr *mha_max_with_sink(const mha_context *c, const ir_expr *max, const ir_expr *sink);
const ir_expr *mha_sum_with_sink(const mha_context *c, const ir_expr *sum, const ir_expr *sink);

#endif
