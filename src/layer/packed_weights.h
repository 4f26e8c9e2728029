/* Packs the weights of a block, and validates a blob. problem/weights_layout.h has the place of each weight. */
#ifndef ATTUNE_LAYER_PACKED_WEIGHTS_H
#define ATTUNE_LAYER_PACKED_WEIGHTS_H

#include "problem/weights_layout.h"

#include <assert.h>

/* "attune-w" on a little-endian machine. */
#define MHA_PACKED_MAGIC  UINT64_C(0x772d656e75747461)
#define MHA_PACKED_FORMAT UINT64_C(3)

typedef struct mha_packed_header {
    uint64_t magic;
    uint64_t format;
    mha_packed_id id;
    uint64_t bytes; /* of the blob, header included */
    mha_packed_id id_without_kv;
    uint64_t checksum; /* of everything except itself */
} mha_packed_header;
static_assert(sizeof(mha_packed_header) == MHA_PACKED_HEADER, "the header has no gaps");

/* Whether a blob's header is of this layout, or of the same layout with k and v as well. A call checks nothing else. */
bool mha_packed_header_matches(const void *packed, mha_packed_id id);

/* The length of a blob according to its header. */
size_t mha_packed_bytes(const void *packed);

/* The public functions of attune.h, for a canonical problem. */
attune_status mha_pack_weights(const attune_problem *canonical, const attune_mha_weights *weights, void *packed,
                               size_t bytes, at_error *err);
attune_status mha_packed_check(const attune_problem *canonical, const void *packed, size_t bytes, at_error *err);
/* The part of the check that only needs the header. */
attune_status mha_packed_check_header(const attune_problem *canonical, const void *packed, at_error *err);

#endif
