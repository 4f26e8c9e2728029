/* Which keys of which tiles mask_mod lets anybody see: a table that a phase of its own fills once in a call, before the
 * strategy runs. q-lanes skips what no row of a stripe sees, and asks the mask only where the rows differ.
 *
 * The table has an element [entry, head, stripe, tile] for each stripe of rows and tile of keys of q_lanes.h. Where the
 * mask does not depend on the entry of the batch, or on the head, it has one entry, or one head, for all. */
#ifndef ATTUNE_ATTEND_MASK_TILES_H
#define ATTUNE_ATTEND_MASK_TILES_H

#include "attend/entry.h"

/* Keys of a tile, counted from its first: some row of the stripe sees from … to - 1, none if to is 0, and all rows see
 * full_from … full_to - 1, which may be none. */
enum { MHA_TILE_FROM, MHA_TILE_TO, MHA_TILE_FULL_FROM, MHA_TILE_FULL_TO, MHA_TILE_ENDS };

/* Whether a kernel of this problem has the table. */
bool mha_has_mask_tiles(const mha_context *c);
/* Declares it, and fills it in. */
void mha_mask_tiles_shared(mha_context *c);
void mha_mask_tiles(mha_context *c);

/* An end of the keys of a tile, as idx from 0 to `room`. */
const ir_expr *mha_mask_tile_end(const mha_context *c, const ir_expr *entry, const ir_expr *kv_head,
                                 const ir_expr *stripe, const ir_expr *tile, int which, const ir_expr *room);

#endif
