/* The handlers for registers of 32 bytes: AVX2, FMA and F16C. */
#if defined(__x86_64__)
#include <immintrin.h>

#define VM_ISA    vm_isa_avx2
#define VM_TARGET __attribute__((target("avx2,fma,f16c")))
#define VM_BYTES  32

#define VM_FMA32(x, y, z)  _mm256_fmadd_ps((__m256)(x), (__m256)(y), (__m256)(z))
#define VM_FMA64(x, y, z)  _mm256_fmadd_pd((__m256d)(x), (__m256d)(y), (__m256d)(z))
#define VM_SQRT32(x)       (f32s) _mm256_sqrt_ps((__m256)(x))
#define VM_SQRT64(x)       (f64s) _mm256_sqrt_pd((__m256d)(x))
#define VM_RINT32(x)       _mm256_round_ps((__m256)(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define VM_RINT64(x)       _mm256_round_pd((__m256d)(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define VM_TRUNCATE32(x)   _mm256_cvttps_epi32((__m256)(x))
#define VM_WIDEN_F16(from) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from)))
#define VM_NARROW_F16(to, x)                                                                                           \
    _mm_store_si128((__m128i *)(to), _mm256_cvtps_ph((__m256)(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))

#define VM_WIDEN_BYTES(from)        _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(from)))
#define VM_WIDEN_SIGNED_BYTES(from) _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(from)))

/* Lane numbers from 8 on mean lanes of y. */
#define VM_PERMUTE4(x, y, picks)                                                                                       \
    _mm256_blendv_ps(_mm256_permutevar8x32_ps((__m256)(x), (__m256i)(picks)),                                          \
                     _mm256_permutevar8x32_ps((__m256)(y), (__m256i)(picks)),                                          \
                     (__m256)_mm256_slli_epi32((__m256i)(picks), 28))

#define VM_LEAVE _mm256_zeroupper()

#include "vm/handlers.h"
#endif
