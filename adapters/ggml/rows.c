/* A row is an array of blocks of 32 columns, whose layouts are those of ggml-common.h. Values of 4 bits are packed in
 * halves of bytes. */
#include "rows.h"

#include <string.h>

enum { BLOCK = 32, HALF = BLOCK / 2 };

typedef struct block_q5_0 {
    uint8_t scale[2], fifth_bits[4], halves[HALF];
} block_q5_0;
typedef struct block_q5_1 {
    uint8_t scale[2], least[2], fifth_bits[4], halves[HALF];
} block_q5_1;
typedef struct block_iq4_nl {
    uint8_t scale[2], halves[HALF];
} block_iq4_nl;
typedef struct block_q8_0 {
    uint8_t scale[2];
    int8_t values[BLOCK];
} block_q8_0;

size_t rows_bytes(ggml_cache cache, int64_t columns) {
    const cache_format *const f = &cache_formats[cache_formats[cache].becomes];
    return (size_t)(columns / f->columns) * (size_t)f->bytes;
}

/* The lower halves of the bytes are columns 0 to 15, the upper halves columns 16 to 31. Bit i of fifth_bits is the
 * highest bit of column i. */
static inline __attribute__((always_inline)) void unpack_five(const uint8_t *halves, const uint8_t *fifth_bits,
                                                              uint8_t *values) {
    uint32_t bits;
    memcpy(&bits, fifth_bits, sizeof bits);
    for (int i = 0; i < HALF; i++) {
        values[i] = (uint8_t)((halves[i] & 15) | (bits >> i & 1) << 4);
        values[i + HALF] = (uint8_t)(halves[i] >> 4 | (bits >> (i + HALF) & 1) << 4);
    }
}

static inline __attribute__((always_inline)) void convert_q5_0(const block_q5_0 *from, block_q8_0 *to, int64_t blocks) {
    for (int64_t b = 0; b < blocks; b++) {
        uint8_t values[BLOCK];
        memcpy(to[b].scale, from[b].scale, sizeof to->scale);
        unpack_five(from[b].halves, from[b].fifth_bits, values);
        for (int i = 0; i < BLOCK; i++) to[b].values[i] = (int8_t)(values[i] - 16);
    }
}

static inline __attribute__((always_inline)) void convert_iq4_nl(const block_iq4_nl *from, block_q8_0 *to,
                                                                 int64_t blocks) {
    static const int8_t values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    for (int64_t b = 0; b < blocks; b++) {
        memcpy(to[b].scale, from[b].scale, sizeof to->scale);
        for (int i = 0; i < HALF; i++) {
            to[b].values[i] = values[from[b].halves[i] & 15];
            to[b].values[i + HALF] = values[from[b].halves[i] >> 4];
        }
    }
}

static inline __attribute__((always_inline)) float f32_of_f16(uint32_t x) {
    const uint32_t magnitude = x & 0x7fff, sign = (x & 0x8000) << 16;
    float number;
    if (magnitude < 0x400) { /* subnormal: a multiple of 2^-24 */
        number = (float)magnitude * 0x1p-24F;
        return sign ? -number : number;
    }
    const uint32_t bits = sign | (magnitude < 0x7c00 ? (magnitude << 13) + (112U << 23) : 0x7f800000 | magnitude << 13);
    memcpy(&number, &bits, sizeof number);
    return number;
}

float rows_number(uint16_t half) { return f32_of_f16(half); }

static inline __attribute__((always_inline)) float f32_of_bytes(const uint8_t bytes[2]) {
    return f32_of_f16((uint32_t)bytes[0] | (uint32_t)bytes[1] << 8);
}

static inline __attribute__((always_inline)) void convert_q5_1(const block_q5_1 *from, float *to, int64_t blocks) {
    for (int64_t b = 0; b < blocks; b++, to += BLOCK) {
        uint8_t values[BLOCK];
        const float scale = f32_of_bytes(from[b].scale), least = f32_of_bytes(from[b].least);
        unpack_five(from[b].halves, from[b].fifth_bits, values);
        for (int i = 0; i < BLOCK; i++) to[i] = (float)values[i] * scale + least;
    }
}

static inline __attribute__((always_inline)) void convert(ggml_cache cache, const void *from, void *to,
                                                          int64_t columns) {
    switch (cache) {
    case GGML_Q5_0: convert_q5_0(from, to, columns / BLOCK); break;
    case GGML_IQ4_NL: convert_iq4_nl(from, to, columns / BLOCK); break;
    case GGML_Q5_1: convert_q5_1(from, to, columns / BLOCK); break;
    default: break; /* not converted */
    }
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static void convert_avx2(ggml_cache cache, const void *from, void *to,
                                                         int64_t columns) {
    convert(cache, from, to, columns);
}
#endif

void rows_convert(ggml_cache cache, const void *from, void *to, int64_t columns) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2")) {
        convert_avx2(cache, from, to, columns);
        return;
    }
#endif
    convert(cache, from, to, columns);
}
