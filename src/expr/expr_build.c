/* Builds typed nodes: converts operands, folds constants, and returns an existing node if there is an equal one. */
#include "expr/expr_parse.h"

#include <stdio.h>
#include <string.h>

static const ex_op_info ops[EX_OP_COUNT] = {
#define EX(name, text, arity, level) {text, arity, level},
#include "expr/expr.def"
};

const ex_op_info *ex_op_get(ex_op op) { return &ops[op]; }

const char *ex_var_name(ex_var var) {
    static const char *const names[EX_NUM_VARS] = {"score", "b", "h", "kv_h", "q", "kv", "seq_q", "seq_kv", "prob"};
    return names[var];
}

/* ---- Nodes ---- */

static bool is_same(const ex_node *a, const ex_node *b) {
    return a->op == b->op && a->type == b->type && a->which == b->which && a->clamped == b->clamped &&
           a->num_args == b->num_args && !memcmp(a->args, b->args, sizeof a->args) && a->value.i == b->value.i;
}

/* The number of this node, or of an equal node that exists. */
static int put(ex_parser *p, int column, ex_node node) {
    ex_program *program = p->program;
    if (p->status) return -1;
    for (int i = 0; i < program->count; i++)
        if (is_same(&program->nodes[i], &node)) return i;
    if (program->count == EX_MAX_NODES)
        return ex_fail(p, column, "the functions have more than %d different parts", EX_MAX_NODES);
    for (int i = 0; i < node.num_args; i++) {
        const ex_node *arg = &program->nodes[node.args[i]];
        if (arg->depth >= node.depth) node.depth = (uint8_t)(arg->depth + 1);
        node.needs |= arg->needs;
    }
    if (node.depth > EX_MAX_DEPTH) return ex_fail(p, column, "this is nested more than %d deep", EX_MAX_DEPTH);
    ex_find_range(program, &node);
    program->nodes[program->count] = node;
    return program->count++;
}

int ex_make_int(ex_parser *p, int column, int64_t value) {
    return put(p, column, (ex_node){.op = EX_INT, .type = EX_T_INT, .value.i = value});
}

int ex_make_float(ex_parser *p, int column, double value) {
    return put(p, column, (ex_node){.op = EX_FLOAT, .type = EX_T_FLOAT, .value.f = value});
}

int ex_make_bool(ex_parser *p, int column, bool value) {
    return put(p, column, (ex_node){.op = EX_BOOL, .type = EX_T_BOOL, .value.i = value});
}

int ex_make_var(ex_parser *p, int column, ex_var var) {
    const bool is_operand = var == EX_V_SCORE || var == EX_V_PROB;
    if (is_operand && p->operand == EX_NUM_VARS)
        return ex_fail(p, column, "%s is not known here: a mask depends on positions and tensors alone",
                       ex_var_name(var));
    if (is_operand && p->operand != var)
        return ex_fail(p, column, "%s is not known here: %s is given %s", ex_var_name(var), p->name,
                       ex_var_name(p->operand));
    const ex_type type = is_operand ? EX_T_FLOAT : EX_T_INT;
    return put(p, column,
               (ex_node){.op = EX_VAR, .type = (uint8_t)type, .which = (uint8_t)var, .needs = (uint16_t)(1U << var)});
}

/* ---- Conversions ---- */

static ex_type type_of(const ex_parser *p, int node) { return node < 0 ? EX_T_INT : p->program->nodes[node].type; }

static int convert(ex_parser *p, int column, int node, ex_type type) {
    if (p->status) return -1;
    const ex_node *x = &p->program->nodes[node];
    if (x->type == type) return node;
    if (x->op == EX_INT && type == EX_T_FLOAT) return ex_make_float(p, column, (double)x->value.i);
    if (x->op == EX_BOOL && type == EX_T_INT) return ex_make_int(p, column, x->value.i);
    if (x->op == EX_BOOL && type == EX_T_FLOAT) return ex_make_float(p, column, (double)x->value.i);
    if (x->type == EX_T_BOOL && type == EX_T_FLOAT) node = convert(p, column, node, EX_T_INT);
    if (node < 0) return -1;
    const ex_op op = type == EX_T_FLOAT ? EX_TO_FLOAT : EX_TO_INT;
    return put(p, column, (ex_node){.op = (uint8_t)op, .type = (uint8_t)type, .num_args = 1, .args = {(int16_t)node}});
}

/* The wider type of two, and at least `least`. */
static ex_type wider(ex_type a, ex_type b, ex_type least) {
    const ex_type type = a > b ? a : b;
    return type > least ? type : least;
}

static int put_op(ex_parser *p, int column, ex_op op, ex_type type, const int *args, int num_args) {
    ex_node node = {.op = (uint8_t)op, .type = (uint8_t)type, .num_args = (uint8_t)num_args};
    for (int i = 0; i < num_args; i++) {
        if (args[i] < 0) return -1;
        node.args[i] = (int16_t)args[i];
    }
    return put(p, column, node);
}

/* ---- Operators ---- */

/* Converts all operands from `first` on to the widest of their types, which is also the result's type unless that is a
 * condition. */
static int make_alike(ex_parser *p, int column, ex_op op, const int *args, int num_args, int first, ex_type least) {
    int converted[3] = {args[0], args[1], num_args > 2 ? args[2] : -1};
    ex_type type = least;
    for (int i = first; i < num_args; i++) type = wider(type, type_of(p, args[i]), least);
    for (int i = first; i < num_args; i++) converted[i] = convert(p, column, args[i], type);
    return put_op(p, column, op, op >= EX_EQ && op <= EX_GE ? EX_T_BOOL : type, converted, num_args);
}

static int make_quotient(ex_parser *p, int column, int x, int y) {
    const int args[2] = {convert(p, column, x, EX_T_FLOAT), convert(p, column, y, EX_T_FLOAT)};
    return put_op(p, column, EX_DIV, EX_T_FLOAT, args, 2);
}

/* For floats: floor(x / y), and x - y * floor(x / y). */
static int make_floor_quotient(ex_parser *p, int column, ex_op op, const int *args) {
    const int x = args[0], y = args[1];
    if (wider(type_of(p, x), type_of(p, y), EX_T_INT) == EX_T_FLOAT) {
        const int quotient = make_quotient(p, column, x, y), floor = ex_make(p, column, EX_FLOOR, &quotient, 1);
        if (op == EX_FLOOR_DIV) return floor;
        const int part = ex_make(p, column, EX_MUL, (int[]){y, floor}, 2);
        return ex_make(p, column, EX_SUB, (int[]){x, part}, 2);
    }
    const int divisor = convert(p, column, y, EX_T_INT);
    if (divisor < 0) return -1;
    if (!ex_is_nonzero(&p->program->nodes[divisor])) {
        char text[80];
        ex_print(p->program, divisor, text, sizeof text);
        return ex_fail(p, column, "the divisor %s may be 0; write max(1, …) if it cannot be", text);
    }
    return put_op(p, column, op, EX_T_INT, (int[]){convert(p, column, x, EX_T_INT), divisor}, 2);
}

static int make_negation(ex_parser *p, int column, int x) {
    const ex_node node = p->program->nodes[x];
    if (node.op == EX_INT && node.value.i != INT64_MIN) return ex_make_int(p, column, -node.value.i);
    if (node.op == EX_FLOAT) return ex_make_float(p, column, -node.value.f);
    const ex_type type = wider(node.type, EX_T_INT, EX_T_INT);
    return put_op(p, column, EX_NEG, type, (int[]){convert(p, column, x, type)}, 1);
}

static int make_condition(ex_parser *p, int column, ex_op op, const int *args, int num_args) {
    if (type_of(p, args[0]) == EX_T_BOOL) {
        if (op == EX_SELECT) return make_alike(p, column, op, args, num_args, 1, EX_T_BOOL);
        return put_op(p, column, op, EX_T_BOOL, args, num_args);
    }
    return ex_fail(p, column, "%s wants a condition, and this is a number; compare it with something",
                   ex_op_get(op)->text);
}

static int make_bitwise(ex_parser *p, int column, ex_op op, const int *args) {
    if (type_of(p, args[0]) != EX_T_FLOAT && type_of(p, args[1]) != EX_T_FLOAT)
        return make_alike(p, column, op, args, 2, 0, EX_T_BOOL);
    return ex_fail(p, column, "%s wants conditions or integers, and one side is not an integer", ex_op_get(op)->text);
}

/* Integers and conditions are returned unchanged. */
static int make_rounded(ex_parser *p, int column, int x) {
    if (type_of(p, x) != EX_T_FLOAT) return convert(p, column, x, EX_T_INT);
    return put_op(p, column, EX_FLOOR, EX_T_FLOAT, &x, 1);
}

int ex_make(ex_parser *p, int column, ex_op op, const int *args, int num_args) {
    for (int i = 0; i < num_args; i++)
        if (args[i] < 0) return -1;
    if (p->status) return -1;
    switch (op) {
    case EX_OR:
    case EX_XOR:
    case EX_AND: return make_bitwise(p, column, op, args);
    case EX_DIV: return make_quotient(p, column, args[0], args[1]);
    case EX_FLOOR_DIV:
    case EX_MOD: return make_floor_quotient(p, column, op, args);
    case EX_NEG: return make_negation(p, column, args[0]);
    case EX_NOT:
    case EX_SELECT: return make_condition(p, column, op, args, num_args);
    case EX_FLOOR: return make_rounded(p, column, args[0]);
    case EX_TO_FLOAT: return convert(p, column, args[0], EX_T_FLOAT);
    case EX_TO_INT: return convert(p, column, args[0], EX_T_INT);
    case EX_ABS: {
        const ex_type type = wider(type_of(p, args[0]), EX_T_INT, EX_T_INT);
        return put_op(p, column, op, type, (int[]){convert(p, column, args[0], type)}, 1);
    }
    default: break;
    }
    if (num_args > 1) return make_alike(p, column, op, args, num_args, 0, EX_T_INT);
    return put_op(p, column, op, EX_T_FLOAT, (int[]){convert(p, column, args[0], EX_T_FLOAT)}, 1);
}

/* ---- Tensors ---- */

static void print_dim(const ex_scope *scope, int64_t dim, char *text, size_t capacity) {
    const ex_var var = ex_dim_var(dim);
    if (dim >= 0)
        snprintf(text, capacity, "%lld", (long long)dim);
    else if (scope->size[var].least == scope->size[var].most)
        snprintf(text, capacity, "%s = %lld", ex_var_name(var), (long long)scope->size[var].most);
    else
        snprintf(text, capacity, "%s", ex_var_name(var));
}

/* An index that is not clamped must be in bounds for all values of the variables. */
static void check_index(ex_parser *p, int column, const attune_user_tensor *tensor, int index, int64_t dim) {
    const ex_node *node = &p->program->nodes[index];
    char text[80], size[64];
    const bool is_low = node->least < 0;
    if (!is_low && ex_is_below(&p->program->scope, node, dim)) return;
    ex_print(p->program, index, text, sizeof text);
    print_dim(&p->program->scope, dim, size, sizeof size);
    ex_fail(p, column, "the index %s of %s may be %s%s; write clamp(%s)", text, tensor->name,
            is_low ? "negative" : "beyond its dim of ", is_low ? "" : size, text);
}

int ex_make_load(ex_parser *p, int column, int tensor, const int *indices, const int *columns, unsigned clamped) {
    const attune_user_tensor *t = &p->program->scope.tensors[tensor];
    const ex_type type = t->dtype == ATTUNE_BOOL                           ? EX_T_BOOL
                         : t->dtype == ATTUNE_I32 || t->dtype == ATTUNE_I8 ? EX_T_INT
                                                                           : EX_T_FLOAT;
    ex_node node = {.op = EX_LOAD,
                    .type = (uint8_t)type,
                    .which = (uint8_t)tensor,
                    .clamped = (uint8_t)clamped,
                    .num_args = (uint8_t)t->rank};
    for (int i = 0; i < t->rank && !p->status; i++) {
        if (type_of(p, indices[i]) == EX_T_FLOAT)
            return ex_fail(p, columns[i], "an index of %s is not an integer", t->name);
        const int index = convert(p, columns[i], indices[i], EX_T_INT);
        if (index < 0) return -1;
        node.args[i] = (int16_t)index;
        if (!(clamped >> i & 1)) check_index(p, columns[i], t, index, t->dims[i]);
    }
    return put(p, column, node);
}
