/* Converts rows of K and V whose type attune's kernels do not read. */
#ifndef ATTUNE_GGML_ROWS_H
#define ATTUNE_GGML_ROWS_H

#include "node.h"

/* Bytes of a converted row. */
size_t rows_bytes(ggml_cache cache, int64_t columns);

/* The value of an f16. */
float rows_number(uint16_t half);

/* Converts a row to cache_formats[cache].becomes: q5_0 and iq4_nl to q8_0, without an error; q5_1 to f32. */
void rows_convert(ggml_cache cache, const void *from, void *to, int64_t columns);

#endif
