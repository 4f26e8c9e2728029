/* Arithmetic that all builders share: multiply-add, exp2 and log2 in the form that the problem and the target allow,
 * loads and stores with conversion, compensated sums. */
#include "nest/context.h"

const ir_expr *mha_number(const mha_context *c, double value, int lanes) {
    return ir_splat(c->b, ir_float(c->b, c->elem, value), lanes);
}

const ir_expr *mha_in_lanes(const mha_context *c, const ir_expr *x, int lanes) {
    return x && x->type.lanes == 1 ? ir_splat(c->b, x, lanes) : x;
}

const ir_expr *mha_madd(const mha_context *c, const ir_expr *x, const ir_expr *y, const ir_expr *z) {
    return c->has_fma ? ir_fma(c->b, x, y, z) : ir_add(c->b, ir_mul(c->b, x, y), z);
}

const ir_expr *mha_math(const mha_context *c, ir_op op, const ir_expr *x) {
    if (!c->is_pinned) return ir_apply(c->b, op, x, NULL, NULL);
    /* Rounding to an integer gives the same bits by one instruction or by two, so it may depend on the target. */
    return ir_math(c->b, op, x, c->target->flags & AT_TARGET_ROUND);
}

mha_sum mha_sum_add(const mha_context *c, mha_sum sum, const ir_expr *factor, const ir_expr *term) {
    ir_builder *b = c->b;
    if (!sum.lost) return (mha_sum){mha_madd(c, sum.value, factor, term), NULL};
    const ir_expr *kept = ir_let(b, "kept", ir_mul(b, sum.value, factor));
    const ir_expr *value = ir_let(b, "sum", ir_add(b, kept, term));
    const ir_expr *lost = ir_sub(b, term, ir_sub(b, value, kept));
    return (mha_sum){value, mha_madd(c, sum.lost, factor, lost)};
}

const ir_expr *mha_sum_total(const mha_context *c, mha_sum sum) {
    ir_builder *b = c->b;
    if (!sum.value || !sum.lost) return sum.value;
    const ir_expr *lost = ir_let(b, "lost", sum.lost), *value = ir_let(b, "sum", sum.value);
    const ir_expr *zero = mha_number(c, 0, lost ? lost->type.lanes : 1);
    const ir_expr *is_finite = ir_eq(b, ir_sub(b, lost, lost), zero);
    return ir_select(b, is_finite, ir_add(b, value, lost), value);
}

static bool is_narrow(ir_elem elem) { return elem == IR_F16 || elem == IR_BF16 || elem == IR_F8; }

/* f16, bf16 and f8 are converted from and to f32 only, so results of f64 arithmetic are rounded twice; i8 is converted
 * to i32. */
static const ir_expr *convert(const mha_context *c, ir_elem from, ir_elem to, const ir_expr *x) {
    if (from == to) return x;
    if (from == IR_I8) return ir_cast(c->b, to, ir_cast(c->b, IR_I32, x));
    const bool by_f32 = (is_narrow(from) && to == IR_F64) || (from == IR_F64 && is_narrow(to));
    return ir_cast(c->b, to, by_f32 ? ir_cast(c->b, IR_F32, x) : x);
}

const ir_expr *mha_widened(const mha_context *c, const ir_expr *x) { return convert(c, IR_F32, c->elem, x); }

const ir_expr *mha_narrowed(const mha_context *c, const ir_expr *x) { return convert(c, c->elem, IR_F32, x); }

const ir_expr *mha_load(const mha_context *c, const ir_access *access) {
    if (!access) return NULL;
    return convert(c, (ir_elem)access->buffer->type.elem, c->elem, ir_load(c->b, access));
}

void mha_store(const mha_context *c, const ir_access *access, const ir_expr *value) {
    if (access) ir_store(c->b, access, convert(c, c->elem, (ir_elem)access->buffer->type.elem, value));
}
