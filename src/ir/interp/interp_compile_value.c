/* Resolves expressions to trees of function pointers. Two things make them faster: an expression of constants and
 * scalar params alone is computed here, once; and integer arithmetic becomes one affine sum, constant + k1 * variable1
 * + k2 * variable2 + …, instead of a tree. */
#include "ir/interp/interp_internal.h"

enum { MAX_TERMS = 12 };

uint32_t interp_bytes(ir_type type) { return (uint32_t)ir_elem_get((ir_elem)type.elem)->bytes * type.lanes; }

static void enter(interp *run) {
    if (++run->depth > IR_MAX_DEPTH) interp_fail(run, ATTUNE_INVALID_IR, "@%s is nested too deeply", run->kernel->name);
}

static interp_value *new_value(interp *run, const ir_expr *e) {
    interp_value *value = interp_new(run, sizeof *value);
    value->type = e->type;
    value->u.run = run;
    return value;
}

/* ---- Affine sums ---- */

typedef struct affine_sum {
    int64_t constant;
    uint32_t num_terms;
    interp_term terms[MAX_TERMS];
} affine_sum;

static bool is_wide(const ir_expr *e) {
    return e->type.lanes == 1 && (e->type.elem == IR_IDX || e->type.elem == IR_I64);
}

static bool is_affine(const ir_expr *e) {
    return is_wide(e) && (e->op == IR_ADD || e->op == IR_SUB || e->op == IR_MUL || e->op == IR_NEG);
}

static bool sum_add(affine_sum *sum, interp_term term) {
    for (uint32_t t = 0; t < sum->num_terms; t++) {
        if (sum->terms[t].var != term.var || sum->terms[t].computed != term.computed) continue;
        sum->terms[t].scale = (int64_t)((uint64_t)sum->terms[t].scale + (uint64_t)term.scale);
        return true;
    }
    if (sum->num_terms == MAX_TERMS) return false;
    sum->terms[sum->num_terms++] = term;
    return true;
}

static bool sum_add_scaled(affine_sum *sum, const affine_sum *other, int64_t scale) {
    sum->constant = (int64_t)((uint64_t)sum->constant + (uint64_t)other->constant * (uint64_t)scale);
    for (uint32_t t = 0; t < other->num_terms; t++) {
        interp_term term = other->terms[t];
        term.scale = (int64_t)((uint64_t)term.scale * (uint64_t)scale);
        if (!sum_add(sum, term)) return false;
    }
    return true;
}

/* A leaf of a sum: a variable, a constant, or another value. */
static void affine_leaf(affine_sum *sum, const ir_expr *e, const interp_value *value) {
    if (value->constant)
        sum->constant = *(const int64_t *)value->out;
    else if (e->op == IR_VAR)
        sum_add(sum, (interp_term){.var = value->out, .scale = 1});
    else
        sum_add(sum, (interp_term){.computed = value, .scale = 1});
}

static interp_affine finish_sum(interp *run, const affine_sum *sum) {
    static const int64_t zero = 0;
    interp_term *rest = interp_new(run, sum->num_terms * sizeof *rest);
    interp_affine affine = {.constant = sum->constant, .vars = {&zero, &zero}, .rest = rest};
    affine.is_constant = sum->num_terms == 0;
    int direct = 0;
    for (uint32_t t = 0; t < sum->num_terms; t++) {
        const interp_term *term = &sum->terms[t];
        if (!term->var) continue;
        if (direct == 2) {
            rest[affine.num_vars++] = *term;
        } else {
            affine.vars[direct] = term->var;
            affine.scales[direct++] = term->scale;
        }
    }
    affine.num_rest = affine.num_vars;
    for (uint32_t t = 0; t < sum->num_terms; t++)
        if (!sum->terms[t].var) rest[affine.num_rest++] = sum->terms[t];
    return affine;
}

static const interp_value *value_of_sum(interp *run, const ir_expr *e, const affine_sum *sum) {
    interp_value *value = new_value(run, e);
    value->u.affine = finish_sum(run, sum);
    value->out = interp_new(run, sizeof(int64_t));
    *(int64_t *)value->out = sum->constant;
    value->constant = sum->num_terms == 0;
    value->eval = value->constant ? NULL : interp_eval_affine;
    return value;
}

/* A product of variables, or a sum with too many terms, is a single term, computed as it is written. */
static affine_sum computed_term(interp *run, const ir_expr *e, const affine_sum *x, const affine_sum *y) {
    interp_value *value = new_value(run, e);
    value->args[0] = value_of_sum(run, e->args[0], x);
    value->args[1] = value_of_sum(run, e->args[1], y);
    value->out = interp_new(run, sizeof(int64_t));
    value->fn = ir_eval_get((ir_op)e->op, (ir_elem)e->type.elem);
    value->eval = interp_eval_binary;
    affine_sum sum = {0};
    affine_leaf(&sum, e, value);
    return sum;
}

static affine_sum affine_of(interp *run, const ir_expr *e) {
    affine_sum sum = {0};
    if (!is_affine(e)) {
        affine_leaf(&sum, e, interp_compile_value(run, e));
        return sum;
    }
    enter(run);
    const affine_sum x = affine_of(run, e->args[0]);
    if (e->op == IR_NEG) {
        sum_add_scaled(&sum, &x, -1);
    } else {
        const affine_sum y = affine_of(run, e->args[1]);
        bool fits = true;
        if (e->op != IR_MUL)
            fits = sum_add_scaled(&sum, &x, 1) && sum_add_scaled(&sum, &y, e->op == IR_SUB ? -1 : 1);
        else if (x.num_terms == 0)
            sum_add_scaled(&sum, &y, x.constant);
        else if (y.num_terms == 0)
            sum_add_scaled(&sum, &x, y.constant);
        else
            fits = false;
        if (!fits) sum = computed_term(run, e, &x, &y);
    }
    run->depth--;
    return sum;
}

interp_affine interp_compile_affine(interp *run, const ir_expr *e) {
    const affine_sum sum = affine_of(run, e);
    return finish_sum(run, &sum);
}

/* ---- Values ---- */

static const interp_value *compile_const(interp *run, const ir_expr *e) {
    interp_value *value = new_value(run, e);
    value->out = interp_new(run, sizeof(int64_t));
    value->constant = true;
    const float single = (float)e->value.f;
    switch ((ir_elem)e->type.elem) {
    case IR_F64: memcpy(value->out, &e->value.f, sizeof(double)); break;
    case IR_F32: memcpy(value->out, &single, sizeof single); break;
    default: memcpy(value->out, &e->value.i, interp_bytes(e->type)); break; /* little-endian: the low bytes */
    }
    return value;
}

static const interp_value *compile_var(interp *run, const ir_expr *e) {
    const ir_var *var = e->value.var;
    if (!run->vars[var->id])
        interp_fail(run, ATTUNE_INVALID_IR, "%s is used outside its scope in @%s", var->name, run->kernel->name);
    interp_value *value = new_value(run, e);
    value->out = run->vars[var->id];
    value->constant = run->var_constant[var->id];
    return value;
}

static const interp_value *compile_load(interp *run, const ir_expr *e) {
    const ir_buffer *buffer = e->value.access->buffer;
    if (buffer->space == IR_PARAM && !(buffer->access & IR_IN))
        interp_fail(run, ATTUNE_INVALID_IR, "%s is an output of @%s and is read", buffer->name, run->kernel->name);
    interp_value *value = new_value(run, e);
    value->u.access = interp_compile_access(run, e->value.access);
    value->out = interp_new(run, interp_bytes(e->type));
    value->eval = interp_choose_load(value->u.access);
    if (buffer->space != IR_PARAM || e->type.elem != IR_BOOL) return value;
    interp_value *truth = new_value(run, e);
    truth->eval = interp_eval_truth;
    truth->args[0] = value;
    return truth;
}

/* Which operand's element picks the evaluator: a choice of a select, the sum of a dot. */
static ir_eval_fn *find_evaluator(const ir_expr *e) {
    switch ((ir_op)e->op) {
    case IR_CAST: return ir_eval_cast((ir_elem)e->args[0]->type.elem, (ir_elem)e->type.elem);
    case IR_SELECT: return ir_eval_get(IR_SELECT, (ir_elem)e->type.elem);
    case IR_DOT2:
    case IR_DOT4: return ir_eval_get((ir_op)e->op, (ir_elem)e->type.elem);
    default: return ir_eval_get((ir_op)e->op, (ir_elem)e->args[0]->type.elem);
    }
}

static void choose_eval(interp *run, const ir_expr *e, interp_value *value) {
    static interp_eval_fn *const by_arity[] = {NULL, interp_eval_unary, interp_eval_binary, interp_eval_ternary};
    switch ((ir_op)e->op) {
    case IR_SPLAT: value->eval = interp_choose_splat(e->type); return;
    case IR_RAMP: value->eval = interp_eval_ramp; return;
    case IR_BITCAST:
        value->eval = e->type.lanes < e->args[0]->type.lanes ? interp_eval_parts : interp_eval_bitcast;
        return;
    case IR_SHUFFLE:
        value->eval = interp_eval_shuffle;
        value->u.pick = e->value.pick;
        return;
    default: break;
    }
    const ir_op_info *info = ir_op_get((ir_op)e->op);
    value->fn = find_evaluator(e);
    if (!value->fn)
        interp_fail(run, info->traits & IR_TRAIT_HIGH ? ATTUNE_UNSUPPORTED : ATTUNE_INVALID_IR,
                    info->traits & IR_TRAIT_HIGH
                        ? "@%s still holds %s of %s: the interpreter runs kernels whose mathematics has been lowered"
                        : "@%s holds %s of %s, which has no meaning",
                    run->kernel->name, info->text, ir_elem_get((ir_elem)e->args[0]->type.elem)->name);
    const bool divides =
        (e->op == IR_DIV || e->op == IR_MOD) && ir_elem_get((ir_elem)e->type.elem)->class == IR_CLASS_INT;
    value->eval = divides ? interp_eval_divide : by_arity[info->arity];
}

static const interp_value *compile_operator(interp *run, const ir_expr *e) {
    enter(run);
    interp_value *value = new_value(run, e);
    bool constant = true;
    for (int a = 0; a < ir_op_get((ir_op)e->op)->arity; a++) {
        value->args[a] = interp_compile_value(run, e->args[a]);
        constant &= value->args[a]->constant;
    }
    value->out = interp_new(run, interp_bytes(e->type));
    choose_eval(run, e, value);
    if (constant && value->eval != interp_eval_divide) { /* a division by zero may be in code that is never reached */
        const void *lanes = value->eval(value);
        if (lanes != value->out) memcpy(value->out, lanes, interp_bytes(e->type));
        value->eval = NULL;
        value->constant = true;
    }
    run->depth--;
    return value;
}

const interp_value *interp_compile_value(interp *run, const ir_expr *e) {
    if (e->op == IR_CONST) return compile_const(run, e);
    if (e->op == IR_VAR) return compile_var(run, e);
    if (e->op == IR_LOAD) return compile_load(run, e);
    if (!is_affine(e)) return compile_operator(run, e);
    const affine_sum sum = affine_of(run, e);
    return value_of_sum(run, e, &sum);
}
