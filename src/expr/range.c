/* Ranges of integer nodes: a constant interval, and an upper bound relative to a size (such as: less than the number of
 * keys plus 3). Arithmetic has 64 bits; if a result may wrap, nothing is known of it. */
#include "expr/expr_parse.h"

typedef struct range {
    int64_t least, most;
} range;

static const range anything = {INT64_MIN, INT64_MAX};

typedef __int128 wide;

static range of_wide(wide least, wide most) {
    return least < INT64_MIN || most > INT64_MAX ? anything : (range){(int64_t)least, (int64_t)most};
}

static wide smaller(wide a, wide b) { return a < b ? a : b; }
static wide larger(wide a, wide b) { return a > b ? a : b; }

static wide floor_quotient(wide x, wide y) { return x / y - (x % y != 0 && (x < 0) != (y < 0)); }

/* The range of four corners. */
static range corners(const ex_node *x, const ex_node *y, wide (*f)(wide x, wide y)) {
    const wide a = f(x->least, y->least), b = f(x->least, y->most), c = f(x->most, y->least), d = f(x->most, y->most);
    return of_wide(smaller(smaller(a, b), smaller(c, d)), larger(larger(a, b), larger(c, d)));
}

static wide product(wide x, wide y) { return x * y; }

static range remainder_of(const ex_node *x, const ex_node *y) {
    if (y->most < 0) return of_wide((wide)y->least + 1, 0);
    if (y->least <= 0) return anything;
    if (x->least >= 0 && x->most < y->least) return (range){x->least, x->most};
    return of_wide(0, x->least >= 0 ? smaller(x->most, (wide)y->most - 1) : (wide)y->most - 1);
}

static range absolute(const ex_node *x) {
    const wide low = x->least, high = x->most;
    if (low >= 0) return (range){x->least, x->most};
    return of_wide(high < 0 ? -high : 0, larger(-low, high));
}

/* Of & | and ^. */
static range bitwise(const ex_node *node, const ex_node *x, const ex_node *y) {
    if (x->least < 0 || y->least < 0) return x->is_in_i32 && y->is_in_i32 ? (range){INT32_MIN, INT32_MAX} : anything;
    if (node->op == EX_AND) return of_wide(0, smaller(x->most, y->most));
    int64_t ones = 0;
    while (ones < x->most || ones < y->most) ones = 2 * ones + 1;
    return (range){0, ones};
}

static range of_type(attune_dtype dtype) {
    switch (dtype) {
    case ATTUNE_I32: return (range){INT32_MIN, INT32_MAX};
    case ATTUNE_I8: return (range){INT8_MIN, INT8_MAX};
    default: return anything;
    }
}

static range of_var(const ex_program *p, ex_var var) {
    const bool is_length = var == EX_V_SEQ_Q || var == EX_V_SEQ_KV;
    return (range){is_length, p->scope.size[var].most - !is_length};
}

static range range_of(const ex_program *p, const ex_node *node) {
    const ex_node *x = node->num_args > 0 ? &p->nodes[node->args[0]] : NULL;
    const ex_node *y = node->num_args > 1 ? &p->nodes[node->args[1]] : NULL;
    switch (node->op) {
    case EX_INT: return (range){node->value.i, node->value.i};
    case EX_VAR: return of_var(p, node->which);
    case EX_LOAD: return of_type(p->scope.tensors[node->which].dtype);
    case EX_ADD: return of_wide((wide)x->least + y->least, (wide)x->most + y->most);
    case EX_SUB: return of_wide((wide)x->least - y->most, (wide)x->most - y->least);
    case EX_MUL: return corners(x, y, product);
    case EX_FLOOR_DIV: return corners(x, y, floor_quotient);
    case EX_MOD: return remainder_of(x, y);
    case EX_NEG: return of_wide(-(wide)x->most, -(wide)x->least);
    case EX_ABS: return absolute(x);
    case EX_MIN: return of_wide(smaller(x->least, y->least), smaller(x->most, y->most));
    case EX_MAX: return of_wide(larger(x->least, y->least), larger(x->most, y->most));
    case EX_SELECT: x = &p->nodes[node->args[2]]; return of_wide(smaller(x->least, y->least), larger(x->most, y->most));
    case EX_AND:
    case EX_OR:
    case EX_XOR: return bitwise(node, x, y);
    case EX_TO_INT: return x->type == EX_T_BOOL ? (range){0, 1} : anything;
    default: return anything;
    }
}

/* ---- Below a size ---- */

static void set_end(ex_node *node, int var, wide beyond) {
    if (var == EX_V_SCORE || beyond > INT32_MAX || beyond < -(wide)INT32_MAX) return;
    node->end_var = (int16_t)var;
    node->beyond = (int64_t)beyond;
}

/* An upper bound of both. */
static void set_end_of_both(ex_node *node, const ex_node *x, const ex_node *y) {
    if (x->end_var == y->end_var) set_end(node, x->end_var, larger(x->beyond, y->beyond));
}

static void find_end(const ex_program *p, ex_node *node) {
    const ex_node *x = node->num_args > 0 ? &p->nodes[node->args[0]] : NULL;
    const ex_node *y = node->num_args > 1 ? &p->nodes[node->args[1]] : NULL;
    switch (node->op) {
    case EX_VAR:
        if (node->which >= EX_V_B && node->which <= EX_V_KV) set_end(node, node->which, 0);
        return;
    case EX_ADD:
        if (x->end_var) set_end(node, x->end_var, (wide)x->beyond + y->most);
        if (!x->end_var && y->end_var) set_end(node, y->end_var, (wide)y->beyond + x->most);
        return;
    case EX_SUB: set_end(node, x->end_var, (wide)x->beyond - y->least); return;
    case EX_FLOOR_DIV:
    case EX_MOD:
        if (x->least >= 0 && y->least > 0) set_end(node, x->end_var, x->beyond);
        return;
    case EX_MIN:
        if (x->end_var)
            set_end(node, x->end_var, x->beyond);
        else
            set_end(node, y->end_var, y->beyond);
        return;
    case EX_ABS:
        if (x->least >= 0) set_end(node, x->end_var, x->beyond);
        return;
    case EX_MAX: set_end_of_both(node, x, y); return;
    case EX_SELECT: set_end_of_both(node, y, &p->nodes[node->args[2]]); return;
    default: return;
    }
}

void ex_find_range(const ex_program *p, ex_node *node) {
    node->end_var = EX_V_SCORE;
    if (node->type != EX_T_INT) return;
    const range r = range_of(p, node);
    node->least = r.least;
    node->most = r.most;
    node->is_in_i32 = r.least >= INT32_MIN && r.most <= INT32_MAX;
    for (int i = 0; i < node->num_args && node->op != EX_LOAD; i++) {
        const ex_node *x = &p->nodes[node->args[i]];
        if (x->type == EX_T_INT && !x->is_in_i32) node->is_in_i32 = false;
        if (x->type == EX_T_FLOAT) node->is_in_i32 = false;
    }
    /* A bound relative to a size holds only if nothing wraps. */
    if (r.least != INT64_MIN || r.most != INT64_MAX) find_end(p, node);
}

bool ex_is_nonzero(const ex_node *node) { return node->least > 0 || node->most < 0; }

int64_t ex_dim_least(const ex_scope *scope, int64_t dim) { return dim < 0 ? scope->size[ex_dim_var(dim)].least : dim; }

bool ex_is_below(const ex_scope *scope, const ex_node *index, int64_t dim) {
    if (index->most < ex_dim_least(scope, dim)) return true;
    return dim < 0 && index->end_var == (int)ex_dim_var(dim) && index->beyond <= 0;
}
