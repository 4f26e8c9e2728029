/* Whole numbers. */
#ifndef ATTUNE_BASE_INTEGERS_H
#define ATTUNE_BASE_INTEGERS_H

#include <stdint.h>

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

/* The largest power of two up to x, which is at least 1. */
static inline int64_t power_below(int64_t x) {
    int64_t power = 1;
    while (2 * power <= x) power *= 2;
    return power;
}

/* The largest number up to `most` that divides x: of a loop, how many iterations may be one. */
static inline int64_t divisor_below(int64_t x, int64_t most) {
    while (x % most) most--;
    return most;
}

#endif
