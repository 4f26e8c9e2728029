/* The phases around attention. operator/build.c puts them together, with prefill or decoding between them and those of
 * layer/block.h around them.
 *
 * A builder reads and writes the tensors of its context. If it keeps something in shared memory, it has a function of
 * its own that declares this (…_shared). All of those run before the first phase is opened. */
#ifndef ATTUNE_ATTEND_AROUND_AROUND_H
#define ATTUNE_ATTEND_AROUND_AROUND_H

#include "attend/shared/sequence.h"

/* append.c: c->k_new (prepared) and c->v_new into k and v. */
void mha_append(mha_context *c);
/* The key that new token `token` of a sequence becomes, of `count` that it gets. */
const ir_expr *mha_new_key(const mha_context *c, const mha_sequence *e, const ir_expr *token, const ir_expr *count);

/* rotary.c: q, and k where c->prepares_keys, normalised and rotated into shared memory; c->q and c->k then mean those.
 */
void mha_prepare_shared(mha_context *c);
void mha_prepare(mha_context *c);
/* The op: q rotated into out. */
void mha_rotary_op(mha_context *c);

/* One row of head_dim columns, from source to target: normalised by the weights of `norm` (MHA_Q_NORM or MHA_K_NORM)
 * if the problem has such a tensor, rotated by row `position` of the caches of sequence `number`, and spread by
 * qk_hadamard. A position of NULL: not rotated. */
void mha_prepare_row(mha_context *c, mha_tensor_id norm, const ir_expr *number, const ir_expr *position,
                     const mha_row *source, const mha_row *target);

/* qk_norm.c: a row, and what its columns are multiplied by. */
typedef struct mha_normalised {
    const mha_row *source;
    const ir_buffer *weights; /* NULL: the columns are taken as they are */
    const ir_expr *factor;
} mha_normalised;
mha_normalised mha_normalised_open(mha_context *c, mha_tensor_id norm, const mha_row *source);
const ir_expr *mha_normalised_load(const mha_context *c, const mha_normalised *row, const ir_expr *column, int lanes);
/* Columns first … columns - 1. */
void mha_normalised_copy(const mha_context *c, const mha_normalised *row, const mha_row *target, int64_t first,
                         int64_t columns);

/* hadamard.c: a row in scratch of c->elem, which holds head_dim columns; and that row, multiplied by the Hadamard
 * matrix, into target. */
mha_row mha_hadamard_row(mha_context *c);
void mha_hadamard(mha_context *c, const mha_row *row, const mha_row *target);

/* probabilities.c: the output of scores or probabilities, from c->q, c->k and, for probabilities, c->lse. Op and phase
 * alike.
 */
void mha_probabilities(mha_context *c);

/* merge.c: the op. The same arithmetic serves decode/task.c for its chunks. */
void mha_merge_op(mha_context *c);

#endif
