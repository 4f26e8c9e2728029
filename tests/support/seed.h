/* What random tests begin with: ATTUNE_TEST_SEED, or always the same number. It is printed. */
#ifndef TESTS_SEED_H
#define TESTS_SEED_H

#include <stdint.h>

uint64_t test_seed(void);

#endif
