/* Begins at the one node that is sure to be attention, and walks from there in both directions, along what trace.c can
 * follow; the first thing that does not fit ends it. */
#include "block_match.h"

#include "fpenv.h"
#include "ort/operators/projected.h"
#include "ort/model/source.h"

#include <math.h>
#include <string.h>

/* ---- Attention as PyTorch exports it ---- */

/* softmax(scores), where scores = scale * q k^T + bias */
typedef struct core {
    const ort_value_info *q, *k, *v, *bias, *result;
    double scale;
} core;

static const ort_node *only_consumer(const ort_api *api, const ort_value_info *value) {
    const ort_node *all[GRAPH_MAX_CONSUMERS];
    size_t count;
    return graph_consumers(api, value, all, &count) && count == 1 ? all[0] : NULL;
}

/* PyTorch's operator gives 0 for rows without a visible key, by where(isnan(p), 0, p); so does attune. */
static const ort_value_info *after_nan_check(trace *t, const ort_value_info *p) {
    const ort_api *const api = t->api;
    const ort_node *all[GRAPH_MAX_CONSUMERS];
    size_t count, index;
    double zero;
    if (!graph_consumers(api, p, all, &count)) return NULL;
    if (count == 1) return p;
    for (size_t i = 0; i < count && count == 2; i++) {
        if (!graph_is(api, all[i], "Where") || graph_input(api, all[i], 2) != p) continue;
        const ort_value_info *const condition = graph_input(api, all[i], 0);
        const ort_node *const check = condition ? graph_producer(api, condition, &index) : NULL;
        if (check && graph_is(api, check, "IsNaN") && graph_input(api, check, 0) == p &&
            graph_number(api, graph_input(api, all[i], 1), &zero) && zero == 0 && trace_add(t, check) &&
            trace_add(t, all[i]))
            return graph_output(api, all[i], 0);
    }
    return NULL;
}

static bool is_over_keys(const ort_api *api, const ort_node *softmax) {
    const node_source source = {.api = api, .node = softmax};
    int64_t axis = graph_version(api, softmax) >= 13 ? -1 : 1;
    source_whole(&source, "axis", &axis);
    return axis == -1 || axis == 3;
}

/* Splits scores into the bias that is added, and the scores before. */
static bool take_bias(trace *t, const ort_node *add, core *c, const ort_value_info **scores) {
    size_t index;
    for (size_t i = 0; i < 2; i++) {
        const ort_value_info *const side = graph_input(t->api, add, i), *const other = graph_input(t->api, add, 1 - i);
        const ort_node *const n = side && other ? graph_producer(t->api, side, &index) : NULL;
        const ort_value_info *inner;
        double factor;
        if (!n || (!graph_is(t->api, n, "MatMul") && !trace_scaled(t->api, n, &inner, &factor))) continue;
        *scores = side;
        c->bias = other;
        return trace_add(t, add);
    }
    return false;
}

static bool take_scores(trace *t, const ort_value_info *scores, core *c) {
    const ort_api *const api = t->api;
    const ort_value_info *before;
    size_t index;
    double factor;
    const ort_node *n = graph_producer(api, scores, &index);
    if (n && graph_is(api, n, "Add")) {
        if (!take_bias(t, n, c, &scores)) return false;
        n = graph_producer(api, scores, &index);
    }
    while (n && trace_scaled(api, n, &before, &factor)) {
        c->scale *= factor;
        if (!trace_add(t, n)) return false;
        n = graph_producer(api, before, &index);
    }
    if (!n || !graph_is(api, n, "MatMul")) return false;
    c->q = graph_input(api, n, 0);
    c->k = graph_input(api, n, 1);
    return trace_add(t, n);
}

static bool take_core(trace *t, const ort_node *softmax, core *c) {
    const ort_api *const api = t->api;
    const ort_value_info *const scores = graph_input(api, softmax, 0), *p = graph_output(api, softmax, 0);
    if (!is_over_keys(api, softmax) || !scores || !p || !trace_add(t, softmax) || !take_scores(t, scores, c) ||
        !(p = after_nan_check(t, p)))
        return false;
    const ort_node *const product = only_consumer(api, p);
    if (!product || !graph_is(api, product, "MatMul") || graph_input(api, product, 0) != p) return false;
    c->v = graph_input(api, product, 1);
    c->result = graph_output(api, product, 0);
    return trace_add(t, product);
}

static bool match_softmax(trace *t, const ort_node *n, block_match *m) {
    AT_DEFAULT_FPENV;
    core c = {.scale = 1};
    m->spec = (node_spec){.op = NODE_BLOCK, .attributes = node_default_attributes()};
    if (!take_core(t, n, &c) || !trace_back(t, c.q, trace_view_of("b h r c"), &t->q) ||
        !trace_back(t, c.k, trace_view_of("b h c r"), &t->k) || !trace_back(t, c.v, trace_view_of("b h r c"), &t->v) ||
        !trace_on(t, c.result, trace_view_of("b h r c"), &t->result))
        return false;
    m->value[BLOCK_BIAS] = c.bias;
    m->spec.attributes.scale = (float)(c.scale * t->q.scale * t->k.scale);
    return fabsf(m->spec.attributes.scale) <= 1e38f;
}

/* ---- Attention as one node ---- */

static bool describe(trace *t, const ort_node *n, node_op op, block_match *m) {
    const node_source source = {.api = t->api, .node = n};
    char message[ATTUNE_MESSAGE_BYTES];
    return node_describe(&source, op, &m->spec, message) && trace_add(t, n);
}

static bool has_any(const ort_api *api, const ort_node *n, const size_t *indices, size_t count, bool is_output) {
    for (size_t i = 0; i < count; i++)
        if (is_output ? graph_output(api, n, indices[i]) : graph_input(api, n, indices[i])) return true;
    return false;
}

static bool match_multi_head(trace *t, const ort_node *n, block_match *m) {
    static const size_t unknown[] = {6, 7, 8, 9}, presents[] = {1, 2, 3};
    const ort_api *const api = t->api;
    const ort_value_info *const q = graph_input(api, n, 0), *const k = graph_input(api, n, 1),
                                *const v = graph_input(api, n, 2), *const bias = graph_input(api, n, 3);
    if (!q || !k || !v || has_any(api, n, unknown, 4, false) || has_any(api, n, presents, 3, true) ||
        !describe(t, n, NODE_MULTI_HEAD, m))
        return false;
    t->q.heads = t->k.heads = t->v.heads = m->spec.attributes.num_heads;
    if (!trace_back(t, q, trace_view_of("b r hc"), &t->q) || !trace_back(t, k, trace_view_of("b r hc"), &t->k) ||
        !trace_back(t, v, trace_view_of("b r hc"), &t->v) ||
        !trace_on(t, graph_output(api, n, 0), trace_view_of("b r hc"), &t->result))
        return false;
    if (bias && (t->q.bias || t->k.bias || t->v.bias)) return false;
    m->value[ATTUNE_QKV_BIAS] = bias;
    m->value[BLOCK_PADDING] = graph_input(api, n, 4);
    m->value[BLOCK_BIAS] = graph_input(api, n, 5);
    /* attune scales scores, so scales of queries and keys are multiplied into its scale. */
    if (t->q.scale != 1 || t->k.scale != 1) return false;
    return true;
}

/* Its weight matrix has those of queries, keys and values side by side. */
static bool match_projected(trace *t, const ort_node *n, block_match *m) {
    const ort_api *const api = t->api;
    const node_source source = {.api = api, .node = n};
    char message[ATTUNE_MESSAGE_BYTES];
    tensor weight;
    int64_t sizes[3];
    if (!describe(t, n, NODE_PROJECTED, m) || !source_constant(&source, PROJECTED_WEIGHT, &weight) ||
        !projected_sizes(&source, m->spec.attributes.num_heads, sizes, message))
        return false;
    trace_chain *const chains[3] = {&t->q, &t->k, &t->v};
    for (int i = 0; i < 3; i++)
        *chains[i] = (trace_chain){.in = weight.dims[0],
                                   .out = sizes[i],
                                   .heads = m->spec.attributes.num_heads,
                                   .end = graph_input(api, n, PROJECTED_X),
                                   .scale = 1};
    m->value[ATTUNE_QKV_WEIGHT] = graph_input(api, n, PROJECTED_WEIGHT);
    m->value[ATTUNE_QKV_BIAS] = graph_input(api, n, PROJECTED_BIAS);
    m->value[BLOCK_PADDING] = graph_input(api, n, PROJECTED_MASK);
    m->value[BLOCK_BIAS] = graph_input(api, n, PROJECTED_SCORE_BIAS);
    return trace_on(t, graph_output(api, n, 0), trace_view_of("b r hc"), &t->result);
}

/* ---- The whole ---- */

static bool is_about_shapes(const ort_api *api, const ort_node *n) {
    static const char *const types[] = {"Shape", "Gather", "Slice", "Concat", "Unsqueeze", "Squeeze", "Cast"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (graph_is(api, n, types[i])) return true;
    return false;
}

/* Whether no other node reads the values between the block's nodes. Nodes that only read the shapes of such values join
 * the block, as they are no longer needed. */
static bool is_closed(trace *t, const ort_value_info *result) {
    for (size_t i = 0; i < t->num_nodes; i++) {
        const ort_value_info *value;
        for (size_t output = 0; output < 4; output++) {
            const ort_node *all[GRAPH_MAX_CONSUMERS];
            size_t count;
            if (!(value = graph_output(t->api, t->nodes[i], output)) || value == result) continue;
            if (graph_is_output(t->api, value) || !graph_consumers(t->api, value, all, &count)) return false;
            for (size_t c = 0; c < count; c++)
                if (!trace_has(t, all[c]) && (!is_about_shapes(t->api, all[c]) || !trace_add(t, all[c]))) return false;
        }
    }
    return true;
}

static bool has_shape(const ort_api *api, const ort_value_info *value, int type, int64_t count) {
    tensor have;
    return !value ||
           (graph_constant(api, value, &have) && have.type == type && have.rank == 1 && have.dims[0] == count);
}

static bool has_type(const ort_api *api, const ort_value_info *weight, int type) {
    tensor have;
    return !weight || (graph_constant(api, weight, &have) && have.type == type);
}

/* Whether weights and biases have one type, and biases the widths of their products. */
static bool are_weights_sound(const trace *t, const block_match *m) {
    const trace_chain *const chains[] = {&t->q, &t->k, &t->v, &t->result};
    const int64_t all = t->q.out + t->k.out + t->v.out;
    graph_shape x;
    if (!graph_shape_of(t->api, t->x, &x) || x.rank != 3 || x.type != m->type ||
        (x.dims[2] > 0 && x.dims[2] != t->q.in))
        return false;
    for (size_t i = 0; i < 4; i++)
        if (!has_type(t->api, chains[i]->weight, m->type) ||
            !has_shape(t->api, chains[i]->bias, m->type, chains[i]->out) ||
            (chains[i]->weight && chains[i]->is_out_in != t->q.is_out_in))
            return false;
    return has_shape(t->api, m->value[ATTUNE_QKV_BIAS], m->type, all);
}

/* ONNX does not allow a bias of another type than the scores, and attune supports no other rank. */
static bool is_bias_sound(const trace *t, const block_match *m) {
    graph_shape bias;
    const ort_value_info *const value = m->value[BLOCK_BIAS];
    return !value || (graph_shape_of(t->api, value, &bias) && bias.type == m->type && bias.rank <= 4);
}

static void fill(const trace *t, block_match *m) {
    m->value[BLOCK_X] = t->x;
    m->value[BLOCK_RESULT] = t->result.end;
    m->value[ATTUNE_Q_WEIGHT] = t->q.weight, m->value[ATTUNE_Q_BIAS] = t->q.bias;
    m->value[ATTUNE_K_WEIGHT] = t->k.weight, m->value[ATTUNE_K_BIAS] = t->k.bias;
    m->value[ATTUNE_V_WEIGHT] = t->v.weight, m->value[ATTUNE_V_BIAS] = t->v.bias;
    m->value[ATTUNE_OUT_WEIGHT] = t->result.weight, m->value[ATTUNE_OUT_BIAS] = t->result.bias;
    m->layout = t->q.is_out_in ? ATTUNE_OUT_IN : ATTUNE_IN_OUT;
    m->width = t->q.in;
    m->num_heads = t->q.heads;
    m->head_width = t->q.head_width;
    m->v_head_width = t->v.head_width;
    m->out_width = t->result.out;
    m->has_product = t->result.weight != NULL;
    m->spec.attributes.num_heads = t->q.heads;
    memcpy(m->nodes, t->nodes, t->num_nodes * sizeof *t->nodes);
    m->num_nodes = t->num_nodes;
}

/* ONNX Runtime computes f64, as its products are as fast. */
static bool is_supported(int type) { return type == ORT_FLOAT || type == ORT_FLOAT16 || type == ORT_BFLOAT16; }

static bool complete(trace *t, block_match *m) {
    tensor weight;
    const ort_value_info *const any = t->q.weight ? t->q.weight : m->value[ATTUNE_QKV_WEIGHT];
    t->x = t->q.end;
    if (!t->x || t->k.end != t->x || t->v.end != t->x || !graph_constant(t->api, any, &weight)) return false;
    m->type = weight.type;
    if (!is_supported(m->type) || !trace_settle(t) || !are_weights_sound(t, m) || !is_bias_sound(t, m) ||
        !trace_prove(t) || !is_closed(t, t->result.end))
        return false;
    fill(t, m);
    return true;
}

bool block_match_at(const ort_api *api, const ort_node *n, const trace_pair *pairs, size_t num_pairs, block_match *m) {
    trace t = {.api = api, .pairs = pairs, .num_pairs = num_pairs};
    memset(m, 0, sizeof *m);
    if (graph_is(api, n, "Softmax")) return match_softmax(&t, n, m) && complete(&t, m);
    if (graph_is_contributed(api, n, "Attention")) return match_projected(&t, n, m) && complete(&t, m);
    return graph_is_contributed(api, n, "MultiHeadAttention") && match_multi_head(&t, n, m) && complete(&t, m);
}
