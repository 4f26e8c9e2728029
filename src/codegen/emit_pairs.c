/* dot2 and pack2 by the instructions of AVX512_BF16, which round to nearest even and treat denormals as zeros,
 * independent of MXCSR. They exist for 4, 8 and 16 lanes of f32; fewer lanes are padded with zeros. */
#include "codegen/emit_build.h"

#include <stdio.h>

static unsigned width_for(unsigned lanes) { return lanes > 8 ? 16 : lanes > 4 ? 8 : 4; }

static LLVMValueRef call(cg_emit *e, const char *operation, unsigned width, unsigned count, LLVMValueRef *args) {
    char name[64];
    snprintf(name, sizeof name, "llvm.x86.avx512bf16.%s.%u", operation, width * 32);
    return cg_call(e, name, NULL, count, args);
}

static LLVMValueRef as_bf16(cg_emit *e, LLVMValueRef x) {
    return LLVMBuildBitCast(e->b, x, LLVMVectorType(LLVMBFloatTypeInContext(e->context), cg_lanes(x)), "");
}

LLVMValueRef cg_dot2(cg_emit *e, const ir_expr *x) {
    LLVMValueRef left = cg_emit_expr(e, x->args[0]), right = cg_emit_expr(e, x->args[1]);
    LLVMValueRef sum = cg_as_vector(e, cg_emit_expr(e, x->args[2])), parts[IR_MAX_LANES];
    if (!(e->target->flags & AT_TARGET_BF16_DOT)) return cg_unsupported(e, cg_type(e, x->type), "dot2");
    const unsigned lanes = x->type.lanes, width = width_for(lanes);
    unsigned count = 0;
    for (unsigned first = 0; first < lanes; first += width) {
        LLVMValueRef args[] = {cg_slice(e, sum, first, width), as_bf16(e, cg_slice(e, left, 2 * first, 2 * width)),
                               as_bf16(e, cg_slice(e, right, 2 * first, 2 * width))};
        parts[count++] = call(e, "dpbf16ps", width, 3, args);
    }
    LLVMValueRef result = cg_concat(e, parts, count);
    return lanes == 1 ? cg_lane(e, result, 0) : cg_slice(e, result, 0, lanes);
}

/* The instruction concatenates its operands; a permutation interleaves them. */
LLVMValueRef cg_pack2(cg_emit *e, const ir_expr *x) {
    LLVMValueRef even = cg_as_vector(e, cg_emit_expr(e, x->args[0]));
    LLVMValueRef odd = cg_as_vector(e, cg_emit_expr(e, x->args[1])), parts[IR_MAX_LANES];
    if (!(e->target->flags & AT_TARGET_BF16_DOT)) return cg_unsupported(e, cg_type(e, x->type), "pack2");
    const unsigned lanes = cg_lanes(even), width = width_for(lanes);
    uint8_t pick[IR_MAX_LANES];
    unsigned count = 0;
    for (unsigned l = 0; l < width; l++) {
        pick[2 * l] = (uint8_t)l;
        pick[2 * l + 1] = (uint8_t)(width + l);
    }
    for (unsigned first = 0; first < lanes; first += width) {
        LLVMValueRef args[] = {cg_slice(e, odd, first, width), cg_slice(e, even, first, width)};
        LLVMValueRef packed = call(e, "cvtne2ps2bf16", width, 2, args);
        LLVMValueRef words = LLVMBuildBitCast(e->b, packed, LLVMVectorType(e->i16, 2 * width), "");
        parts[count++] = cg_shuffle(e, words, words, pick, 2 * width);
    }
    return cg_slice(e, cg_concat(e, parts, count), 0, 2 * lanes);
}
