#include "support/seed.h"

#include <stdio.h>
#include <stdlib.h>

uint64_t test_seed(void) {
    const char *const given = getenv("ATTUNE_TEST_SEED");
    const uint64_t seed = given && *given ? strtoull(given, NULL, 0) : 1;
    printf("# ATTUNE_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}
