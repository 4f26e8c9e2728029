/* V for products of pairs of bf16: two keys interleaved, column by column. Either each task copies a tile at a time to
 * its scratch (tile_copy.c), or an earlier phase copies all of V once to shared memory, so that short tasks need not
 * repeat it. */
#ifndef ATTUNE_ATTEND_PREFILL_VALUE_PAIRS_H
#define ATTUNE_ATTEND_PREFILL_VALUE_PAIRS_H

#include "attend/shared/sequence.h"

/* Writes V of key `key` and the next one, interleaved, to a row of 2 * head_dim_v elements; 0 for the second unless
 * `has_second`. */
void mha_pair_values(const mha_context *c, const mha_sequence *e, const ir_expr *kv_head, const ir_expr *key,
                     const ir_expr *has_second, const mha_row *target);

/* kv_copy=once: declares c->v_pairs, and writes the phase that fills it before attention. */
void mha_value_pairs_shared(mha_context *c);
void mha_value_pairs(mha_context *c);

/* `lanes` columns of a key of K or V as bf16. fp8 values are converted exactly; other types are rounded. */
const ir_expr *mha_load_pairs(const mha_context *c, const ir_buffer *from, const mha_kv_row *row, const ir_expr *column,
                              int lanes);

#endif
