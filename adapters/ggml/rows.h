/* Rows of caches in types that attune does not compute with, converted to types that it does. */
#ifndef ATTUNE_GGML_ROWS_H
#define ATTUNE_GGML_ROWS_H

#include "node.h"

/* Bytes of a row after it was converted. */
size_t rows_bytes(ggml_cache cache, int64_t columns);

/* The number that the bits of an f16 say. */
float rows_number(uint16_t half);

/* Converts one row to cache_formats[cache].becomes: q5_0 and iq4_nl to q8_0, which has the same numbers; q5_1 to f32.
 */
void rows_convert(ggml_cache cache, const void *from, void *to, int64_t columns);

#endif
