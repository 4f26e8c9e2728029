/* Operators. Each case of cg_apply translates the operator's line in docs/ir.md to LLVM. Flags that let LLVM assume
 * more than the IR says (fast-math, nsw, nuw) are never set. */
#include "codegen/emit_build.h"

#include <stdio.h>

/* ---- Arithmetic of floats and integers alike ---- */

static LLVMValueRef greater(cg_emit *e, LLVMValueRef x, LLVMValueRef y) {
    return cg_is_float(x) ? LLVMBuildFCmp(e->b, LLVMRealOGT, x, y, "") : LLVMBuildICmp(e->b, LLVMIntSGT, x, y, "");
}

static LLVMValueRef less(cg_emit *e, LLVMValueRef x, LLVMValueRef y) {
    return cg_is_float(x) ? LLVMBuildFCmp(e->b, LLVMRealOLT, x, y, "") : LLVMBuildICmp(e->b, LLVMIntSLT, x, y, "");
}

static LLVMValueRef negate(cg_emit *e, LLVMValueRef x) {
    return cg_is_float(x) ? LLVMBuildFNeg(e->b, x, "") : LLVMBuildNeg(e->b, x, "");
}

static LLVMValueRef absolute(cg_emit *e, LLVMValueRef x) {
    if (cg_is_float(x)) return cg_call_1(e, "llvm.fabs", LLVMTypeOf(x), x);
    return cg_select(e, less(e, x, cg_int_like(x, 0)), negate(e, x), x);
}

static LLVMValueRef shift_count(cg_emit *e, LLVMValueRef x, LLVMValueRef y) {
    return LLVMBuildAnd(e->b, y, cg_int_like(y, (int64_t)cg_int_bits(x) - 1), "");
}

/* ---- ldexp: vscalef, by its masked forms with every lane on ---- */

static LLVMValueRef scalef(cg_emit *e, const char *intrinsic, LLVMValueRef x, LLVMValueRef y, bool rounding) {
    enum { CURRENT_ROUNDING = 4 };
    const LLVMTypeRef mask = cg_lanes(x) == 16 ? e->i16 : e->i8;
    LLVMValueRef args[] = {x, y, x, LLVMConstAllOnes(mask), cg_i32(e, CURRENT_ROUNDING)};
    return cg_call(e, intrinsic, NULL, rounding ? 5 : 4, args);
}

static LLVMValueRef scalef_ps_128(cg_emit *e, LLVMValueRef x, LLVMValueRef y) {
    return scalef(e, "llvm.x86.avx512.mask.scalef.ps.128", x, y, false);
}
static LLVMValueRef scalef_ps_256(cg_emit *e, LLVMValueRef x, LLVMValueRef y) {
    return scalef(e, "llvm.x86.avx512.mask.scalef.ps.256", x, y, false);
}
static LLVMValueRef scalef_ps_512(cg_emit *e, LLVMValueRef x, LLVMValueRef y) {
    return scalef(e, "llvm.x86.avx512.mask.scalef.ps.512", x, y, true);
}
static LLVMValueRef scalef_pd_128(cg_emit *e, LLVMValueRef x, LLVMValueRef y) {
    return scalef(e, "llvm.x86.avx512.mask.scalef.pd.128", x, y, false);
}
static LLVMValueRef scalef_pd_256(cg_emit *e, LLVMValueRef x, LLVMValueRef y) {
    return scalef(e, "llvm.x86.avx512.mask.scalef.pd.256", x, y, false);
}
static LLVMValueRef scalef_pd_512(cg_emit *e, LLVMValueRef x, LLVMValueRef y) {
    return scalef(e, "llvm.x86.avx512.mask.scalef.pd.512", x, y, true);
}

static LLVMValueRef load_exponent(cg_emit *e, LLVMValueRef x, LLVMValueRef y) {
    if (!(e->target->flags & AT_TARGET_SCALEF)) return cg_unsupported(e, LLVMTypeOf(x), "ldexp");
    const unsigned lanes = cg_lanes(x);
    if (cg_scalar_of(x) == e->f32)
        return lanes <= 4   ? cg_by_chunks(e, x, y, 4, scalef_ps_128)
               : lanes == 8 ? cg_by_chunks(e, x, y, 8, scalef_ps_256)
                            : cg_by_chunks(e, x, y, 16, scalef_ps_512);
    return lanes <= 2   ? cg_by_chunks(e, x, y, 2, scalef_pd_128)
           : lanes == 4 ? cg_by_chunks(e, x, y, 4, scalef_pd_256)
                        : cg_by_chunks(e, x, y, 8, scalef_pd_512);
}

static LLVMValueRef fused_multiply_add(cg_emit *e, LLVMValueRef x, LLVMValueRef y, LLVMValueRef z) {
    if (!(e->target->flags & AT_TARGET_FMA)) return cg_unsupported(e, LLVMTypeOf(x), "fma");
    LLVMValueRef args[] = {x, y, z};
    return cg_call(e, "llvm.fma", LLVMTypeOf(x), 3, args);
}

static LLVMValueRef round_even(cg_emit *e, LLVMValueRef x) {
    if (!(e->target->flags & AT_TARGET_ROUND)) return cg_unsupported(e, LLVMTypeOf(x), "rint");
    return cg_call_1(e, "llvm.roundeven", LLVMTypeOf(x), x);
}

/* ---- The table's SAME operators ---- */

LLVMValueRef cg_apply(cg_emit *e, ir_op op, LLVMValueRef x, LLVMValueRef y, LLVMValueRef z) {
    LLVMBuilderRef b = e->b;
    const bool real = cg_is_float(x);
    switch (op) {
    case IR_NEG: return negate(e, x);
    case IR_ABS: return absolute(e, x);
    case IR_NOT: return LLVMBuildNot(b, x, "");
    case IR_SQRT: return cg_call_1(e, "llvm.sqrt", LLVMTypeOf(x), x);
    case IR_RINT: return round_even(e, x);
    case IR_ADD: return real ? LLVMBuildFAdd(b, x, y, "") : LLVMBuildAdd(b, x, y, "");
    case IR_SUB: return real ? LLVMBuildFSub(b, x, y, "") : LLVMBuildSub(b, x, y, "");
    case IR_MUL: return real ? LLVMBuildFMul(b, x, y, "") : LLVMBuildMul(b, x, y, "");
    case IR_DIV: return real ? LLVMBuildFDiv(b, x, y, "") : cg_floor_div(e, x, y);
    case IR_MOD: return cg_floor_mod(e, x, y);
    case IR_MIN: return cg_select(e, less(e, x, y), x, y);
    case IR_MAX: return cg_select(e, greater(e, x, y), x, y);
    case IR_AND: return LLVMBuildAnd(b, x, y, "");
    case IR_OR: return LLVMBuildOr(b, x, y, "");
    case IR_XOR: return LLVMBuildXor(b, x, y, "");
    case IR_SHL: return LLVMBuildShl(b, x, shift_count(e, x, y), "");
    case IR_SHR: return LLVMBuildAShr(b, x, shift_count(e, x, y), "");
    case IR_FMA: return fused_multiply_add(e, x, y, z);
    case IR_LDEXP: return load_exponent(e, x, y);
    default: return cg_unsupported(e, LLVMTypeOf(x), ir_op_get(op)->text);
    }
}

/* ---- Comparisons ---- */

static LLVMValueRef compare(cg_emit *e, ir_op op, LLVMValueRef x, LLVMValueRef y) {
    static const struct {
        LLVMRealPredicate real;
        LLVMIntPredicate integer;
    } predicates[IR_OP_COUNT] = {
        [IR_EQ] = {LLVMRealOEQ, LLVMIntEQ},  [IR_NE] = {LLVMRealUNE, LLVMIntNE},  [IR_LT] = {LLVMRealOLT, LLVMIntSLT},
        [IR_LE] = {LLVMRealOLE, LLVMIntSLE}, [IR_GT] = {LLVMRealOGT, LLVMIntSGT}, [IR_GE] = {LLVMRealOGE, LLVMIntSGE},
    };
    return cg_is_float(x) ? LLVMBuildFCmp(e->b, predicates[op].real, x, y, "")
                          : LLVMBuildICmp(e->b, predicates[op].integer, x, y, "");
}

/* f16, bf16 and f8 are integers in registers, but compare as floats. */
static LLVMValueRef as_number(cg_emit *e, LLVMValueRef x, ir_elem elem) {
    const bool narrow_float = elem == IR_F16 || elem == IR_BF16 || elem == IR_F8;
    return narrow_float ? cg_cast(e, x, elem, IR_F32) : x;
}

/* ---- SPECIAL operators ---- */

static LLVMValueRef constant(cg_emit *e, const ir_expr *x) {
    LLVMTypeRef type = cg_elem_type(e, x->type.elem);
    if (ir_elem_get(x->type.elem)->class == IR_CLASS_FLOAT) return LLVMConstReal(type, x->value.f);
    return LLVMConstInt(type, (uint64_t)x->value.i, true);
}

static LLVMValueRef ramp(cg_emit *e, const ir_expr *x) {
    LLVMValueRef lanes[IR_MAX_LANES], base = cg_emit_expr(e, x->args[0]), step = cg_emit_expr(e, x->args[1]);
    if (x->type.lanes == 1) return base;
    for (unsigned l = 0; l < x->type.lanes; l++) lanes[l] = LLVMConstInt(LLVMTypeOf(base), l, false);
    LLVMValueRef steps = cg_splat(e, step, x->type.lanes), numbers = LLVMConstVector(lanes, x->type.lanes);
    return LLVMBuildAdd(e->b, cg_splat(e, base, x->type.lanes), LLVMBuildMul(e->b, steps, numbers, ""), "");
}

static LLVMValueRef select_expr(cg_emit *e, const ir_expr *x) {
    LLVMValueRef condition = cg_emit_expr(e, x->args[0]), yes = cg_emit_expr(e, x->args[1]);
    return cg_select(e, condition, yes, cg_emit_expr(e, x->args[2]));
}

static LLVMValueRef shuffle_expr(cg_emit *e, const ir_expr *x) {
    LLVMValueRef left = cg_emit_expr(e, x->args[0]);
    LLVMValueRef right = x->args[1] == x->args[0] ? left : cg_emit_expr(e, x->args[1]);
    return cg_shuffle(e, left, right, x->value.pick, x->type.lanes);
}

/* A single table of 16 words needs no second register. */
static LLVMValueRef lookup(cg_emit *e, const ir_expr *x) {
    const bool is_words = x->type.elem == IR_F32;
    LLVMValueRef low = cg_emit_expr(e, x->args[0]), high = cg_emit_expr(e, x->args[1]);
    LLVMValueRef args[] = {low, cg_emit_expr(e, x->args[2]), high};
    char name[64];
    if (!(e->target->flags & AT_TARGET_LOOKUP)) return cg_unsupported(e, cg_type(e, x->type), "lookup");
    if (is_words && low == high && x->type.lanes == IR_MOST_WORDS)
        return cg_call(e, "llvm.x86.avx512.permvar.sf.512", NULL, 2, args);
    snprintf(name, sizeof name, "llvm.x86.avx512.vpermi2var.%s.%u", is_words ? "ps" : "qi",
             (is_words ? 32 : 8) * x->type.lanes);
    return cg_call(e, name, NULL, 3, args);
}

/* Any operator of the table whose operands have one type. */
static LLVMValueRef regular(cg_emit *e, const ir_expr *x) {
    const ir_op_info *info = ir_op_get((ir_op)x->op);
    LLVMValueRef args[3] = {NULL};
    for (unsigned i = 0; i < info->arity; i++) args[i] = cg_emit_expr(e, x->args[i]);
    if (info->result != IR_RESULT_CMP) return cg_apply(e, (ir_op)x->op, args[0], args[1], args[2]);
    const ir_elem elem = (ir_elem)x->args[0]->type.elem;
    return compare(e, (ir_op)x->op, as_number(e, args[0], elem), as_number(e, args[1], elem));
}

/* Scalar integer arithmetic is emitted as that of addresses is. */
static bool is_index(const ir_expr *x) {
    const ir_op_info *info = ir_op_get((ir_op)x->op);
    if (x->type.lanes != 1 || ir_elem_get(x->type.elem)->class != IR_CLASS_INT) return false;
    return info->arity == 2 && info->result == IR_RESULT_SAME;
}

static LLVMValueRef cast_expr(cg_emit *e, const ir_expr *x) {
    const ir_expr *from = x->args[0];
    if (x->type.elem == IR_I32 && from->op == IR_RINT && cg_rounds_to_i32(e, from->type))
        return cg_round_to_i32(e, cg_emit_expr(e, from->args[0]));
    return cg_cast(e, cg_emit_expr(e, from), (ir_elem)from->type.elem, (ir_elem)x->type.elem);
}

LLVMValueRef cg_emit_expr(cg_emit *e, const ir_expr *x) {
    if (is_index(x)) return cg_emit_index(e, x).value;
    switch ((ir_op)x->op) {
    case IR_CONST: return constant(e, x);
    case IR_VAR: return e->vars[x->value.var->id].value;
    case IR_LOAD: return cg_emit_load(e, x->value.access);
    case IR_SELECT: return select_expr(e, x);
    case IR_CAST: return cast_expr(e, x);
    case IR_BITCAST: return LLVMBuildBitCast(e->b, cg_emit_expr(e, x->args[0]), cg_type(e, x->type), "");
    case IR_SPLAT: return cg_splat(e, cg_emit_expr(e, x->args[0]), x->type.lanes);
    case IR_RAMP: return ramp(e, x);
    case IR_SHUFFLE: return shuffle_expr(e, x);
    case IR_DOT2: return cg_dot2(e, x);
    case IR_PACK2: return cg_pack2(e, x);
    case IR_DOT4: return cg_dot4(e, x);
    case IR_LOOKUP: return lookup(e, x);
    default: return regular(e, x);
    }
}
