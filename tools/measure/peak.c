/* As many independent accumulators as latency and registers ask for, in the widest vectors of an instruction set; each
 * set has a function that is compiled for it. */
#include "measure/peak.h"

#include "measure/crew.h"
#include "common/tool.h"

#include <stdlib.h>
#include <string.h>

#if defined(__aarch64__)
/* They hide a latency of up to six cycles on four pipes. */
enum { ACCUMULATORS = 24 };
#else
/* Twelve accumulators hide a latency of up to six cycles on two pipes and leave registers for the operands. */
#define TWELVE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
enum { ACCUMULATORS = 12 };
#endif

/* Runs `steps` rounds of one operation on each accumulator. The compiler can fold nothing, because `one` and `zero`
 * come from outside; can merge no accumulators, because they start differently; and can drop none, because the returned
 * value depends on all of them. */
typedef double burn_fn(int64_t steps, double one, double zero);

typedef struct peak_kernel {
    const char *isa;
    attune_dtype dtype;
    burn_fn *burn;
    int flops; /* of one operation on one accumulator */
} peak_kernel;

#if defined(__x86_64__)
#include <immintrin.h>

/* Rounds of STEP on accumulators that DECLARE makes and SUM adds to the first of them. */
#define BURN(DECLARE, STEP, SUM)                                                                                       \
    TWELVE(DECLARE)                                                                                                    \
    for (int64_t i = 0; i < steps; i++) {                                                                              \
        TWELVE(STEP)                                                                                                   \
    }                                                                                                                  \
    TWELVE(SUM)

#define DECLARE_512(n) __m512 a##n = _mm512_set1_ps((float)(zero + n));
#define STEP_512(n)    a##n = _mm512_fmadd_ps(a##n, x, y);
#define SUM_512(n)     y = _mm512_add_ps(y, a##n);
__attribute__((target("avx512f"))) static double f32_avx512(int64_t steps, double one, double zero) {
    const __m512 x = _mm512_set1_ps((float)one);
    __m512 y = _mm512_set1_ps((float)zero);
    BURN(DECLARE_512, STEP_512, SUM_512)
    return (double)_mm512_cvtss_f32(y);
}

#define DECLARE_512D(n) __m512d a##n = _mm512_set1_pd(zero + n);
#define STEP_512D(n)    a##n = _mm512_fmadd_pd(a##n, x, y);
#define SUM_512D(n)     y = _mm512_add_pd(y, a##n);
__attribute__((target("avx512f"))) static double f64_avx512(int64_t steps, double one, double zero) {
    const __m512d x = _mm512_set1_pd(one);
    __m512d y = _mm512_set1_pd(zero);
    BURN(DECLARE_512D, STEP_512D, SUM_512D)
    return _mm512_cvtsd_f64(y);
}

/* The factors are zeros, so the sums do not grow. */
#define STEP_DOT(n) a##n = _mm512_dpbf16_ps(a##n, x, x);
__attribute__((target("avx512f,avx512bf16"))) static double bf16_avx512(int64_t steps, double one, double zero) {
    const __m512bh x = (__m512bh)_mm512_set1_ps((float)zero);
    __m512 y = _mm512_set1_ps((float)one);
    BURN(DECLARE_512, STEP_DOT, SUM_512)
    return (double)_mm512_cvtss_f32(y);
}

#define DECLARE_256(n) __m256 a##n = _mm256_set1_ps((float)(zero + n));
#define STEP_256(n)    a##n = _mm256_fmadd_ps(a##n, x, y);
#define SUM_256(n)     y = _mm256_add_ps(y, a##n);
__attribute__((target("avx2,fma"))) static double f32_avx2(int64_t steps, double one, double zero) {
    const __m256 x = _mm256_set1_ps((float)one);
    __m256 y = _mm256_set1_ps((float)zero);
    BURN(DECLARE_256, STEP_256, SUM_256)
    return (double)_mm256_cvtss_f32(y);
}

#define DECLARE_256D(n) __m256d a##n = _mm256_set1_pd(zero + n);
#define STEP_256D(n)    a##n = _mm256_fmadd_pd(a##n, x, y);
#define SUM_256D(n)     y = _mm256_add_pd(y, a##n);
__attribute__((target("avx2,fma"))) static double f64_avx2(int64_t steps, double one, double zero) {
    const __m256d x = _mm256_set1_pd(one);
    __m256d y = _mm256_set1_pd(zero);
    BURN(DECLARE_256D, STEP_256D, SUM_256D)
    return _mm256_cvtsd_f64(y);
}

/* Without fma a multiply-add is two instructions. In the best case they are independent, half of each kind. */
#define DECLARE_128(n) __m128 a##n = _mm_set1_ps((float)(zero + n));
#define STEP_128(n)    a##n = n % 2 ? _mm_mul_ps(a##n, x) : _mm_add_ps(a##n, y);
#define SUM_128(n)     y = _mm_add_ps(y, a##n);
static double f32_sse2(int64_t steps, double one, double zero) {
    const __m128 x = _mm_set1_ps((float)one);
    __m128 y = _mm_set1_ps((float)zero);
    BURN(DECLARE_128, STEP_128, SUM_128)
    return (double)_mm_cvtss_f32(y);
}

#define DECLARE_128D(n) __m128d a##n = _mm_set1_pd(zero + n);
#define STEP_128D(n)    a##n = n % 2 ? _mm_mul_pd(a##n, x) : _mm_add_pd(a##n, y);
#define SUM_128D(n)     y = _mm_add_pd(y, a##n);
static double f64_sse2(int64_t steps, double one, double zero) {
    const __m128d x = _mm_set1_pd(one);
    __m128d y = _mm_set1_pd(zero);
    BURN(DECLARE_128D, STEP_128D, SUM_128D)
    return _mm_cvtsd_f64(y);
}

static const peak_kernel kernels[] = {
    {"avx512_bf16", ATTUNE_F32, f32_avx512, 2 * 16},
    {"avx512_bf16", ATTUNE_F64, f64_avx512, 2 * 8},
    {"avx512_bf16", ATTUNE_BF16, bf16_avx512, 4 * 16},
    {"avx512", ATTUNE_F32, f32_avx512, 2 * 16},
    {"avx512", ATTUNE_F64, f64_avx512, 2 * 8},
    {"avx2", ATTUNE_F32, f32_avx2, 2 * 8},
    {"avx2", ATTUNE_F64, f64_avx2, 2 * 4},
    {"x86-64", ATTUNE_F32, f32_sse2, 4},
    {"x86-64", ATTUNE_F64, f64_sse2, 2},
};
#elif defined(__aarch64__)
#include <arm_neon.h>

#define EACH_ACCUMULATOR _Pragma("GCC unroll 24") for (int n = 0; n < ACCUMULATORS; n++)

static double f32_neon(int64_t steps, double one, double zero) {
    const float32x4_t x = vdupq_n_f32((float)one);
    float32x4_t a[ACCUMULATORS], y = vdupq_n_f32((float)zero);
    EACH_ACCUMULATOR a[n] = vdupq_n_f32((float)(zero + n));
    for (int64_t i = 0; i < steps; i++) EACH_ACCUMULATOR a[n] = vfmaq_f32(a[n], x, y);
    EACH_ACCUMULATOR y = vaddq_f32(y, a[n]);
    return (double)vgetq_lane_f32(y, 0);
}

static double f64_neon(int64_t steps, double one, double zero) {
    const float64x2_t x = vdupq_n_f64(one);
    float64x2_t a[ACCUMULATORS], y = vdupq_n_f64(zero);
    EACH_ACCUMULATOR a[n] = vdupq_n_f64(zero + n);
    for (int64_t i = 0; i < steps; i++) EACH_ACCUMULATOR a[n] = vfmaq_f64(a[n], x, y);
    EACH_ACCUMULATOR y = vaddq_f64(y, a[n]);
    return vgetq_lane_f64(y, 0);
}

static const peak_kernel kernels[] = {
    {"aarch64", ATTUNE_F32, f32_neon, 2 * 4},
    {"aarch64", ATTUNE_F64, f64_neon, 2 * 2},
};
#else
static const peak_kernel kernels[] = {{NULL, ATTUNE_F32, NULL, 0}};
#endif

static const peak_kernel *find_kernel(const char *isa, attune_dtype dtype) {
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (kernels[i].isa && strcmp(kernels[i].isa, isa) == 0 && kernels[i].dtype == dtype) return &kernels[i];
    return NULL;
}

attune_dtype peak_that_counts(const attune_problem *p, const char *isa) {
    const attune_dtype parts[] = {p->dtype, p->k_dtype, p->v_dtype, p->w_dtype, p->bias_dtype, p->softmax_precision};
    bool is_narrow = find_kernel(isa, ATTUNE_BF16) && p->matmul_precision != ATTUNE_F32;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i] == ATTUNE_F64) return ATTUNE_F64;
    if (is_narrow && p->op == ATTUNE_ATTENTION && (p->dtype == ATTUNE_BF16 || p->matmul_precision == ATTUNE_BF16))
        return ATTUNE_BF16;
    is_narrow = is_narrow && p->dtype == ATTUNE_BF16;
    for (size_t i = 0; i < 4; i++) is_narrow = is_narrow && parts[i] != ATTUNE_F32 && parts[i] != ATTUNE_F16;
    return is_narrow ? ATTUNE_BF16 : ATTUNE_F32;
}

struct peak_probe {
    const char *isa;
    uint32_t threads;
    crew *crew;
    int64_t steps[ATTUNE_DTYPE_COUNT]; /* that take a millisecond; 0: not known yet */
    /* Of the measurement under way: */
    const peak_kernel *kernel;
    volatile double one, zero; /* 1 and 0, unknown to the compiler */
};

static void burn(void *argument, uint32_t member) {
    const peak_probe *const probe = argument;
    const volatile double sink = probe->kernel->burn(probe->steps[probe->kernel->dtype], probe->one, probe->zero);
    (void)sink;
    (void)member;
}

static void calibrate(peak_probe *probe, int64_t *steps) {
    *steps = 1000;
    while (crew_run(probe->crew, burn, probe) < 500) *steps *= 2;
    *steps *= 2;
}

double peak_measure(peak_probe *probe, attune_dtype dtype) {
    int64_t *const steps = &probe->steps[dtype];
    if (!(probe->kernel = find_kernel(probe->isa, dtype))) return 0;
    if (!*steps) calibrate(probe, steps);
    const double elapsed = crew_run(probe->crew, burn, probe);
    return (double)probe->threads * (double)*steps * ACCUMULATORS * probe->kernel->flops / elapsed * 1e-3;
}

peak_probe *peak_create(const char *isa, uint32_t threads) {
    peak_probe *const probe = calloc(1, sizeof *probe);
    if (!probe) {
        tool_error("out of memory for the peak probe");
        return NULL;
    }
    const peak_kernel *const kernel = find_kernel(isa, ATTUNE_F32);
    if (!kernel) tool_error("there is no peak probe for the instruction set '%s'", isa);
    if (!kernel || !(probe->crew = crew_create(threads))) {
        free(probe);
        return NULL;
    }
    probe->isa = kernel->isa;
    probe->one = 1;
    probe->threads = threads;
    return probe;
}

void peak_destroy(peak_probe *probe) {
    if (!probe) return;
    crew_destroy(probe->crew);
    free(probe);
}

double peak_best(const char *isa, uint32_t threads, attune_dtype dtype) {
    peak_probe *const probe = peak_create(isa, threads);
    double best = 0;
    for (int i = 0; probe && i < 15; i++) {
        const double value = peak_measure(probe, dtype);
        if (value > best) best = value;
    }
    peak_destroy(probe);
    return best;
}
