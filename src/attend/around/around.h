/* The phases around attention. operator/build.c assembles a kernel from them, with prefill or decoding between them and
 * those of layer/block.h around them.
 *
 * A builder reads and writes the tensors of its context. If it uses shared memory, a function …_shared declares it. All
 * of those are called before the first phase is opened. */
#ifndef ATTUNE_ATTEND_AROUND_AROUND_H
#define ATTUNE_ATTEND_AROUND_AROUND_H

#include "attend/shared/sequence.h"

/* append.c: c->k_new (prepared) and c->v_new into k and v. */
void mha_append(mha_context *c);
/* The key number of new token `token` of a sequence, which gets `count` new tokens. */
const ir_expr *mha_new_key(const mha_context *c, const mha_sequence *e, const ir_expr *token, const ir_expr *count);

/* rotary.c: writes q, and k if c->prepares_keys, normalised and rotated, to shared memory; c->q and c->k are that
 * memory from then on. */
void mha_prepare_shared(mha_context *c);
void mha_prepare(mha_context *c);
/* The op: q rotated into out. */
void mha_rotary_op(mha_context *c);

/* One row of head_dim columns, from source to target: normalised by the weights of `norm` (MHA_Q_NORM or MHA_K_NORM) if
 * the problem has such a tensor, rotated by row `position` of the caches of sequence `number`, and multiplied by the
 * Hadamard matrix (qk_hadamard). position NULL: not rotated. */
void mha_prepare_row(mha_context *c, mha_tensor_id norm, const ir_expr *number, const ir_expr *position,
                     const mha_row *source, const mha_row *target);

/* qk_norm.c: a row, and the factors of its columns. */
typedef struct mha_normalised {
    const mha_row *source;
    const ir_buffer *weights; /* NULL: the columns are not normalised */
    const ir_expr *factor;
} mha_normalised;
mha_normalised mha_normalised_open(mha_context *c, mha_tensor_id norm, const mha_row *source);
const ir_expr *mha_normalised_load(const mha_context *c, const mha_normalised *row, const ir_expr *column, int lanes);
/* Columns first … columns - 1. */
void mha_normalised_copy(const mha_context *c, const mha_normalised *row, const mha_row *target, int64_t first,
                         int64_t columns);

/* hadamard.c: allocates a scratch row of head_dim columns of c->elem; writes that row, multiplied by the Hadamard
 * matrix, to target. */
mha_row mha_hadamard_row(mha_context *c);
void mha_hadamard(mha_context *c, const mha_row *row, const mha_row *target);

/* probabilities.c: the output of scores or probabilities, from c->q, c->k and, for probabilities, c->lse. It is an op,
 * and a phase of attention. */
void mha_probabilities(mha_context *c);

/* merge.c: the op. decode/rows.c merges the chunks of decoding by the same arithmetic. */
void mha_merge_op(mha_context *c);

#endif
