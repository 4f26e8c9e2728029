#include "fused.h"

#include "block.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fused_block {
    fused_block *next;
    node_spec spec;
    block_shape shape;
    char *names[BLOCK_NUM_VALUES]; /* NULL: there is no such value */
};

/* ---- Found ---- */

static void free_block(fused_block *b) {
    for (int i = 0; i < BLOCK_NUM_VALUES; i++) free(b->names[i]);
    free(b);
}

static block_shape shape_of(const block_match *m) {
    const bool is_node = m->spec.op != NODE_BLOCK;
    return (block_shape){.dtype = adapter_dtype(m->type),
                         .layout = m->layout,
                         .width = m->width,
                         .num_heads = m->num_heads,
                         .head_width = m->head_width,
                         .v_head_width = m->v_head_width,
                         .out_width = m->has_product ? m->out_width : 0,
                         .bias_name = is_node ? "attention_bias" : "what is added to the scores",
                         .padding_name = m->spec.op == NODE_MULTI_HEAD ? "key_padding_mask" : "mask_index"};
}

bool fused_is_supported(const block_match *m) {
    const block_shape shape = shape_of(m);
    return block_is_supported(&shape);
}

bool fused_add(fused_blocks *all, const ort_api *api, const block_match *m) {
    fused_block *const b = calloc(1, sizeof *b);
    if (!b) return false;
    b->spec = m->spec;
    b->shape = shape_of(m);
    snprintf(b->spec.name, sizeof b->spec.name, "%s", graph_name(api, m->value[BLOCK_RESULT]));
    b->spec.op = NODE_BLOCK;
    for (int i = 0; i < BLOCK_NUM_VALUES; i++)
        if (m->value[i] && !(b->names[i] = strdup(graph_name(api, m->value[i])))) {
            free_block(b);
            return false;
        }
    b->next = all->first;
    all->first = b;
    return true;
}

void fused_free(fused_blocks *all) {
    for (fused_block *b = all->first, *next; b; b = next) {
        next = b->next;
        free_block(b);
    }
    all->first = NULL;
}

/* ---- Compiled ---- */

typedef struct fused_compute {
    ort_compute table; /* first: ONNX Runtime passes it back */
    node *n;
} fused_compute;

static ort_status *create_state(ort_compute *c, ort_compute_context *context, void **state) {
    (void)context;
    *state = c;
    return NULL;
}

static ort_status *run(ort_compute *c, void *state, ort_kernel_context *context) {
    (void)state;
    return node_compute(((fused_compute *)c)->n, context);
}

static void release_state(ort_compute *c, void *state) { (void)c, (void)state; }

static const fused_block *find(const fused_blocks *all, const char *result) {
    const fused_block *b = all->first;
    while (b && strcmp(b->names[BLOCK_RESULT], result)) b = b->next;
    return b;
}

/* The input of the fused node that has this name; -1 if there is none. */
static int input_named(const ort_api *api, const ort_node *n, const char *name) {
    const ort_value_info *value;
    for (int i = 0; name && (value = graph_input(api, n, (size_t)i)); i++)
        if (!strcmp(graph_name(api, value), name)) return i;
    return -1;
}

/* Finds the constants of a block by name. */
static ort_status *read_weights(const ort_api *api, const ort_graph *graph, const fused_block *b,
                                tensor weights[ATTUNE_NUM_WEIGHTS]) {
    size_t count = 0;
    ort_status *status = api->Graph_GetNumInitializers(graph, &count);
    if (status || !count) return status;
    const ort_value_info **const values = malloc(count * sizeof *values);
    if (!values) return api->CreateStatus(ORT_FAIL, "attune: there is no memory");
    status = api->Graph_GetInitializers(graph, values, count);
    for (size_t i = 0; i < count && !status; i++)
        for (int w = 0; w < ATTUNE_NUM_WEIGHTS; w++)
            if (b->names[w] && !strcmp(b->names[w], graph_name(api, values[i])))
                graph_constant(api, values[i], &weights[w]);
    free(values);
    return status;
}

static node *make_node(const ort_api *api, const ort_graph *graph, const ort_node *fused, const fused_block *b,
                       char message[ATTUNE_MESSAGE_BYTES], ort_status **status) {
    tensor weights[ATTUNE_NUM_WEIGHTS] = {{0}};
    block_shape shape = b->shape;
    if ((*status = read_weights(api, graph, b, weights))) return NULL;
    shape.x = input_named(api, fused, b->names[BLOCK_X]);
    shape.bias = input_named(api, fused, b->names[BLOCK_BIAS]);
    shape.padding = input_named(api, fused, b->names[BLOCK_PADDING]);
    block *const made = block_create(&shape, weights, message);
    node *const n = made ? node_create_block(api, &b->spec, made) : NULL;
    if (!n) block_free(made);
    return n;
}

ort_status *fused_compile(const fused_blocks *all, const ort_api *api, const ort_graph *graph, const ort_node *n,
                          ort_compute **compute) {
    const ort_value_info *const result = graph_output(api, n, 0);
    const fused_block *const b = result ? find(all, graph_name(api, result)) : NULL;
    char message[ATTUNE_MESSAGE_BYTES] = "there is no memory", text[ATTUNE_MESSAGE_BYTES + NODE_MAX_NAME + 64];
    ort_status *status = NULL;
    if (!b) return api->CreateStatus(ORT_FAIL, "attune: a fused node is none that it asked for");
    fused_compute *const c = calloc(1, sizeof *c);
    if (c) c->n = make_node(api, graph, n, b, message, &status);
    if (c && c->n) {
        c->table = (ort_compute){
            .version = ORT_VERSION_EP, .CreateState = create_state, .Compute = run, .ReleaseState = release_state};
        *compute = &c->table;
        return NULL;
    }
    free(c);
    snprintf(text, sizeof text, "attune cannot compute the block '%s': %s", b->spec.name, message);
    return status ? status : api->CreateStatus(ORT_FAIL, text);
}

void fused_release(ort_compute *compute) {
    if (compute) node_destroy(((fused_compute *)compute)->n);
    free(compute);
}
