/* The handlers for registers of 64 bytes: AVX-512. */
#if defined(__x86_64__)
#include <immintrin.h>

#define VM_ISA    vm_isa_avx512
#define VM_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")))
#define VM_BYTES  64

#define VM_FMA32(x, y, z)  _mm512_fmadd_ps((__m512)(x), (__m512)(y), (__m512)(z))
#define VM_FMA64(x, y, z)  _mm512_fmadd_pd((__m512d)(x), (__m512d)(y), (__m512d)(z))
#define VM_SQRT32(x)       (f32s) _mm512_sqrt_ps((__m512)(x))
#define VM_SQRT64(x)       (f64s) _mm512_sqrt_pd((__m512d)(x))
#define VM_RINT32(x)       _mm512_roundscale_ps((__m512)(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define VM_RINT64(x)       _mm512_roundscale_pd((__m512d)(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define VM_LDEXP32(x, y)   _mm512_scalef_ps((__m512)(x), (__m512)(y))
#define VM_LDEXP64(x, y)   _mm512_scalef_pd((__m512d)(x), (__m512d)(y))
#define VM_TRUNCATE32(x)   _mm512_cvttps_epi32((__m512)(x))
#define VM_WIDEN_F16(from) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(from)))
#define VM_NARROW_F16(to, x)                                                                                           \
    _mm256_store_si256((__m256i *)(to), _mm512_cvtps_ph((__m512)(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))
#define VM_WIDEN_BYTES(from)        _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(from)))
#define VM_WIDEN_SIGNED_BYTES(from) _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(from)))
#define VM_PERMUTE4(x, y, picks)    _mm512_permutex2var_epi32((__m512i)(x), (__m512i)(picks), (__m512i)(y))

#define bools_of(x) _mm_test_epi8_mask(x, x)
/* The mask of the first `lanes` of 16 lanes whose bool is true. */
#define MASK(bools, lanes)                         (__mmask16)(bools_of((__m128i)(bools)) & ((1u << (lanes)) - 1))
#define VM_LOAD_MASKED4(address, bools, lanes)     _mm512_maskz_loadu_epi32(MASK(bools, lanes), address)
#define VM_STORE_MASKED4(address, bools, lanes, x) _mm512_mask_storeu_epi32(address, MASK(bools, lanes), (__m512i)(x))

#define VM_LEAVE _mm256_zeroupper()

#include "vm/program.h"

/* Pairs of bf16, on CPUs with the instructions; other CPUs get no kernels with these operators. */
#define VM_DOT2(x, y, sum)    (f32s) _mm512_dpbf16_ps((__m512)(sum), (__m512bh)(x), (__m512bh)(y))
#define VM_WITH_DOT2          __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,avx512bf16")))
#define PAIRS(name, features) __attribute__((target(features))) static const vm_op *name(const vm_op *op, char *frame)

PAIRS(dot2, "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16") {
    VM_AT(__m512, op->out) = _mm512_dpbf16_ps(VM_AT(__m512, op->c), VM_AT(__m512bh, op->a), VM_AT(__m512bh, op->b));
    VM_NEXT;
}

/* The even lanes of the result are those of a. */
PAIRS(pack2, "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16") {
    const __m512i even = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(VM_AT(__m512, op->a)));
    const __m512i odd = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(VM_AT(__m512, op->b)));
    VM_AT(__m512i, op->out) = _mm512_or_si512(even, _mm512_slli_epi32(odd, 16));
    VM_NEXT;
}

#define VM_DOT4
PAIRS(dot4, "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni") {
    VM_AT(__m512i, op->out) = _mm512_dpbusd_epi32(VM_AT(__m512i, op->c), VM_AT(__m512i, op->a), VM_AT(__m512i, op->b));
    VM_NEXT;
}

#include "vm/handlers.h"
#endif
