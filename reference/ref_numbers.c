/* Numbers of every type, as the reference reads and rounds them. */
#include "ref_attention.h"

#include <math.h>
#include <string.h>
#include <tgmath.h>

size_t ref_dtype_bytes(attune_dtype dtype) {
    switch ((int)dtype) {
    case ATTUNE_F16:
    case ATTUNE_BF16: return 2;
    case ATTUNE_F64: return 8;
    case ATTUNE_BOOL:
    case ATTUNE_I8:
    case ATTUNE_F8: return 1;
    case REF_WIDE: return sizeof(long double);
    default: return 4;
    }
}

/* The upper half of an f32, rounded once. */
static uint16_t to_bf16(long double value) {
    enum { DIGITS = 8, LEAST_EXPONENT = -133 };
    int exponent = 0;
    if (isfinite(value)) frexp(value, &exponent);
    const int last = exponent - DIGITS > LEAST_EXPONENT ? exponent - DIGITS : LEAST_EXPONENT;
    const float narrow = (float)(isfinite(value) ? ldexp(rint(ldexp(value, -last)), last) : value);
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static float from_bf16(uint16_t half) {
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* E4M3: steps of 2^-9 up to 2^-6, then eight to each power of two, up to 448. */
static uint8_t to_f8(long double value) {
    enum { DIGITS = 4, LEAST_EXPONENT = -9, LEAST_NORMAL = -6, BIAS = 7, NOT_A_NUMBER = 0x7f };
    const unsigned sign = signbit(value) ? 0x80 : 0;
    int exponent = 0;
    if (!isfinite(value)) return NOT_A_NUMBER;
    frexp(value, &exponent);
    const int last = exponent - DIGITS > LEAST_EXPONENT ? exponent - DIGITS : LEAST_EXPONENT;
    const long double size = ldexp(rint(ldexp(fabs(value), -last)), last);
    if (size > 448) return NOT_A_NUMBER;
    if (size < ldexp(1.0L, LEAST_NORMAL)) return (uint8_t)(sign | (unsigned)ldexp(size, -LEAST_EXPONENT));
    frexp(size, &exponent);
    const unsigned fraction = (unsigned)ldexp(size, DIGITS - exponent) - 8;
    return (uint8_t)(sign | (unsigned)(exponent - 1 + BIAS) << 3 | fraction);
}

static long double from_f8(uint8_t code) {
    const int exponent = code >> 3 & 15, fraction = code & 7;
    if ((code & 0x7f) == 0x7f) return (long double)NAN;
    const long double size = exponent ? ldexp(8.0L + fraction, exponent - 10) : ldexp((long double)fraction, -9);
    return code & 0x80 ? -size : size;
}

/* Whole numbers only; any other value becomes 0. */
static int8_t to_i8(long double value) { return (int8_t)(isnan(value) ? 0 : fmax(-128.0L, fmin(127.0L, rint(value)))); }

long double ref_load(attune_dtype dtype, const void *storage, int64_t index) {
    switch ((int)dtype) {
    case ATTUNE_I8: return ((const int8_t *)storage)[index];
    case ATTUNE_F8: return from_f8(((const uint8_t *)storage)[index]);
    case ATTUNE_F16: return (long double)((const _Float16 *)storage)[index];
    case ATTUNE_BF16: return (long double)from_bf16(((const uint16_t *)storage)[index]);
    case ATTUNE_F64: return ((const double *)storage)[index];
    case ATTUNE_BOOL: return ((const unsigned char *)storage)[index] != 0;
    case ATTUNE_I32: return ((const int32_t *)storage)[index];
    case REF_WIDE: return ((const long double *)storage)[index];
    default: return ((const float *)storage)[index];
    }
}

void ref_store(attune_dtype dtype, void *storage, int64_t index, long double value) {
    switch ((int)dtype) {
    case ATTUNE_I8: ((int8_t *)storage)[index] = to_i8(value); return;
    case ATTUNE_F8: ((uint8_t *)storage)[index] = to_f8(value); return;
    case ATTUNE_F16: ((_Float16 *)storage)[index] = (_Float16)value; return;
    case ATTUNE_BF16: ((uint16_t *)storage)[index] = to_bf16(value); return;
    case ATTUNE_F64: ((double *)storage)[index] = (double)value; return;
    case ATTUNE_BOOL: ((unsigned char *)storage)[index] = value != 0; return;
    case ATTUNE_I32: ((int32_t *)storage)[index] = (int32_t)value; return;
    case REF_WIDE: ((long double *)storage)[index] = value; return;
    default: ((float *)storage)[index] = (float)value; return;
    }
}

long double ref_rounded(attune_dtype dtype, long double value) {
    long double storage;
    ref_store(dtype, &storage, 0, value);
    return ref_load(dtype, &storage, 0);
}
