/* Runs of a variable's values over which a function is constant, because it uses the variable only divided by a
 * constant: blocks of keys, chunks of queries. */
#include "expr/expr.h"

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static bool is_variable(const ex_node *node, ex_var var) { return node->op == EX_VAR && node->which == var; }

int64_t ex_run_length(const ex_program *program, int root, ex_var var) {
    bool is_used[EX_MAX_NODES] = {false};
    int64_t length = 0;
    is_used[root] = true;
    for (int i = root; i >= 0; i--) {
        const ex_node *const node = &program->nodes[i], *const nodes = program->nodes;
        if (!is_used[i] || !ex_needs(node, var)) continue;
        if (is_variable(node, var)) return 1;
        if (node->op == EX_FLOOR_DIV && is_variable(&nodes[node->args[0]], var) && nodes[node->args[1]].op == EX_INT &&
            nodes[node->args[1]].value.i > 0)
            length = common_divisor(length, nodes[node->args[1]].value.i);
        else
            for (int k = 0; k < node->num_args; k++) is_used[node->args[k]] = true;
    }
    return length;
}
