/* How fast the CPU can read a buffer of some size again and again, from whichever cache holds it. */
#ifndef ATTUNE_TOOLS_BANDWIDTH_H
#define ATTUNE_TOOLS_BANDWIDTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bandwidth_probe bandwidth_probe;

/* A probe for buffers of up to `bytes` with the vectors of this ISA on `threads` threads, the caller being one of them.
 * Each thread reads a part of its own. NULL after an error message. */
bandwidth_probe *bandwidth_create(const char *isa, uint32_t threads, size_t bytes);
void bandwidth_destroy(bandwidth_probe *probe);

/* Tries in how many streams (1, 2 or 4) each thread reads a buffer of `bytes` fastest. An interruption ends it. */
int bandwidth_choose_streams(bandwidth_probe *probe, size_t bytes);

/* One measurement of about a millisecond or one pass, whichever is longer, after a pass that does not count: GB/s of
 * all threads together. */
double bandwidth_measure(bandwidth_probe *probe, size_t bytes, int streams);

#endif
