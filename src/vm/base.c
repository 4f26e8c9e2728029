/* Registers of 16 bytes: baseline x86-64, without fused multiply-add, and AArch64, with it. */
#if defined(__x86_64__)
#include <emmintrin.h>

#define VM_SQRT32(x) (f32s) _mm_sqrt_ps((__m128)(x))
#define VM_SQRT64(x) (f64s) _mm_sqrt_pd((__m128d)(x))

#define VM_TRUNCATE32(x) _mm_cvttps_epi32((__m128)(x))
#else
#include <arm_neon.h>

#define VM_FMA32(x, y, z) vfmaq_f32((float32x4_t)(z), (float32x4_t)(x), (float32x4_t)(y))
#define VM_FMA64(x, y, z) vfmaq_f64((float64x2_t)(z), (float64x2_t)(x), (float64x2_t)(y))
#define VM_SQRT32(x)      (f32s) vsqrtq_f32((float32x4_t)(x))
#define VM_SQRT64(x)      (f64s) vsqrtq_f64((float64x2_t)(x))
#define VM_RINT32(x)      vrndnq_f32((float32x4_t)(x))
#define VM_RINT64(x)      vrndnq_f64((float64x2_t)(x))
/* The conversion saturates, and gives 0 for NaN. */
#define VM_TRUNCATE32(x)                                                                                               \
    vbslq_s32(vcltq_f32((float32x4_t)(x), vdupq_n_f32(0x1p31f)), vcvtq_s32_f32((float32x4_t)(x)),                      \
              vdupq_n_s32(INT32_MIN))
#define VM_WIDEN_F16(from)   vcvt_f32_f16((float16x4_t)vld1_u8((const uint8_t *)(from)))
#define VM_NARROW_F16(to, x) vst1_u16((uint16_t *)(to), (uint16x4_t)vcvt_f16_f32((float32x4_t)(x)))
#endif

#define VM_ISA vm_isa_base
#define VM_TARGET
#define VM_BYTES 16
#define VM_LEAVE (void)0

#include "vm/handlers.h"
