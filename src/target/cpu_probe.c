/* CPUID on x86-64; on AArch64 the kernel's hwcaps and MIDR. */
#include "target/cpu_probe.h"

#include "target/cpu_features.h"

#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

#if defined(__x86_64__)

/* The register state that the operating system saves; without it the instructions fault although CPUID has them. */
static uint64_t saved_state(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

enum { TILE_DATA = 18 };

/* Without the C library's syscall, which the run time of a bundle does not have. */
static long arch_prctl(long code, uintptr_t argument) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "0"(SYS_arch_prctl), "D"(code), "S"(argument) : "rcx", "r11", "memory");
    return result;
}

/* Whether Linux, since 5.16, gives processes that ask for it the large state of tile registers. */
static bool has_tiles_to_give(void) {
    enum { GET_SUPPORTED = 0x1021 };
    uint64_t supported = 0;
    return arch_prctl(GET_SUPPORTED, (uintptr_t)&supported) == 0 && supported >> TILE_DATA & 1;
}

bool at_cpu_request_tiles(void) {
    enum { REQUEST_PERMISSION = 0x1023 };
    return arch_prctl(REQUEST_PERMISSION, TILE_DATA) == 0;
}

uint32_t at_cpu_probe_features(void) {
    enum { YMM_STATE = 0x6, ZMM_STATE = 0xe6, TILE_STATE = 0x60000, AMX_BITS = 1 << 22 | 1 << 24 /* BF16, TILE */ };
    uint32_t a, b, c, d, features = AT_CPU_X86_64;
    uint32_t ecx1 = 0, ebx7 = 0, ecx7 = 0, edx7 = 0, eax71 = 0, ecx81 = 0;
    if (__get_cpuid(1, &a, &b, &c, &d)) ecx1 = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        ebx7 = b;
        ecx7 = c;
        edx7 = d;
        if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) eax71 = a;
    }
    if (__get_cpuid(0x80000001u, &a, &b, &c, &d)) ecx81 = c;

    uint64_t state = ecx1 & bit_OSXSAVE ? saved_state() : 0;
    uint32_t lzcnt = ecx81 & bit_LZCNT;
    if ((ebx7 & bit_BMI) && (ebx7 & bit_BMI2) && lzcnt && (ecx1 & bit_MOVBE)) features |= AT_CPU_BMI2;
    if ((state & YMM_STATE) == YMM_STATE) {
        if (ebx7 & bit_AVX2 && ecx1 & bit_POPCNT) features |= AT_CPU_AVX2;
        if (ecx1 & bit_FMA) features |= AT_CPU_FMA;
        if (ecx1 & bit_F16C) features |= AT_CPU_F16C;
    }
    if ((state & ZMM_STATE) == ZMM_STATE) {
        if (ebx7 & bit_AVX512F) features |= AT_CPU_AVX512F;
        if (ebx7 & bit_AVX512BW) features |= AT_CPU_AVX512BW;
        if (ebx7 & bit_AVX512DQ) features |= AT_CPU_AVX512DQ;
        if (ebx7 & bit_AVX512VL) features |= AT_CPU_AVX512VL;
        if (ebx7 & bit_AVX512CD) features |= AT_CPU_AVX512CD;
        if (ecx7 & bit_AVX512VNNI) features |= AT_CPU_AVX512VNNI;
        if (ecx7 & bit_AVX512VBMI) features |= AT_CPU_AVX512VBMI;
        if (eax71 & bit_AVX512BF16) features |= AT_CPU_AVX512BF16;
    }
    if ((state & TILE_STATE) == TILE_STATE && (edx7 & AMX_BITS) == AMX_BITS && has_tiles_to_give())
        features |= AT_CPU_AMX_BF16;
    return features;
}

/* The display family and model, as makers print them: the extended parts count for some base families only. */
at_cpu_identity at_cpu_probe_identity(void) {
    at_cpu_identity identity = {0};
    uint32_t a, b, c, d;
    if (!__get_cpuid(0, &a, &b, &c, &d)) return identity;
    const uint32_t vendor[3] = {b, d, c};
    memcpy(identity.vendor, vendor, sizeof vendor);
    if (!__get_cpuid(1, &a, &b, &c, &d)) return identity;
    const uint32_t family = a >> 8 & 15, model = a >> 4 & 15;
    identity.stepping = a & 15;
    identity.family = family + (family == 15 ? a >> 20 & 255 : 0);
    identity.model = model + (family == 15 || family == 6 ? (a >> 16 & 15) << 4 : 0);
    return identity;
}

#elif defined(__aarch64__)

uint32_t at_cpu_probe_features(void) {
    const unsigned long capabilities = getauxval(AT_HWCAP);
    return (capabilities & HWCAP_FP) && (capabilities & HWCAP_ASIMD) ? AT_CPU_AARCH64 : 0;
}

/* Programs may not read this register; the kernel emulates the read if its hwcaps say so. */
at_cpu_identity at_cpu_probe_identity(void) {
    uint64_t midr = 0;
    if (getauxval(AT_HWCAP) & HWCAP_CPUID) __asm__("mrs %0, midr_el1" : "=r"(midr));
    return (at_cpu_identity){.is_arm = true,
                             .family = (uint32_t)(midr >> 24 & 0xff),
                             .model = (uint32_t)(midr >> 4 & 0xfff),
                             .stepping = (uint32_t)(midr >> 20 & 0xf)};
}

bool at_cpu_request_tiles(void) { return false; }

#else

uint32_t at_cpu_probe_features(void) { return 0; }
at_cpu_identity at_cpu_probe_identity(void) { return (at_cpu_identity){0}; }
bool at_cpu_request_tiles(void) { return false; }

#endif
