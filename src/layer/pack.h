/* Packing the weights of a block, and knowing a blob again. problem/pack_layout.h has the place of each weight. */
#ifndef ATTUNE_LAYER_PACK_H
#define ATTUNE_LAYER_PACK_H

#include "problem/pack_layout.h"

extern const at_struct mha_weights_struct;

/* Whether a blob's header is one of this layout, or of one that has k and v beside it: all that a call looks at. */
bool mha_pack_header_matches(const void *packed, mha_pack_id id);

/* How long a blob's header says it is. */
size_t mha_pack_bytes(const void *packed);

/* What the public functions do, for a canonical problem; see attune.h. */
const char *mha_weight_name(attune_weight_id id);
void mha_weights_init(const attune_problem *canonical, attune_weight_layout layout, attune_mha_weights *weights);
attune_status mha_pack(const attune_problem *canonical, const attune_mha_weights *weights, void *packed, size_t bytes,
                       at_error *err);
attune_status mha_pack_check(const attune_problem *canonical, const void *packed, size_t bytes, at_error *err);
/* The part of the check that looks at the header alone. */
attune_status mha_pack_check_header(const attune_problem *canonical, const void *packed, at_error *err);

#endif
