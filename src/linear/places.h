/* Checks that the elements of a tensor that is written do not overlap, and that tensors do not. */
#ifndef ATTUNE_LINEAR_PLACES_H
#define ATTUNE_LINEAR_PLACES_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum { LIN_MOST_DIMS = 4 };

/* A tensor of dims, none of which is 0, with strides >= 0 in elements of `bytes` bytes. */
typedef struct lin_places {
    const char *name;
    const void *data;
    int rank;
    int64_t dims[LIN_MOST_DIMS], strides[LIN_MOST_DIMS], bytes;
} lin_places;

/* Rejects strides with which two elements would overlap, or that exceed the address space. It may also reject
 * interleaved elements if no dim is nested in another. */
attune_status lin_check_places(const lin_places *t, at_error *err);

/* Rejects two tensors whose memory ranges overlap. */
attune_status lin_check_ranges(const lin_places *a, const lin_places *b, at_error *err);

#endif
