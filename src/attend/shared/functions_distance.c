/* Values of users' functions that depend on query and key through their distance kv - q alone, and are expensive. They
 * have one value for each distance: a tile of n keys by a stripe of m rows has n + m - 1 of them, and not n * m.
 *
 * They are computed at a query and a key of the right distance, where the key may be beyond the last one. So
 * intermediate values of the key alone must not overflow there: they must be small integers with a margin. */
#include "attend/shared/functions.h"

/* The coefficients of query and key in an integer node that is linear in them. */
typedef struct slope {
    bool is_linear;
    int64_t query, key;
} slope;

typedef struct distances {
    const ex_program *program;
    int64_t beyond; /* how many keys beyond the last one are evaluated */
    slope slopes[EX_MAX_NODES];
    bool is_of_distance[EX_MAX_NODES], is_expensive[EX_MAX_NODES];
} distances;

static bool needs_pair(const ex_node *node) { return node->needs & (1U << EX_V_Q | 1U << EX_V_KV); }

/* Products and sums of small integers fit into 64 bits. */
static bool is_small(int64_t x) { return x > -(1 << 20) && x < 1 << 20; }

static slope sum_of(slope x, slope y, int64_t sign) {
    const slope sum = {x.is_linear && y.is_linear, x.query + sign * y.query, x.key + sign * y.key};
    return is_small(sum.query) && is_small(sum.key) ? sum : (slope){0};
}

static slope multiple_of(slope x, const ex_node *factor) {
    if (factor->op != EX_INT || !is_small(factor->value.i)) return (slope){0};
    const slope product = {x.is_linear, x.query * factor->value.i, x.key * factor->value.i};
    return is_small(product.query) && is_small(product.key) ? product : (slope){0};
}

static slope slope_of(const distances *d, const ex_node *node) {
    const slope *const s = d->slopes;
    if (node->type != EX_T_INT) return (slope){0};
    if (!needs_pair(node)) return (slope){.is_linear = true};
    switch (node->op) {
    case EX_VAR: return (slope){true, node->which == EX_V_Q, node->which == EX_V_KV};
    case EX_NEG: return sum_of((slope){.is_linear = true}, s[node->args[0]], -1);
    case EX_ADD: return sum_of(s[node->args[0]], s[node->args[1]], 1);
    case EX_SUB: return sum_of(s[node->args[0]], s[node->args[1]], -1);
    case EX_MUL: {
        const slope product = multiple_of(s[node->args[0]], &d->program->nodes[node->args[1]]);
        return product.is_linear ? product : multiple_of(s[node->args[1]], &d->program->nodes[node->args[0]]);
    }
    default: return (slope){0};
    }
}

/* Whether i32 and f32 represent a node exactly, also for keys beyond the last one. */
static bool has_room(const distances *d, const ex_node *node, slope s) {
    const int64_t most = INT64_C(1) << 24, margin = (s.key < 0 ? -s.key : s.key) * d->beyond;
    return node->least >= margin - most && node->most <= most - margin;
}

static bool find_of_distance(const distances *d, int number) {
    const ex_node *node = &d->program->nodes[number];
    const slope s = d->slopes[number];
    if (!needs_pair(node) || node->needs & (1U << EX_V_SCORE | 1U << EX_V_PROB)) return false;
    if (s.is_linear) return s.query + s.key == 0 && s.key != 0;
    for (int k = 0; k < node->num_args; k++)
        if (needs_pair(&d->program->nodes[node->args[k]]) && !d->is_of_distance[node->args[k]]) return false;
    return node->num_args > 0;
}

static bool is_expensive_op(const ex_node *node) {
    switch (node->op) {
    case EX_LOAD:
    case EX_EXP:
    case EX_EXP2:
    case EX_LOG:
    case EX_LOG2:
    case EX_TANH:
    case EX_SIGMOID:
    case EX_SQRT:
    case EX_DIV:
    case EX_FLOOR_DIV:
    case EX_MOD: return true;
    default: return false;
    }
}

static void classify(distances *d, int root) {
    for (int i = 0; i <= root; i++) {
        const ex_node *node = &d->program->nodes[i];
        d->slopes[i] = slope_of(d, node);
        if (needs_pair(node) && !has_room(d, node, d->slopes[i])) d->slopes[i] = (slope){0};
        d->is_of_distance[i] = find_of_distance(d, i);
        d->is_expensive[i] = is_expensive_op(node);
        for (int k = 0; k < node->num_args; k++)
            if (d->is_of_distance[node->args[k]] && d->is_expensive[node->args[k]]) d->is_expensive[i] = true;
    }
}

/* Whether a table of distances has the node. A product that becomes part of a multiply-add has no value of its own
 * (product_and_sum in functions_value.c). */
static bool is_tabulated(const distances *d, const bool needed[EX_MAX_NODES], int root, int number) {
    const ex_node *node = &d->program->nodes[number];
    if (!d->is_of_distance[number] || !d->is_expensive[number]) return false;
    if (node->op != EX_MUL || node->type != EX_T_FLOAT) return true;
    for (int i = number + 1; i <= root; i++) {
        const ex_node *user = &d->program->nodes[i];
        for (int k = 0; needed[i] && k < user->num_args; k++)
            if (user->args[k] == number && user->op == EX_ADD && !d->is_of_distance[i]) return false;
    }
    return true;
}

/* Whether the node is an operand of one that no table has, or the root. */
static bool is_operand(const distances *d, const bool kept[EX_MAX_NODES], const bool needed[EX_MAX_NODES], int root,
                       int number) {
    if (number == root) return true;
    for (int i = number + 1; i <= root; i++)
        for (int k = 0; needed[i] && !kept[i] && k < d->program->nodes[i].num_args; k++)
            if (d->program->nodes[i].args[k] == number) return true;
    return false;
}

int mha_distance_values(const mha_context *c, mha_function f, int64_t beyond, int nodes[EX_MAX_NODES]) {
    if (!mha_has_function(c, f)) return 0;
    distances d = {.program = c->functions, .beyond = beyond};
    bool needed[EX_MAX_NODES], kept[EX_MAX_NODES];
    const int root = mha_needed_nodes(c, f, needed);
    int count = 0;
    classify(&d, root);
    for (int i = 0; i <= root; i++) kept[i] = is_tabulated(&d, needed, root, i);
    for (int i = 0; i <= root; i++)
        if (needed[i] && kept[i] && is_operand(&d, kept, needed, root, i)) nodes[count++] = i;
    return count;
}
