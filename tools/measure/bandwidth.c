/* Reads by one, two and four streams and keeps the fastest: CPUs differ in how many their prefetchers follow. */
#include "measure/bandwidth.h"

#include "measure/crew.h"
#include "common/interruption.h"
#include "common/pages.h"
#include "common/tool.h"

#include <stdlib.h>
#include <string.h>

enum { LINE = 64, STEP = 4 * LINE, MIN_PART = 4096, PASS_US = 1000 };

/* Reads four lines in each turn, one at each of `from`, which then all move on by `step` bytes. The returned value
 * depends on every byte, so the compiler can drop no load. */
typedef int64_t read_fn(const char *const from[4], size_t turns, size_t step);

#if defined(__x86_64__)
#include <immintrin.h>

#define FOUR(X) X(0) X(1) X(2) X(3)

#define DECLARE_512(n) __m512i a##n = _mm512_setzero_si512();
#define READ_512(n)    a##n = _mm512_xor_si512(a##n, _mm512_loadu_si512(from[n] + at));
__attribute__((target("avx512f"))) static int64_t read_avx512(const char *const from[4], size_t turns, size_t step) {
    FOUR(DECLARE_512)
    for (size_t at = 0; turns--; at += step) {
        FOUR(READ_512)
    }
    const __m512i sum = _mm512_xor_si512(_mm512_xor_si512(a0, a1), _mm512_xor_si512(a2, a3));
    return _mm512_reduce_or_epi64(sum);
}

#define DECLARE_256(n) __m256i a##n = _mm256_setzero_si256(), b##n = a##n;
#define LOAD_256(p)    _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define READ_256(n)                                                                                                    \
    a##n = _mm256_xor_si256(a##n, LOAD_256(from[n] + at));                                                             \
    b##n = _mm256_xor_si256(b##n, LOAD_256(from[n] + at + 32));
#define SUM_256(n) a0 = _mm256_or_si256(a0, _mm256_or_si256(a##n, b##n));
__attribute__((target("avx2"))) static int64_t read_avx2(const char *const from[4], size_t turns, size_t step) {
    FOUR(DECLARE_256)
    for (size_t at = 0; turns--; at += step) {
        FOUR(READ_256)
    }
    FOUR(SUM_256)
    const __m128i half = _mm_or_si128(_mm256_castsi256_si128(a0), _mm256_extracti128_si256(a0, 1));
    return _mm_cvtsi128_si64(_mm_or_si128(half, _mm_unpackhi_epi64(half, half)));
}

#define DECLARE_128(n) __m128i a##n = _mm_setzero_si128(), b##n = a##n;
#define LOAD_128(p)    _mm_loadu_si128((const __m128i *)(const void *)(p))
#define READ_128(n)                                                                                                    \
    a##n = _mm_xor_si128(a##n, LOAD_128(from[n] + at));                                                                \
    b##n = _mm_xor_si128(b##n, LOAD_128(from[n] + at + 16));                                                           \
    a##n = _mm_xor_si128(a##n, LOAD_128(from[n] + at + 32));                                                           \
    b##n = _mm_xor_si128(b##n, LOAD_128(from[n] + at + 48));
#define SUM_128(n) a0 = _mm_or_si128(a0, _mm_or_si128(a##n, b##n));
static int64_t read_sse2(const char *const from[4], size_t turns, size_t step) {
    FOUR(DECLARE_128)
    for (size_t at = 0; turns--; at += step) {
        FOUR(READ_128)
    }
    FOUR(SUM_128)
    return _mm_cvtsi128_si64(_mm_or_si128(a0, _mm_unpackhi_epi64(a0, a0)));
}

static const struct {
    const char *isa;
    read_fn *read;
} kernels[] = {{"avx512_bf16", read_avx512}, {"avx512", read_avx512}, {"avx2", read_avx2}, {"x86-64", read_sse2}};
#elif defined(__aarch64__)
#include <arm_neon.h>

static int64_t read_neon(const char *const from[4], size_t turns, size_t step) {
    uint8x16_t sums[LINE / 16] = {vdupq_n_u8(0), vdupq_n_u8(0), vdupq_n_u8(0), vdupq_n_u8(0)};
    for (size_t at = 0; turns--; at += step) {
#pragma GCC unroll 16
        for (size_t n = 0; n < 4 * LINE / 16; n++)
            sums[n % 4] = veorq_u8(sums[n % 4], vld1q_u8((const uint8_t *)from[n / 4] + at + n % 4 * 16));
    }
    const uint8x16_t sum = vorrq_u8(vorrq_u8(sums[0], sums[1]), vorrq_u8(sums[2], sums[3]));
    return vaddvq_s64(vreinterpretq_s64_u8(sum));
}

static const struct {
    const char *isa;
    read_fn *read;
} kernels[] = {{"aarch64", read_neon}};
#else
static const struct {
    const char *isa;
    read_fn *read;
} kernels[] = {{NULL, NULL}};
#endif

struct bandwidth_probe {
    read_fn *read;
    uint32_t threads;
    crew *crew;
    char *buffer;
    size_t capacity;
    /* Of the measurement under way: */
    size_t part; /* bytes of one thread, a multiple of 4 * STEP */
    int streams;
    int64_t passes;
};

static void read_part(void *argument, uint32_t member) {
    const bandwidth_probe *const p = argument;
    const char *const part = p->buffer + member * p->part;
    const int in_stream = 4 / p->streams; /* neighbouring lines that one turn reads of each stream */
    const char *from[4];
    volatile int64_t sink;
    for (int i = 0; i < 4; i++)
        from[i] = part + (size_t)(i / in_stream) * (p->part / (size_t)p->streams) + (size_t)(i % in_stream) * LINE;
    for (int64_t pass = 0; pass < p->passes; pass++) sink = p->read(from, p->part / STEP, (size_t)in_stream * LINE);
    (void)sink;
}

static size_t part_of(const bandwidth_probe *p, size_t bytes) {
    const size_t part = bytes / p->threads / (4 * STEP) * (4 * STEP);
    return part < MIN_PART ? MIN_PART : part;
}

static double measure_passes(bandwidth_probe *p, int64_t passes) {
    p->passes = passes;
    return crew_run(p->crew, read_part, p);
}

double bandwidth_measure(bandwidth_probe *p, size_t bytes, int streams) {
    p->part = part_of(p, bytes < p->capacity ? bytes : p->capacity);
    p->streams = streams;
    measure_passes(p, 1);
    /* Several short passes are timed together, because one is too short for a clock. */
    int64_t passes = 1;
    double us = measure_passes(p, passes);
    while (us < PASS_US / 16.0) us = measure_passes(p, passes *= 4);
    if (us < PASS_US) us = measure_passes(p, passes = (int64_t)((double)passes * PASS_US / us) + 1);
    return (double)p->threads * (double)p->part * (double)passes / us * 1e-3;
}

int bandwidth_choose_streams(bandwidth_probe *p, size_t bytes) {
    enum { TRIES = 5 };
    int best = 1;
    double fastest = 0;
    for (int streams = 1; streams <= 4 && !interruption_came(); streams *= 2) {
        double rates[TRIES];
        for (int i = 0; i < TRIES; i++) rates[i] = bandwidth_measure(p, bytes, streams);
        const double rate = tool_median(rates, TRIES);
        if (rate > fastest) {
            fastest = rate;
            best = streams;
        }
    }
    return best;
}

bandwidth_probe *bandwidth_create(const char *isa, uint32_t threads, size_t bytes) {
    bandwidth_probe *const p = calloc(1, sizeof *p);
    if (!p) {
        tool_error("out of memory for the bandwidth probe");
        return NULL;
    }
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (kernels[i].isa && strcmp(kernels[i].isa, isa) == 0) p->read = kernels[i].read;
    p->threads = threads;
    const size_t least = (size_t)threads * MIN_PART;
    p->capacity = bytes < least ? least : bytes;
    p->buffer = pages_alloc((p->capacity + LINE - 1) / LINE * LINE);
    if (!p->read) tool_error("there is no bandwidth probe for the instruction set '%s'", isa);
    if (!p->buffer) tool_error("out of memory: the bandwidth probe needs %zu bytes", p->capacity);
    if (!p->read || !p->buffer || !(p->crew = crew_create(threads))) {
        bandwidth_destroy(p);
        return NULL;
    }
    memset(p->buffer, 1, p->capacity); /* pages that were never written share one page of zeros */
    return p;
}

void bandwidth_destroy(bandwidth_probe *p) {
    if (!p) return;
    crew_destroy(p->crew);
    free(p->buffer);
    free(p);
}
