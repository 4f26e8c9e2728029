/* A clock that steps of the wall clock do not affect. */
#ifndef ATTUNE_HOST_CLOCK_H
#define ATTUNE_HOST_CLOCK_H

#include <stdint.h>

int64_t at_nanoseconds(void);

#endif
