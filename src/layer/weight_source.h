/* The weights of a block as callers pass them; packing reads them through this. */
#ifndef ATTUNE_LAYER_WEIGHT_SOURCE_H
#define ATTUNE_LAYER_WEIGHT_SOURCE_H

#include "problem/weights_layout.h"

extern const at_struct mha_weights_struct;

/* attune_weight_name, and attune_mha_weights_init for a canonical problem. */
const char *mha_weight_name(attune_weight_id id);
void mha_weights_init(const attune_problem *canonical, attune_weight_layout layout, attune_mha_weights *weights);

/* Weights that callers have quantised: rows of ggml's q8_0 and q4_0. */
enum { MHA_BLOCK = 32 };

/* The weights of one projection, in any of the forms in which callers pass them. */
typedef struct mha_packed_source {
    const char *name;                       /* of the tensor */
    int64_t first_output;                   /* of the tensor's outputs */
    attune_dtype dtype;                     /* of weights: the problem's w_dtype, or floats that are to be quantised */
    attune_dtype bias_dtype;                /* the same */
    const unsigned char *weight;            /* of input 0 and output 0 */
    const unsigned char *bias;              /* of output 0; NULL: none */
    size_t between_outputs, between_inputs; /* bytes from one weight to the next */
    size_t stride;                          /* the larger one */
    size_t block;                           /* bytes of MHA_BLOCK quantised inputs of an output; 0: not quantised */
} mha_packed_source;

/* Checks all weights, and finds those of each projection that the problem has. */
attune_status mha_packed_sources(const attune_problem *canonical, const mha_packed_layout *layout,
                                 const attune_mha_weights *weights, mha_packed_source sources[MHA_NUM_PROJECTIONS],
                                 at_error *err);
/* Writes the section of a projection, quantised. The check rejects weights that cannot be quantised first. */
attune_status mha_check_codable(const mha_packed_section *s, const mha_packed_source *source, at_error *err);
void mha_pack_quantised(const mha_packed_section *s, const mha_packed_source *source, void *to);

/* packed_weights.c: writes a section of weights of `size` bytes. out_first: rows of the matrix are outputs. */
void mha_pack_matrix(const mha_packed_section *s, const mha_packed_source *source, bool out_first, size_t size,
                     void *to);

#endif
