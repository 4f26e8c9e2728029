/* Which keys of which tiles mask_mod lets anybody see: a table that a phase of its own fills once in a call, before the
 * wing runs. Prefill skips what no row of a stripe sees, and evaluates the mask only where the rows differ.
 *
 * The table has an element [sequence, head, stripe, tile] for each stripe of rows and tile of keys of prefill/layout.h.
 * Where the mask does not depend on the sequence of the batch, or on the head, it has one sequence, or one head, for
 * all. */
#ifndef ATTUNE_ATTEND_SHARED_MASK_TABLE_H
#define ATTUNE_ATTEND_SHARED_MASK_TABLE_H

#include "attend/shared/sequence.h"

/* Keys of a tile, counted from its first, in units of mask_unit (variant.h): some row of the stripe sees from … to - 1,
 * none if to is 0, and all rows see full_from … full_to - 1, which may be none; whether those are fewer, 0 or 1. Only
 * the last unit may end before it is whole. */
enum { MHA_TILE_FROM, MHA_TILE_TO, MHA_TILE_FULL_FROM, MHA_TILE_FULL_TO, MHA_TILE_IS_MIXED, MHA_TILE_MEMBERS };

/* Declares the table, and fills it in; of kernels with has_mask_table. */
void mha_mask_table_shared(mha_context *c);
void mha_mask_table(mha_context *c);

/* A member of a tile, as i32. */
const ir_expr *mha_mask_table_member(const mha_context *c, const mha_sequence *e, const ir_expr *kv_head,
                                     const ir_expr *stripe, const ir_expr *tile, int member);

#endif
