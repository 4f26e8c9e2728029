/* Integer scores of a K that is not quantised (integer=scores, mha_quantises_keys): two phases before attention
 * quantise K into shared memory.
 *
 *     mean[d]    = (sum_j k[j][d]) / keys        over the keys of a sequence; infinities and NaN count as 0
 *     x[d]       = k[j][d] - mean[d]             or k[j][d], if the largest |x| is no larger without the mean
 *     range      = max_d |x[d]|                  NaN if some x is NaN
 *     quantised[j][d] = rint(x[d] * (127 / range))    0 if that factor is infinite
 *     scale[j]   = range / 127
 *
 * So one key that is much larger than the others spoils the mean, but not the other keys' quantised values: the mean is
 * not subtracted from them.
 *
 * q · mean is the same for all keys of a row. It is added to the scores of the keys whose mean was subtracted, so the
 * steps after the scores need not know of quantisation. Everything except q · mean is computed element by element, and
 * is the same on every target.
 *
 * dot4's first factor is unsigned. So Q is stored as quantised value + 128, and the sums of a key begin with its start,
 * -128 times the sum of its quantised values. With a head_dim of at most 1024, f32 represents a dot product exactly. If
 * an x is infinite or NaN, all quantised values of its row are 0, and 0 times the scale is NaN. */
#ifndef ATTUNE_ATTEND_PREFILL_QUANTISED_KEYS_H
#define ATTUNE_ATTEND_PREFILL_QUANTISED_KEYS_H

#include "attend/shared/sequence.h"
#include "nest/product.h"

/* The first declares the shared buffers, the second writes the phases. Both do nothing if the problem has no such
 * scores. */
void mha_quantised_keys_shared(mha_context *c);
void mha_quantised_keys(mha_context *c);

/* The indices of a key in c->quantised_k. */
const ir_expr *const *mha_quantised_key_index(const mha_context *c, const mha_kv_row *row);

/* ---- Quantised rows ---- */

/* Columns of a quantised row, in scratch and in memory. Columns beyond head_dim are 0. */
int64_t mha_quantised_columns(const mha_context *c);

/* A loop over these columns by vectors; d is the first column of each. */
const ir_expr *mha_quantised_columns_begin(const mha_context *c);
#define MHA_QUANTISED_COLUMNS(c, d)                                                                                    \
    for (const ir_expr *d = mha_quantised_columns_begin(c), *d##_is_open = &ir_open; d##_is_open;                      \
         mha_steps_end(c), d##_is_open = NULL)

/* Scratch for a row before it is quantised. */
const ir_buffer *mha_row_numbers(const mha_context *c);

/* How a row is quantised: quantised value = rint(x * factor), x = quantised value * scale. takes, an i32: -1 if the
 * mean was subtracted from the row, else 0; NULL without a mean. */
typedef struct mha_quantised_scale {
    const ir_expr *factor, *scale, *takes;
} mha_quantised_scale;

/* Loads a row of K or Q into `numbers`. mean: a row of c->quantised_k.mean that may be subtracted from it, or NULL. */
mha_quantised_scale mha_load_numbers(const mha_context *c, const ir_buffer *numbers, const mha_row *from,
                                     const mha_row *mean);

/* x if `takes` is -1, +0 if it is 0, even if x is infinite or NaN. */
const ir_expr *mha_if_taken(const mha_context *c, const ir_expr *takes, const ir_expr *x);

/* The quantised value of x, as i32. */
const ir_expr *mha_quantised_at(const mha_context *c, const ir_expr *x, const ir_expr *factor);

#endif
