/* Expressions other than index arithmetic. An operator becomes one operation on whole registers if the instruction set
 * has it and the type fits; otherwise the interpreter's evaluator computes it lane by lane. The result may overwrite an
 * operand's place that is free from then on. */
#include "vm/translate.h"

#include <string.h>

/* ---- Types ---- */

static vm_kind kind_of(ir_type type) {
    switch ((ir_elem)type.elem) {
    case IR_F32: return VM_F32;
    case IR_F64: return VM_F64;
    case IR_I32: return VM_I32;
    default: return VM_NUM_KINDS;
    }
}

static bool fits_register(const vm_translator *t, ir_type type) { return vm_bytes(type) <= t->isa->vector_bytes; }

/* Whether scalars of this element are broadcast to their places. */
static bool is_spread(ir_elem elem) { return elem == IR_F32 || elem == IR_F64 || elem == IR_I32 || elem == IR_BOOL; }

void vm_copy(vm_translator *t, int32_t from, int32_t to, size_t bytes) {
    if (from == to) return;
    const size_t whole = (bytes + VM_SLOT_BYTES - 1) / VM_SLOT_BYTES * VM_SLOT_BYTES;
    vm_emit(t, (vm_op){.fn = vm_move, .out = to, .a = from, .e = (int32_t)whole});
}

void vm_copy_int(vm_translator *t, int32_t from, int32_t to) {
    vm_emit(t, (vm_op){.fn = vm_int_move, .out = to, .a = from});
}

void vm_spread(vm_translator *t, int32_t at, ir_elem elem) {
    const vm_isa *const isa = t->isa;
    vm_fn *const fn = elem == IR_BOOL ? isa->splat1 : elem == IR_F64 ? isa->splat8 : isa->splat4;
    if (is_spread(elem)) vm_emit(t, (vm_op){.fn = fn, .out = at, .a = at});
}

/* ---- Where a result goes ---- */

typedef struct operands {
    int count;
    vm_place places[3];
} operands;

vm_place vm_hold(vm_translator *t, const ir_expr *x, vm_var **lender) {
    const vm_place place = vm_value_of(t, x, VM_NOWHERE);
    while (x->op == IR_SPLAT || x->op == IR_BITCAST || x->op == IR_CAST) x = x->args[0];
    *lender = !place.is_own && x->op == IR_VAR ? &t->vars[x->value.var->id] : NULL;
    if (*lender) (*lender)->uses++;
    return place;
}

void vm_hold_no_more(vm_translator *t, vm_place *place, vm_var *lender) {
    if (!lender || --lender->uses || !lender->is_own || lender->level != t->level) return;
    lender->is_own = false;
    place->is_own = true;
}

static operands operands_of(vm_translator *t, const ir_expr *x) {
    operands args = {.count = ir_op_get((ir_op)x->op)->arity};
    vm_var *lenders[3];
    for (int i = 0; i < args.count; i++) args.places[i] = vm_hold(t, x->args[i], &lenders[i]);
    for (int i = 0; i < args.count; i++) vm_hold_no_more(t, &args.places[i], lenders[i]);
    return args;
}

static void free_operands(vm_translator *t, const operands *args) {
    for (int i = 0; i < args->count; i++) vm_free(t, args->places[i]);
}

/* in_place: the result may overwrite an operand. */
static vm_place result_in(vm_translator *t, ir_type type, int32_t want, const operands *args, bool in_place) {
    bool is_free = want != VM_NOWHERE;
    for (int i = 0; i < args->count && !in_place; i++) is_free = is_free && args->places[i].at != want;
    return is_free ? (vm_place){.at = want} : (vm_place){.at = vm_new_place(t, vm_bytes(type)), .is_own = true};
}

static vm_place emit(vm_translator *t, const ir_expr *x, int32_t want, const operands *args, vm_op op, bool in_place) {
    const vm_place result = result_in(t, x->type, want, args, in_place);
    op.out = result.at;
    op.a = args->places[0].at;
    op.b = args->count > 1 ? args->places[1].at : op.b;
    op.c = args->count > 2 ? args->places[2].at : op.c;
    vm_emit(t, op);
    free_operands(t, args);
    return result;
}

/* ---- Operators ---- */

/* The evaluator is that of the operands' element, except for operators whose result decides. */
static ir_eval_fn *evaluator_of(const ir_expr *x) {
    switch ((ir_op)x->op) {
    case IR_CAST: return ir_eval_cast((ir_elem)x->args[0]->type.elem, (ir_elem)x->type.elem);
    case IR_SELECT:
    case IR_DOT2:
    case IR_DOT4: return ir_eval_get((ir_op)x->op, (ir_elem)x->type.elem);
    default: return ir_eval_get((ir_op)x->op, (ir_elem)x->args[0]->type.elem);
    }
}

static vm_place by_evaluator(vm_translator *t, const ir_expr *x, int32_t want, const operands *args) {
    vm_op op = {.fn = vm_eval, .e = x->type.lanes};
    op.u.eval = evaluator_of(x);
    if (!op.u.eval) {
        at_fail(t->err, ATTUNE_INVALID_IR, "@%s holds %s of %s, which has no meaning", t->kernel->name,
                ir_op_get((ir_op)x->op)->text, ir_elem_get((ir_elem)x->args[0]->type.elem)->name);
        return (vm_place){0};
    }
    if (x->type.lanes == 1 && is_spread((ir_elem)x->type.elem)) {
        const uint32_t bytes = vm_bytes(x->type);
        op.fn = bytes == 1 ? vm_eval_splat1 : bytes == 4 ? vm_eval_splat4 : vm_eval_splat8;
    }
    return emit(t, x, want, args, op, false);
}

/* The operation on whole registers, or NULL if there is none. */
static vm_fn *register_op(const vm_translator *t, const ir_expr *x) {
    const vm_isa *const isa = t->isa;
    const ir_type operand = x->args[x->op == IR_SELECT ? 1 : 0]->type;
    const vm_kind kind = kind_of(operand);
    const bool fits = fits_register(t, operand);
    if (operand.elem == IR_BOOL) {
        const bool compares = ir_op_get((ir_op)x->op)->result == IR_RESULT_CMP;
        return fits && !compares && x->op != IR_SELECT ? isa->bits[x->op] : NULL;
    }
    if (kind == VM_NUM_KINDS || !fits) return NULL;
    /* Fewer bools than fill a place */
    if (ir_op_get((ir_op)x->op)->result == IR_RESULT_CMP && operand.lanes == 1) return NULL;
    return isa->by_op[kind][x->op];
}

static vm_fn *pairs_op(const vm_translator *t, const ir_expr *x) {
    if (!fits_register(t, x->type) || x->type.lanes == 1) return NULL;
    if (x->op == IR_DOT4) return t->target->flags & AT_TARGET_BYTE_DOT ? t->isa->dot4 : NULL;
    return x->op == IR_DOT2 ? t->isa->dot2 : t->isa->pack2;
}

/* ---- Several operators in one operation ---- */

static bool is_shuffle(const vm_translator *t, const ir_expr *x) {
    return x->op == IR_SHUFFLE && x->type.elem == IR_F32 && fits_register(t, x->type) &&
           fits_register(t, x->args[0]->type);
}

static bool is_same_value(const ir_expr *x, const ir_expr *y) {
    if (x->op == IR_VAR && y->op == IR_VAR) return x->value.var == y->value.var;
    if (x->op != IR_LOAD || y->op != IR_LOAD) return false;
    const ir_access *a = x->value.access, *b = y->value.access;
    if (a->buffer != b->buffer || a->buffer->space != IR_REG) return false;
    for (int d = 0; d < a->buffer->num_dims; d++)
        if (a->indices[d]->op != IR_CONST || b->indices[d]->op != IR_CONST ||
            a->indices[d]->value.i != b->indices[d]->value.i)
            return false;
    return true;
}

static int32_t picks_of(vm_translator *t, const ir_expr *x);

/* shuffle(a, b) + shuffle(a, b), and the same with max: a step of a reduction over lanes. */
static bool fold(vm_translator *t, const ir_expr *x, int32_t want, vm_place *result) {
    const ir_expr *left = x->args[0], *right = x->args[1];
    if (!t->isa->permute4 || (x->op != IR_ADD && x->op != IR_MAX)) return false;
    if (!is_shuffle(t, left) || !is_shuffle(t, right)) return false;
    if (!is_same_value(left->args[0], right->args[0]) || !is_same_value(left->args[1], right->args[1])) return false;
    const operands args = operands_of(t, left);
    const operands again = operands_of(t, right); /* the same places, but their uses are counted */
    vm_op op = {.fn = x->op == IR_ADD ? t->isa->permute_add : t->isa->permute_max};
    op.c = picks_of(t, left);
    op.d = picks_of(t, right);
    *result = emit(t, x, want, &args, op, true);
    free_operands(t, &again);
    return true;
}

enum { MOST_COEFFICIENTS = 2 * VM_PLACES };

static bool is_const_splat(const ir_expr *x) {
    return x->op == IR_CONST || (x->op == IR_SPLAT && x->args[0]->op == IR_CONST);
}

/* Splits sum * variable + constant. */
static bool is_step(const vm_translator *t, const ir_expr *x, const ir_expr **sum, const ir_expr **variable,
                    const ir_expr **constant) {
    const bool fuses = t->target->flags & AT_TARGET_FMA;
    if (fuses ? x->op != IR_FMA : x->op != IR_ADD || x->args[0]->op != IR_MUL) return false;
    *sum = fuses ? x->args[0] : x->args[0]->args[0];
    *variable = fuses ? x->args[1] : x->args[0]->args[1];
    *constant = x->args[fuses ? 2 : 1];
    return (*variable)->op == IR_VAR && is_const_splat(*constant);
}

/* A polynomial of a variable, by Horner's rule, as one operation. */
static bool polynomial(vm_translator *t, const ir_expr *x, int32_t want, vm_place *result) {
    const ir_expr *coefficients[MOST_COEFFICIENTS], *variable = NULL, *other, *rest = x;
    uint32_t count = 0;
    if (x->type.elem != IR_F32 || !fits_register(t, x->type)) return false;
    while (count + 1 < MOST_COEFFICIENTS && is_step(t, rest, &rest, &other, &coefficients[count])) {
        if (variable && variable->value.var != other->value.var) return false;
        variable = other;
        count++;
    }
    if (count < 3 || !is_const_splat(rest)) return false;
    coefficients[count++] = rest;
    operands args = {.count = 1};
    for (uint32_t i = 1; i < count; i++) args.places[0] = vm_value_of(t, variable, VM_NOWHERE); /* counts all uses */
    *result = emit(t, x, want, &args, (vm_op){.fn = t->isa->polynomial, .e = (int32_t)count}, true);
    int32_t places[MOST_COEFFICIENTS] = {0};
    for (uint32_t i = 0; i < count; i++) places[i] = vm_value_of(t, coefficients[count - 1 - i], VM_NOWHERE).at;
    for (uint32_t i = 0; i < count; i += VM_PLACES) {
        vm_op more = {.fn = vm_exit};
        memcpy(&more.out, places + i, VM_PLACES * sizeof *places);
        vm_emit(t, more);
    }
    return true;
}

static vm_place operator_of(vm_translator *t, const ir_expr *x, int32_t want) {
    vm_place whole;
    if (fold(t, x, want, &whole) || polynomial(t, x, want, &whole)) return whole;
    const operands args = operands_of(t, x);
    const bool is_pairs = x->op == IR_DOT2 || x->op == IR_PACK2 || x->op == IR_DOT4;
    vm_fn *const fn = is_pairs ? pairs_op(t, x) : register_op(t, x);
    return fn ? emit(t, x, want, &args, (vm_op){.fn = fn}, true) : by_evaluator(t, x, want, &args);
}

/* ---- Casts ---- */

static vm_fn *cast_op(const vm_translator *t, const ir_expr *x) {
    const ir_type from = x->args[0]->type;
    if (vm_is_int(from)) return x->type.elem == IR_I32 ? t->isa->int_to_i32 : NULL;
    if (!fits_register(t, x->type) || !fits_register(t, from)) return NULL;
    return t->isa->cast[x->type.elem][from.elem];
}

static vm_place cast_of(vm_translator *t, const ir_expr *x, int32_t want) {
    const ir_expr *from = x->args[0];
    if (x->type.elem == from->type.elem) return vm_value_of(t, from, want);
    if (from->op == IR_LOAD && x->type.elem == IR_F32 && vm_bytes(x->type) == t->isa->vector_bytes &&
        t->isa->load_widened[from->type.elem] && vm_is_plain(t, from->value.access)) {
        const operands none = {0};
        const vm_place result = result_in(t, x->type, want, &none, true);
        vm_op op = {.fn = t->isa->load_widened[from->type.elem], .out = result.at};
        vm_address_of(t, from->value.access, &op);
        vm_emit(t, op);
        return result;
    }
    const operands args = {1, {vm_value_of(t, from, VM_NOWHERE)}};
    vm_fn *const fn = cast_op(t, x);
    if (!fn) return by_evaluator(t, x, want, &args);
    const vm_place result = emit(t, x, want, &args, (vm_op){.fn = fn}, true);
    /* A narrow scalar is not broadcast to its place. */
    if (x->type.lanes == 1 && !is_spread((ir_elem)from->type.elem) && !vm_is_int(from->type))
        vm_spread(t, result.at, (ir_elem)x->type.elem);
    return result;
}

/* The same bytes; a scalar that was not broadcast before is now. */
static vm_place bitcast_of(vm_translator *t, const ir_expr *x, int32_t want) {
    const vm_place value = vm_value_of(t, x->args[0], want);
    const bool was_spread = x->args[0]->type.lanes == 1 && is_spread((ir_elem)x->args[0]->type.elem);
    if (x->type.lanes > 1 || was_spread || !is_spread((ir_elem)x->type.elem)) return value;
    const operands args = {1, {value}};
    vm_fn *const fn = vm_bytes(x->type) == 8 ? t->isa->splat8 : t->isa->splat4;
    return emit(t, x, want, &args, (vm_op){.fn = fn}, true);
}

/* ---- Lanes ---- */

static vm_place splat_of(vm_translator *t, const ir_expr *x, int32_t want) {
    const ir_expr *scalar = x->args[0];
    const uint32_t filled = scalar->op == IR_CONST || scalar->type.elem == IR_BOOL ? VM_SLOT_BYTES
                            : is_spread((ir_elem)scalar->type.elem)                ? t->isa->vector_bytes
                                                                                   : vm_bytes(scalar->type);
    if (vm_bytes(x->type) <= filled) return vm_value_of(t, scalar, want);
    const operands args = {1, {vm_value_of(t, scalar, VM_NOWHERE)}};
    const vm_op op = {.fn = vm_splat, .d = (int32_t)vm_bytes(scalar->type), .e = x->type.lanes};
    return emit(t, x, want, &args, op, false);
}

static vm_place ramp_of(vm_translator *t, const ir_expr *x, int32_t want) {
    const operands args = operands_of(t, x);
    const vm_op op = {.fn = vm_ramp, .d = (int32_t)vm_bytes(x->args[0]->type), .e = x->type.lanes};
    return emit(t, x, want, &args, op, false);
}

/* By one instruction, in which lane numbers from the lanes of a register on mean lanes of b. A result of one lane is
 * broadcast. */
static int32_t picks_of(vm_translator *t, const ir_expr *x) {
    const int in = x->args[0]->type.lanes, of_register = (int)t->isa->vector_bytes / 4;
    int32_t picks[VM_SLOT_BYTES / 4] = {0};
    for (int l = 0; l < of_register; l++) {
        const int pick = x->value.pick[l % x->type.lanes];
        picks[l] = pick < in ? pick : pick - in + of_register;
    }
    return vm_constant(t, picks);
}

static vm_place shuffle_of(vm_translator *t, const ir_expr *x, int32_t want) {
    const operands args = operands_of(t, x);
    const uint32_t bytes = ir_elem_get((ir_elem)x->type.elem)->bytes;
    uint8_t picks[VM_SLOT_BYTES] = {0};
    if (bytes == 4 && t->isa->permute4 && fits_register(t, x->type) && fits_register(t, x->args[0]->type))
        return emit(t, x, want, &args, (vm_op){.fn = t->isa->permute4, .c = picks_of(t, x)}, true);
    memcpy(picks, x->value.pick, x->type.lanes);
    vm_op op = {.fn = vm_shuffle, .c = vm_constant(t, picks), .d = (int32_t)bytes, .e = x->type.lanes};
    op.u.imm = x->args[0]->type.lanes;
    const vm_place result = emit(t, x, want, &args, op, false);
    if (x->type.lanes == 1) vm_spread(t, result.at, (ir_elem)x->type.elem);
    return result;
}

/* ---- Leaves ---- */

static vm_place const_of(vm_translator *t, const ir_expr *x) {
    const float single = (float)x->value.f;
    const uint32_t bytes = vm_bytes(x->type);
    const void *value = x->type.elem == IR_F64   ? (const void *)&x->value.f
                        : x->type.elem == IR_F32 ? (const void *)&single
                                                 : (const void *)&x->value.i; /* little-endian: the low bytes */
    return (vm_place){.at = vm_constant_of(t, value, bytes)};
}

/* The last use of a let frees its place, unless a loop may repeat the use. */
static vm_place var_of(vm_translator *t, const ir_expr *x) {
    vm_var *var = &t->vars[x->value.var->id];
    const vm_place place = {.at = var->number.at};
    if (!var->is_own || --var->uses || var->level != t->level) return place;
    var->is_own = false;
    return (vm_place){.at = place.at, .is_own = true};
}

static bool is_index(const ir_expr *x) {
    const ir_op_info *info = ir_op_get((ir_op)x->op);
    if (!vm_is_int(x->type)) return false;
    if (x->op == IR_CAST) return vm_is_int(x->args[0]->type);
    return info->arity == 0 || x->op == IR_NEG || (info->arity == 2 && info->result == IR_RESULT_SAME);
}

static vm_place select_int(vm_translator *t, const ir_expr *x, int32_t want) {
    const operands args = operands_of(t, x);
    return emit(t, x, want, &args, (vm_op){.fn = vm_int_select}, true);
}

vm_place vm_value_of(vm_translator *t, const ir_expr *x, int32_t want) {
    if (t->err->status) return (vm_place){0};
    if (is_index(x)) return (vm_place){.at = vm_int_of(t, x).at};
    switch ((ir_op)x->op) {
    case IR_CONST: return const_of(t, x);
    case IR_VAR: return var_of(t, x);
    case IR_LOAD: return vm_load_of(t, x, want);
    case IR_CAST: return cast_of(t, x, want);
    case IR_BITCAST: return bitcast_of(t, x, want);
    case IR_SPLAT: return splat_of(t, x, want);
    case IR_RAMP: return ramp_of(t, x, want);
    case IR_SHUFFLE: return shuffle_of(t, x, want);
    case IR_SELECT:
        if (vm_is_int(x->type)) return select_int(t, x, want);
        break;
    default: break;
    }
    return operator_of(t, x, want);
}

void vm_value_to(vm_translator *t, const ir_expr *x, int32_t to) {
    const vm_place value = vm_value_of(t, x, to);
    if (vm_is_int(x->type))
        vm_copy_int(t, value.at, to);
    else
        vm_copy(t, value.at, to, vm_bytes(x->type));
    if (value.at != to) vm_free(t, value);
}
