/* legalize: rewrites operators for which the target has no instruction, where other operators give the same bits.
 *
 * Needs: no HIGH operators. Keeps: the bits. After it: rint only on targets with AT_TARGET_ROUND. A fused multiply-add,
 * ldexp, dot2 or lookup that the target lacks is rejected: no short sequence gives the same bits, so builders must not
 * use it for such a target. */
#include "ir/passes.h"
#include "ir/passes/rewrite.h"

static const struct {
    uint16_t trait;
    uint32_t flag;
} needs[] = {
    {IR_TRAIT_NEEDS_FMA, AT_TARGET_FMA},       {IR_TRAIT_NEEDS_ROUND, AT_TARGET_ROUND},
    {IR_TRAIT_NEEDS_SCALEF, AT_TARGET_SCALEF}, {IR_TRAIT_NEEDS_DOT2, AT_TARGET_BF16_DOT},
    {IR_TRAIT_NEEDS_LOOKUP, AT_TARGET_LOOKUP},
};

static bool is_missing(const ir_expr *e, const void *user) {
    const at_target *target = user;
    const uint16_t traits = ir_op_get(e->op)->traits;
    for (size_t i = 0; i < sizeof needs / sizeof needs[0]; i++)
        if ((traits & needs[i].trait) && !(target->flags & needs[i].flag)) return true;
    return false;
}

/* Rounds half to even by adding and subtracting the power of two from which on floats have no fraction bits. Larger
 * values, infinities and NaNs stay as they are. The result gets the sign of x, so that -0 and values that round to it
 * keep it. */
static const ir_expr *rint_by_adding(ir_builder *b, const ir_expr *value) {
    const bool f64 = value->type.elem == IR_F64;
    const ir_elem bits = f64 ? IR_I64 : IR_I32;
    const ir_expr *x = ir_let(b, "x", value);
    const ir_expr *magnitude = ir_let(b, "magnitude", ir_apply(b, IR_ABS, x, NULL, NULL));
    const ir_expr *limit = ir_const_like(b, x, f64 ? 0x1p52 : 0x1p23);
    const ir_expr *rounded = ir_sub(b, ir_add(b, magnitude, limit), limit);
    const ir_expr *result = ir_select(b, ir_apply(b, IR_LT, magnitude, limit, NULL), rounded, magnitude);
    const ir_expr *sign = ir_splat(b, ir_int(b, bits, f64 ? INT64_MIN : INT32_MIN), value->type.lanes);
    const ir_expr *x_sign = ir_apply(b, IR_AND, ir_bitcast(b, bits, x), sign, NULL);
    return ir_bitcast(b, value->type.elem, ir_apply(b, IR_OR, ir_bitcast(b, bits, result), x_sign, NULL));
}

static const ir_expr *legalize_expr(ir_rewriter *r, const ir_expr *old, const ir_expr *const *args) {
    const at_target *target = r->user;
    if (!is_missing(old, target)) return NULL;
    if (old->op == IR_RINT) return rint_by_adding(r->b, args[0]);
    ir_build_fail(r->b, "target %s has no instruction for '%s', and nothing else gives its bits", target->name,
                  ir_op_get(old->op)->text);
    return NULL;
}

ir_kernel *ir_pass_legalize(const ir_kernel *kernel, const at_target *target, at_error *err) {
    if (!ir_kernel_has(kernel, is_missing, NULL, target)) return (ir_kernel *)kernel;
    return ir_rewrite_kernel(kernel, &(ir_rewriter){.on_expr = legalize_expr, .user = (void *)target}, err);
}
