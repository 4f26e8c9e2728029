/* Proves that a reshape splits and joins dims as its views say. Its shape is a vector of constants, and of dims of
 * other values at run time. */
#include "ort/model/source.h"
#include "trace.h"

#include <string.h>

enum { MAX_DEPTH = 24 };

/* One element of a shape: a number, or the size of an atom. */
typedef struct element {
    int atom; /* 0: the number */
    int64_t number;
} element;

/* ---- Values with the same batch and rows ---- */

static bool is_elementwise(const ort_api *api, const ort_node *n) {
    static const char *const types[] = {
        "LayerNormalization", "Cast", "Identity", "Gelu", "Erf", "Tanh", "Relu", "Sigmoid", "Sqrt", "Softmax"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (graph_is(api, n, types[i])) return true;
    return graph_is_contributed(api, n, "Gelu") || graph_is_contributed(api, n, "FastGelu") ||
           graph_is_contributed(api, n, "BiasGelu") || graph_is_contributed(api, n, "SkipLayerNormalization");
}

/* Whether a constant has at most one dim, so that it broadcasts no other dims. */
static bool is_thin(const ort_api *api, const ort_value_info *value) {
    tensor t;
    return graph_constant(api, value, &t) && (t.rank <= 1 || tensor_count(&t) == 1);
}

static const ort_value_info *origin(const trace *t, const ort_value_info *value, int depth);

static const ort_value_info *origin_of_sum(const trace *t, const ort_node *n, int depth) {
    const ort_value_info *const a = graph_input(t->api, n, 0), *const b = graph_input(t->api, n, 1);
    if (!a || !b) return NULL;
    if (is_thin(t->api, b)) return origin(t, a, depth);
    if (is_thin(t->api, a)) return origin(t, b, depth);
    const ort_value_info *const left = origin(t, a, depth);
    graph_shape of_a, of_b;
    return left == origin(t, b, depth) && graph_shape_of(t->api, a, &of_a) && graph_shape_of(t->api, b, &of_b) &&
                   of_a.rank == of_b.rank
               ? left
               : NULL;
}

/* Rows of a table: [batch, rows] become [batch, rows, columns]. */
static bool is_lookup(const ort_api *api, const ort_node *n) {
    const node_source source = {.api = api, .node = n};
    int64_t axis = 0;
    tensor t;
    source_whole(&source, "axis", &axis);
    return graph_is(api, n, "Gather") && axis == 0 && graph_constant(api, graph_input(api, n, 0), &t) && t.rank == 2;
}

static bool is_matrix(const ort_api *api, const ort_value_info *value) {
    tensor t;
    return graph_constant(api, value, &t) && t.rank == 2;
}

/* The earliest value that is known to have the same first two dims. */
static const ort_value_info *origin(const trace *t, const ort_value_info *value, int depth) {
    size_t index;
    for (; depth < MAX_DEPTH; depth++) {
        for (size_t i = 0; i < t->num_pairs; i++)
            if (t->pairs[i].result == value) value = t->pairs[i].x;
        const ort_node *const n = graph_producer(t->api, value, &index);
        const ort_value_info *before = NULL;
        if (!n || index) return value;
        if (is_elementwise(t->api, n))
            before = graph_input(t->api, n, 0);
        else if (graph_is(t->api, n, "MatMul"))
            before = is_matrix(t->api, graph_input(t->api, n, 1)) ? graph_input(t->api, n, 0) : NULL;
        else if (is_lookup(t->api, n))
            before = graph_input(t->api, n, 1);
        else if (graph_is(t->api, n, "Add") || graph_is(t->api, n, "Mul") || graph_is(t->api, n, "Div"))
            before = origin_of_sum(t, n, depth + 1);
        if (!before) return value;
        value = before;
    }
    return value;
}

/* ---- Elements of shapes ---- */

static const trace_value *find_value(const trace *t, const ort_value_info *value) {
    for (size_t i = 0; i < t->num_values; i++)
        if (t->values[i].value == value) return &t->values[i];
    return NULL;
}

static bool dim_of(const trace *t, const ort_value_info *value, int64_t axis, element *e) {
    const trace_value *const seen = find_value(t, value);
    graph_shape shape, x;
    if (!graph_shape_of(t->api, value, &shape) || !graph_shape_of(t->api, t->x, &x) || axis < 0 || axis >= shape.rank)
        return false;
    *e = (element){.number = shape.dims[axis]};
    if (shape.dims[axis] >= 0) return true;
    if (seen && seen->view.axes[axis].count == 1) {
        e->atom = seen->view.axes[axis].atom[0];
        return true;
    }
    for (int i = 0; i < 2 && !e->atom; i++)
        if (*shape.names[axis] && !strcmp(shape.names[axis], x.names[i])) e->atom = i ? ATOM_ROW : ATOM_BATCH;
    if (!e->atom && axis < 2 && shape.rank >= 2 && origin(t, value, 0) == origin(t, t->x, 0))
        e->atom = axis ? ATOM_ROW : ATOM_BATCH;
    return e->atom;
}

static int64_t length_of(const trace *t, const ort_value_info *value) {
    graph_shape shape;
    size_t index;
    if (graph_shape_of(t->api, value, &shape) && shape.rank == 1 && shape.dims[0] >= 0) return shape.dims[0];
    const ort_node *const n = graph_producer(t->api, value, &index);
    return n && graph_is(t->api, n, "Unsqueeze") ? 1 : -1;
}

static bool number_at(const ort_api *api, const ort_value_info *value, int64_t index, int64_t *number) {
    tensor t;
    if (!graph_constant(api, value, &t) || t.rank > 1 || index < 0 || index >= tensor_count(&t)) return false;
    if (t.type == ORT_INT64) *number = ((const int64_t *)t.data)[index];
    if (t.type == ORT_INT32) *number = ((const int32_t *)t.data)[index];
    return t.type == ORT_INT64 || t.type == ORT_INT32;
}

static bool element_at(const trace *t, const ort_value_info *value, int64_t index, int depth, element *e);

static bool element_of_concat(const trace *t, const ort_node *n, int64_t index, int depth, element *e) {
    const ort_value_info *part;
    for (size_t i = 0; (part = graph_input(t->api, n, i)); i++) {
        const int64_t length = length_of(t, part);
        if (length < 0) return false;
        if (index < length) return element_at(t, part, index, depth, e);
        index -= length;
    }
    return false;
}

/* Gather and Slice: the index of an element in the input. */
static bool index_before(const trace *t, const ort_node *n, int64_t index, int64_t *before) {
    const bool is_slice = graph_is(t->api, n, "Slice");
    const ort_value_info *const data = graph_input(t->api, n, 0);
    int64_t step = 1;
    if (!data || !number_at(t->api, graph_input(t->api, n, 1), is_slice ? 0 : index, before)) return false;
    if (is_slice && graph_input(t->api, n, 4) && !number_at(t->api, graph_input(t->api, n, 4), 0, &step)) return false;
    const int64_t length = length_of(t, data);
    if (*before < 0 && length < 0) return false;
    if (*before < 0) *before = *before + length < 0 ? 0 : *before + length;
    if (is_slice) *before += index;
    return step == 1;
}

static bool element_at(const trace *t, const ort_value_info *value, int64_t index, int depth, element *e) {
    const ort_api *const api = t->api;
    size_t output;
    *e = (element){0};
    if (depth >= MAX_DEPTH) return false;
    if (number_at(api, value, index, &e->number)) return true;
    const ort_node *const n = graph_producer(api, value, &output);
    if (!n || output) return false;
    const ort_value_info *const first = graph_input(api, n, 0);
    if (graph_is(api, n, "Concat")) return element_of_concat(t, n, index, depth + 1, e);
    if (graph_is(api, n, "Shape")) {
        const node_source source = {.api = api, .node = n};
        int64_t start = 0;
        source_whole(&source, "start", &start);
        return start >= 0 && dim_of(t, first, start + index, e);
    }
    if (graph_is(api, n, "Gather") || graph_is(api, n, "Slice"))
        return index_before(t, n, index, &index) && element_at(t, first, index, depth + 1, e);
    return (graph_is(api, n, "Unsqueeze") || graph_is(api, n, "Squeeze") || graph_is(api, n, "Cast") ||
            graph_is(api, n, "Identity")) &&
           element_at(t, first, index, depth + 1, e);
}

/* ---- Numbers ---- */

static bool agree(int64_t *known, int64_t number) {
    if (!*known) *known = number;
    return *known == number;
}

static bool settle_value(const trace *t, const trace_value *value) {
    graph_shape shape;
    if (!graph_shape_of(t->api, value->value, &shape)) return false;
    for (int i = 0; i < value->view.rank; i++) {
        const trace_axis *const axis = &value->view.axes[i];
        const int64_t size = shape.dims[i];
        if (axis->count != 1 || size <= 0 || axis->atom[0] < ATOM_HEAD) continue;
        if (!agree(axis->atom[0] == ATOM_HEAD ? &value->chain->heads : &value->chain->head_width, size)) return false;
    }
    return true;
}

/* Constant dims in the shapes of reshapes. */
static bool settle_reshape(const trace *t, const trace_reshape *r) {
    const ort_value_info *const shape = graph_input(t->api, r->node, 1);
    for (int i = 0; shape && i < r->to.view.rank; i++) {
        const trace_axis *const axis = &r->to.view.axes[i];
        element e;
        if (axis->count != 1 || axis->atom[0] < ATOM_HEAD || !element_at(t, shape, i, 0, &e) || e.atom || e.number <= 0)
            continue;
        if (!agree(axis->atom[0] == ATOM_HEAD ? &r->to.chain->heads : &r->to.chain->head_width, e.number)) return false;
    }
    return shape;
}

static bool settle_chain(trace_chain *c, int64_t width) {
    if (!c->heads && c->head_width && width % c->head_width == 0) c->heads = width / c->head_width;
    if (!c->head_width && c->heads && width % c->heads == 0) c->head_width = width / c->heads;
    return c->heads > 0 && c->head_width > 0 && c->heads * c->head_width == width;
}

bool trace_settle(trace *t) {
    for (size_t i = 0; i < t->num_values; i++)
        if (!settle_value(t, &t->values[i])) return false;
    for (size_t i = 0; i < t->num_reshapes; i++)
        if (!settle_reshape(t, &t->reshapes[i])) return false;
    if (!t->k.heads) t->k.heads = t->q.heads;
    if (!t->v.heads) t->v.heads = t->q.heads;
    if (!settle_chain(&t->q, t->q.out) || !settle_chain(&t->k, t->k.out) || !settle_chain(&t->v, t->v.out))
        return false;
    trace_chain *const r = &t->result;
    if (!agree(&r->heads, t->v.heads) || !agree(&r->head_width, t->v.head_width)) return false;
    if (!r->weight) r->in = r->out = t->v.out;
    return r->in == t->v.out && t->q.heads == t->k.heads && t->q.heads == t->v.heads &&
           t->q.head_width == t->k.head_width && t->q.in == t->k.in && t->q.in == t->v.in && t->v.scale == 1;
}

/* ---- Reshapes ---- */

static int64_t size_of(const trace *t, const trace_value *at, const trace_axis *axis) {
    const trace_chain *const c = at->chain;
    graph_shape x;
    if (axis->count == 2) return axis->atom[0] != ATOM_HEAD ? -1 : at->is_in ? c->in : c->out;
    if (axis->atom[0] == ATOM_HEAD) return c->heads;
    if (axis->atom[0] == ATOM_COLUMN) return c->head_width;
    return graph_shape_of(t->api, t->x, &x) ? x.dims[axis->atom[0] == ATOM_ROW] : -1;
}

static bool is_same_axis(const trace_axis *a, const trace_axis *b) {
    return a->count == b->count && a->atom[0] == b->atom[0] && a->atom[1] == b->atom[1];
}

static bool fits(const trace *t, const trace_reshape *r, int i, const element *e, bool zero_is_size, int *open) {
    const trace_axis *const axis = &r->to.view.axes[i];
    if (e->atom) return axis->count == 1 && axis->atom[0] == e->atom;
    if (e->number == -1) return !(*open)++;
    if (e->number == 0 && !zero_is_size) return i < r->from.view.rank && is_same_axis(axis, &r->from.view.axes[i]);
    if (axis->count == 2 && axis->atom[0] == ATOM_BATCH) {
        const trace_axis parts[2] = {{1, {axis->atom[0]}}, {1, {axis->atom[1]}}};
        const int64_t a = size_of(t, &r->to, &parts[0]), b = size_of(t, &r->to, &parts[1]);
        return a >= 0 && b >= 0 && a * b == e->number;
    }
    return size_of(t, &r->to, axis) == e->number;
}

/* If at most one dim is unknown, it follows from the others. */
static bool is_proven(const trace *t, const trace_reshape *r) {
    const node_source source = {.api = t->api, .node = r->node};
    const ort_value_info *const shape = graph_input(t->api, r->node, 1);
    int64_t zero_is_size = 0;
    int open = 0;
    if (!shape) return false;
    source_whole(&source, "allowzero", &zero_is_size);
    for (int i = 0; i < r->to.view.rank; i++) {
        element e;
        if (!element_at(t, shape, i, 0, &e) || !fits(t, r, i, &e, zero_is_size != 0, &open)) return false;
    }
    return true;
}

bool trace_prove(trace *t) {
    for (size_t i = 0; i < t->num_reshapes; i++)
        if (!is_proven(t, &t->reshapes[i])) return false;
    return true;
}
