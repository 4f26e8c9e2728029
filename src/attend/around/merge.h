/* Merges partial results over disjoint keys: those of chunks of keys, and those that the merge op gets. */
#ifndef ATTUNE_ATTEND_AROUND_MERGE_H
#define ATTUNE_ATTEND_AROUND_MERGE_H

#include "attend/shared/softmax.h"

/* The parts of one row. Part i of it is [index…] with i at part_dim; values have one more dimension, the columns. */
typedef struct mha_parts {
    const ir_buffer *max;    /* maximum of its scores; or its LSE */
    const ir_buffer *sum;    /* sum of exponentials relative to the maximum; NULL: 1, max being the LSE */
    const ir_buffer *values; /* times sum */
    int rank, part_dim;
    const ir_expr *index[4];
    const ir_expr *count;
    int64_t columns;     /* of values; those beyond head_dim_v are not stored */
    const ir_expr *sink; /* the logit of one more key with value 0; or NULL */
} mha_parts;

/* Writes out[index…] and, unless NULL, lse[index…]. A part whose share is 0 is not read. */
void mha_merge_parts(const mha_context *c, const mha_parts *parts, const ir_buffer *out, const ir_buffer *lse,
                     const ir_expr *const index[3]);

/* out[index…] = values[row] / sum, 0 if sum is 0; 0 is added, which leaves no -0. values: scratch, columns rounded up
 * to vectors. */
void mha_store_divided(const mha_context *c, const ir_buffer *out, const ir_expr *const index[3],
                       const ir_buffer *values, const ir_expr *row, int64_t columns, const ir_expr *sum);

/* ---- Part by part, in their order: the bits of a row do not depend on how many parts come at once ---- */

/* Something whose maximum is `old`, and a part whose maximum is `max`: the maximum of both, and the factors of their
 * sums and values. */
typedef struct mha_join {
    const ir_expr *max, *kept, *share;
} mha_join;
mha_join mha_join_of(const mha_context *c, const ir_expr *old, const ir_expr *max);
/* old * kept + part * share, each rounded. */
const ir_expr *mha_joined(const mha_context *c, const mha_join *join, const ir_expr *old, const ir_expr *part);
/* As mha_merge_parts; parts have sums. */
void mha_join_parts(const mha_context *c, const mha_parts *parts, const ir_buffer *out, const ir_buffer *lse,
                    const ir_expr *const index[3]);

#endif
