/* The features of CPUs that code may need. */
#ifndef ATTUNE_TARGET_CPU_FEATURES_H
#define ATTUNE_TARGET_CPU_FEATURES_H

/* CPU features that matter to us, as bits of `required` and of cache files. Part of the file format: append only.
 * BMI2 stands for BMI1, BMI2, LZCNT and MOVBE together; AVX2 for AVX2 and POPCNT. */
enum {
    AT_CPU_X86_64 = 1u << 0,
    AT_CPU_AVX2 = 1u << 1,
    AT_CPU_FMA = 1u << 2,
    AT_CPU_F16C = 1u << 3,
    AT_CPU_BMI2 = 1u << 4,
    AT_CPU_AVX512F = 1u << 5,
    AT_CPU_AVX512BW = 1u << 6,
    AT_CPU_AVX512DQ = 1u << 7,
    AT_CPU_AVX512VL = 1u << 8,
    AT_CPU_AVX512BF16 = 1u << 9,
    AT_CPU_AVX512VNNI = 1u << 10,
    AT_CPU_AVX512CD = 1u << 11,
    AT_CPU_AARCH64 = 1u << 12,  /* with Advanced SIMD, which Linux requires of it */
    AT_CPU_AMX_BF16 = 1u << 13, /* with AMX_TILE; see at_cpu_request */
    AT_CPU_AVX512VBMI = 1u << 14
};

#endif
