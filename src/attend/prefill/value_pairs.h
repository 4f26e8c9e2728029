/* V where products are of pairs of bf16: the values of two keys side by side, column by column. A tile of them in
 * scratch for each task (tile_copy.c); or all of V once, in shared memory, so that tasks may be short. */
#ifndef ATTUNE_ATTEND_PREFILL_VALUE_PAIRS_H
#define ATTUNE_ATTEND_PREFILL_VALUE_PAIRS_H

#include "attend/shared/sequence.h"

/* Writes the pair of keys `key` and the next one into a row of 2 * head_dim_v numbers; 0 in the place of the second
 * unless `has_second`. */
void mha_pair_values(const mha_context *c, const mha_sequence *e, const ir_expr *kv_head, const ir_expr *key,
                     const ir_expr *has_second, const mha_row *target);

/* kv_copy=once: a phase that fills c->v_pairs before the strategy runs. */
void mha_value_pairs_shared(mha_context *c);
void mha_value_pairs(mha_context *c);

/* `lanes` columns of a key of K or V as bf16; of fp8 values, whose numbers bf16 holds, as well. */
const ir_expr *mha_load_pairs(const mha_context *c, const ir_buffer *from, const mha_kv_row *row, const ir_expr *column,
                              int lanes);

#endif
