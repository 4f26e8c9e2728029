/* Two elements of a tensor are at one place if a stride is no larger than the extent of all smaller dims; two tensors
 * overlap if their ranges of bytes do. */
#include "linear/places.h"

#include <inttypes.h>
#include <stdio.h>

enum { LIST_BYTES = 96 };

/* Dims by ascending strides: each stride must exceed the extent of all dims before it. */
static bool is_nested(const lin_places *t) {
    bool is_done[LIN_MOST_DIMS] = {false};
    int64_t extent = 1, step;
    for (int i = 0; i < t->rank; i++) {
        int next = -1;
        for (int d = 0; d < t->rank; d++)
            if (!is_done[d] && (next < 0 || t->strides[d] < t->strides[next])) next = d;
        is_done[next] = true;
        if (t->dims[next] == 1) continue;
        if (t->strides[next] < extent || __builtin_mul_overflow(t->strides[next], t->dims[next] - 1, &step) ||
            __builtin_add_overflow(extent, step, &extent))
            return false;
    }
    return !__builtin_mul_overflow(extent, t->bytes, &step);
}

/* "[1, 2, 3]" */
static void print_list(int rank, const int64_t *numbers, char text[LIST_BYTES]) {
    size_t n = 0;
    for (int i = 0; i < rank; i++)
        n += (size_t)snprintf(text + n, LIST_BYTES - n, "%s%" PRId64, i ? ", " : "[", numbers[i]);
    snprintf(text + n, LIST_BYTES - n, "]");
}

attune_status lin_check_places(const lin_places *t, at_error *err) {
    char dims[LIST_BYTES], strides[LIST_BYTES];
    if (is_nested(t)) return ATTUNE_OK;
    print_list(t->rank, t->dims, dims);
    print_list(t->rank, t->strides, strides);
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s has the dims %s and the strides %s; its elements would overlap",
                   t->name, dims, strides);
}

/* Bytes from the first element to the end of the last, saturated. */
static uintptr_t bytes_of(const lin_places *t) {
    uintptr_t elements = 1, step;
    for (int d = 0; d < t->rank; d++)
        if (__builtin_mul_overflow(t->strides[d], t->dims[d] - 1, &step) ||
            __builtin_add_overflow(elements, step, &elements))
            return UINTPTR_MAX;
    return __builtin_mul_overflow(elements, t->bytes, &step) ? UINTPTR_MAX : step;
}

attune_status lin_check_ranges(const lin_places *a, const lin_places *b, at_error *err) {
    const uintptr_t of_a = (uintptr_t)a->data, of_b = (uintptr_t)b->data;
    if (of_a <= of_b ? of_b - of_a >= bytes_of(a) : of_a - of_b >= bytes_of(b)) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s overlaps %s; they must not share memory", a->name, b->name);
}
