/* Whether the elements of a tensor that is written have a place each, and tensors share none. */
#ifndef ATTUNE_LINEAR_PLACES_H
#define ATTUNE_LINEAR_PLACES_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum { LIN_MOST_DIMS = 4 };

/* A tensor [dims], none of them 0, with strides of at least 0, all in elements of so many bytes. */
typedef struct lin_places {
    const char *name;
    const void *data;
    int rank;
    int64_t dims[LIN_MOST_DIMS], strides[LIN_MOST_DIMS], bytes;
} lin_places;

/* Refuses strides by which two elements would coincide, or that are beyond the address space. It may also refuse
 * elements that interleave in a way that no dim is nested in another. */
attune_status lin_check_places(const lin_places *t, at_error *err);

/* Refuses two tensors whose ranges of memory overlap. */
attune_status lin_check_ranges(const lin_places *a, const lin_places *b, at_error *err);

#endif
