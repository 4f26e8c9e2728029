/* Shared by the files of packing: the header of a blob, and the places where packing reads. */
#ifndef ATTUNE_LAYER_PACK_INTERNAL_H
#define ATTUNE_LAYER_PACK_INTERNAL_H

#include "layer/pack.h"

#include <assert.h>

/* "attune-w", read on a machine whose low byte comes first. */
#define MHA_PACK_MAGIC  UINT64_C(0x772d656e75747461)
#define MHA_PACK_FORMAT UINT64_C(3)

typedef struct mha_pack_header {
    uint64_t magic;
    uint64_t format;
    mha_pack_id id;
    uint64_t bytes; /* of the blob, header included */
    mha_pack_id id_without_kv;
    uint64_t checksum; /* of everything except itself */
} mha_pack_header;
static_assert(sizeof(mha_pack_header) == MHA_PACK_HEADER, "the header has no gaps");

/* Codes with their scale, as callers give them: rows of ggml's q8_0 and q4_0. */
enum { MHA_BLOCK = 32 };

/* The weights of one projection, wherever they come from. */
typedef struct mha_pack_source {
    const char *name;                       /* of the tensor */
    int64_t first_output;                   /* of the tensor's outputs */
    attune_dtype dtype;                     /* of weights: the problem's w_dtype, or numbers to make its codes of */
    attune_dtype bias_dtype;                /* the same */
    const unsigned char *weight;            /* of input 0 and output 0 */
    const unsigned char *bias;              /* of output 0; NULL: none */
    size_t between_outputs, between_inputs; /* bytes from one weight to the next */
    size_t stride;                          /* the larger one */
    size_t block;                           /* bytes of MHA_BLOCK inputs of an output, which are codes; 0: numbers */
} mha_pack_source;

/* Checks all weights, and finds those of each projection that the problem has. */
attune_status mha_pack_sources(const attune_problem *canonical, const mha_pack_layout *layout,
                               const attune_mha_weights *weights, mha_pack_source sources[MHA_NUM_PROJECTIONS],
                               at_error *err);
/* The section of a projection as codes. The check comes first: it refuses weights that have none. */
attune_status mha_check_codable(const mha_pack_section *s, const mha_pack_source *source, at_error *err);
void mha_pack_codes(const mha_pack_section *s, const mha_pack_source *source, void *to);

#endif
