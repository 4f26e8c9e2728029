/* Finds conditions of a mask that limit the distance kv - q, such as `kv <= q & q - kv < 128`. Together they are a
 * band, which becomes causality and a window. */
#include "expr/expr_parse.h"

/* key * kv + query * q + plus. The coefficients are so small that nothing overflows 64 bits for any 32-bit positions.
 */
typedef struct linear {
    int64_t key, query, plus;
} linear;

enum { MAX_CONDITIONS = EX_MAX_NODES };
static const int64_t FAR = INT64_C(1) << 40, LARGE = INT64_C(1) << 28;

static bool is_near(int64_t x) { return x > -FAR && x < FAR; }
static bool is_small(int64_t x) { return x > -LARGE && x < LARGE; }

/* x + y * factor */
static bool add(linear x, linear y, int64_t factor, linear *sum) {
    const int64_t least = -(INT64_C(1) << 20), most = INT64_C(1) << 20;
    if (factor < least || factor > most) return false;
    *sum = (linear){x.key + y.key * factor, x.query + y.query * factor, x.plus + y.plus * factor};
    return is_small(sum->key) && is_small(sum->query) && is_near(sum->plus);
}

static bool find_linear(const ex_program *p, int number, linear *out) {
    const ex_node *node = &p->nodes[number];
    const linear zero = {0};
    linear x, y;
    if (node->type != EX_T_INT) return false;
    switch (node->op) {
    case EX_INT: *out = (linear){.plus = node->value.i}; return is_near(node->value.i);
    case EX_VAR:
        *out = (linear){.key = node->which == EX_V_KV, .query = node->which == EX_V_Q};
        return node->which == EX_V_KV || node->which == EX_V_Q;
    case EX_NEG: return find_linear(p, node->args[0], &x) && add(zero, x, -1, out);
    case EX_ADD:
    case EX_SUB:
        return find_linear(p, node->args[0], &x) && find_linear(p, node->args[1], &y) &&
               add(x, y, node->op == EX_ADD ? 1 : -1, out);
    case EX_MUL:
        if (!find_linear(p, node->args[0], &x) || !find_linear(p, node->args[1], &y)) return false;
        if (!x.key && !x.query) return add(zero, y, x.plus, out);
        return !y.key && !y.query && add(zero, x, y.plus, out);
    default: return false;
    }
}

/* ---- Bands ---- */

static void take_least(ex_band *band, int64_t least) {
    if (least > band->least) band->least = least;
}

static void take_most(ex_band *band, int64_t most) {
    if (most < band->most) band->most = most;
}

/* x <= 0, where x is a multiple of kv - q, plus a constant. */
static bool take_at_most_0(linear x, ex_band *band) {
    if (x.key + x.query) return false;
    if (x.key == 1)
        take_most(band, -x.plus);
    else if (x.key == -1)
        take_least(band, x.plus);
    return x.key == 1 || x.key == -1;
}

/* left - right + more <= 0 */
static bool take_order(linear left, linear right, int64_t more, ex_band *band) {
    linear x;
    if (!add(left, right, -1, &x)) return false;
    x.plus += more;
    return take_at_most_0(x, band);
}

static ex_op opposite(ex_op op) {
    switch (op) {
    case EX_LT: return EX_GE;
    case EX_LE: return EX_GT;
    case EX_GT: return EX_LE;
    case EX_GE: return EX_LT;
    case EX_NE: return EX_EQ;
    default: return EX_NE;
    }
}

/* The operator of the same comparison with its sides exchanged. */
static ex_op mirrored(ex_op op) {
    switch (op) {
    case EX_LT: return EX_GT;
    case EX_LE: return EX_GE;
    case EX_GT: return EX_LT;
    case EX_GE: return EX_LE;
    default: return op;
    }
}

/* left op right, both linear. */
static bool take_comparison(linear left, ex_op op, linear right, ex_band *band) {
    switch (op) {
    case EX_LT: return take_order(left, right, 1, band);
    case EX_LE: return take_order(left, right, 0, band);
    case EX_GT: return take_order(right, left, 1, band);
    case EX_GE: return take_order(right, left, 0, band);
    case EX_EQ: return take_order(left, right, 0, band) && take_order(right, left, 0, band);
    default: return false;
    }
}

/* abs(x) op right: two comparisons of x, if right is an upper bound. */
static bool take_absolute(const ex_program *p, int number, ex_op op, linear right, ex_band *band) {
    const linear zero = {0};
    linear x, low;
    if ((op != EX_LT && op != EX_LE) || !find_linear(p, p->nodes[number].args[0], &x) || !add(zero, right, -1, &low))
        return false;
    return take_comparison(x, op, right, band) && take_comparison(x, mirrored(op), low, band);
}

static bool is_comparison(const ex_node *node) { return node->op >= EX_EQ && node->op <= EX_GE; }

/* Narrows the band by a condition. False, and the band unchanged, if a band cannot express the condition. */
static bool take_condition(const ex_program *p, int number, ex_band *band) {
    const ex_node *node = &p->nodes[number];
    const bool is_opposite = node->op == EX_NOT;
    if (is_opposite) node = &p->nodes[node->args[0]];
    if (!is_comparison(node)) return false;
    const ex_op op = is_opposite ? opposite(node->op) : (ex_op)node->op;
    const int x = node->args[0], y = node->args[1];
    linear left, right;
    ex_band narrower = *band;
    const bool has_left = find_linear(p, x, &left), has_right = find_linear(p, y, &right);
    bool takes = false;
    if (has_left && has_right) takes = take_comparison(left, op, right, &narrower);
    if (!has_left && has_right && p->nodes[x].op == EX_ABS) takes = take_absolute(p, x, op, right, &narrower);
    if (has_left && !has_right && p->nodes[y].op == EX_ABS) takes = take_absolute(p, y, mirrored(op), left, &narrower);
    if (takes) *band = narrower;
    return takes;
}

/* ---- The conditions of a mask ---- */

/* The operands of a chain of &, in order. Returns how many there are; 0: too many. */
static int list_conditions(const ex_program *p, int list[MAX_CONDITIONS]) {
    int left[EX_MAX_DEPTH + 2], num_left = 0, count = 0;
    left[num_left++] = p->mask;
    while (num_left) {
        const int number = left[--num_left];
        const ex_node *node = &p->nodes[number];
        if (node->op == EX_AND) {
            left[num_left++] = node->args[1];
            left[num_left++] = node->args[0];
        } else {
            if (count == MAX_CONDITIONS) return 0;
            list[count++] = number;
        }
    }
    return count;
}

bool ex_take_band(ex_program *program, ex_band *band, int *rest) {
    int list[MAX_CONDITIONS];
    ex_parser maker = {.program = program, .name = "mask_mod", .text = "", .operand = EX_NUM_VARS};
    *band = (ex_band){INT64_MIN, INT64_MAX};
    *rest = -1;
    if (program->mask < 0) return false;
    const int count = list_conditions(program, list);
    bool takes_any = false;
    for (int i = 0; i < count; i++) {
        const bool takes = take_condition(program, list[i], band);
        takes_any = takes_any || takes;
        if (takes) continue;
        *rest = *rest < 0 ? list[i] : ex_make(&maker, 1, EX_AND, (int[]){*rest, list[i]}, 2);
        if (*rest < 0) return false;
    }
    return takes_any;
}
