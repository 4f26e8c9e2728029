/* Merges partial results over disjoint keys: of the chunks of decoding, or of the merge op's inputs. */
#ifndef ATTUNE_ATTEND_AROUND_MERGE_H
#define ATTUNE_ATTEND_AROUND_MERGE_H

#include "attend/shared/softmax.h"

/* The parts of one row. Part i is at [index…] with i at part_dim; values have one more dimension, the columns. */
typedef struct mha_parts {
    const ir_buffer *max;    /* maximum of a part's scores, or its LSE */
    const ir_buffer *sum;    /* sum of exponentials relative to the maximum; NULL: 1, as max is the LSE */
    const ir_buffer *values; /* times sum */
    int rank, part_dim;
    const ir_expr *index[4];
    const ir_expr *count;
    int64_t columns;     /* of values; columns beyond head_dim_v are not stored */
    const ir_expr *sink; /* the logit of one more key, whose value is 0; or NULL */
} mha_parts;

/* Writes out[index…] and, unless NULL, lse[index…]. The values of a part whose share is 0 are not read. */
void mha_merge_parts(const mha_context *c, const mha_parts *parts, const ir_buffer *out, const ir_buffer *lse,
                     const ir_expr *const index[3]);

/* out[index…] = values[row] / sum, or 0 if sum is 0. 0 is added, so that there is no -0. values is scratch whose
 * columns are rounded up to vectors. */
void mha_store_divided(const mha_context *c, const ir_buffer *out, const ir_expr *const index[3],
                       const ir_buffer *values, const ir_expr *row, int64_t columns, const ir_expr *sum);

/* ---- Joining one part after the other: a row's bits do not depend on how many parts are joined at a time ---- */

/* How a part with the maximum `max` joins a result with the maximum `old`: the maximum of both, and the factors of the
 * sums and values of the result (kept) and the part (share). */
typedef struct mha_joining {
    const ir_expr *max, *kept, *share;
} mha_joining;
mha_joining mha_join_of(const mha_context *c, const ir_expr *old, const ir_expr *max);
/* old * kept + part * share, each rounded. */
const ir_expr *mha_joined(const mha_context *c, const mha_joining *join, const ir_expr *old, const ir_expr *part);
/* As mha_merge_parts; parts have sums. */
void mha_join_parts(const mha_context *c, const mha_parts *parts, const ir_buffer *out, const ir_buffer *lse,
                    const ir_expr *const index[3]);

#endif
