/* The sequences of a step: where the tokens of each begin, and which state it has. */
#ifndef ATTUNE_LINEAR_PARTS_H
#define ATTUNE_LINEAR_PARTS_H

#include "base/error.h"

#include <stdint.h>

enum { LIN_FEW_SEQUENCES = 64 };

/* What a step says of them. */
typedef struct lin_sequences {
    int64_t batch, seq;
    const int32_t *cu_seqlens; /* NULL: each has seq tokens */
    int64_t num_states;        /* 0: batch */
    const int32_t *state_ids;  /* NULL: sequence b has state b */
} lin_sequences;

typedef struct lin_parts {
    int32_t (*of)[3];             /* of each sequence: the first token, the one after its last, the state */
    int64_t tokens, longest, all; /* of a tensor: of all sequences, or of each; of a sequence; of all */
    int64_t states;
    int32_t few[LIN_FEW_SEQUENCES][3];
} lin_parts;

/* Checks them, and finds the parts, which point into themselves. lin_free_parts afterwards, also after an error. */
attune_status lin_find_parts(const lin_sequences *s, lin_parts *parts, at_error *err);
void lin_free_parts(lin_parts *parts);

#endif
