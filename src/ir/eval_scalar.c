/* Evaluates dims, strides and loop ends, which are expressions over scalar params, with a check for overflow: a size
 * that wraps is always a mistake. */
#include "ir/eval.h"
#include "ir/interp.h"

#include <string.h>

/* A scalar of any element, in the low bytes. */
typedef union scalar {
    int64_t i64;
    int32_t i32;
    double f64;
    float f32;
    uint8_t boolean;
} scalar;

typedef struct context {
    const ir_kernel *kernel;
    const int64_t *scalars;
    at_error *err;
    int depth;
} context;

static attune_status eval(context *c, const ir_expr *e, scalar *out);

static attune_status eval_const(const ir_expr *e, scalar *out) {
    switch ((ir_elem)e->type.elem) {
    case IR_F64: out->f64 = e->value.f; break;
    case IR_F32: out->f32 = (float)e->value.f; break;
    default: out->i64 = e->value.i; break;
    }
    return ATTUNE_OK;
}

static attune_status eval_param(context *c, const ir_expr *e, scalar *out) {
    size_t number = 0;
    for (uint32_t p = 0; p < c->kernel->num_params; p++) {
        const ir_var *var = c->kernel->params[p].var;
        if (!var) continue;
        if (var == e->value.var) {
            out->i64 = c->scalars[number];
            return ATTUNE_OK;
        }
        number++;
    }
    return at_fail(c->err, ATTUNE_INVALID_IR, "%s is used in a size of @%s but is not a scalar parameter of it",
                   e->value.var->name, c->kernel->name);
}

static attune_status eval_checked(context *c, const ir_expr *e, const scalar *x, const scalar *y, scalar *out) {
    bool overflow = false;
    switch ((ir_op)e->op) {
    case IR_NEG: overflow = __builtin_sub_overflow(0, x->i64, &out->i64); break;
    case IR_ADD: overflow = __builtin_add_overflow(x->i64, y->i64, &out->i64); break;
    case IR_SUB: overflow = __builtin_sub_overflow(x->i64, y->i64, &out->i64); break;
    default: overflow = __builtin_mul_overflow(x->i64, y->i64, &out->i64); break;
    }
    if (!overflow) return ATTUNE_OK;
    return at_fail(c->err, ATTUNE_INVALID_ARGUMENT, "a size of @%s overflows: %lld %s %lld", c->kernel->name,
                   (long long)x->i64, ir_op_get((ir_op)e->op)->text, (long long)y->i64);
}

static bool is_checked(const ir_expr *e) {
    const bool wide = e->type.elem == IR_IDX || e->type.elem == IR_I64;
    return wide && (e->op == IR_NEG || e->op == IR_ADD || e->op == IR_SUB || e->op == IR_MUL);
}

static attune_status eval_operator(context *c, const ir_expr *e, scalar *out) {
    scalar args[3] = {{0}};
    for (int a = 0; a < ir_op_get((ir_op)e->op)->arity; a++) {
        const attune_status status = eval(c, e->args[a], &args[a]);
        if (status != ATTUNE_OK) return status;
    }
    if (is_checked(e)) return eval_checked(c, e, &args[0], &args[1], out);
    const ir_elem operand = (ir_elem)e->args[e->op == IR_SELECT ? 1 : 0]->type.elem;
    if ((e->op == IR_DIV || e->op == IR_MOD) && ir_elem_get(operand)->class == IR_CLASS_INT &&
        (operand == IR_I32 ? args[1].i32 : args[1].i64) == 0)
        return at_fail(c->err, ATTUNE_INVALID_ARGUMENT, "a size of @%s divides by zero", c->kernel->name);
    ir_eval_fn *fn =
        e->op == IR_CAST ? ir_eval_cast(operand, (ir_elem)e->type.elem) : ir_eval_get((ir_op)e->op, operand);
    if (!fn)
        return at_fail(c->err, ATTUNE_INVALID_IR, "%s cannot be part of a size of @%s", ir_op_get((ir_op)e->op)->text,
                       c->kernel->name);
    fn(out, &args[0], &args[1], &args[2], 1);
    return ATTUNE_OK;
}

static attune_status eval(context *c, const ir_expr *e, scalar *out) {
    *out = (scalar){0};
    if (e->type.lanes != 1 || e->op == IR_LOAD || e->op == IR_BITCAST)
        return at_fail(c->err, ATTUNE_INVALID_IR, "a size of @%s is not a plain scalar expression", c->kernel->name);
    if (e->op == IR_CONST) return eval_const(e, out);
    if (e->op == IR_VAR) return eval_param(c, e, out);
    if (++c->depth > IR_MAX_DEPTH)
        return at_fail(c->err, ATTUNE_INVALID_IR, "a size of @%s is nested too deeply", c->kernel->name);
    const attune_status status = eval_operator(c, e, out);
    c->depth--;
    return status;
}

attune_status ir_eval_scalar(const ir_kernel *kernel, const ir_expr *expr, const int64_t *scalars, int64_t *out,
                             at_error *err) {
    context c = {.kernel = kernel, .scalars = scalars, .err = err};
    scalar value;
    const attune_status status = eval(&c, expr, &value);
    if (status != ATTUNE_OK) return status;
    switch ((ir_elem)expr->type.elem) {
    case IR_IDX:
    case IR_I64: *out = value.i64; return ATTUNE_OK;
    case IR_I32: *out = value.i32; return ATTUNE_OK;
    case IR_BOOL: *out = value.boolean; return ATTUNE_OK;
    default: return at_fail(err, ATTUNE_INVALID_IR, "a size of @%s is not an integer", kernel->name);
    }
}
