#include "peak.h"

#include "crew.h"
#include "tool.h"

#include <stdlib.h>
#include <string.h>

/* Twelve accumulators hide a latency of up to six cycles on two pipes and leave registers for the operands. */
#define TWELVE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

enum { ACCUMULATORS = 12 };

/* Runs `steps` rounds of one operation on each accumulator. `one` and `zero` come from outside, so that nothing can be
 * folded; the accumulators start differently, so that no two can be merged; what is returned depends on all of them,
 * so that none can be dropped. */
typedef float burn_fn(int64_t steps, float one, float zero);

#if defined(__x86_64__)
#include <immintrin.h>

#define DECLARE_512(n) __m512 a##n = _mm512_set1_ps(zero + n);
#define STEP_512(n)    a##n = _mm512_fmadd_ps(a##n, x, y);
#define SUM_512(n)     total = _mm512_add_ps(total, a##n);
__attribute__((target("avx512f"))) static float burn_avx512(int64_t steps, float one, float zero) {
    const __m512 x = _mm512_set1_ps(one), y = _mm512_set1_ps(zero);
    __m512 total = y;
    TWELVE(DECLARE_512)
    for (int64_t i = 0; i < steps; i++) {
        TWELVE(STEP_512)
    }
    TWELVE(SUM_512)
    return _mm512_cvtss_f32(total);
}

#define DECLARE_256(n) __m256 a##n = _mm256_set1_ps(zero + n);
#define STEP_256(n)    a##n = _mm256_fmadd_ps(a##n, x, y);
#define SUM_256(n)     total = _mm256_add_ps(total, a##n);
__attribute__((target("avx2,fma"))) static float burn_avx2(int64_t steps, float one, float zero) {
    const __m256 x = _mm256_set1_ps(one), y = _mm256_set1_ps(zero);
    __m256 total = y;
    TWELVE(DECLARE_256)
    for (int64_t i = 0; i < steps; i++) {
        TWELVE(STEP_256)
    }
    TWELVE(SUM_256)
    return _mm256_cvtss_f32(total);
}

/* Without fma a multiply-add is two instructions; the best case has them independent, half of each. */
#define DECLARE_128(n) __m128 a##n = _mm_set1_ps(zero + n);
#define STEP_128(n)    a##n = n % 2 ? _mm_mul_ps(a##n, x) : _mm_add_ps(a##n, y);
#define SUM_128(n)     total = _mm_add_ps(total, a##n);
static float burn_sse2(int64_t steps, float one, float zero) {
    const __m128 x = _mm_set1_ps(one), y = _mm_set1_ps(zero);
    __m128 total = y;
    TWELVE(DECLARE_128)
    for (int64_t i = 0; i < steps; i++) {
        TWELVE(STEP_128)
    }
    TWELVE(SUM_128)
    return _mm_cvtss_f32(total);
}

static const struct {
    const char *isa;
    burn_fn *burn;
    int flops; /* of one operation on one accumulator */
} kernels[] = {
    {"avx512_bf16", burn_avx512, 2 * 16},
    {"avx512", burn_avx512, 2 * 16},
    {"avx2", burn_avx2, 2 * 8},
    {"x86-64", burn_sse2, 4},
};
#else
static const struct {
    const char *isa;
    burn_fn *burn;
    int flops;
} kernels[] = {{NULL, NULL, 0}};
#endif

struct peak_probe {
    burn_fn *burn;
    int flops;
    int64_t steps;
    uint32_t threads;
    crew *crew;
    volatile float one, zero; /* 1 and 0, unknown to the compiler */
};

static void burn(void *argument, uint32_t member) {
    const peak_probe *const probe = argument;
    const volatile float sink = probe->burn(probe->steps, probe->one, probe->zero);
    (void)sink;
    (void)member;
}

double peak_measure(peak_probe *probe) {
    const double elapsed = crew_run(probe->crew, burn, probe);
    return (double)probe->threads * (double)probe->steps * ACCUMULATORS * probe->flops / elapsed * 1e-3;
}

/* Finds the number of steps that takes a millisecond. */
static void calibrate(peak_probe *probe) {
    probe->steps = 1000;
    while (crew_run(probe->crew, burn, probe) < 500) probe->steps *= 2;
    probe->steps *= 2;
}

peak_probe *peak_create(const char *isa, uint32_t threads) {
    peak_probe *const probe = calloc(1, sizeof *probe);
    if (!probe) {
        tool_error("out of memory for the peak probe");
        return NULL;
    }
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (kernels[i].isa && strcmp(kernels[i].isa, isa) == 0) {
            probe->burn = kernels[i].burn;
            probe->flops = kernels[i].flops;
        }
    if (!probe->burn) tool_error("there is no peak probe for the instruction set '%s'", isa);
    if (!probe->burn || !(probe->crew = crew_create(threads))) {
        free(probe);
        return NULL;
    }
    probe->one = 1;
    probe->threads = threads;
    calibrate(probe);
    return probe;
}

void peak_destroy(peak_probe *probe) {
    if (!probe) return;
    crew_destroy(probe->crew);
    free(probe);
}
