/* Times of a core's instructions, relative to each other. */
#include "machine/machine.h"

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

/* Where loads and stores go. */
static _Thread_local _Alignas(64) char memory[64];

/* Runs the instructions of `body` STEPS times, on registers that are 0. */
#define LOOP(body)                                                                                                     \
    do {                                                                                                               \
        uint64_t left = STEPS;                                                                                         \
        __asm__ volatile(".irp r, 0,1,2,3,4,5,6,7,8,9,10,11,12\n vxorps %%xmm\\r, %%xmm\\r, %%xmm\\r\n .endr\n"        \
                         "1:\n" body "dec %0\n jnz 1b\n vzeroupper\n"                                                  \
                         : "+r"(left)                                                                                  \
                         : "r"(memory)                                                                                 \
                         : "cc", "memory", "rax", "rdx", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6",       \
                           "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12");                                         \
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

/* ---- Cycles ---- */

#define RUN(name, register)                                                                                            \
    static void name##_fmas(void) { LOOP(EACH(register)); }                                                            \
    static void name##_loads(void) {                                                                                   \
        LOOP(".irp r, 0,1,2,3,4,5,6,7,8,9,10,11\n vmovups (%1), %%" register "\\r\n .endr\n");                         \
    }                                                                                                                  \
    static void name##_stores(void) {                                                                                  \
        LOOP(".irp r, 0,1,2,3,4,5,6,7,8,9,10,11\n vmovups %%" register "\\r, (%1)\n .endr\n");                         \
    }                                                                                                                  \
    static void name##_shuffles(void) {                                                                                \
        LOOP(                                                                                                          \
            ".irp r, 0,1,2,3,4,5,6,7,8,9,10,11\n vshufps $27, %%" register "12, %%" register "12, %%" register "\\r\n" \
                                                                                                               " ."    \
                                                                                                               "endr"  \
                                                                                                               "\n");  \
    }
RUN(narrow, "xmm")
RUN(usual, "ymm")
RUN(wide, "zmm")

static void dots_of_bf16(void) {
    LOOP(".irp r, 0,1,2,3,4,5,6,7,8,9,10,11\n vdpbf16ps %%zmm12, %%zmm12, %%zmm\\r\n .endr\n");
}
static void dots_of_i8(void) {
    LOOP(".irp r, 0,1,2,3,4,5,6,7,8,9,10,11\n vpdpbusd %%zmm12, %%zmm12, %%zmm\\r\n .endr\n");
}

/* An addition of registers takes a cycle on all cores, and no core does it while renaming. */
static void chained_integers(void) { LOOP("xor %%edx, %%edx\n .rept 16\n add %%rdx, %%rax\n .endr\n"); }

void at_core_count(at_core_cycles *c) {
    static void (*const runs[][4])(void) = {{narrow_fmas, narrow_loads, narrow_stores, narrow_shuffles},
                                            {usual_fmas, usual_loads, usual_stores, usual_shuffles},
                                            {wide_fmas, wide_loads, wide_stores, wide_shuffles}};
    const uint32_t features = at_cpu_features();
    const int widths = features & AT_CPU_AVX512F ? 3 : 2;
    const double cycle = time_of(chained_integers, CHAINED);
    *c = (at_core_cycles){.latency = time_of(chained_fmas, CHAINED) / cycle};
    for (int w = 0; w < widths; w++) {
        c->fma[w] = time_of(runs[w][0], INDEPENDENT) / cycle;
        c->load[w] = time_of(runs[w][1], INDEPENDENT) / cycle;
        c->store[w] = time_of(runs[w][2], INDEPENDENT) / cycle;
        c->shuffle[w] = time_of(runs[w][3], INDEPENDENT) / cycle;
    }
    if (features & AT_CPU_AVX512BF16) c->bf16 = time_of(dots_of_bf16, INDEPENDENT) / cycle;
    if (features & AT_CPU_AVX512VNNI) c->i8 = time_of(dots_of_i8, INDEPENDENT) / cycle;
}

#else

void at_core_count(at_core_cycles *c) { *c = (at_core_cycles){0}; }

attune_status at_core_measure(at_core_measures *m, at_error *err) {
    *m = (at_core_measures){0};
    return at_fail(err, ATTUNE_UNSUPPORTED, "there is no probe for this architecture; ATTUNE_MACHINE names the class");
}

#endif
