/* Conversions between elements, as ir/eval_cast.c defines them.
 *
 * float -> int uses the processor's truncating instructions, as LLVM's fptosi is undefined out of range. On x86 their
 * result is the smallest integer there, as the IR wants it; on AArch64 they saturate, and a comparison corrects that.
 *
 * f16, bf16 and f8 are converted in integer arithmetic, unless one instruction gives the same bits: fptrunc would
 * become a library call. By the IR's rules (f32 and f64 to and from all numbers, storage types only to and from the
 * type in which they are computed, bool to integers) there are no other cases. */
#include "codegen/emit_build.h"

#include <math.h>

static bool has(const cg_emit *e, uint32_t feature) { return (e->target->required & feature) == feature; }

/* Whether an instruction converts f16 from and to f32. */
static bool has_f16(const cg_emit *e) { return has(e, AT_CPU_F16C) || has(e, AT_CPU_AARCH64); }

/* ---- float -> i32, i64 ---- */

/* The saturating intrinsic differs from the IR only for values that are too large, and for NaN, which it makes 0. */
static LLVMValueRef float_to_int_by_select(cg_emit *e, LLVMValueRef x, LLVMTypeRef to) {
    const bool wide = to == e->i64;
    LLVMTypeRef types[] = {cg_vector_of(to, cg_lanes(x)), LLVMTypeOf(x)};
    LLVMValueRef saturated = cg_call_types(e, "llvm.fptosi.sat", 2, types, 1, &x);
    LLVMValueRef fits = LLVMBuildFCmp(e->b, LLVMRealOLT, x, cg_float_like(x, wide ? 0x1p63 : 0x1p31), "");
    return cg_select(e, fits, saturated, cg_int_like(saturated, wide ? INT64_MIN : INT32_MIN));
}

enum { CURRENT_ROUNDING = 4 };

/* The AVX-512 forms: (x, what masked-off lanes keep, mask, rounding). */
static LLVMValueRef convert_512(cg_emit *e, const char *intrinsic, LLVMValueRef x, LLVMTypeRef to, LLVMTypeRef mask) {
    LLVMValueRef none = LLVMConstNull(LLVMVectorType(to, cg_lanes(x)));
    LLVMValueRef args[] = {x, none, LLVMConstAllOnes(mask), cg_i32(e, CURRENT_ROUNDING)};
    return cg_call(e, intrinsic, NULL, 4, args);
}

static LLVMValueRef ps_to_i32_128(cg_emit *e, LLVMValueRef x, LLVMValueRef y) {
    (void)y;
    return cg_call_1(e, "llvm.x86.sse2.cvttps2dq", NULL, x);
}
static LLVMValueRef ps_to_i32_256(cg_emit *e, LLVMValueRef x, LLVMValueRef y) {
    (void)y;
    return cg_call_1(e, "llvm.x86.avx.cvtt.ps2dq.256", NULL, x);
}
static LLVMValueRef ps_to_i32_512(cg_emit *e, LLVMValueRef x, LLVMValueRef y) {
    (void)y;
    return convert_512(e, "llvm.x86.avx512.mask.cvttps2dq.512", x, e->i32, e->i16);
}
static LLVMValueRef ps_round_128(cg_emit *e, LLVMValueRef x, LLVMValueRef y) {
    (void)y;
    return cg_call_1(e, "llvm.x86.sse2.cvtps2dq", NULL, x);
}
static LLVMValueRef ps_round_256(cg_emit *e, LLVMValueRef x, LLVMValueRef y) {
    (void)y;
    return cg_call_1(e, "llvm.x86.avx.cvt.ps2dq.256", NULL, x);
}
static LLVMValueRef ps_round_512(cg_emit *e, LLVMValueRef x, LLVMValueRef y) {
    (void)y;
    return convert_512(e, "llvm.x86.avx512.mask.cvtps2dq.512", x, e->i32, e->i16);
}
static LLVMValueRef pd_to_i32_128(cg_emit *e, LLVMValueRef x, LLVMValueRef y) {
    (void)y;
    return cg_slice(e, cg_call_1(e, "llvm.x86.sse2.cvttpd2dq", NULL, x), 0, 2);
}
static LLVMValueRef pd_to_i32_256(cg_emit *e, LLVMValueRef x, LLVMValueRef y) {
    (void)y;
    return cg_call_1(e, "llvm.x86.avx.cvtt.pd2dq.256", NULL, x);
}
static LLVMValueRef pd_to_i32_512(cg_emit *e, LLVMValueRef x, LLVMValueRef y) {
    (void)y;
    return convert_512(e, "llvm.x86.avx512.mask.cvttpd2dq.512", x, e->i32, e->i8);
}
static LLVMValueRef ps_to_i64_512(cg_emit *e, LLVMValueRef x, LLVMValueRef y) {
    (void)y;
    return convert_512(e, "llvm.x86.avx512.mask.cvttps2qq.512", x, e->i64, e->i8);
}
static LLVMValueRef pd_to_i64_512(cg_emit *e, LLVMValueRef x, LLVMValueRef y) {
    (void)y;
    return convert_512(e, "llvm.x86.avx512.mask.cvttpd2qq.512", x, e->i64, e->i8);
}

/* One lane by the scalar instructions, whose operand is a whole register. */
static LLVMValueRef lane_to_int(cg_emit *e, LLVMValueRef lane, LLVMTypeRef to) {
    const bool wide = to == e->i64;
    if (LLVMTypeOf(lane) == e->f32)
        return cg_call_1(e, wide ? "llvm.x86.sse.cvttss2si64" : "llvm.x86.sse.cvttss2si", NULL,
                         cg_slice(e, lane, 0, 4));
    return cg_call_1(e, wide ? "llvm.x86.sse2.cvttsd2si64" : "llvm.x86.sse2.cvttsd2si", NULL, cg_slice(e, lane, 0, 2));
}

static LLVMValueRef lanes_to_int(cg_emit *e, LLVMValueRef x, LLVMTypeRef to) {
    if (cg_lanes(x) == 1) return lane_to_int(e, x, to);
    LLVMValueRef result = LLVMGetPoison(LLVMVectorType(to, cg_lanes(x)));
    for (unsigned l = 0; l < cg_lanes(x); l++) result = cg_set_lane(e, result, lane_to_int(e, cg_lane(e, x, l), to), l);
    return result;
}

static LLVMValueRef vector_to_i32(cg_emit *e, LLVMValueRef x) {
    const unsigned lanes = cg_lanes(x);
    const bool avx = has(e, AT_CPU_AVX2), avx512 = has(e, AT_CPU_AVX512F);
    if (cg_scalar_of(x) == e->f32)
        return avx512 && lanes >= 16 ? cg_by_chunks(e, x, NULL, 16, ps_to_i32_512)
               : avx && lanes >= 8   ? cg_by_chunks(e, x, NULL, 8, ps_to_i32_256)
                                     : cg_by_chunks(e, x, NULL, 4, ps_to_i32_128);
    return avx512 && lanes >= 8 ? cg_by_chunks(e, x, NULL, 8, pd_to_i32_512)
           : avx && lanes >= 4  ? cg_by_chunks(e, x, NULL, 4, pd_to_i32_256)
                                : cg_by_chunks(e, x, NULL, 2, pd_to_i32_128);
}

static LLVMValueRef float_to_int(cg_emit *e, LLVMValueRef x, LLVMTypeRef to) {
    if (has(e, AT_CPU_AARCH64)) return float_to_int_by_select(e, x, to);
    if (cg_lanes(x) == 1) return lane_to_int(e, x, to);
    if (to == e->i32) return vector_to_i32(e, x);
    if (has(e, AT_CPU_AVX512DQ) && cg_lanes(x) >= 8)
        return cg_by_chunks(e, x, NULL, 8, cg_scalar_of(x) == e->f32 ? ps_to_i64_512 : pd_to_i64_512);
    return lanes_to_int(e, x, to);
}

bool cg_rounds_to_i32(const cg_emit *e, ir_type from) {
    const bool is_x86 = !has(e, AT_CPU_AARCH64);
    return is_x86 && e->target->flags & AT_TARGET_ROUND && from.elem == IR_F32 && from.lanes > 1;
}

LLVMValueRef cg_round_to_i32(cg_emit *e, LLVMValueRef x) {
    const unsigned lanes = cg_lanes(x);
    return has(e, AT_CPU_AVX512F) && lanes >= 16 ? cg_by_chunks(e, x, NULL, 16, ps_round_512)
           : has(e, AT_CPU_AVX2) && lanes >= 8   ? cg_by_chunks(e, x, NULL, 8, ps_round_256)
                                                 : cg_by_chunks(e, x, NULL, 4, ps_round_128);
}

/* ---- f16, bf16, f8 ---- */

typedef struct narrow_format {
    int exponent_bits, mantissa_bits;
    bool has_infinity; /* if false, only the all-ones bits are NaN, and overflow gives NaN */
} narrow_format;

static narrow_format format_of(ir_elem elem) {
    return elem == IR_F16    ? (narrow_format){5, 10, true}
           : elem == IR_BF16 ? (narrow_format){8, 7, true}
                             : (narrow_format){4, 3, false};
}

static LLVMValueRef and_bits(cg_emit *e, LLVMValueRef x, uint64_t mask) {
    return LLVMBuildAnd(e->b, x, cg_int_like(x, (int64_t)mask), "");
}
static LLVMValueRef shift_left(cg_emit *e, LLVMValueRef x, int count) {
    return LLVMBuildShl(e->b, x, cg_int_like(x, count), "");
}
static LLVMValueRef shift_right(cg_emit *e, LLVMValueRef x, int count) {
    return LLVMBuildLShr(e->b, x, cg_int_like(x, count), "");
}
static LLVMValueRef add_int(cg_emit *e, LLVMValueRef x, int64_t y) {
    return LLVMBuildAdd(e->b, x, cg_int_like(x, y), "");
}
static LLVMValueRef is_equal(cg_emit *e, LLVMValueRef x, int64_t y) {
    return LLVMBuildICmp(e->b, LLVMIntEQ, x, cg_int_like(x, y), "");
}

/* Of f16 bits, by the instruction. */
static LLVMValueRef widen_half(cg_emit *e, LLVMValueRef bits) {
    const unsigned lanes = cg_lanes(bits);
    LLVMTypeRef half = cg_vector_of(LLVMHalfTypeInContext(e->context), lanes);
    return LLVMBuildFPExt(e->b, LLVMBuildBitCast(e->b, bits, half, ""), cg_vector_of(e->f32, lanes), "");
}

/* The bits of an f8 value, shifted to their place in f16, are the value divided by 2^8. NaN gets the exponent of NaN.
 */
static LLVMValueRef widen_f8_by_half(cg_emit *e, LLVMValueRef x) {
    enum { PLACED = 0xbf80, MAGNITUDE = 0x7f, SPECIAL = 0x7c00 };
    LLVMValueRef bits = LLVMBuildZExt(e->b, x, cg_vector_of(e->i16, cg_lanes(x)), "");
    LLVMValueRef placed = LLVMBuildAShr(e->b, shift_left(e, bits, 8), cg_int_like(bits, 1), "");
    placed = and_bits(e, placed, PLACED);
    LLVMValueRef nan = LLVMBuildOr(e->b, placed, cg_int_like(bits, SPECIAL), "");
    LLVMValueRef wide = widen_half(e, cg_select(e, is_equal(e, and_bits(e, bits, MAGNITUDE), MAGNITUDE), nan, placed));
    return LLVMBuildFMul(e->b, wide, cg_float_like(wide, 0x1p8), "");
}

/* The f32 that a narrow float is, exactly. */
static LLVMValueRef widen(cg_emit *e, LLVMValueRef x, ir_elem from) {
    const unsigned lanes = cg_lanes(x);
    LLVMTypeRef f32 = cg_vector_of(e->f32, lanes), i32 = cg_vector_of(e->i32, lanes);
    if (from == IR_F16 && has_f16(e)) return widen_half(e, x);
    if (from == IR_F8 && has_f16(e)) return widen_f8_by_half(e, x);
    LLVMValueRef bits = LLVMBuildZExt(e->b, x, i32, "");
    if (from == IR_BF16) return LLVMBuildBitCast(e->b, shift_left(e, bits, 16), f32, "");

    /* Exponent and mantissa are shifted to their place in f32, and the result is multiplied by 2 to the difference of
     * the biases, which is right for denormals, too. Infinity and NaN, which have the format's largest exponent, get
     * that of f32. */
    const narrow_format f = format_of(from);
    const int width = f.exponent_bits + f.mantissa_bits, bias = (1 << (f.exponent_bits - 1)) - 1;
    const int64_t ones = (1 << width) - 1, infinity = ones >> f.mantissa_bits << f.mantissa_bits;
    LLVMValueRef magnitude = and_bits(e, bits, (uint64_t)ones);
    LLVMValueRef left = shift_left(e, bits, 31 - width), count = cg_int_like(bits, 8 - f.exponent_bits);
    const int64_t kept = (ones << (23 - f.mantissa_bits)) | INT64_C(0x80000000);
    LLVMValueRef placed = and_bits(e, LLVMBuildAShr(e->b, left, count, ""), (uint64_t)kept);
    LLVMValueRef finite = LLVMBuildBitCast(e->b, placed, f32, "");
    finite = LLVMBuildFMul(e->b, finite, cg_float_like(finite, ldexp(1, 127 - bias)), "");
    LLVMValueRef value = LLVMBuildBitCast(e->b, finite, i32, "");
    LLVMValueRef other = LLVMBuildOr(e->b, value, cg_int_like(bits, 0x7f800000), "");
    LLVMValueRef least = cg_int_like(bits, f.has_infinity ? infinity : ones);
    value = cg_select(e, LLVMBuildICmp(e->b, LLVMIntUGE, magnitude, least, ""), other, value);
    return LLVMBuildBitCast(e->b, value, f32, "");
}

/* The upper half of an f32, rounded by an addition. */
static LLVMValueRef f32_to_bf16(cg_emit *e, LLVMValueRef x) {
    LLVMTypeRef i32 = cg_vector_of(e->i32, cg_lanes(x));
    LLVMValueRef bits = LLVMBuildBitCast(e->b, x, i32, "");
    LLVMValueRef last = and_bits(e, shift_right(e, bits, 16), 1);
    LLVMValueRef rounded = shift_right(e, LLVMBuildAdd(e->b, add_int(e, bits, 0x7fff), last, ""), 16);
    LLVMValueRef quiet = LLVMBuildOr(e->b, shift_right(e, bits, 16), cg_int_like(bits, 0x40), "");
    LLVMValueRef is_nan = LLVMBuildFCmp(e->b, LLVMRealUNO, x, x, "");
    return LLVMBuildTrunc(e->b, cg_select(e, is_nan, quiet, rounded), cg_vector_of(e->i16, cg_lanes(x)), "");
}

/* Normal results are rounded by an addition to the bits that are cut off. Denormal results are rounded by adding 0.5
 * (times a power of two), whose last place is theirs. */
static LLVMValueRef f32_to_f16(cg_emit *e, LLVMValueRef x) {
    const int64_t half = 0x3f000000, least_normal = 0x38800000, too_large = 0x47800000;
    LLVMValueRef bits = LLVMBuildBitCast(e->b, x, cg_vector_of(e->i32, cg_lanes(x)), "");
    LLVMValueRef magnitude = and_bits(e, bits, INT32_MAX), sign = shift_left(e, shift_right(e, bits, 31), 15);
    LLVMValueRef positive = LLVMBuildBitCast(e->b, magnitude, LLVMTypeOf(x), "");
    LLVMValueRef aligned = LLVMBuildFAdd(e->b, positive, cg_float_like(x, 0.5), "");
    LLVMValueRef denormal = add_int(e, LLVMBuildBitCast(e->b, aligned, LLVMTypeOf(bits), ""), -half);
    LLVMValueRef last = and_bits(e, shift_right(e, magnitude, 13), 1);
    LLVMValueRef rebiased = add_int(e, magnitude, 0xfff - ((int64_t)(127 - 15) << 23));
    LLVMValueRef normal = shift_right(e, LLVMBuildAdd(e->b, rebiased, last, ""), 13);
    LLVMValueRef is_small = LLVMBuildICmp(e->b, LLVMIntSLT, magnitude, cg_int_like(bits, least_normal), "");
    LLVMValueRef is_large = LLVMBuildICmp(e->b, LLVMIntSGE, magnitude, cg_int_like(bits, too_large), "");
    LLVMValueRef code = cg_select(e, is_small, denormal, normal);
    code = cg_select(e, is_large, cg_int_like(bits, 0x7c00), code);
    code = cg_select(e, LLVMBuildFCmp(e->b, LLVMRealUNO, x, x, ""), cg_int_like(bits, 0x7e00), code);
    return LLVMBuildTrunc(e->b, LLVMBuildOr(e->b, code, sign, ""), cg_vector_of(e->i16, cg_lanes(x)), "");
}

/* A significand shifted right by `shift` (1 … 54, one for each lane), rounded half to even. */
static LLVMValueRef shift_right_even(cg_emit *e, LLVMValueRef significand, LLVMValueRef shift) {
    LLVMValueRef one = cg_int_like(significand, 1), code = LLVMBuildLShr(e->b, significand, shift, "");
    LLVMValueRef half = LLVMBuildShl(e->b, one, add_int(e, shift, -1), "");
    LLVMValueRef ones = add_int(e, LLVMBuildShl(e->b, one, shift, ""), -1);
    LLVMValueRef rest = LLVMBuildAnd(e->b, significand, ones, "");
    LLVMValueRef above = LLVMBuildICmp(e->b, LLVMIntUGT, rest, half, "");
    LLVMValueRef tie =
        LLVMBuildAnd(e->b, LLVMBuildICmp(e->b, LLVMIntEQ, rest, half, ""),
                     LLVMBuildICmp(e->b, LLVMIntNE, LLVMBuildAnd(e->b, code, one, ""), cg_int_like(code, 0), ""), "");
    LLVMValueRef up = LLVMBuildOr(e->b, above, tie, "");
    return LLVMBuildAdd(e->b, code, LLVMBuildZExt(e->b, up, LLVMTypeOf(code), ""), "");
}

/* An f64 (which holds an f32) rounded to f8, which has no infinity: overflow gives NaN. Denormals are kept. */
static LLVMValueRef f64_to_f8(cg_emit *e, LLVMValueRef x) {
    const narrow_format f = format_of(IR_F8);
    const int width = f.exponent_bits + f.mantissa_bits, bias = (1 << (f.exponent_bits - 1)) - 1;
    const int64_t nan = (1 << width) - 1;
    LLVMValueRef bits = LLVMBuildBitCast(e->b, x, cg_vector_of(e->i64, cg_lanes(x)), "");
    LLVMValueRef magnitude = and_bits(e, bits, UINT64_MAX >> 1), sign = shift_left(e, shift_right(e, bits, 63), width);

    LLVMValueRef exponent = add_int(e, shift_right(e, magnitude, 52), bias - 1023);
    LLVMValueRef is_normal = LLVMBuildICmp(e->b, LLVMIntSGE, exponent, cg_int_like(bits, 1), "");
    LLVMValueRef deficit = LLVMBuildSub(e->b, cg_int_like(bits, 1), exponent, "");
    LLVMValueRef shift = add_int(e, cg_select(e, is_normal, cg_int_like(bits, 0), deficit), 52 - f.mantissa_bits);
    LLVMValueRef vanishes = LLVMBuildICmp(e->b, LLVMIntSGT, shift, cg_int_like(bits, 54), "");
    LLVMValueRef significand =
        LLVMBuildOr(e->b, and_bits(e, magnitude, UINT64_MAX >> 12), cg_int_like(bits, INT64_C(1) << 52), "");
    LLVMValueRef code = shift_right_even(e, significand, cg_select(e, vanishes, cg_int_like(bits, 54), shift));

    /* The implicit one carries into the exponent field, and so does a round-up past the last mantissa. */
    LLVMValueRef carried = LLVMBuildAdd(e->b, code, shift_left(e, add_int(e, exponent, -1), f.mantissa_bits), "");
    code = cg_select(e, is_normal, carried, code);
    LLVMValueRef too_large = LLVMBuildOr(
        e->b, LLVMBuildICmp(e->b, LLVMIntSGE, exponent, cg_int_like(bits, INT64_C(1) << f.exponent_bits), ""),
        LLVMBuildICmp(e->b, LLVMIntUGE, code, cg_int_like(bits, nan), ""), "");
    code = cg_select(e, too_large, cg_int_like(bits, nan), code);
    code = cg_select(e, vanishes, cg_int_like(bits, 0), code);
    code = cg_select(e, LLVMBuildFCmp(e->b, LLVMRealUNO, x, x, ""), cg_int_like(bits, nan), code);
    return LLVMBuildTrunc(e->b, LLVMBuildOr(e->b, code, sign, ""), cg_vector_of(e->i8, cg_lanes(x)), "");
}

static LLVMValueRef from_f32(cg_emit *e, LLVMValueRef x, ir_elem to) {
    const unsigned lanes = cg_lanes(x);
    if (to == IR_BF16) return f32_to_bf16(e, x);
    if (to == IR_F8) return f64_to_f8(e, LLVMBuildFPExt(e->b, x, cg_vector_of(e->f64, lanes), ""));
    if (!has_f16(e)) return f32_to_f16(e, x);
    LLVMTypeRef half = cg_vector_of(LLVMHalfTypeInContext(e->context), lanes);
    return LLVMBuildBitCast(e->b, LLVMBuildFPTrunc(e->b, x, half, ""), cg_vector_of(e->i16, lanes), "");
}

/* ---- i32, i64 -> float ---- */

/* AArch64 cannot convert vectors of i64 to f32, and LLVM would go through f64, which rounds twice. */
static LLVMValueRef int_to_float(cg_emit *e, LLVMValueRef x, LLVMTypeRef to) {
    const bool twice = has(e, AT_CPU_AARCH64) && cg_int_bits(x) == 64 && to == e->f32;
    if (!twice || cg_lanes(x) == 1) return LLVMBuildSIToFP(e->b, x, cg_vector_of(to, cg_lanes(x)), "");
    LLVMValueRef result = LLVMGetPoison(LLVMVectorType(to, cg_lanes(x)));
    for (unsigned l = 0; l < cg_lanes(x); l++)
        result = cg_set_lane(e, result, LLVMBuildSIToFP(e->b, cg_lane(e, x, l), to, ""), l);
    return result;
}

/* ---- All of them ---- */

static bool is_narrow_float(ir_elem elem) { return elem == IR_F16 || elem == IR_BF16 || elem == IR_F8; }

LLVMValueRef cg_cast(cg_emit *e, LLVMValueRef x, ir_elem from, ir_elem to) {
    const LLVMTypeRef type = cg_type(e, ir_type_of(to, (int)cg_lanes(x)));
    const bool to_float = to == IR_F32 || to == IR_F64;
    if (is_narrow_float(from)) return widen(e, x, from);
    if (is_narrow_float(to)) return from_f32(e, x, to);
    if (from == IR_BOOL) return LLVMBuildZExt(e->b, x, type, "");
    if (!cg_is_float(x))
        return to_float ? int_to_float(e, x, cg_elem_type(e, to)) : LLVMBuildIntCast2(e->b, x, type, true, "");
    return to_float ? LLVMBuildFPCast(e->b, x, type, "") : float_to_int(e, x, cg_elem_type(e, to));
}
