/* Whole numbers. */
#ifndef ATTUNE_BASE_INTEGERS_H
#define ATTUNE_BASE_INTEGERS_H

#include <stdint.h>

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

#endif
