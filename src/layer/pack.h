/* Packs the weights of a block, and recognises a blob. problem/pack_layout.h has the place of each weight. */
#ifndef ATTUNE_LAYER_PACK_H
#define ATTUNE_LAYER_PACK_H

#include "problem/pack_layout.h"

extern const at_struct mha_weights_struct;

/* Whether a blob's header is one of this layout, or of one that has k and v beside it. A call looks at nothing else. */
bool mha_pack_header_matches(const void *packed, mha_pack_id id);

/* The length of a blob, by its header. */
size_t mha_pack_bytes(const void *packed);

/* The public functions of attune.h, for a canonical problem. */
const char *mha_weight_name(attune_weight_id id);
void mha_weights_init(const attune_problem *canonical, attune_weight_layout layout, attune_mha_weights *weights);
attune_status mha_pack(const attune_problem *canonical, const attune_mha_weights *weights, void *packed, size_t bytes,
                       at_error *err);
attune_status mha_pack_check(const attune_problem *canonical, const void *packed, size_t bytes, at_error *err);
/* The part of the check that looks at the header alone. */
attune_status mha_pack_check_header(const attune_problem *canonical, const void *packed, at_error *err);

#endif
