/* Times of a core's multiply-adds and additions, relative to each other. */
#include "runtime/machine.h"

#include "target/target.h"

#include <time.h>

#if defined(__x86_64__)

/* A round takes 2 to 20 µs, so that many rounds are not interrupted. The fastest counts. */
enum { STEPS = 1000, CHAINED = 16, INDEPENDENT = 12, ROUNDS = 200 };

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Runs the instructions of `body` STEPS times, on registers that are 0. */
#define LOOP(body)                                                                                                     \
    do {                                                                                                               \
        uint64_t left = STEPS;                                                                                         \
        __asm__ volatile(".irp r, 0,1,2,3,4,5,6,7,8,9,10,11,12\n vxorps %%xmm\\r, %%xmm\\r, %%xmm\\r\n .endr\n"        \
                         "1:\n" body "dec %0\n jnz 1b\n vzeroupper\n"                                                  \
                         : "+r"(left)                                                                                  \
                         :                                                                                             \
                         : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",       \
                           "xmm10", "xmm11", "xmm12");                                                                 \
    } while (0)

static void chained_adds(void) { LOOP(".rept 16\n vaddps %%ymm12, %%ymm0, %%ymm0\n .endr\n"); }
static void chained_fmas(void) { LOOP(".rept 16\n vfmadd231ps %%ymm12, %%ymm12, %%ymm0\n .endr\n"); }
static void chained_wide_fmas(void) { LOOP(".rept 16\n vfmadd231ps %%zmm12, %%zmm12, %%zmm0\n .endr\n"); }

#define EACH(register)                                                                                                 \
    ".irp r, 0,1,2,3,4,5,6,7,8,9,10,11\n vfmadd231ps %%" register "12, %%" register "12, %%" register "\\r\n .endr\n"
static void independent_fmas(void) { LOOP(EACH("ymm")); }
static void independent_wide_fmas(void) { LOOP(EACH("zmm")); }

/* Seconds of one instruction. */
static double time_of(void (*run)(void), int instructions) {
    double best = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        const double begin = seconds();
        run();
        const double taken = seconds() - begin;
        if (taken < best) best = taken;
    }
    return best / ((double)STEPS * instructions);
}

attune_status at_core_measure(at_core_measures *m, at_error *err) {
    *m = (at_core_measures){0};
    if ((at_cpu_features() & (AT_CPU_AVX2 | AT_CPU_FMA)) != (AT_CPU_AVX2 | AT_CPU_FMA))
        return at_fail(err, ATTUNE_UNSUPPORTED, "the probe measures multiply-adds, which this CPU does not have");
    const double fma = time_of(chained_fmas, CHAINED);
    m->fma = fma / time_of(independent_fmas, INDEPENDENT);
    m->add = time_of(chained_adds, CHAINED) / fma;
    if (at_cpu_features() & AT_CPU_AVX512F)
        m->fma_wide = time_of(chained_wide_fmas, CHAINED) / time_of(independent_wide_fmas, INDEPENDENT);
    return ATTUNE_OK;
}

#else

attune_status at_core_measure(at_core_measures *m, at_error *err) {
    *m = (at_core_measures){0};
    return at_fail(err, ATTUNE_UNSUPPORTED, "there is no probe for this architecture; ATTUNE_MACHINE names the class");
}

#endif
