/* Recognises masks that show each query one interval of keys, by how each value changes with the key: it is constant,
 * rises, falls, or has one peak or valley. Wrapping of integers is ignored, because only the schedule depends on the
 * answer, and no result. */
#include "expr/expr.h"

/* How a value changes as the key grows. has_peak: for any x, the keys with values >= x are an interval; has_valley:
 * those with values <= x. True counts as more than false. */
typedef struct course {
    bool rises, falls, has_peak, has_valley;
} course;

static const course constant = {true, true, true, true}, unknown = {false, false, false, false};

static bool is_constant(course x) { return x.rises && x.falls; }

static course monotonic(bool rises, bool falls) { return (course){rises, falls, rises || falls, rises || falls}; }

static course negated(course x) { return (course){x.falls, x.rises, x.has_valley, x.has_peak}; }

static course sum(course x, course y) {
    if (is_constant(x)) return y;
    return is_constant(y) ? x : monotonic(x.rises && y.rises, x.falls && y.falls);
}

static course smaller(course x, course y) {
    course c = monotonic(x.rises && y.rises, x.falls && y.falls);
    c.has_peak = x.has_peak && y.has_peak;
    return c;
}

static course larger(course x, course y) { return negated(smaller(negated(x), negated(y))); }

static course either(course x, course y) {
    return (course){x.rises && y.rises, x.falls && y.falls, x.has_peak && y.has_peak, x.has_valley && y.has_valley};
}

/* x times, or divided by, a factor that is the same for all keys. */
static course scaled(course x, const ex_node *factor, course of_factor) {
    const bool is_float = factor->op == EX_FLOAT, is_int = factor->type == EX_T_INT;
    if (!is_constant(of_factor)) return unknown;
    if (is_float ? factor->value.f >= 0 : is_int && factor->least >= 0) return x;
    return (is_float ? factor->value.f <= 0 : is_int && factor->most <= 0) ? negated(x) : unknown;
}

static course absolute(course x) { return (course){.has_valley = x.rises || x.falls}; }

static course equal(course difference) { return (course){.has_peak = difference.rises || difference.falls}; }

static course course_of(const ex_node *node, const ex_node *nodes, const course *courses) {
    const course x = node->num_args > 0 ? courses[node->args[0]] : constant;
    const course y = node->num_args > 1 ? courses[node->args[1]] : constant;
    const bool is_condition = node->type == EX_T_BOOL;
    if (!ex_needs(node, EX_V_KV)) return constant;
    switch (node->op) {
    case EX_VAR: return monotonic(true, false);
    case EX_OR: return is_condition ? larger(x, y) : unknown;
    case EX_AND: return is_condition ? smaller(x, y) : unknown;
    case EX_EQ: return equal(sum(x, negated(y)));
    case EX_NE: return negated(equal(sum(x, negated(y))));
    case EX_GT:
    case EX_GE: return sum(x, negated(y));
    case EX_LT:
    case EX_LE: return sum(y, negated(x));
    case EX_ADD: return sum(x, y);
    case EX_SUB: return sum(x, negated(y));
    case EX_MUL: return is_constant(x) ? scaled(y, &nodes[node->args[0]], x) : scaled(x, &nodes[node->args[1]], y);
    case EX_DIV:
    case EX_FLOOR_DIV: return scaled(x, &nodes[node->args[1]], y);
    case EX_NEG:
    case EX_NOT: return negated(x);
    case EX_SELECT: return is_constant(x) ? either(y, courses[node->args[2]]) : unknown;
    case EX_MIN: return smaller(x, y);
    case EX_MAX: return larger(x, y);
    case EX_ABS: return absolute(x);
    case EX_FLOOR:
    case EX_EXP:
    case EX_EXP2:
    case EX_LOG:
    case EX_LOG2:
    case EX_TANH:
    case EX_SIGMOID:
    case EX_SQRT:
    case EX_TO_FLOAT:
    case EX_TO_INT: return x;
    default: return unknown;
    }
}

bool ex_shows_intervals(const ex_program *program) {
    course courses[EX_MAX_NODES];
    for (int i = 0; i <= program->mask; i++) courses[i] = course_of(&program->nodes[i], program->nodes, courses);
    return program->mask < 0 || courses[program->mask].has_peak;
}
