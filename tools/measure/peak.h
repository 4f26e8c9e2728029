/* The CPU's peak: independent multiply-adds from registers, on a number of threads. */
#ifndef ATTUNE_TOOLS_PEAK_H
#define ATTUNE_TOOLS_PEAK_H

#include <attune.h>
#include <stdint.h>

typedef struct peak_probe peak_probe;

/* A probe for the vectors of this ISA on `threads` threads, the caller being one of them. NULL after an error
 * message. Its other threads sleep between the measurements. */
peak_probe *peak_create(const char *isa, uint32_t threads);
void peak_destroy(peak_probe *probe);

/* One measurement of about a millisecond: GFLOP/s of all threads together, of fused multiply-adds of f32 or f64, or of
 * dot products of bf16 that are added up in f32. 0 where the ISA has no such instruction. */
double peak_measure(peak_probe *probe, attune_dtype dtype);

/* The best of several measurements of a probe of its own: other programs may disturb a single one. 0 after an error
 * message, or where there is no such instruction. */
double peak_best(const char *isa, uint32_t threads, attune_dtype dtype);

/* The peak by which a problem is measured on this ISA: that of bf16 dot products where the ISA has them, and queries,
 * keys, values and weights are bf16 or narrower or may be rounded to it (matmul_precision); otherwise that of
 * multiply-adds in the type of the arithmetic. It does not matter which of them a kernel uses. */
attune_dtype peak_that_counts(const attune_problem *problem, const char *isa);

#endif
