/* Helpers of the emitter's files over LLVM's builder: the types of loop IR, where vectors of one lane are scalars;
 * vector shuffles; loops and branches; and failures, which are sticky in err. */
#include "codegen/emit_build.h"

#include <string.h>

/* ---- Types and constants ---- */

LLVMTypeRef cg_elem_type(cg_emit *e, ir_elem elem) {
    switch (elem) {
    case IR_F64: return e->f64;
    case IR_F32: return e->f32;
    case IR_F16:
    case IR_BF16: return e->i16;
    case IR_F8:
    case IR_I8: return e->i8;
    case IR_I32: return e->i32;
    case IR_I64:
    case IR_IDX: return e->i64;
    case IR_BOOL: return e->i1;
    case IR_ELEM_COUNT: break;
    }
    return e->i8;
}

LLVMTypeRef cg_vector_of(LLVMTypeRef elem, unsigned lanes) { return lanes == 1 ? elem : LLVMVectorType(elem, lanes); }

LLVMTypeRef cg_type(cg_emit *e, ir_type type) { return cg_vector_of(cg_elem_type(e, type.elem), type.lanes); }

unsigned cg_lanes(LLVMValueRef x) {
    LLVMTypeRef type = LLVMTypeOf(x);
    return LLVMGetTypeKind(type) == LLVMVectorTypeKind ? LLVMGetVectorSize(type) : 1;
}

LLVMTypeRef cg_scalar_of(LLVMValueRef x) {
    LLVMTypeRef type = LLVMTypeOf(x);
    return LLVMGetTypeKind(type) == LLVMVectorTypeKind ? LLVMGetElementType(type) : type;
}

bool cg_is_float(LLVMValueRef x) {
    LLVMTypeKind kind = LLVMGetTypeKind(cg_scalar_of(x));
    return kind == LLVMFloatTypeKind || kind == LLVMDoubleTypeKind;
}

unsigned cg_int_bits(LLVMValueRef x) { return LLVMGetIntTypeWidth(cg_scalar_of(x)); }

LLVMValueRef cg_i64(cg_emit *e, int64_t value) { return LLVMConstInt(e->i64, (uint64_t)value, true); }

LLVMValueRef cg_i32(cg_emit *e, int32_t value) { return LLVMConstInt(e->i32, (uint64_t)(int64_t)value, true); }

LLVMValueRef cg_splat_const(LLVMValueRef scalar, unsigned lanes) {
    if (lanes == 1) return scalar;
    LLVMValueRef copies[2 * IR_MAX_LANES];
    for (unsigned l = 0; l < lanes; l++) copies[l] = scalar;
    return LLVMConstVector(copies, lanes);
}

LLVMValueRef cg_int_like(LLVMValueRef x, int64_t value) {
    return cg_splat_const(LLVMConstInt(cg_scalar_of(x), (uint64_t)value, true), cg_lanes(x));
}

LLVMValueRef cg_float_like(LLVMValueRef x, double value) {
    return cg_splat_const(LLVMConstReal(cg_scalar_of(x), value), cg_lanes(x));
}

/* ---- Vectors ---- */

LLVMValueRef cg_lane(cg_emit *e, LLVMValueRef x, unsigned lane) {
    return cg_lanes(x) == 1 ? x : LLVMBuildExtractElement(e->b, x, cg_i32(e, (int32_t)lane), "");
}

LLVMValueRef cg_set_lane(cg_emit *e, LLVMValueRef x, LLVMValueRef scalar, unsigned lane) {
    return LLVMBuildInsertElement(e->b, x, scalar, cg_i32(e, (int32_t)lane), "");
}

LLVMValueRef cg_as_vector(cg_emit *e, LLVMValueRef x) {
    if (LLVMGetTypeKind(LLVMTypeOf(x)) == LLVMVectorTypeKind) return x;
    return cg_set_lane(e, LLVMGetPoison(LLVMVectorType(LLVMTypeOf(x), 1)), x, 0);
}

/* AArch64 multiplies by an element of a register at no extra cost. But LLVM turns broadcasts of loaded elements into
 * ld1r, which takes an issue slot that a multiplication needs. A freeze, which is no instruction, hides the load from
 * LLVM. */
static LLVMValueRef splat_element(cg_emit *e, LLVMValueRef scalar) {
    const bool loaded = (e->target->required & AT_CPU_AARCH64) && cg_is_float(scalar) && LLVMIsALoadInst(scalar);
    return loaded ? LLVMBuildFreeze(e->b, scalar, "") : scalar;
}

LLVMValueRef cg_splat(cg_emit *e, LLVMValueRef scalar, unsigned lanes) {
    if (lanes == 1) return scalar;
    if (LLVMIsConstant(scalar)) return cg_splat_const(scalar, lanes);
    scalar = splat_element(e, scalar);
    LLVMTypeRef type = LLVMVectorType(LLVMTypeOf(scalar), lanes);
    LLVMValueRef first = cg_set_lane(e, LLVMGetPoison(type), scalar, 0);
    LLVMValueRef zeros = LLVMConstNull(LLVMVectorType(e->i32, lanes));
    return LLVMBuildShuffleVector(e->b, first, LLVMGetPoison(type), zeros, "");
}

LLVMValueRef cg_shuffle(cg_emit *e, LLVMValueRef x, LLVMValueRef y, const uint8_t *pick, unsigned lanes) {
    unsigned half = cg_lanes(x);
    if (lanes == 1) return pick[0] < half ? cg_lane(e, x, pick[0]) : cg_lane(e, y, pick[0] - half);
    LLVMValueRef mask[2 * IR_MAX_LANES];
    for (unsigned l = 0; l < lanes; l++) mask[l] = cg_i32(e, pick[l]);
    return LLVMBuildShuffleVector(e->b, cg_as_vector(e, x), cg_as_vector(e, y), LLVMConstVector(mask, lanes), "");
}

LLVMValueRef cg_slice(cg_emit *e, LLVMValueRef x, unsigned first, unsigned lanes) {
    unsigned have = cg_lanes(x);
    if (first == 0 && lanes == have) return x;
    uint8_t pick[2 * IR_MAX_LANES];
    for (unsigned l = 0; l < lanes; l++) pick[l] = (uint8_t)(first + l < have ? first + l : have);
    return cg_shuffle(e, x, LLVMConstNull(LLVMTypeOf(x)), pick, lanes);
}

LLVMValueRef cg_concat(cg_emit *e, LLVMValueRef *parts, unsigned count) {
    uint8_t pick[2 * IR_MAX_LANES];
    for (unsigned l = 0; l < 2 * IR_MAX_LANES; l++) pick[l] = (uint8_t)l;
    for (; count > 1; count /= 2)
        for (unsigned i = 0; i < count / 2; i++)
            parts[i] = cg_shuffle(e, parts[2 * i], parts[2 * i + 1], pick, 2 * cg_lanes(parts[2 * i]));
    return parts[0];
}

LLVMValueRef cg_by_chunks(cg_emit *e, LLVMValueRef x, LLVMValueRef y, unsigned lanes, cg_chunk_fn *fn) {
    unsigned total = cg_lanes(x);
    if (total <= lanes) {
        LLVMValueRef wide = fn(e, cg_slice(e, x, 0, lanes), y ? cg_slice(e, y, 0, lanes) : NULL);
        return cg_slice(e, wide, 0, total);
    }
    LLVMValueRef parts[IR_MAX_LANES];
    for (unsigned i = 0; i < total / lanes; i++)
        parts[i] = fn(e, cg_slice(e, x, i * lanes, lanes), y ? cg_slice(e, y, i * lanes, lanes) : NULL);
    return cg_concat(e, parts, total / lanes);
}

/* ---- Calls and choices ---- */

LLVMValueRef cg_call_types(cg_emit *e, const char *intrinsic, unsigned num_types, LLVMTypeRef *types, unsigned count,
                           LLVMValueRef *args) {
    unsigned id = LLVMLookupIntrinsicID(intrinsic, strlen(intrinsic));
    if (!id) {
        at_fail(e->err, ATTUNE_INTERNAL, "LLVM %s has no intrinsic %s", LLVM_VERSION_STRING, intrinsic);
        return LLVMGetPoison(LLVMTypeOf(args[0]));
    }
    LLVMValueRef function = LLVMGetIntrinsicDeclaration(e->module, id, types, num_types);
    return LLVMBuildCall2(e->b, LLVMGlobalGetValueType(function), function, args, count, "");
}

LLVMValueRef cg_call(cg_emit *e, const char *intrinsic, LLVMTypeRef overload, unsigned count, LLVMValueRef *args) {
    return cg_call_types(e, intrinsic, overload ? 1 : 0, &overload, count, args);
}

LLVMValueRef cg_call_1(cg_emit *e, const char *intrinsic, LLVMTypeRef overload, LLVMValueRef x) {
    return cg_call(e, intrinsic, overload, 1, &x);
}

LLVMValueRef cg_select(cg_emit *e, LLVMValueRef condition, LLVMValueRef x, LLVMValueRef y) {
    return LLVMBuildSelect(e->b, condition, x, y, "");
}

LLVMValueRef cg_unsupported(cg_emit *e, LLVMTypeRef type, const char *what) {
    at_fail(e->err, ATTUNE_UNSUPPORTED, "kernel @%s: code generation for %s cannot do %s yet", e->kernel->name,
            e->target->name, what);
    return LLVMGetPoison(type);
}

/* ---- Blocks ---- */

LLVMBasicBlockRef cg_block(cg_emit *e, const char *name) {
    return LLVMAppendBasicBlockInContext(e->context, e->function, name);
}

LLVMValueRef cg_stack_slot(cg_emit *e, LLVMTypeRef type) {
    LLVMBasicBlockRef here = LLVMGetInsertBlock(e->b);
    LLVMPositionBuilderBefore(e->b, LLVMGetBasicBlockTerminator(e->allocas));
    LLVMValueRef slot = LLVMBuildAlloca(e->b, type, "");
    LLVMPositionBuilderAtEnd(e->b, here);
    return slot;
}

void cg_level_enter(cg_emit *e, LLVMValueRef branch) {
    e->levels[e->level].branch = branch;
    e->levels[++e->level] = (cg_level){.serial = e->next_serial++};
}

void cg_level_leave(cg_emit *e) { e->level--; }

/* A freeze is opaque to LLVM's analysis of induction variables, and no instruction in machine code. */
LLVMValueRef cg_advance(cg_emit *e, LLVMValueRef x, LLVMValueRef step) {
    return LLVMBuildFreeze(e->b, LLVMBuildAdd(e->b, x, step, ""), "");
}
