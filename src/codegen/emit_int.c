/* Integer division that rounds towards minus infinity: processors truncate, so a quotient with a remainder of the wrong
 * sign is decremented. A power of two as divisor needs only a shift or a mask. */
#include "codegen/emit_build.h"

/* Whether y is the same positive constant in all lanes; it becomes *value. */
static bool positive_constant(LLVMValueRef y, int64_t *value) {
    if (cg_lanes(y) > 1 && LLVMIsConstant(y)) {
        LLVMValueRef first = LLVMGetAggregateElement(y, 0);
        for (unsigned l = 1; l < cg_lanes(y); l++)
            if (LLVMGetAggregateElement(y, l) != first) return false;
        y = first;
    }
    if (!y || !LLVMIsAConstantInt(y)) return false;
    *value = LLVMConstIntGetSExtValue(y);
    return *value > 0;
}

static int log2_exact(int64_t value) { return (value & (value - 1)) == 0 ? __builtin_ctzll((uint64_t)value) : -1; }

/* A truncated quotient with its remainder, and whether the quotient is one too large. */
typedef struct division {
    LLVMValueRef quotient, remainder, too_high;
} division;

static division divide(cg_emit *e, LLVMValueRef x, LLVMValueRef y, bool positive) {
    LLVMValueRef zero = cg_int_like(x, 0);
    division d = {.quotient = LLVMBuildSDiv(e->b, x, y, "")};
    d.remainder = LLVMBuildSub(e->b, x, LLVMBuildMul(e->b, d.quotient, y, ""), "");
    LLVMValueRef sign = positive ? d.remainder : LLVMBuildXor(e->b, d.remainder, y, "");
    d.too_high = LLVMBuildICmp(e->b, LLVMIntSLT, sign, zero, "");
    if (positive) return d;
    LLVMValueRef inexact = LLVMBuildICmp(e->b, LLVMIntNE, d.remainder, zero, "");
    d.too_high = LLVMBuildAnd(e->b, inexact, d.too_high, "");
    return d;
}

static LLVMValueRef floor_quotient(cg_emit *e, const division *d) {
    return LLVMBuildAdd(e->b, d->quotient, LLVMBuildSExt(e->b, d->too_high, LLVMTypeOf(d->quotient), ""), "");
}

static LLVMValueRef floor_remainder(cg_emit *e, const division *d, LLVMValueRef y) {
    return cg_select(e, d->too_high, LLVMBuildAdd(e->b, d->remainder, y, ""), d->remainder);
}

/* x86's idiv traps on INT_MIN / -1. */
static LLVMValueRef is_minus_one(cg_emit *e, LLVMValueRef y) {
    return LLVMBuildICmp(e->b, LLVMIntEQ, y, cg_int_like(y, -1), "");
}

LLVMValueRef cg_floor_div(cg_emit *e, LLVMValueRef x, LLVMValueRef y) {
    int64_t constant;
    if (positive_constant(y, &constant)) {
        if (log2_exact(constant) >= 0) return LLVMBuildAShr(e->b, x, cg_int_like(x, log2_exact(constant)), "");
        const division d = divide(e, x, y, true);
        return floor_quotient(e, &d);
    }
    LLVMValueRef minus_one = is_minus_one(e, y);
    const division d = divide(e, x, cg_select(e, minus_one, cg_int_like(y, 1), y), false);
    return cg_select(e, minus_one, LLVMBuildNeg(e->b, x, ""), floor_quotient(e, &d));
}

LLVMValueRef cg_floor_mod(cg_emit *e, LLVMValueRef x, LLVMValueRef y) {
    int64_t constant;
    if (positive_constant(y, &constant)) {
        if (log2_exact(constant) >= 0) return LLVMBuildAnd(e->b, x, cg_int_like(x, constant - 1), "");
        const division d = divide(e, x, y, true);
        return floor_remainder(e, &d, y);
    }
    LLVMValueRef safe = cg_select(e, is_minus_one(e, y), cg_int_like(y, 1), y); /* x mod 1 is x mod -1 */
    const division d = divide(e, x, safe, false);
    return floor_remainder(e, &d, safe);
}
