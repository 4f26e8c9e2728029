/* Scores in integers of keys that are numbers (integer=scores, mha_quantises_keys): two phases before attention
 * quantise K into shared memory.
 *
 *     mean[d]    = (sum_j k[j][d]) / keys        over the keys of a sequence; what is not finite counts as 0
 *     x[d]       = k[j][d] - mean[d]             or k[j][d], if the largest of these is not larger
 *     range      = max_d |x[d]|                  NaN if some x is NaN
 *     quantised[j][d] = rint(x[d] * (127 / range))    0 if that factor is infinite
 *     scale[j]   = range / 127
 *
 * So a key that is much larger than the others spoils the mean, but not their quantised values, which are then made
 * without it.
 *
 * q . mean is the same for all keys of a row. It is added to the scores of those that it was taken from, so that a
 * score is a score: nothing after it knows of quantisation. All of this but q . mean is element by element, and the
 * same on every target.
 *
 * dot4's first factor is unsigned: quantised Q comes as value + 128, and the sums of a key begin with its start, -128
 * times the sum of its quantised values. With head_dim of at most 1024 a dot is a whole number that f32 holds. If x is
 * infinite or NaN, all quantised values of its row are 0, and 0 times the scale is NaN. */
#ifndef ATTUNE_ATTEND_PREFILL_QUANTISED_KEYS_H
#define ATTUNE_ATTEND_PREFILL_QUANTISED_KEYS_H

#include "attend/shared/sequence.h"
#include "nest/product.h"

/* Declares what the phases write, and the phases. Nothing happens where the problem has no such scores. */
void mha_quantised_keys_shared(mha_context *c);
void mha_quantised_keys(mha_context *c);

/* The indices of a key in c->quantised_k. */
const ir_expr *const *mha_quantised_key_index(const mha_context *c, const mha_kv_row *row);

/* ---- Quantised rows ---- */

/* Columns of a row in scratch and in memory: those beyond head_dim are 0. */
int64_t mha_quantised_columns(const mha_context *c);

/* A loop over these by vectors: d is the first column of each. */
const ir_expr *mha_quantised_columns_begin(const mha_context *c);
#define MHA_QUANTISED_COLUMNS(c, d)                                                                                    \
    for (const ir_expr *d = mha_quantised_columns_begin(c), *d##_is_open = &ir_open; d##_is_open;                      \
         mha_steps_end(c), d##_is_open = NULL)

/* Scratch for the numbers of a row. */
const ir_buffer *mha_row_numbers(const mha_context *c);

/* The factor by which a row is quantised, and the scale: what its quantised values are multiplied by. takes: -1 where
 * its quantised values are of the row less the mean, else 0, an i32; NULL without a mean. */
typedef struct mha_quantised_scale {
    const ir_expr *factor, *scale, *takes;
} mha_quantised_scale;

/* Loads a row of K or Q into `numbers`. mean: a row of c->quantised_k.mean that may be subtracted from it, or NULL. */
mha_quantised_scale mha_load_numbers(const mha_context *c, const ir_buffer *numbers, const mha_row *from,
                                     const mha_row *mean);

/* x, or +0 where `takes` is 0: also of an x that is infinite or NaN. */
const ir_expr *mha_if_taken(const mha_context *c, const ir_expr *takes, const ir_expr *x);

/* Some of these, quantised, as i32. */
const ir_expr *mha_quantised_at(const mha_context *c, const ir_expr *x, const ir_expr *factor);

#endif
