/* A table of the keys that mask_mod shows, tile by tile. A phase fills it once in a call, before attention. Prefill
 * then skips the keys that are hidden from all rows of a stripe, and evaluates mask_mod only for tiles in which rows
 * differ.
 *
 * The table has an element [sequence, head, stripe, tile] for each stripe of rows and tile of keys (prefill/layout.h).
 * If the mask does not depend on the sequence of the batch, or on the head, it has a single sequence, or head:
 *
 *     keys of a tile     | hidden | some rows | all rows  | some rows | hidden |
 *                        0        from        full_from   full_to     to       kv_tile */
#ifndef ATTUNE_ATTEND_SHARED_MASK_TABLE_H
#define ATTUNE_ATTEND_SHARED_MASK_TABLE_H

#include "attend/shared/sequence.h"

/* Ranges of keys of a tile, counted from its first, in whole units of mask_unit (variant.h), of which the last may be
 * cut off: from … to - 1 has all keys that some row of the stripe attends to (to is 0: none); full_from … full_to - 1
 * are visible to all rows, and may be empty; is_mixed is 1 if the second range is smaller than the first. */
enum { MHA_TILE_FROM, MHA_TILE_TO, MHA_TILE_FULL_FROM, MHA_TILE_FULL_TO, MHA_TILE_IS_MIXED, MHA_TILE_MEMBERS };

/* The first declares the table, the second writes the phase that fills it. For kernels with has_mask_table. */
void mha_mask_table_shared(mha_context *c);
void mha_mask_table(mha_context *c);

/* A member of a tile's element, as i32. */
const ir_expr *mha_mask_table_member(const mha_context *c, const mha_sequence *e, const ir_expr *kv_head,
                                     const ir_expr *stripe, const ir_expr *tile, int member);

#endif
