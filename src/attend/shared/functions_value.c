/* Translates a node of a user's expression to loop IR, at a place: operands first, unless the place has their values
 * already. The rules:
 *
 *     integers         32 bits wide if operands and result fit, else 64
 *     x * y + z        one multiply-add
 *     tensor[index]    the index is clamped to its dim, unless the prover can bound it
 *     deep nesting     intermediate values get names */
#include "attend/shared/functions.h"

#include <math.h>
#include <string.h>

enum { MOST_DEPTH = 24 }; /* deeper expressions get a name */

typedef struct lowering {
    const mha_context *c;
    ir_builder *b;
    const ex_program *program;
    const mha_place *place;
    mha_values *values;
} lowering;

static const ir_expr *value_of(lowering *l, int number);

static const ex_node *node_at(const lowering *l, int number) { return &l->program->nodes[number]; }

/* ---- Operands ---- */

static int lanes_of(const ir_expr *const *x, int count) {
    int lanes = 1;
    for (int i = 0; i < count; i++)
        if (x[i] && x[i]->type.lanes > lanes) lanes = x[i]->type.lanes;
    return lanes;
}

static void broadcast(lowering *l, const ir_expr **x, int count) {
    const int lanes = lanes_of(x, count);
    for (int i = 0; i < count; i++) x[i] = mha_in_lanes(l->c, x[i], lanes);
}

static const ir_expr *as_elem(lowering *l, ir_elem elem, const ir_expr *x) {
    return !x || x->type.elem == elem ? x : ir_cast(l->b, elem, x);
}

/* The operands of integer arithmetic, in 32 bits if they and the result fit. */
static void operands_of(lowering *l, const ex_node *node, const ir_expr *x[3]) {
    bool is_wide = node->type == EX_T_INT && !node->is_in_i32;
    for (int i = 0; i < node->num_args; i++) {
        const ex_node *arg = node_at(l, node->args[i]);
        x[i] = value_of(l, node->args[i]);
        if (arg->type == EX_T_INT && !arg->is_in_i32) is_wide = true;
    }
    for (int i = 0; i < node->num_args; i++)
        if (node_at(l, node->args[i])->type == EX_T_INT) x[i] = as_elem(l, is_wide ? IR_I64 : IR_I32, x[i]);
    broadcast(l, x, node->num_args);
}

/* ---- Variables and tensors ---- */

const ir_expr *mha_variable_at(const mha_place *place, ex_var var) {
    switch (var) {
    case EX_V_B: return place->sequence ? place->sequence->number : NULL;
    case EX_V_SEQ_Q: return place->sequence ? place->sequence->seq_q : NULL;
    case EX_V_SEQ_KV: return place->sequence ? place->sequence->seq_kv : NULL;
    case EX_V_H: return place->head;
    case EX_V_KV_H: return place->kv_head;
    case EX_V_Q: return place->query;
    case EX_V_KV: return place->key;
    default: return NULL;
    }
}

static const ir_expr *variable(lowering *l, ex_var var) {
    const ir_expr *x = mha_variable_at(l->place, var);
    if (!x) {
        ir_build_fail(l->b, "%s is used where it is not known", ex_var_name(var));
        return NULL;
    }
    x = ir_cast(l->b, IR_I32, x);
    return var == EX_V_KV && l->place->lanes > 1 ? ir_ramp(l->b, x, ir_int(l->b, IR_I32, 1), l->place->lanes) : x;
}

/* Whether an index is the variable that counts its dim, so that the prover can bound it. A single key is excluded, as
 * it may be a long expression. */
static bool is_plain(const lowering *l, const ex_node *load, int d, int64_t dim) {
    const ex_node *index = node_at(l, load->args[d]);
    const bool is_single_key = index->which == EX_V_KV && l->place->lanes == 1;
    return index->op == EX_VAR && !is_single_key && dim < 0 && (int)ex_dim_var(dim) == index->which &&
           mha_variable_at(l->place, (ex_var)index->which) != NULL;
}

/* An index as idx. A single key stays as it is: after a cast to i32 and back, the prover could not bound a long
 * expression. */
static const ir_expr *plain_index(lowering *l, int node) {
    const ex_node *index = node_at(l, node);
    const bool is_key = index->op == EX_VAR && index->which == EX_V_KV && l->place->lanes == 1 && l->place->key;
    return is_key ? l->place->key : as_elem(l, IR_IDX, value_of(l, node));
}

/* The same, clamped to the dim. The minimum comes last, so the prover needs one step to bound it, whatever x is. */
static const ir_expr *index_of(lowering *l, const ex_node *load, const ir_buffer *tensor, int d) {
    ir_builder *b = l->b;
    const ir_expr *x = plain_index(l, load->args[d]);
    const int lanes = x ? x->type.lanes : 1;
    const ir_expr *last = mha_in_lanes(l->c, ir_plus(b, tensor->dims[d], -1), lanes);
    x = ir_min(b, last, ir_max(b, ir_splat(b, ir_idx(b, 0), lanes), x));
    return ir_let(b, "index", x);
}

/* The mask of a load from a tensor that may have no elements: with seq_kv 0, values of rows are still loaded, and must
 * be 0. NULL if a query, or a key, exists wherever the load is executed. */
static const ir_expr *guard(lowering *l, const ex_node *load, const ir_buffer *tensor) {
    const ex_scope *scope = &l->program->scope;
    const int64_t *dims = scope->tensors[load->which].dims;
    const ir_expr *mask = NULL;
    for (int d = 0; d < load->num_args; d++) {
        const bool may_be_0 = dims[d] < 0 && scope->size[ex_dim_var(dims[d])].least == 0;
        if (!may_be_0) continue;
        const ir_expr *has_any = ir_gt(l->b, tensor->dims[d], ir_idx(l->b, 0));
        if (dims[d] == ATTUNE_DIM_SEQ_KV && !l->place->key)
            mask = has_any;
        else
            ir_assume(l->b, has_any);
    }
    return mask;
}

/* In a gather, either all indices are vectors or none. */
static const ir_expr *load_of(lowering *l, const ex_node *node) {
    ir_builder *b = l->b;
    const ir_buffer *tensor = l->c->params.tensor[MHA_USER_TENSORS + node->which];
    const int64_t *dims = l->program->scope.tensors[node->which].dims;
    const int last = node->num_args - 1;
    const ir_expr *index[EX_MAX_RANK], *mask = guard(l, node, tensor);
    for (int d = 0; d <= last; d++) {
        const ex_node *arg = node_at(l, node->args[d]);
        const bool plain = is_plain(l, node, d, dims[d]);
        const bool is_key = plain && arg->which == EX_V_KV && l->place->lanes > 1;
        if (plain && !is_key)
            index[d] = mha_variable_at(l->place, (ex_var)arg->which);
        else
            index[d] = is_key && d == last ? NULL : index_of(l, node, tensor, d);
    }
    int lanes = lanes_of(index, node->num_args);
    if (!index[last] && lanes == 1) {
        lanes = l->place->lanes;
        index[last] = l->place->key;
        mask = ir_lt(b, ir_ramp(b, l->place->key, ir_idx(b, 1), lanes), ir_splat(b, tensor->dims[last], lanes));
        return ir_load(b, ir_access_make(b, tensor, lanes, -1, node->num_args, index, mask));
    }
    if (!index[last]) index[last] = index_of(l, node, tensor, last);
    if (lanes > 1)
        for (int d = 0; d <= last; d++) index[d] = mha_in_lanes(l->c, index[d], lanes);
    return ir_load(b, ir_access_make(b, tensor, lanes, lanes > 1 ? 0 : -1, node->num_args, index, mask));
}

static const ir_expr *element_of(lowering *l, const ex_node *node) {
    const ir_expr *x = load_of(l, node);
    if (!x) return NULL;
    if (node->type == EX_T_BOOL) {
        x = ir_cast(l->b, IR_I32, x);
        return ir_ne(l->b, x, ir_splat(l->b, ir_int(l->b, IR_I32, 0), x->type.lanes));
    }
    if (node->type == EX_T_INT) return as_elem(l, IR_I32, x);
    if (x->type.elem == IR_F16 || x->type.elem == IR_BF16) x = ir_cast(l->b, IR_F32, x);
    return as_elem(l, l->c->elem, x);
}

/* ---- Arithmetic ---- */

static const ir_expr *number(lowering *l, const ir_expr *like, double value) {
    return mha_number(l->c, value, like ? like->type.lanes : 1);
}

static const ir_expr *times(lowering *l, const ir_expr *x, double factor) {
    return ir_mul(l->b, x, number(l, x, factor));
}

static const ir_expr *unary(lowering *l, ir_op op, const ir_expr *x) { return mha_math(l->c, op, x); }

static const ir_expr *floor_of(lowering *l, const ir_expr *x) {
    const ir_expr *near = ir_let(l->b, "near", ir_rint(l->b, x));
    const ir_expr *above = ir_gt(l->b, near, x);
    return ir_select(l->b, above, ir_sub(l->b, near, number(l, x, 1)), near);
}

static const ir_expr *sigmoid_of(lowering *l, const ir_expr *x) {
    const ir_expr *power = unary(l, IR_EXP2, times(l, x, -M_LOG2E));
    return ir_div(l->b, number(l, x, 1), ir_add(l->b, number(l, x, 1), power));
}

/* src/expr has proved that the divisor is not 0; a clamp tells the prover. */
static const ir_expr *quotient(lowering *l, const ex_node *node, const ir_expr *x, const ir_expr *y) {
    const ex_node *divisor = node_at(l, node->args[1]);
    const bool is_negative = divisor->most < 0;
    if (!y) return NULL;
    if (divisor->op != EX_INT) {
        const ir_expr *nearest =
            ir_splat(l->b, ir_int(l->b, (ir_elem)y->type.elem, is_negative ? -1 : 1), y->type.lanes);
        y = ir_apply(l->b, is_negative ? IR_MIN : IR_MAX, nearest, y, NULL);
    }
    return node->op == EX_MOD ? ir_mod(l->b, x, y) : ir_div(l->b, x, y);
}

static bool is_exact(const ex_node *node) {
    const int64_t most = INT64_C(1) << 24; /* f32 represents all integers up to here */
    return node->type == EX_T_INT && node->least >= -most && node->most <= most;
}

/* The node x + y (or x - y) of a node float(x + y) whose integers f32 represents exactly; NULL: it is something else.
 */
static const ex_node *exact_sum(const lowering *l, const ex_node *node) {
    const ex_node *sum = node_at(l, node->args[0]);
    const bool is_sum = sum->op == EX_ADD || sum->op == EX_SUB;
    if (node->op != EX_TO_FLOAT || !is_sum || !is_exact(sum) || l->values->of[node->args[0]]) return NULL;
    return is_exact(node_at(l, sum->args[0])) && is_exact(node_at(l, sum->args[1])) ? sum : NULL;
}

/* float(x) + float(y) for float(x + y): often x depends on the row alone and y on the key alone, and each is converted
 * less often than their sum would be. */
static const ir_expr *sum_of_floats(lowering *l, const ex_node *sum) {
    const ir_expr *x[2];
    for (int i = 0; i < 2; i++) x[i] = as_elem(l, l->c->elem, value_of(l, sum->args[i]));
    broadcast(l, x, 2);
    return ir_apply(l->b, sum->op == EX_ADD ? IR_ADD : IR_SUB, x[0], x[1], NULL);
}

static const ir_expr *converted(lowering *l, const ex_node *node) {
    const ex_node *const sum = exact_sum(l, node);
    const ir_expr *x[3] = {NULL, NULL, NULL};
    if (sum) return sum_of_floats(l, sum);
    operands_of(l, node, x);
    if (node->type == EX_T_FLOAT) return as_elem(l, l->c->elem, x[0]);
    return as_elem(l, node->is_in_i32 ? IR_I32 : IR_I64, x[0]);
}

static int count_uses(const lowering *l, int number) {
    int uses = 0;
    for (int i = number + 1; i < l->program->count; i++)
        for (int k = 0; k < l->program->nodes[i].num_args; k++) uses += l->program->nodes[i].args[k] == number;
    return uses;
}

/* Whether a node depends on query and key together. Such a node is computed at the same place in both strategies, so a
 * multiply-add gives the same bits. */
static bool is_of_pairs(const ex_node *node) {
    const unsigned pair = 1U << EX_V_Q | 1U << EX_V_KV;
    return (node->needs & pair) == pair || node->needs & (1U << EX_V_SCORE | 1U << EX_V_PROB);
}

/* x, y and z of x * y + z in floating point, if the product has no other use. */
static bool product_and_sum(const lowering *l, const ex_node *node, int16_t operands[3]) {
    if (node->op != EX_ADD || node->type != EX_T_FLOAT) return false;
    for (int k = 0; k < 2; k++) {
        const int number = node->args[k];
        const ex_node *product = node_at(l, number);
        if (product->op != EX_MUL || !is_of_pairs(product) || count_uses(l, number) > 1) continue;
        operands[0] = product->args[0];
        operands[1] = product->args[1];
        operands[2] = node->args[1 - k];
        return true;
    }
    return false;
}

static const ir_expr *product_plus(lowering *l, const int16_t operands[3]) {
    const ir_expr *x[3];
    for (int i = 0; i < 3; i++) x[i] = value_of(l, operands[i]);
    broadcast(l, x, 3);
    return mha_madd(l->c, x[0], x[1], x[2]);
}

static ir_op op_of(ex_op op) {
    static const ir_op ops[EX_OP_COUNT] = {
        [EX_OR] = IR_OR,     [EX_XOR] = IR_XOR,   [EX_AND] = IR_AND,      [EX_EQ] = IR_EQ,     [EX_NE] = IR_NE,
        [EX_LT] = IR_LT,     [EX_LE] = IR_LE,     [EX_GT] = IR_GT,        [EX_GE] = IR_GE,     [EX_ADD] = IR_ADD,
        [EX_SUB] = IR_SUB,   [EX_MUL] = IR_MUL,   [EX_DIV] = IR_DIV,      [EX_NEG] = IR_NEG,   [EX_NOT] = IR_NOT,
        [EX_MIN] = IR_MIN,   [EX_MAX] = IR_MAX,   [EX_ABS] = IR_ABS,      [EX_EXP2] = IR_EXP2, [EX_LOG2] = IR_LOG2,
        [EX_TANH] = IR_TANH, [EX_SQRT] = IR_SQRT, [EX_SELECT] = IR_SELECT};
    return ops[op];
}

static const ir_expr *constant(lowering *l, const ex_node *node) {
    if (node->op == EX_FLOAT) return mha_number(l->c, node->value.f, 1);
    if (node->op == EX_BOOL) return ir_int(l->b, IR_BOOL, node->value.i);
    return ir_int(l->b, node->is_in_i32 ? IR_I32 : IR_I64, node->value.i);
}

static const ir_expr *compute(lowering *l, const ex_node *node) {
    const ir_expr *x[3] = {NULL, NULL, NULL};
    switch (node->op) {
    case EX_INT:
    case EX_FLOAT:
    case EX_BOOL: return constant(l, node);
    case EX_VAR: return variable(l, (ex_var)node->which);
    case EX_LOAD: return element_of(l, node);
    case EX_TO_FLOAT:
    case EX_TO_INT: return converted(l, node);
    default: break;
    }
    int16_t operands[3];
    if (product_and_sum(l, node, operands)) return product_plus(l, operands);
    operands_of(l, node, x);
    switch (node->op) {
    case EX_FLOOR_DIV:
    case EX_MOD: return quotient(l, node, x[0], x[1]);
    case EX_FLOOR: return floor_of(l, x[0]);
    case EX_EXP2:
    case EX_LOG2:
    case EX_TANH: return unary(l, op_of(node->op), x[0]);
    case EX_EXP: return unary(l, IR_EXP2, times(l, x[0], M_LOG2E));
    case EX_LOG: return times(l, unary(l, IR_LOG2, x[0]), M_LN2);
    case EX_SIGMOID: return sigmoid_of(l, x[0]);
    default: return ir_apply(l->b, op_of(node->op), x[0], x[1], x[2]);
    }
}

/* The first operand that `compute` needs and that has no value yet; -1: all have values, or are leaves. */
static int next_operand(const lowering *l, const ex_node *node) {
    int16_t operands[EX_MAX_RANK];
    int count = node->num_args;
    const ex_node *const sum = count ? exact_sum(l, node) : NULL;
    if (sum)
        memcpy(operands, sum->args, sizeof operands), count = sum->num_args;
    else if (product_and_sum(l, node, operands))
        count = 3;
    else
        memcpy(operands, node->args, sizeof operands);
    for (int i = 0; i < count; i++)
        if (!l->values->of[operands[i]] && node_at(l, operands[i])->num_args) return operands[i];
    return -1;
}

static bool find_value(lowering *l, int number) {
    const ex_node *node = node_at(l, number);
    const ir_expr *x = compute(l, node);
    if (!x) return false;
    const bool is_shared = node->num_args > 0 && count_uses(l, number) > 1;
    if (is_shared || x->depth > MOST_DEPTH) x = ir_let(l->b, "part", x);
    l->values->of[number] = x;
    return true;
}

/* Computes operands first, with an explicit stack, because the host's may be small. So `compute` recurses into leaves
 * only. */
static const ir_expr *value_of(lowering *l, int number) {
    int16_t begun[EX_MAX_DEPTH + 2];
    int count = 0;
    if (l->values->of[number]) return l->values->of[number];
    begun[count++] = (int16_t)number;
    while (count) {
        const int operand = next_operand(l, node_at(l, begun[count - 1]));
        if (operand >= 0)
            begun[count++] = (int16_t)operand;
        else if (!find_value(l, begun[--count]))
            return NULL;
    }
    return l->values->of[number];
}

const ir_expr *mha_fill_value(const mha_context *c, int node, const mha_place *place, mha_values *values) {
    return value_of(&(lowering){c, c->b, c->functions, place, values}, node);
}
