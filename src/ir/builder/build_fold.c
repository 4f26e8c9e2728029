/* Folding: constants by the interpreter's evaluator, integers by identities that hold in wrapping arithmetic.
 *
 * Every rule ends in a node that no rule matches. So building a folded tree again gives the same tree, which makes
 * parse(print(k)) equal to k. Sums have the form `terms + constant`, with the constant outermost, so that unrolled
 * address arithmetic ends in one displacement:
 *
 *     (i + 3) + 4        ->    i + 7
 *     (i + 3) + (j + 1)  ->    (i + j) + 4
 *
 * Floats fold only if all operands are constant, and the result is not NaN, whose bits are not pinned. */
#include "ir/builder/build_internal.h"
#include "ir/eval.h"

#include <math.h>
#include <string.h>

/* ---- constants ---- */

/* One lane in its C representation, aligned as evaluators want it. */
typedef union cell {
    _Alignas(64) double f64;
    float f32;
    int64_t i64;
    int32_t i32;
    uint8_t b;
} cell;

static bool is_const(const ir_expr *x) { return x->op == IR_CONST; }

static bool is_int_const(const ir_expr *x) { return is_const(x) && ir_elem_get(x->type.elem)->class == IR_CLASS_INT; }

static cell cell_of(const ir_expr *x) {
    cell c = {.i64 = 0};
    switch ((ir_elem)x->type.elem) {
    case IR_F64: c.f64 = x->value.f; break;
    case IR_F32: c.f32 = (float)x->value.f; break;
    case IR_I32: c.i32 = (int32_t)x->value.i; break;
    case IR_BOOL: c.b = x->value.i != 0; break;
    default: c.i64 = x->value.i; break;
    }
    return c;
}

/* The constant in a cell, or NULL for a NaN and for elements that have no constants. */
static const ir_expr *const_of(ir_builder *b, ir_elem elem, const cell *c) {
    switch (elem) {
    case IR_F64: return isnan(c->f64) ? NULL : ir_build_float(b, elem, c->f64);
    case IR_F32: return isnan(c->f32) ? NULL : ir_build_float(b, elem, (double)c->f32);
    case IR_I32: return ir_int(b, elem, c->i32);
    case IR_BOOL: return ir_int(b, elem, c->b != 0);
    case IR_I64:
    case IR_IDX: return ir_int(b, elem, c->i64);
    default: return NULL;
    }
}

static const ir_expr *fold_constants(ir_builder *b, ir_op op, const ir_expr *x, const ir_expr *y, const ir_expr *z) {
    if (!is_const(x) || (y && !is_const(y)) || (z && !is_const(z))) return NULL;
    if ((op == IR_DIV || op == IR_MOD) && is_int_const(y) && y->value.i == 0) return NULL;
    ir_eval_fn *eval = ir_eval_get(op, x->type.elem);
    if (!eval) return NULL;
    const cell in[3] = {cell_of(x), y ? cell_of(y) : (cell){0}, z ? cell_of(z) : (cell){0}};
    cell out = {.i64 = 0};
    eval(&out, &in[0], y ? &in[1] : NULL, z ? &in[2] : NULL, 1);
    const ir_elem elem = ir_op_get(op)->result == IR_RESULT_CMP ? IR_BOOL : (ir_elem)x->type.elem;
    return const_of(b, elem, &out);
}

const ir_expr *ir_build_fold_cast(ir_builder *b, ir_elem elem, const ir_expr *x) {
    ir_eval_fn *eval = is_const(x) ? ir_eval_cast(x->type.elem, elem) : NULL;
    if (!eval) return NULL;
    const cell in = cell_of(x);
    cell out = {.i64 = 0};
    eval(&out, &in, NULL, NULL, 1);
    return const_of(b, elem, &out);
}

const ir_expr *ir_build_fold_bitcast(ir_builder *b, ir_elem elem, const ir_expr *x) {
    const bool is_float = ir_elem_get(x->type.elem)->class == IR_CLASS_FLOAT;
    if (!is_const(x) || (is_float && isnan(x->value.f))) return NULL;
    const cell c = cell_of(x);
    return const_of(b, elem, &c);
}

/* ---- identities of integers ---- */

static const ir_expr *int_const(ir_builder *b, ir_elem elem, uint64_t value) {
    return ir_int(b, elem, elem == IR_I32 ? (int64_t)(int32_t)(uint32_t)value : (int64_t)value);
}

static bool is_int_value(const ir_expr *x, int64_t value) { return is_int_const(x) && x->value.i == value; }

/* x = base + offset; base is NULL if x is a constant. Offsets wrap. */
typedef struct sum {
    const ir_expr *base;
    uint64_t offset;
} sum;

static sum split_sum(const ir_expr *x) {
    if (is_const(x)) return (sum){NULL, (uint64_t)x->value.i};
    const bool constant_last = (x->op == IR_ADD || x->op == IR_SUB) && is_const(x->args[1]);
    if (!constant_last) return (sum){x, 0};
    const uint64_t c = (uint64_t)x->args[1]->value.i;
    return (sum){x->args[0], x->op == IR_ADD ? c : 0 - c};
}

/* base + offset, written as a subtraction where that reads better. */
static const ir_expr *join_sum(ir_builder *b, const ir_expr *base, uint64_t offset) {
    if (!base) return NULL;
    const ir_elem elem = base->type.elem;
    const ir_expr *c = int_const(b, elem, offset), *minus = int_const(b, elem, 0 - offset);
    if (!c || !minus || c->value.i == 0) return base;
    if (c->value.i < 0 && minus->value.i > 0) return ir_build_node(b, IR_SUB, base->type, base, minus, NULL);
    return ir_build_node(b, IR_ADD, base->type, base, c, NULL);
}

static const ir_expr *fold_sum(ir_builder *b, ir_op op, const ir_expr *x, const ir_expr *y) {
    const sum l = split_sum(x), r = split_sum(y);
    const uint64_t offset = op == IR_ADD ? l.offset + r.offset : l.offset - r.offset;
    if (l.base && !r.base) return join_sum(b, l.base, offset);
    if (!l.base && op == IR_ADD) return join_sum(b, r.base, offset);
    if (!l.base && l.offset == 0) return ir_neg(b, y);
    if (l.base && r.base && (l.offset || r.offset)) return join_sum(b, ir_apply(b, op, l.base, r.base, NULL), offset);
    if (!l.base && r.offset) return ir_sub(b, int_const(b, x->type.elem, offset), r.base);
    return NULL;
}

static const ir_expr *fold_product(ir_builder *b, const ir_expr *x, const ir_expr *y) {
    if (is_const(x)) return ir_mul(b, y, x);
    if (!is_const(y)) return NULL;
    const uint64_t c = (uint64_t)y->value.i;
    if (c == 0) return y;
    if (c == 1) return x;
    if (x->op == IR_MUL && is_const(x->args[1]))
        return ir_mul(b, x->args[0], int_const(b, x->type.elem, (uint64_t)x->args[1]->value.i * c));
    const sum s = split_sum(x);
    if (s.offset == 0) return NULL;
    return ir_add(b, ir_mul(b, s.base, y), int_const(b, x->type.elem, s.offset * c));
}

/* Whether two expressions certainly have the same value. It compares only a few levels, so that it is cheap. */
static bool same_value(const ir_expr *x, const ir_expr *y, int depth) {
    if (x == y) return true;
    if (depth == 0 || x->op != y->op || !ir_type_eq(x->type, y->type)) return false;
    if (x->op == IR_CONST) return x->value.i == y->value.i;
    if (x->op == IR_VAR) return x->value.var == y->value.var;
    if (ir_op_get(x->op)->result == IR_RESULT_SPECIAL) return false;
    for (int i = 0; i < ir_op_get(x->op)->arity; i++)
        if (!same_value(x->args[i], y->args[i], depth - 1)) return false;
    return true;
}

static const ir_expr *fold_min_max(ir_builder *b, ir_op op, const ir_expr *x, const ir_expr *y) {
    if (is_const(x)) return ir_apply(b, op, y, x, NULL);
    if (same_value(x, y, 6)) return x;
    if (x->op == op && is_const(y) && is_const(x->args[1]))
        return ir_apply(b, op, x->args[0], ir_apply(b, op, x->args[1], y, NULL), NULL);
    return NULL;
}

static const ir_expr *fold_integer(ir_builder *b, ir_op op, const ir_expr *x, const ir_expr *y) {
    if (is_const(x) && is_const(y)) return NULL; /* a division by zero stays; the verifier rejects it */
    switch (op) {
    case IR_ADD:
    case IR_SUB: return fold_sum(b, op, x, y);
    case IR_MUL: return fold_product(b, x, y);
    case IR_DIV: return is_int_value(y, 1) ? x : NULL;
    case IR_MOD: return is_int_value(y, 1) ? int_const(b, x->type.elem, 0) : NULL;
    case IR_MIN:
    case IR_MAX: return fold_min_max(b, op, x, y);
    case IR_SHL:
    case IR_SHR: return is_int_value(y, 0) ? x : NULL;
    default: return NULL;
    }
}

/* ---- conditions ---- */

static const ir_expr *fold_bool(ir_op op, const ir_expr *x, const ir_expr *y) {
    const ir_expr *constant = is_const(x) ? x : is_const(y) ? y : NULL;
    if (!constant || (op != IR_AND && op != IR_OR)) return NULL;
    const bool decides = (constant->value.i != 0) == (op == IR_OR);
    return decides ? constant : constant == x ? y : x;
}

const ir_expr *ir_build_fold(ir_builder *b, ir_op op, const ir_expr *x, const ir_expr *y, const ir_expr *z) {
    if (op == IR_SELECT) return !is_const(x) ? NULL : x->value.i ? y : z;
    const ir_expr *constant = fold_constants(b, op, x, y, z);
    if (constant || ir_failed(b) || !y || z || x->type.lanes != 1) return constant;
    switch (ir_elem_get(x->type.elem)->class) {
    case IR_CLASS_INT: return fold_integer(b, op, x, y);
    case IR_CLASS_BOOL: return fold_bool(op, x, y);
    default: return NULL;
    }
}
