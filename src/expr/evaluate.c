/* Evaluates a function for one query and key, for checks that need no speed. Kernels compute in the precision of the
 * softmax, this in f64. */
#include "expr/evaluate.h"

#include <math.h>

static const double LN_2 = 0.69314718055994530942;

typedef struct value {
    int64_t i; /* BOOL and INT */
    double f;  /* FLOAT */
} value;

static value of_int(int64_t i) { return (value){.i = i}; }
static value of_float(double f) { return (value){.f = f}; }

/* Sums and products wrap, as they do in kernels. */
static int64_t wrap(ex_op op, int64_t x, int64_t y) {
    const uint64_t a = (uint64_t)x, b = (uint64_t)y;
    return (int64_t)(op == EX_ADD ? a + b : op == EX_SUB ? a - b : a * b);
}

static int64_t floor_div(int64_t x, int64_t y) {
    if (!y) return 0;
    if (y == -1) return wrap(EX_SUB, 0, x);
    return x / y - (x % y && (x < 0) != (y < 0));
}

static value integers(ex_op op, int64_t x, int64_t y) {
    switch (op) {
    case EX_OR: return of_int(x | y);
    case EX_XOR: return of_int(x ^ y);
    case EX_AND: return of_int(x & y);
    case EX_EQ: return of_int(x == y);
    case EX_NE: return of_int(x != y);
    case EX_LT: return of_int(x < y);
    case EX_LE: return of_int(x <= y);
    case EX_GT: return of_int(x > y);
    case EX_GE: return of_int(x >= y);
    case EX_FLOOR_DIV: return of_int(floor_div(x, y));
    case EX_MOD: return of_int(wrap(EX_SUB, x, wrap(EX_MUL, floor_div(x, y), y)));
    case EX_NEG: return of_int(wrap(EX_SUB, 0, x));
    case EX_NOT: return of_int(!x);
    case EX_MIN: return of_int(x < y ? x : y);
    case EX_MAX: return of_int(x > y ? x : y);
    case EX_ABS: return of_int(x < 0 ? wrap(EX_SUB, 0, x) : x);
    default: return of_int(wrap(op, x, y));
    }
}

static value floats(ex_op op, double x, double y) {
    switch (op) {
    case EX_EQ: return of_int(x == y);
    case EX_NE: return of_int(x != y);
    case EX_LT: return of_int(x < y);
    case EX_LE: return of_int(x <= y);
    case EX_GT: return of_int(x > y);
    case EX_GE: return of_int(x >= y);
    case EX_ADD: return of_float(x + y);
    case EX_SUB: return of_float(x - y);
    case EX_MUL: return of_float(x * y);
    case EX_DIV: return of_float(x / y);
    case EX_NEG: return of_float(-x);
    case EX_MIN: return of_float(x < y ? x : y);
    case EX_MAX: return of_float(x > y ? x : y);
    case EX_ABS: return of_float(fabs(x));
    case EX_FLOOR: return of_float(floor(x));
    case EX_EXP: return of_float(exp(x));
    case EX_LOG: return of_float(log(x));
    case EX_EXP2: return of_float(exp(x * LN_2));
    case EX_LOG2: return of_float(log(x) / LN_2);
    case EX_TANH: return of_float(tanh(x));
    case EX_SIGMOID: return of_float(1 / (1 + exp(-x)));
    case EX_SQRT: return of_float(sqrt(x));
    default: return of_float(0);
    }
}

static value evaluate(const ex_program *program, int at, const ex_place *place);

/* Every index is in bounds, by proof or by clamp(). */
static value load(const ex_program *program, const ex_node *node, const ex_place *place) {
    int64_t index[EX_MAX_RANK];
    for (int i = 0; i < node->num_args; i++) {
        index[i] = evaluate(program, node->args[i], place).i;
        const int64_t last = place->dims[node->which][i] - 1;
        if (index[i] > last) index[i] = last;
        if (index[i] < 0) index[i] = 0;
    }
    const double number = place->load(place->user, node->which, index);
    return node->type == EX_T_FLOAT ? of_float(number) : of_int((int64_t)number);
}

static value evaluate(const ex_program *program, int at, const ex_place *place) {
    const ex_node *const node = &program->nodes[at];
    switch (node->op) {
    case EX_INT:
    case EX_BOOL: return of_int(node->value.i);
    case EX_FLOAT: return of_float(node->value.f);
    case EX_VAR: return node->type == EX_T_FLOAT ? of_float(0) : of_int(place->variables[node->which]);
    case EX_LOAD: return load(program, node, place);
    default: break;
    }
    const value x = evaluate(program, node->args[0], place);
    if (node->op == EX_SELECT) return evaluate(program, node->args[x.i ? 1 : 2], place);
    const bool is_float = program->nodes[node->args[0]].type == EX_T_FLOAT;
    if (node->op == EX_TO_FLOAT) return of_float((double)x.i);
    if (node->op == EX_TO_INT) return of_int(!is_float ? x.i : fabs(x.f) < 0x1p62 ? (int64_t)x.f : 0);
    const value y = node->num_args > 1 ? evaluate(program, node->args[1], place) : (value){0};
    return is_float ? floats((ex_op)node->op, x.f, y.f) : integers((ex_op)node->op, x.i, y.i);
}

bool ex_mask_shows(const ex_program *program, const ex_place *place) {
    return program->mask < 0 || evaluate(program, program->mask, place).i != 0;
}
