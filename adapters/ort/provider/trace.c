/* A value is followed step by step, each a transpose or a reshape; the view says where its sequences, rows, heads and
 * columns are after each of them. */
#include "trace.h"

#include "fpenv.h"
#include "ort/model/source.h"

#include <string.h>

trace_view trace_view_of(const char *text) {
    trace_view v = {.rank = 1};
    for (; *text; text++) {
        trace_axis *const axis = &v.axes[v.rank - 1];
        if (*text == ' ')
            v.rank++;
        else
            axis->atom[axis->count++] = *text == 'b'   ? ATOM_BATCH
                                        : *text == 'r' ? ATOM_ROW
                                        : *text == 'h' ? ATOM_HEAD
                                                       : ATOM_COLUMN;
    }
    return v;
}

bool trace_has(const trace *t, const ort_node *n) {
    size_t i = 0;
    while (i < t->num_nodes && t->nodes[i] != n) i++;
    return i < t->num_nodes;
}

bool trace_add(trace *t, const ort_node *n) {
    if (trace_has(t, n)) return true;
    if (t->num_nodes == TRACE_MAX_NODES) return false;
    t->nodes[t->num_nodes++] = n;
    return true;
}

static bool remember(trace *t, const trace_value *value) {
    graph_shape shape;
    if (t->num_values == TRACE_MAX_VALUES || !graph_shape_of(t->api, value->value, &shape) ||
        shape.rank != value->view.rank)
        return false;
    t->values[t->num_values++] = *value;
    return true;
}

/* ---- Steps ---- */

/* The same elements in the same order, viewed with another rank. */
static bool regroup(trace_view *v, int rank) {
    uint8_t atoms[4];
    int count = 0;
    for (int i = 0; i < v->rank; i++)
        for (int j = 0; j < v->axes[i].count; j++) atoms[count++] = v->axes[i].atom[j];
    if (count != 4 || rank < 2 || rank > 4) return false;
    const bool rows_apart = rank == 3 && atoms[1] == ATOM_ROW;
    *v = (trace_view){.rank = rank};
    for (int i = 0, next = 0; i < rank; i++) {
        const int two = rank == 2 || (rank == 3 && (rows_apart ? i == 2 : i == 0));
        for (int j = 0; j <= two; j++) v->axes[i].atom[v->axes[i].count++] = atoms[next++];
    }
    return true;
}

static bool has_all_heads_last(const trace_view *v) {
    const trace_axis *const last = &v->axes[v->rank - 1];
    return v->rank > 1 && last->count == 2 && last->atom[0] == ATOM_HEAD && last->atom[1] == ATOM_COLUMN;
}

static bool transpose(const trace *t, const ort_node *n, const trace_view *from, bool is_back, trace_view *to) {
    const node_source source = {.api = t->api, .node = n};
    int64_t perm[4];
    if (source_wholes(&source, "perm", perm, 4) != (size_t)from->rank) return false;
    to->rank = from->rank;
    for (int i = 0; i < from->rank; i++) {
        if (perm[i] < 0 || perm[i] >= from->rank) return false;
        if (is_back)
            to->axes[perm[i]] = from->axes[i];
        else
            to->axes[i] = from->axes[perm[i]];
    }
    return true;
}

/* Follows a reshape from one value to the other, in the direction of the data. */
static bool note_reshape(trace *t, const ort_node *n, const trace_value *from, const trace_value *to) {
    if (t->num_reshapes == TRACE_MAX_RESHAPES) return false;
    t->reshapes[t->num_reshapes++] = (trace_reshape){.node = n, .from = *from, .to = *to};
    return true;
}

bool trace_scaled(const ort_api *api, const ort_node *n, const ort_value_info **other, double *factor) {
    AT_DEFAULT_FPENV;
    const bool is_product = graph_is(api, n, "Mul");
    double number;
    if (!is_product && !graph_is(api, n, "Div")) return false;
    for (size_t i = is_product ? 0 : 1; i < 2; i++)
        if (graph_number(api, graph_input(api, n, i), &number) && number != 0) {
            *other = graph_input(api, n, 1 - i);
            *factor = is_product ? number : 1 / number;
            return *other;
        }
    return false;
}

/* The bias that is added to `value`, which is a constant vector. */
static const ort_value_info *added(const ort_api *api, const ort_node *n, const ort_value_info **value) {
    tensor bias;
    for (size_t i = 0; i < 2; i++)
        if (graph_constant(api, graph_input(api, n, i), &bias) && bias.rank == 1) {
            *value = graph_input(api, n, 1 - i);
            return graph_input(api, n, i);
        }
    return NULL;
}

static bool is_whole(const node_source *s, const char *name, int64_t wanted) {
    int64_t value = 0;
    source_whole(s, name, &value);
    return value == wanted;
}

static bool is_one(const node_source *s, const char *name) {
    float value = 1;
    source_real(s, name, &value);
    return value == 1;
}

/* Reads the weights of a product, and its bias if it has one. */
static bool take_product(const ort_api *api, const ort_node *n, trace_chain *c) {
    const node_source source = {.api = api, .node = n};
    const bool is_gemm = graph_is(api, n, "Gemm");
    const ort_value_info *const weight = graph_input(api, n, 1), *const bias = is_gemm ? graph_input(api, n, 2) : NULL;
    tensor matrix, vector;
    int64_t is_transposed = 0;
    if (c->weight || (!is_gemm && !graph_is(api, n, "MatMul")) || !graph_constant(api, weight, &matrix) ||
        matrix.rank != 2)
        return false;
    if (is_gemm && (!is_one(&source, "alpha") || !is_one(&source, "beta") || !is_whole(&source, "transA", 0)))
        return false;
    if (bias && (c->bias || !graph_constant(api, bias, &vector) || vector.rank != 1)) return false;
    if (is_gemm) source_whole(&source, "transB", &is_transposed);
    c->weight = weight;
    if (bias) c->bias = bias;
    c->is_out_in = is_transposed != 0;
    c->in = matrix.dims[c->is_out_in ? 1 : 0];
    c->out = matrix.dims[c->is_out_in ? 0 : 1];
    return true;
}

/* ---- Back to x ---- */

/* One node back. */
static bool step_back(trace *t, const ort_node *n, trace_value *at) {
    const ort_api *const api = t->api;
    trace_chain *const c = at->chain;
    trace_value before = *at;
    graph_shape shape;
    double factor;
    before.value = graph_input(api, n, 0);
    if (!before.value) return false;
    if (graph_is(api, n, "Transpose")) {
        if (!transpose(t, n, &at->view, true, &before.view)) return false;
    } else if (graph_is(api, n, "Reshape")) {
        if (!graph_shape_of(api, before.value, &shape) || !regroup(&before.view, shape.rank) ||
            !note_reshape(t, n, &before, at))
            return false;
    } else if (!c->weight && !c->bias && trace_scaled(api, n, &before.value, &factor)) {
        c->scale *= factor;
    } else if (!c->weight && !c->bias && graph_is(api, n, "Add") && has_all_heads_last(&at->view)) {
        if (!(c->bias = added(api, n, &before.value))) return false;
    } else if (has_all_heads_last(&at->view) && take_product(api, n, c)) {
        before.is_in = true;
    } else {
        return false;
    }
    *at = before;
    return true;
}

bool trace_back(trace *t, const ort_value_info *value, trace_view view, trace_chain *chain) {
    trace_value at = {.value = value, .view = view, .chain = chain};
    chain->scale = 1;
    for (;;) {
        size_t index;
        if (!remember(t, &at)) return false;
        if (chain->weight && at.view.rank == 3) break;
        const ort_node *const n = graph_producer(t->api, at.value, &index);
        if (!n || !step_back(t, n, &at) || !trace_add(t, n)) return false;
    }
    chain->end = at.value;
    return has_all_heads_last(&at.view);
}

/* ---- On to the result ---- */

/* The only node that reads the elements of a value; others may read its shape. */
static const ort_node *reader(const trace *t, const ort_value_info *value) {
    const ort_node *all[GRAPH_MAX_CONSUMERS], *found = NULL;
    size_t count;
    if (graph_is_output(t->api, value) || !graph_consumers(t->api, value, all, &count)) return NULL;
    for (size_t i = 0; i < count; i++) {
        if (graph_is(t->api, all[i], "Shape")) continue;
        if (found) return NULL;
        found = all[i];
    }
    return found;
}

/* Follows one node. A node that reads the value as its weights or its shape does not count. */
static bool step_on(trace *t, const ort_node *n, trace_value *at) {
    const ort_api *const api = t->api;
    trace_chain *const c = at->chain;
    const ort_value_info *other;
    trace_value after = *at;
    graph_shape shape;
    after.value = graph_output(api, n, 0);
    if (!after.value) return false;
    if (c->weight && !c->bias && graph_is(api, n, "Add")) {
        const ort_value_info *const bias = added(api, n, &other);
        if (!bias || other != at->value) return false;
        c->bias = bias;
    } else if (graph_input(api, n, 0) != at->value) {
        return false;
    } else if (!c->weight && graph_is(api, n, "Transpose")) {
        if (!transpose(t, n, &at->view, false, &after.view)) return false;
    } else if (graph_is(api, n, "Reshape")) {
        if (!graph_shape_of(api, after.value, &shape) || !regroup(&after.view, shape.rank) ||
            !note_reshape(t, n, at, &after))
            return false;
    } else if (has_all_heads_last(&at->view) && take_product(api, n, c)) {
        after.is_in = false;
    } else {
        return false;
    }
    *at = after;
    return true;
}

/* A reshape of the result before the next product is not part of this block. */
static bool is_result(const trace_value *at) { return at->view.rank == 3 && has_all_heads_last(&at->view); }

bool trace_on(trace *t, const ort_value_info *value, trace_view view, trace_chain *chain) {
    trace_value at = {.value = value, .view = view, .chain = chain, .is_in = true};
    trace best = {.num_nodes = 0};
    chain->scale = 1;
    for (bool more = true; more;) {
        if (!remember(t, &at)) break;
        if (is_result(&at)) {
            chain->end = at.value;
            best = *t;
        }
        const ort_node *const n = reader(t, at.value);
        more = n && step_on(t, n, &at) && trace_add(t, n);
    }
    *t = best;
    return best.num_nodes;
}
