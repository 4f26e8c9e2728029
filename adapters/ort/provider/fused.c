/* Found blocks are kept by the name of their result, by which ONNX Runtime asks for them again when it compiles the
 * nodes that it has fused. */
#include "fused.h"

#include "ort/operators/block.h"
#include "ort/operators/node_run.h"

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

/* Names of masks in messages: for attention as PyTorch exports it, and for the nodes of com.microsoft. */
static const struct {
    const char *bias, *padding;
} words[3] = {{"what is added to the scores", "mask_index"},
              {"attention_bias", "key_padding_mask"},
              {"attention_bias", "mask_index"}};

static block_shape shape_of(const block_match *m) {
    const int word = m->spec.op == NODE_BLOCK ? 0 : m->spec.op == NODE_MULTI_HEAD ? 1 : 2;
    return (block_shape){.dtype = adapter_dtype(m->type),
                         .layout = m->layout,
                         .width = m->width,
                         .num_heads = m->num_heads,
                         .head_width = m->head_width,
                         .v_head_width = m->v_head_width,
                         .out_width = m->has_product ? m->out_width : 0,
                         .bias_name = words[word].bias,
                         .padding_name = words[word].padding};
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

static void free_blocks(fused_blocks *all) {
    for (fused_block *b = all->first, *next; b; b = next) {
        next = b->next;
        free_block(b);
    }
    all->first = NULL;
}

/* ---- Compiled ---- */

typedef struct fused_compute {
    ort_compute table; /* the first member, as ONNX Runtime passes it back */
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

static int output_named(const ort_api *api, const ort_node *n, const char *name) {
    const ort_value_info *value;
    for (int i = 0; (value = graph_output(api, n, (size_t)i)); i++)
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

static node *make_block(const ort_api *api, const ort_graph *graph, const ort_node *fused, const fused_block *b,
                        block_shape *shape, char message[ATTUNE_MESSAGE_BYTES], ort_status **status) {
    tensor weights[ATTUNE_NUM_WEIGHTS] = {{0}};
    *shape = b->shape;
    if ((*status = read_weights(api, graph, b, weights))) return NULL;
    shape->x = input_named(api, fused, b->names[BLOCK_X]);
    shape->bias = input_named(api, fused, b->names[BLOCK_BIAS]);
    shape->padding = input_named(api, fused, b->names[BLOCK_PADDING]);
    block *const made = block_create(shape, weights, message);
    node *const n = made ? node_create_block(api, &b->spec, made) : NULL;
    if (!n) block_free(made);
    return n;
}

/* ---- Notes for EPContext nodes ---- */

static void put_whole(note *n, const char *name, int64_t value) { note_put(n, name, &value, 1); }

/* The weights stay constants of the model, which are inputs of the EPContext node. */
static void save_block(const ort_api *api, const ort_node *fused, const fused_block *b, const block_shape *s, note *n) {
    int64_t places[BLOCK_NUM_VALUES];
    for (int i = 0; i < BLOCK_NUM_VALUES; i++) places[i] = input_named(api, fused, b->names[i]);
    put_whole(n, "op", NODE_BLOCK);
    note_put(n, "inputs", places, BLOCK_NUM_VALUES);
    put_whole(n, "dtype", s->dtype);
    put_whole(n, "layout", s->layout);
    note_put(n, "widths", (int64_t[]){s->width, s->num_heads, s->head_width, s->v_head_width, s->out_width}, 5);
    put_whole(n, "words", s->padding_name == words[1].padding ? 1 : s->bias_name == words[0].bias ? 0 : 2);
    node_save_attributes(&b->spec.attributes, n);
    note_put_text(n, "name", b->spec.name);
}

static void save_node(const node_source *s, const ort_node *fused, node_op op, const char *name, note *n) {
    int64_t inputs[NODE_MAX_INPUTS], outputs[NODE_MAX_OUTPUTS];
    const node_rule *const rule = node_rule_of(op);
    for (size_t i = 0; i < rule->num_inputs; i++) {
        const ort_value_info *const value = graph_input(s->api, s->node, i);
        inputs[i] = value ? input_named(s->api, fused, graph_name(s->api, value)) : -1;
    }
    for (size_t i = 0; i < rule->num_outputs; i++) {
        const ort_value_info *const value = graph_output(s->api, s->node, i);
        outputs[i] = value ? output_named(s->api, fused, graph_name(s->api, value)) : -1;
    }
    put_whole(n, "op", op);
    note_put(n, "inputs", inputs, rule->num_inputs);
    note_put(n, "outputs", outputs, rule->num_outputs);
    node_save(s, op, n);
    note_put_text(n, "name", name);
}

/* ---- From a note ---- */

static bool refuse(char *message, const char *sentence) {
    snprintf(message, ATTUNE_MESSAGE_BYTES, "%s", sentence);
    return false;
}

/* Indices must be those of existing inputs or outputs of the EPContext node. */
static bool recall_places(const ort_api *api, const ort_node *n, const note *read, const char *name,
                          const ort_value_info *(*value_of)(const ort_api *, const ort_node *, size_t), int8_t *places,
                          size_t count) {
    int64_t values[NODE_MAX_INPUTS];
    if (note_get(read, name, values, count) != count) return false;
    for (size_t i = 0; i < count; i++) {
        if (values[i] < -1 || values[i] > INT8_MAX || (values[i] >= 0 && !value_of(api, n, (size_t)values[i])))
            return false;
        places[i] = (int8_t)values[i];
    }
    return true;
}

/* The indices of a call's inputs among those of the fused node, which does not get packed constants. */
static int8_t place_in(const ort_api *api, const ort_node *fused, const ort_node *n, int8_t place) {
    const ort_value_info *const value = place < 0 ? NULL : graph_input(api, n, (size_t)place);
    const int there = value ? input_named(api, fused, graph_name(api, value)) : -1;
    return there < NODE_MAX_INPUTS ? (int8_t)there : -1;
}

static node_places *new_places(void) {
    node_places *const p = malloc(sizeof *p);
    if (p) memset(p, -1, sizeof *p);
    return p;
}

static node *recall_node(const ort_api *api, const ort_node *fused, const ort_node *n, node_op op, const note *read,
                         char *message) {
    const node_rule *const rule = node_rule_of(op);
    char name[NODE_MAX_NAME];
    node_places *const places = new_places();
    const node_source source = {.api = api, .node = n, .note = read, .places = places};
    node *made = NULL;
    note_get_text(read, "name", name, sizeof name);
    if (!places)
        refuse(message, "there is no memory");
    else if (!recall_places(api, n, read, "inputs", graph_input, places->inputs, rule->num_inputs) ||
             !recall_places(api, n, read, "outputs", graph_output, places->outputs, rule->num_outputs))
        refuse(message, "its notes name inputs or outputs that it does not have");
    else
        made = node_create_from(&source, op, name, message);
    if (!made) return free(places), NULL;
    for (int i = 0; i < NODE_MAX_INPUTS; i++) places->inputs[i] = place_in(api, fused, n, places->inputs[i]);
    places->own_types = node_own_types(op);
    made->places = places;
    return made;
}

static bool recall_shape(const note *read, const int8_t places[BLOCK_NUM_VALUES], block_shape *shape) {
    int64_t dtype, layout, word, widths[5];
    if (note_get(read, "dtype", &dtype, 1) != 1 || note_get(read, "layout", &layout, 1) != 1 ||
        note_get(read, "words", &word, 1) != 1 || note_get(read, "widths", widths, 5) != 5 || word < 0 || word > 2 ||
        (layout != ATTUNE_OUT_IN && layout != ATTUNE_IN_OUT) || dtype < 0 || dtype > UINT8_MAX ||
        !common_is_float((attune_dtype)dtype) || places[BLOCK_X] < 0)
        return false;
    for (int i = 0; i < 5; i++)
        if (widths[i] < (i < 4) || widths[i] > INT32_MAX) return false;
    *shape = (block_shape){.dtype = (attune_dtype)dtype,
                           .layout = (attune_weight_layout)layout,
                           .width = widths[0],
                           .num_heads = widths[1],
                           .head_width = widths[2],
                           .v_head_width = widths[3],
                           .out_width = widths[4],
                           .x = places[BLOCK_X],
                           .bias = places[BLOCK_BIAS],
                           .padding = places[BLOCK_PADDING],
                           .bias_name = words[word].bias,
                           .padding_name = words[word].padding};
    return block_is_supported(shape);
}

static node *recall_block(const ort_api *api, const ort_node *fused, const ort_node *n, const note *read,
                          char *message) {
    int8_t places[BLOCK_NUM_VALUES];
    tensor weights[ATTUNE_NUM_WEIGHTS] = {{0}};
    block_shape shape;
    node_spec spec = {.op = NODE_BLOCK};
    if (!recall_places(api, n, read, "inputs", graph_input, places, BLOCK_NUM_VALUES) ||
        !recall_shape(read, places, &shape))
        return refuse(message, "its notes describe no block"), NULL;
    if (!node_recall_attributes(read, &spec.attributes, message)) return NULL;
    for (int w = 0; w < ATTUNE_NUM_WEIGHTS; w++)
        if (places[w] >= 0 && !graph_constant(api, graph_input(api, n, (size_t)places[w]), &weights[w]))
            return refuse(message, "its weights are not constant"), NULL;
    note_get_text(read, "name", spec.name, sizeof spec.name);
    shape.x = place_in(api, fused, n, places[BLOCK_X]);
    shape.bias = place_in(api, fused, n, places[BLOCK_BIAS]);
    shape.padding = place_in(api, fused, n, places[BLOCK_PADDING]);
    if (shape.x < 0) return refuse(message, "its first input is constant"), NULL;
    block *const made = block_create(&shape, weights, message);
    node_places *const all = made ? new_places() : NULL;
    node *const result = all ? node_create_block(api, &spec, made) : NULL;
    if (!result) return block_free(made), free(all), NULL;
    /* The block has the indices of its inputs; a padding mask has its own type. */
    for (int i = 0; i < NODE_MAX_INPUTS; i++) all->inputs[i] = (int8_t)i;
    all->outputs[0] = 0;
    all->own_types = shape.padding >= 0 ? 1U << shape.padding : 0;
    result->places = all;
    return result;
}

static int64_t op_of(const note *read) {
    int64_t op;
    return note_get(read, "op", &op, 1) == 1 && op >= 0 && op <= NODE_BLOCK ? op : -1;
}

static node *recall(const ort_api *api, const ort_node *fused, const ort_node *n, attune_context *context,
                    char *message) {
    note read;
    if (!ep_context_note(api, n, &read, message)) return NULL;
    if (!context) return refuse(message, "the graph has no main EPContext node of attune's"), NULL;
    const int64_t op = op_of(&read);
    if (op < 0) return refuse(message, "its notes name no operator"), NULL;
    node *const made = op == NODE_BLOCK ? recall_block(api, fused, n, &read, message)
                                        : recall_node(api, fused, n, (node_op)op, &read, message);
    if (made) made->plans.context = context;
    return made;
}

bool fused_packs_constants(const ort_api *api, const ort_node *n) {
    note read;
    char message[ATTUNE_MESSAGE_BYTES];
    const int64_t op = ep_context_note(api, n, &read, message) ? op_of(&read) : -1;
    return op == NODE_BLOCK || op == NODE_PROJECTED;
}

/* ---- Compiled ---- */

static const ort_node *only_node(const ort_api *api, const ort_graph *graph) {
    const ort_node *n = NULL;
    size_t count = 0;
    ort_status *status = api->Graph_GetNumNodes(graph, &count);
    if (!status && count == 1) status = api->Graph_GetNodes(graph, &n, 1);
    if (status) api->ReleaseStatus(status);
    return n;
}

static node *make_single(const ort_api *api, const ort_node *fused, const ort_node *n, attune_context *context,
                         note *written, char *message) {
    const node_source source = {.api = api, .node = n};
    const char *type = "", *domain = "", *name = "";
    if (ep_context_is_own(api, n)) return recall(api, fused, n, context, message);
    ort_status *status = api->Node_GetOperatorType(n, &type);
    if (!status) status = api->Node_GetDomain(n, &domain);
    if (!status) status = api->Node_GetName(n, &name);
    if (status) return api->ReleaseStatus(status), NULL;
    const node_op op = node_op_of(domain, type);
    if (op == NODE_OP_COUNT) return refuse(message, "it is none that was asked for"), NULL;
    save_node(&source, fused, op, name, written);
    return node_create_from(&source, op, name, message);
}

ort_status *fused_compile(const fused_session *s, const ort_api *api, const ort_graph *graph, const ort_node *fused,
                          attune_context *context, note *written, ort_compute **compute) {
    const ort_value_info *const result = graph_output(api, fused, 0);
    const fused_block *const b = result ? find(&s->blocks, graph_name(api, result)) : NULL;
    const ort_node *const single = b ? NULL : only_node(api, graph);
    char message[ATTUNE_MESSAGE_BYTES] = "there is no memory", text[ATTUNE_MESSAGE_BYTES + NODE_MAX_NAME + 64];
    const char *name = b ? b->spec.name : "";
    ort_status *status = NULL;
    block_shape shape;
    note_begin(written);
    if (!b && !single) return api->CreateStatus(ORT_FAIL, "attune: a fused node is none that it asked for");
    fused_compute *const c = calloc(1, sizeof *c);
    if (c && b && (c->n = make_block(api, graph, fused, b, &shape, message, &status)))
        save_block(api, fused, b, &shape, written);
    if (c && single) c->n = make_single(api, fused, single, context, written, message);
    if (c && c->n) {
        c->table = (ort_compute){
            .version = ORT_VERSION_EP, .CreateState = create_state, .Compute = run, .ReleaseState = release_state};
        *compute = &c->table;
        return NULL;
    }
    free(c);
    if (status) return status;
    if (single && (status = api->Node_GetName(single, &name))) return status;
    snprintf(text, sizeof text, "attune cannot compute the %s '%.*s': %s", b ? "block" : "node", NODE_MAX_NAME, name,
             message);
    return api->CreateStatus(ORT_FAIL, text);
}

ort_status *fused_open_context(fused_session *s, const ort_api *api, const ort_graph **graphs, size_t count,
                               attune_context **context) {
    const ort_node *n = NULL;
    size_t i = 0;
    char message[ATTUNE_MESSAGE_BYTES], text[ATTUNE_MESSAGE_BYTES + 64];
    *context = NULL;
    for (; i < count; i++)
        if ((n = only_node(api, graphs[i])) && ep_context_is_own(api, n) && ep_context_is_main(api, n)) break;
    if (i == count) return NULL;
    attune_context **const grown = realloc(s->contexts, (s->num_contexts + 1) * sizeof *grown);
    if (!grown) return api->CreateStatus(ORT_FAIL, "attune: there is no memory");
    s->contexts = grown;
    *context = ep_context_open(api, &s->wish, graphs[i], n, message);
    if (*context) return s->contexts[s->num_contexts++] = *context, NULL;
    snprintf(text, sizeof text, "attune cannot use the kernels of an EPContext node: %s", message);
    return api->CreateStatus(ORT_FAIL, text);
}

void fused_close(fused_session *s) {
    free_blocks(&s->blocks);
    for (size_t i = 0; i < s->num_contexts; i++) attune_context_destroy(s->contexts[i]);
    free(s->contexts);
}

void fused_release(ort_compute *compute) {
    if (compute) node_destroy(((fused_compute *)compute)->n);
    free(compute);
}
