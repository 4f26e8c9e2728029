/* Where the nodes of a user's expression are computed: at the outermost place (task, row, key) at which all their
 * variables are known, so that no node is computed more often than its operands change:
 *
 *     score_mod    score + slope[h] * (kv - q)
 *     task         slope[h]                        if rows have one head
 *     row          q
 *     row, key     kv - q, *, +                    unless functions_distance.c tabulates kv - q
 *
 * functions_value.c computes a node. */
#include "attend/shared/functions.h"

/* ---- Places ---- */

static unsigned known_at(const mha_place *place) {
    unsigned known = 0;
    for (int var = EX_V_B; var < EX_NUM_VARS; var++)
        if (mha_variable_at(place, (ex_var)var)) known |= 1U << var;
    return known;
}

int mha_needed_nodes(const mha_context *c, mha_function f, bool needed[EX_MAX_NODES]) {
    const ex_program *program = c->functions;
    const int root = mha_function_root(c, f);
    for (int i = 0; i <= root; i++) needed[i] = i == root;
    for (int i = root; i >= 0; i--)
        for (int k = 0; needed[i] && k < program->nodes[i].num_args; k++) needed[program->nodes[i].args[k]] = true;
    return root;
}

/* The variables that differ from row to row. */
static unsigned of_rows(bool has_heads) { return 1U << EX_V_Q | (has_heads ? 1U << EX_V_H : 0); }

/* Whether a node, all of whose variables are in `known`, is an operand of one that needs others, or is the root. */
static bool is_at_border(const ex_program *program, int root, const bool needed[EX_MAX_NODES], int number,
                         unsigned known) {
    if (number == root) return true;
    for (int i = number + 1; i <= root; i++) {
        const ex_node *user = &program->nodes[i];
        for (int k = 0; needed[i] && (user->needs & ~known) && k < user->num_args; k++)
            if (user->args[k] == number) return true;
    }
    return false;
}

static bool is_constant(const ex_node *node) {
    return node->op == EX_INT || node->op == EX_FLOAT || node->op == EX_BOOL;
}

void mha_fill_values(const mha_context *c, mha_function f, const mha_place *place, mha_values *values) {
    const unsigned known = known_at(place);
    bool needed[EX_MAX_NODES];
    const int root = mha_needed_nodes(c, f, needed);
    for (int i = 0; i <= root; i++) {
        const ex_node *node = &c->functions->nodes[i];
        if (!needed[i] || values->of[i] || is_constant(node) || node->needs & ~known) continue;
        if (!is_at_border(c->functions, root, needed, i, known)) continue;
        const ir_expr *x = mha_fill_value(c, i, place, values);
        values->of[i] = x ? ir_let(c->b, "known", x) : NULL;
    }
}

int mha_row_values(const mha_context *c, mha_function f, bool has_heads, int nodes[EX_MAX_NODES]) {
    const unsigned of_batch = 1U << EX_V_B | 1U << EX_V_H | 1U << EX_V_KV_H | 1U << EX_V_SEQ_Q | 1U << EX_V_SEQ_KV;
    const unsigned of_row = of_rows(has_heads), known = of_row | of_batch;
    bool needed[EX_MAX_NODES];
    const int root = mha_needed_nodes(c, f, needed);
    int count = 0;
    for (int i = 0; i <= root; i++) {
        const ex_node *node = &c->functions->nodes[i];
        if (!needed[i] || !(node->needs & of_row) || node->needs & ~known) continue;
        if (is_at_border(c->functions, root, needed, i, known)) nodes[count++] = i;
    }
    return count;
}

ir_elem mha_kept_elem(const mha_context *c, int number) {
    const ex_node *node = &c->functions->nodes[number];
    if (node->type == EX_T_FLOAT) return c->elem;
    return node->type == EX_T_INT && !node->is_in_i32 ? IR_I64 : IR_I32;
}

const ir_expr *mha_keep_value(const mha_context *c, int number, const mha_values *values) {
    const ir_expr *x = values->of[number];
    const ir_elem elem = mha_kept_elem(c, number);
    return !x || x->type.elem == elem ? x : ir_cast(c->b, elem, x);
}

const ir_expr *mha_kept_value(const mha_context *c, int number, const ir_expr *kept) {
    if (!kept || c->functions->nodes[number].type != EX_T_BOOL) return kept;
    return ir_ne(c->b, kept, ir_splat(c->b, ir_int(c->b, IR_I32, 0), kept->type.lanes));
}

/* ---- Rows of elements ---- */

static bool counts_keys(const mha_context *c, const ex_node *load, int d) {
    const int64_t dim = c->functions->scope.tensors[load->which].dims[d];
    return dim < 0 && ex_dim_var(dim) == EX_V_KV;
}

static bool has_keys_in_row(const mha_context *c, const ex_node *load) {
    const ex_scope *scope = &c->functions->scope;
    if (load->op != EX_LOAD || load->type != EX_T_FLOAT) return false;
    for (int d = 0; d < load->num_args; d++) {
        const ex_node *index = &c->functions->nodes[load->args[d]];
        const int64_t dim = scope->tensors[load->which].dims[d];
        const bool is_counted = index->op == EX_VAR && dim < 0 && (int)ex_dim_var(dim) == index->which;
        if (!is_counted || scope->size[index->which].least == 0) return false;
        if (counts_keys(c, load, d) != (d == load->num_args - 1)) return false;
    }
    return true;
}

int mha_keys_in_rows(const mha_context *c, mha_function f, bool has_heads, int nodes[EX_MAX_NODES]) {
    bool needed[EX_MAX_NODES];
    const int root = mha_needed_nodes(c, f, needed);
    int count = 0;
    for (int i = 0; i <= root; i++) {
        const ex_node *node = &c->functions->nodes[i];
        if (needed[i] && node->needs & of_rows(has_heads) && has_keys_in_row(c, node)) nodes[count++] = i;
    }
    return count;
}

const ir_expr *mha_load_keys(const mha_context *c, int number, const mha_place *place) {
    const ex_node *load = &c->functions->nodes[number];
    const ir_buffer *tensor = c->params.tensor[MHA_USER_TENSORS + load->which];
    const ir_expr *index[EX_MAX_RANK];
    for (int d = 0; d < load->num_args; d++)
        index[d] = mha_variable_at(place, (ex_var)c->functions->nodes[load->args[d]].which);
    return mha_load(c, ir_access_make(c->b, tensor, place->lanes, -1, load->num_args, index, NULL));
}

/* ---- Results ---- */

const ir_expr *mha_modified(const mha_context *c, mha_function f, const mha_place *place, const mha_values *values,
                            const ir_expr *z) {
    const ex_var operand = f == MHA_PROB_FUNCTION ? EX_V_PROB : EX_V_SCORE;
    const int root = mha_function_root(c, f);
    mha_values all;
    if (root < 0 || !z) return z;
    all = *values;
    const int lanes = z->type.lanes;
    for (int i = 0; i <= root; i++) {
        const ex_node *node = &c->functions->nodes[i];
        if (node->op == EX_VAR && node->which == operand) all.of[i] = ir_let(c->b, ex_var_name(operand), z);
    }
    return mha_in_lanes(c, mha_fill_value(c, root, place, &all), lanes);
}

const ir_expr *mha_function_sees(const mha_context *c, const mha_place *place, const mha_values *values, int lanes) {
    const int root = mha_function_root(c, MHA_MASK_FUNCTION);
    mha_values all;
    if (root < 0) return NULL;
    all = *values;
    return mha_in_lanes(c, mha_fill_value(c, root, place, &all), lanes);
}
