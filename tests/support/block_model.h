/* Blocks with weights, for tests. */
#ifndef ATTUNE_TESTS_BLOCK_MODEL_H
#define ATTUNE_TESTS_BLOCK_MODEL_H

#include "layer/packed_weights.h"
#include "support/statuses.h"

typedef enum model_values {
    RANDOM_BITS,  /* NaNs among them */
    SMALL_NUMBERS /* f32 only: from -0.5 to 0.5 */
} model_values;

typedef struct model {
    attune_problem problem, canonical;
    mha_packed_layout layout;
    attune_mha_weights weights; /* one by one, with biases; each is from malloc */
    size_t size;                /* bytes of a weight */
    unsigned char *blob;        /* as long as the problem's, and 64 bytes of rubbish behind it */
    size_t blob_bytes;
} model;

/* Without weights and blob. */
model plan_model(const char *problem);
model open_model(const char *problem, attune_weight_layout layout, model_values values);
void close_model(model *m);

/* Makes the blob, which must be right and of its own length. */
void pack_model(model *m);

size_t count_of(const attune_weight *w);

#endif
