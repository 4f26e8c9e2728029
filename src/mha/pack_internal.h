/* What the files of packing share: the header of a blob. */
#ifndef ATTUNE_MHA_PACK_INTERNAL_H
#define ATTUNE_MHA_PACK_INTERNAL_H

#include "mha/pack.h"

#include <assert.h>

/* "attune-w", read on a machine whose low byte comes first. */
#define MHA_PACK_MAGIC  UINT64_C(0x772d656e75747461)
#define MHA_PACK_FORMAT UINT64_C(1)

typedef struct mha_pack_header {
    uint64_t magic;
    uint64_t format;
    mha_pack_id id;
    uint64_t bytes;     /* of the blob, header included */
    uint64_t unused[2]; /* 0 */
    uint64_t checksum;  /* of all that is before it and behind it */
} mha_pack_header;
static_assert(sizeof(mha_pack_header) == MHA_PACK_HEADER, "the header has no gaps");

size_t mha_weight_bytes(attune_dtype dtype);

#endif
