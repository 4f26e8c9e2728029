/* What the CPU can do at most: independent fused multiply-adds from registers, on as many threads as asked. */
#ifndef ATTUNE_TOOLS_PEAK_H
#define ATTUNE_TOOLS_PEAK_H

#include <stdbool.h>
#include <stdint.h>

typedef struct peak_probe peak_probe;

/* A probe for the vectors of this ISA on `threads` threads, the caller being one of them. NULL after an error
 * message. Its other threads sleep between the measurements. */
peak_probe *peak_create(const char *isa, uint32_t threads);
void peak_destroy(peak_probe *probe);

/* One measurement of about a millisecond: GFLOP/s of all threads together. */
double peak_measure(peak_probe *probe);

#endif
