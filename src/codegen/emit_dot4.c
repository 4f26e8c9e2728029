/* dot4: sums of four products of bytes, the left ones unsigned and the right ones signed. Everything in it is exact, so
 * any order of additions gives the same bits. AVX512_VNNI has an instruction. Elsewhere the even and the odd bytes are
 * widened to 16 bits in place, which takes no permutation:
 *
 *     bytes     [ b3 | b2 | b1 | b0 ]       i32 lane
 *     even      [   b2    |   b0    ]       16-bit lanes
 *     odd       [   b3    |   b1    ]       multiplied pairwise, and the products are added to i32 */
#include "codegen/emit_build.h"

#include <stdio.h>

static bool is_x86(const cg_emit *e) { return e->target->required & AT_CPU_X86_64; }

static unsigned width_for(const cg_emit *e, unsigned lanes) {
    const unsigned most = e->target->vector_bytes / 4, wanted = lanes > 8 ? 16 : lanes > 4 ? 8 : 4;
    return wanted < most ? wanted : most;
}

static LLVMValueRef shifted(cg_emit *e, LLVMValueRef x, LLVMOpcode by, unsigned bits) {
    return LLVMBuildBinOp(e->b, by, x, cg_int_like(x, bits), "");
}

/* The even (0) or odd (1) bytes as 16-bit integers. */
static LLVMValueRef widened(cg_emit *e, LLVMValueRef words, int odd, LLVMOpcode by) {
    return shifted(e, odd ? words : shifted(e, words, LLVMShl, 8), by, 8);
}

/* In each 32-bit lane, the sum of two products of 16-bit integers. */
static LLVMValueRef pair_products(cg_emit *e, LLVMValueRef x, LLVMValueRef y, unsigned width) {
    LLVMTypeRef sums = LLVMVectorType(e->i32, width);
    if (is_x86(e)) {
        const char *name = width == 16  ? "llvm.x86.avx512.pmaddw.d.512"
                           : width == 8 ? "llvm.x86.avx2.pmadd.wd"
                                        : "llvm.x86.sse2.pmadd.wd";
        LLVMValueRef args[] = {x, y};
        return cg_call(e, name, NULL, 2, args);
    }
    LLVMValueRef both = LLVMBuildBitCast(e->b, LLVMBuildMul(e->b, x, y, ""), sums, "");
    LLVMValueRef low = shifted(e, shifted(e, both, LLVMShl, 16), LLVMAShr, 16);
    return LLVMBuildAdd(e->b, low, shifted(e, both, LLVMAShr, 16), "");
}

static LLVMValueRef by_halves(cg_emit *e, LLVMValueRef x, LLVMValueRef y, LLVMValueRef sum, unsigned width) {
    LLVMTypeRef words = LLVMVectorType(e->i16, 2 * width);
    x = LLVMBuildBitCast(e->b, x, words, "");
    y = LLVMBuildBitCast(e->b, y, words, "");
    for (int odd = 0; odd < 2; odd++) {
        LLVMValueRef left = widened(e, x, odd, LLVMLShr), right = widened(e, y, odd, LLVMAShr);
        sum = LLVMBuildAdd(e->b, sum, pair_products(e, left, right, width), "");
    }
    return sum;
}

/* The instruction's intrinsic takes bytes as vectors of i32. */
static LLVMValueRef by_instruction(cg_emit *e, LLVMValueRef x, LLVMValueRef y, LLVMValueRef sum, unsigned width) {
    char name[64];
    snprintf(name, sizeof name, "llvm.x86.avx512.vpdpbusd.%u", width * 32);
    LLVMTypeRef words = LLVMVectorType(e->i32, width);
    LLVMValueRef args[] = {sum, LLVMBuildBitCast(e->b, x, words, ""), LLVMBuildBitCast(e->b, y, words, "")};
    return cg_call(e, name, NULL, 3, args);
}

LLVMValueRef cg_dot4(cg_emit *e, const ir_expr *x) {
    LLVMValueRef left = cg_emit_expr(e, x->args[0]), right = cg_emit_expr(e, x->args[1]);
    LLVMValueRef sum = cg_as_vector(e, cg_emit_expr(e, x->args[2])), parts[IR_MAX_LANES];
    const unsigned lanes = x->type.lanes, width = width_for(e, lanes);
    const bool has_instruction = e->target->flags & AT_TARGET_BYTE_DOT;
    unsigned count = 0;
    for (unsigned first = 0; first < lanes; first += width) {
        LLVMValueRef a = cg_slice(e, left, 4 * first, 4 * width), b = cg_slice(e, right, 4 * first, 4 * width);
        LLVMValueRef c = cg_slice(e, sum, first, width);
        parts[count++] = has_instruction ? by_instruction(e, a, b, c, width) : by_halves(e, a, b, c, width);
    }
    LLVMValueRef result = cg_concat(e, parts, count);
    return lanes == 1 ? cg_lane(e, result, 0) : cg_slice(e, result, 0, lanes);
}
