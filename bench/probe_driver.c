/* What the CPU can do at most, behind the protocol of README.md: "peak f32" and "peak bf16" in GFLOP/s, "bandwidth
 * BYTES" in GB/s for a buffer of that size. usage: probe_driver THREADS ISA */
#define _GNU_SOURCE
#include "driver.h"

#include "bandwidth.h"
#include "crew.h"
#include "peak.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t threads;
static const char *isa;
static peak_probe *peak;

/* ---- bf16 dot products ---- */

#if defined(__x86_64__)
#include <immintrin.h>

enum { STEPS = 50000 };
#define TWELVE(X)  X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define DECLARE(n) __m512 a##n = _mm512_set1_ps((float)n);
#define STEP(n)    a##n = _mm512_dpbf16_ps(a##n, x, x);
#define SUM(n)     total = _mm512_add_ps(total, a##n);

/* The factors come from outside and are zeros, so that nothing is folded and nothing grows. */
__attribute__((target("avx512f,avx512bf16"))) static void dots(void *argument, uint32_t member) {
    const __m512bh x = (__m512bh)_mm512_set1_epi32(*(volatile int *)argument);
    __m512 total = _mm512_setzero_ps();
    (void)member;
    TWELVE(DECLARE)
    for (int i = 0; i < STEPS; i++) {
        TWELVE(STEP)
    }
    TWELVE(SUM)
    const volatile float sink = _mm512_cvtss_f32(total);
    (void)sink;
}

/* 0 where the CPU has no such instruction. */
static double bf16_peak(void) {
    static crew *all;
    static volatile int zero;
    if (strcmp(isa, "avx512") != 0 || !__builtin_cpu_supports("avx512bf16")) return 0;
    if (!all && !(all = crew_create(threads))) return 0;
    const double us = crew_run(all, dots, (void *)&zero);
    return (double)threads * STEPS * 12.0 * 64.0 / us * 1e-3;
}
#else
static double bf16_peak(void) { return 0; }
#endif

/* ---- Bandwidth ---- */

/* One buffer at a time, and the streams in which it is read fastest. */
static double bandwidth(size_t bytes) {
    static bandwidth_probe *probe;
    static size_t size;
    static int streams;
    if (size != bytes) {
        bandwidth_destroy(probe);
        probe = bandwidth_create(isa, threads, bytes);
        size = probe ? bytes : 0;
        streams = probe ? bandwidth_choose_streams(probe, bytes) : 0;
    }
    return probe ? bandwidth_measure(probe, bytes, streams) : 0;
}

static bool ask(const char *line, char text[DRIVER_TEXT]) {
    size_t bytes = 0;
    if (strcmp(line, "peak f32") == 0)
        snprintf(text, DRIVER_TEXT, "%.3f", peak_measure(peak));
    else if (strcmp(line, "peak bf16") == 0)
        snprintf(text, DRIVER_TEXT, "%.3f", bf16_peak());
    else if (sscanf(line, "bandwidth %zu", &bytes) == 1 && bytes)
        snprintf(text, DRIVER_TEXT, "%.3f", bandwidth(bytes));
    else
        return false;
    return true;
}

static bool prepare(const driver_problem *p, char text[DRIVER_TEXT]) {
    (void)p;
    snprintf(text, DRIVER_TEXT, "this driver only probes");
    return false;
}

static void drop(void) {}

int main(int argc, char **argv) {
    if (argc != 3 || !(threads = (uint32_t)strtoul(argv[1], NULL, 10))) {
        fprintf(stderr, "usage: probe_driver THREADS ISA\n");
        return 2;
    }
    isa = argv[2];
    if (!(peak = peak_create(isa, threads))) return 1;
    const driver d = {"none", "probe", prepare, NULL, NULL, drop, ask};
    const int code = driver_serve(&d);
    peak_destroy(peak);
    return code;
}
