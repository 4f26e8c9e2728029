/* Integer division that rounds towards minus infinity. */
#include "codegen/emit_build.h"

/* The common constant of all lanes if y is one, and positive. */
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

/* Truncating division by `safe`, a divisor that is not -1 (x86's idiv traps on INT_MIN / -1), and what makes it floor. */
typedef struct truncated {
    LLVMValueRef quotient, remainder, too_high;
} truncated;

static truncated divide(cg_emit *e, LLVMValueRef x, LLVMValueRef safe) {
    LLVMValueRef zero = cg_int_like(x, 0);
    truncated t = {.quotient = LLVMBuildSDiv(e->b, x, safe, "")};
    t.remainder = LLVMBuildSub(e->b, x, LLVMBuildMul(e->b, t.quotient, safe, ""), "");
    LLVMValueRef inexact = LLVMBuildICmp(e->b, LLVMIntNE, t.remainder, zero, "");
    LLVMValueRef opposite = LLVMBuildICmp(e->b, LLVMIntSLT, LLVMBuildXor(e->b, t.remainder, safe, ""), zero, "");
    t.too_high = LLVMBuildAnd(e->b, inexact, opposite, "");
    return t;
}

LLVMValueRef cg_floor_div(cg_emit *e, LLVMValueRef x, LLVMValueRef y) {
    int64_t constant;
    if (positive_constant(y, &constant) && log2_exact(constant) >= 0)
        return LLVMBuildAShr(e->b, x, cg_int_like(x, log2_exact(constant)), "");
    LLVMValueRef minus_one = LLVMBuildICmp(e->b, LLVMIntEQ, y, cg_int_like(y, -1), "");
    truncated t = divide(e, x, cg_select(e, minus_one, cg_int_like(y, 1), y));
    LLVMValueRef down = LLVMBuildSExt(e->b, t.too_high, LLVMTypeOf(x), "");
    LLVMValueRef floor = LLVMBuildAdd(e->b, t.quotient, down, "");
    return cg_select(e, minus_one, LLVMBuildNeg(e->b, x, ""), floor);
}

LLVMValueRef cg_floor_mod(cg_emit *e, LLVMValueRef x, LLVMValueRef y) {
    int64_t constant;
    if (positive_constant(y, &constant) && log2_exact(constant) >= 0)
        return LLVMBuildAnd(e->b, x, cg_int_like(x, constant - 1), "");
    LLVMValueRef minus_one = LLVMBuildICmp(e->b, LLVMIntEQ, y, cg_int_like(y, -1), "");
    LLVMValueRef safe = cg_select(e, minus_one, cg_int_like(y, 1), y);
    truncated t = divide(e, x, safe);
    return cg_select(e, t.too_high, LLVMBuildAdd(e->b, t.remainder, safe, ""), t.remainder);
}
