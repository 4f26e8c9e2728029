/* Whole numbers. */
#ifndef ATTUNE_BASE_INTEGERS_H
#define ATTUNE_BASE_INTEGERS_H

#include <stdint.h>

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

/* The largest number up to `most` that divides x: of loops, how many turns may be one. */
static inline int64_t divisor_below(int64_t x, int64_t most) {
    while (x % most) most--;
    return most;
}

#endif
