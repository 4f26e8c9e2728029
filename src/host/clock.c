/* CLOCK_MONOTONIC in nanoseconds. */
#define _GNU_SOURCE
#include "host/clock.h"

#include <time.h>

int64_t at_nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
