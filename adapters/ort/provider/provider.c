/* The plug-in execution provider: it claims the nodes, and whole blocks, that attune can compute. */
#include "ort/attune_ort.h"
#include "common/context.h"
#include "custom_ops.h"
#include "fused.h"
#include "ort/operators/node_run.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char provider_name[] = "AttuneExecutionProvider";

/* What a kernel is created from: its operator, and the function table of its ONNX Runtime. */
typedef struct maker {
    const ort_api *api;
    node_op op;
} maker;

typedef struct factory {
    ort_factory table; /* the first member, as ONNX Runtime passes it back */
    const ort_api *api;
    const ort_ep_api *ep_api;
    ort_registry *registry; /* of all sessions */
    maker makers[NODE_OP_COUNT];
} factory;

typedef struct provider {
    ort_ep table; /* first */
    factory *f;
    bool has_blocks; /* whole blocks are fused, not only nodes computed */
    fused_session session;
} provider;

/* ---- A kernel ---- */

typedef struct kernel {
    ort_kernel table; /* first */
    node *n;
} kernel;

static ort_status *compute(ort_kernel *k, ort_kernel_context *context) {
    return node_compute(((kernel *)k)->n, context);
}

static void release_kernel(ort_kernel *k) {
    node_destroy(((kernel *)k)->n);
    free(k);
}

static ort_status *create_kernel(void *state, const ort_kernel_info *info, ort_kernel **made) {
    const maker *const m = state;
    ort_status *status = NULL;
    kernel *const k = calloc(1, sizeof *k);
    *made = NULL;
    if (!k) return m->api->CreateStatus(ORT_FAIL, "attune: there is no memory");
    k->table = (ort_kernel){.version = ORT_VERSION_EP, .Compute = compute, .Release = release_kernel};
    if ((k->n = node_create(m->api, info, m->op, &status))) {
        *made = &k->table;
        return NULL;
    }
    free(k);
    return status;
}

/* ---- The registry of kernels ---- */

typedef struct constraint {
    const char *name;
    bool is_own; /* the element type of the kernel; otherwise the types below */
    int types[3];
} constraint;

enum { MAX_CONSTRAINTS = 3, NUM_TYPES = 4 };
static const constraint constraints[NODE_OP_COUNT][MAX_CONSTRAINTS] = {
    [NODE_ATTENTION] = {{"T1", true, {0}}, {"T2", true, {0}}, {"U", true, {ORT_BOOL}}},
    [NODE_MULTI_HEAD] = {{"T", true, {0}}, {"M", false, {ORT_INT32}}},
    [NODE_GROUP_QUERY] = {{"T", true, {0}}, {"M", false, {ORT_INT32}}},
    [NODE_PROJECTED] = {{"T", true, {0}}, {"M", false, {ORT_INT32}}},
    [NODE_LINEAR] = {{"T", true, {0}}, {"S", false, {ORT_FLOAT, ORT_FLOAT16, ORT_BFLOAT16}}},
    [NODE_MS_LINEAR] = {{"T", true, {0}}, {"S", false, {ORT_FLOAT, ORT_FLOAT16, ORT_BFLOAT16}}},
    [NODE_CONV] = {{"T", true, {0}}},
    [NODE_MS_CONV] = {{"T", true, {0}}},
};

static ort_status *constrain(const ort_ep_api *api, ort_def_builder *builder, node_op op, int type) {
    ort_status *status = NULL;
    for (int i = 0; i < MAX_CONSTRAINTS && constraints[op][i].name && !status; i++) {
        const constraint *const c = &constraints[op][i];
        const ort_data_type *allowed[4];
        size_t count = 0;
        if (c->is_own) status = api->GetTensorDataType(type, &allowed[count++]);
        for (int t = 0; t < 3 && c->types[t] && !status; t++)
            status = api->GetTensorDataType(c->types[t], &allowed[count++]);
        if (!status) status = api->KernelDefBuilder_AddTypeConstraint(builder, c->name, allowed, count);
    }
    return status;
}

static ort_status *define(const ort_ep_api *api, ort_def_builder *builder, node_op op, int version, int type,
                          ort_def **def) {
    const node_rule *const rule = node_rule_of(op);
    ort_status *status = api->KernelDefBuilder_SetOperatorType(builder, rule->type);
    if (!status) status = api->KernelDefBuilder_SetDomain(builder, rule->domain);
    if (!status) status = api->KernelDefBuilder_SetSinceVersion(builder, version, version);
    if (!status) status = api->KernelDefBuilder_SetExecutionProvider(builder, provider_name);
    if (!status) status = constrain(api, builder, op, type);
    return status ? status : api->KernelDefBuilder_Build(builder, def);
}

static ort_status *add_kernel(factory *f, node_op op, int version, int type, maker *m) {
    ort_def_builder *builder;
    ort_def *def = NULL;
    ort_status *status = f->ep_api->CreateKernelDefBuilder(&builder);
    if (status) return status;
    status = define(f->ep_api, builder, op, version, type, &def);
    if (!status) status = f->ep_api->KernelRegistry_AddKernel(f->registry, def, create_kernel, m);
    if (def) f->ep_api->ReleaseKernelDef(def);
    f->ep_api->ReleaseKernelDefBuilder(builder);
    return status;
}

static ort_status *make_registry(factory *f) {
    static const int types[NUM_TYPES] = {ORT_FLOAT, ORT_FLOAT16, ORT_BFLOAT16, ORT_DOUBLE};
    ort_status *status = f->ep_api->CreateKernelRegistry(&f->registry);
    for (int op = 0; op < NODE_OP_COUNT && !status; op++) {
        const node_rule *const rule = node_rule_of((node_op)op);
        const int num_types = op == NODE_ATTENTION ? NUM_TYPES : NUM_TYPES - 1;
        f->makers[op] = (maker){.api = f->api, .op = (node_op)op};
        for (int version = rule->first_version; version <= rule->last_version; version++)
            for (int i = 0; i < num_types && !status; i++)
                status = add_kernel(f, (node_op)op, version, types[i], &f->makers[op]);
    }
    return status;
}

/* ---- The provider of a session ---- */

static const char *ep_name(const ort_ep *ep) {
    (void)ep;
    return provider_name;
}

static ort_status *get_registry(ort_ep *ep, const ort_registry **registry) {
    *registry = ((provider *)ep)->f->registry;
    return NULL;
}

/* Fuses nodes. In a model that is written, constants stay inputs, so the weights stay in the model. */
static ort_status *fuse(const provider *p, ort_support *support, const ort_node *const *nodes, size_t count) {
    const ort_fusion_options options = {.version = ORT_VERSION_EP,
                                        .drop_constant_initializers = !p->session.wish.is_made};
    return p->f->ep_api->EpGraphSupportInfo_AddNodesToFuse(support, nodes, count, &options);
}

static ort_status *add_context_node(const provider *p, ort_support *support, const ort_node *n) {
    static adapter_counter contexts = {.name = "ep.contexts"};
    const ort_fusion_options options = {.version = ORT_VERSION_EP,
                                        .drop_constant_initializers = fused_packs_constants(p->f->api, n)};
    adapter_count(&contexts);
    return p->f->ep_api->EpGraphSupportInfo_AddNodesToFuse(support, &n, 1, &options);
}

/* Claims a node if there is a kernel for its types, and attune supports its attributes. */
static ort_status *consider(const provider *p, ort_support *support, const ort_node *n) {
    static adapter_counter taken = {.name = "ep.taken"}, left = {.name = "ep.left"};
    const ort_api *const api = p->f->api;
    const node_source source = {.api = api, .node = n};
    const char *type = NULL, *domain = NULL;
    char message[ATTUNE_MESSAGE_BYTES];
    node_spec spec;
    ort_status *status = api->Node_GetOperatorType(n, &type);
    if (!status) status = api->Node_GetDomain(n, &domain);
    const node_op op = status ? NODE_OP_COUNT : node_op_of(domain, type);
    const ort_def *def = NULL;
    if (!status && ep_context_is_own(api, n)) return add_context_node(p, support, n);
    if (op == NODE_OP_COUNT) return status;
    if ((status = p->f->ep_api->EpGraphSupportInfo_LookUpKernel(support, n, &def))) return status;
    if (!def || !common_context(NULL, NULL) || !node_describe(&source, op, &spec, message)) {
        adapter_count(&left);
        return NULL;
    }
    adapter_count(&taken);
    return p->session.wish.is_made ? fuse(p, support, &n, 1)
                                   : p->f->ep_api->EpGraphSupportInfo_AddSingleNode(support, n);
}

/* The blocks of a graph, and the nodes in them. */
typedef struct blocks_found {
    trace_pair *pairs;
    const ort_node **taken;
    size_t num_pairs, num_taken;
} blocks_found;

static bool is_taken(const blocks_found *found, const ort_node *n) {
    for (size_t i = 0; i < found->num_taken; i++)
        if (found->taken[i] == n) return true;
    return false;
}

static bool is_any_taken(const blocks_found *found, const block_match *m) {
    bool any = false;
    for (size_t i = 0; i < m->num_nodes; i++) any |= is_taken(found, m->nodes[i]);
    return any;
}

/* Fuses a block if the node is the middle of one. */
static ort_status *consider_block(provider *p, ort_support *support, const ort_node *n, blocks_found *found) {
    static adapter_counter blocks = {.name = "ep.blocks"};
    const ort_api *const api = p->f->api;
    block_match m;
    if (!block_match_at(api, n, found->pairs, found->num_pairs, &m) || is_any_taken(found, &m) ||
        !fused_is_supported(&m) || !common_context(NULL, NULL))
        return NULL;
    if (!fused_add(&p->session.blocks, api, &m)) return api->CreateStatus(ORT_FAIL, "attune: there is no memory");
    found->pairs[found->num_pairs++] = (trace_pair){.x = m.value[BLOCK_X], .result = m.value[BLOCK_RESULT]};
    memcpy(found->taken + found->num_taken, m.nodes, m.num_nodes * sizeof *m.nodes);
    found->num_taken += m.num_nodes;
    adapter_count(&blocks);
    return fuse(p, support, m.nodes, m.num_nodes);
}

/* Blocks first; the remaining nodes are examined one by one. */
static ort_status *consider_all(provider *p, ort_support *support, const ort_node **nodes, size_t count) {
    ort_status *status = NULL;
    blocks_found found = {.pairs = malloc(count * sizeof *found.pairs), .taken = malloc(count * sizeof *found.taken)};
    if (!found.pairs || !found.taken) status = p->f->api->CreateStatus(ORT_FAIL, "attune: there is no memory");
    for (size_t i = 0; i < count && !status && p->has_blocks; i++)
        status = consider_block(p, support, nodes[i], &found);
    for (size_t i = 0; i < count && !status; i++)
        if (!is_taken(&found, nodes[i])) status = consider(p, support, nodes[i]);
    free(found.pairs);
    free(found.taken);
    return status;
}

static ort_status *get_capability(ort_ep *ep, const ort_graph *graph, ort_support *support) {
    provider *const p = (provider *)ep;
    const ort_api *const api = p->f->api;
    size_t count = 0;
    ort_status *status = api->Graph_GetNumNodes(graph, &count);
    if (status || !count) return status;
    const ort_node **const nodes = malloc(count * sizeof *nodes);
    if (!nodes) return api->CreateStatus(ORT_FAIL, "attune: there is no memory");
    status = api->Graph_GetNodes(graph, nodes, count);
    if (!status) status = consider_all(p, support, nodes, count);
    free(nodes);
    return status;
}

/* In a model that is written, the first fused node of a graph has the kernels of all. */
static ort_status *write_context(const provider *p, const ort_graph *graph, const ort_node *fused, const note *n,
                                 bool is_main, ort_node **made) {
    char message[ATTUNE_MESSAGE_BYTES] = "its note is too long", text[sizeof message + 64];
    *made = note_is_whole(n) ? ep_context_make(p->f->api, &p->session.wish, graph, fused, n, is_main, message) : NULL;
    if (*made) return NULL;
    snprintf(text, sizeof text, "attune cannot make an EPContext node: %s", message);
    return p->f->api->CreateStatus(ORT_FAIL, text);
}

static ort_status *compile(ort_ep *ep, const ort_graph **graphs, const ort_node **fused, size_t count,
                           ort_compute **computes, ort_node **context_nodes) {
    provider *const p = (provider *)ep;
    attune_context *context;
    ort_status *status = fused_open_context(&p->session, p->f->api, graphs, count, &context);
    for (size_t i = 0; i < count && !status; i++) {
        note n;
        status = fused_compile(&p->session, p->f->api, graphs[i], fused[i], context, &n, &computes[i]);
        if (!status && p->session.wish.is_made)
            status = write_context(p, graphs[i], fused[i], &n, i == 0, &context_nodes[i]);
    }
    return status;
}

static void release_computes(ort_ep *ep, ort_compute **computes, size_t count) {
    (void)ep;
    for (size_t i = 0; i < count; i++) fused_release(computes[i]);
}

/* ---- The factory ---- */

static const char *factory_name(const ort_factory *f) {
    (void)f;
    return provider_name;
}

static const char *vendor(const ort_factory *f) {
    (void)f;
    return "attune";
}

static uint32_t vendor_id(const ort_factory *f) {
    (void)f;
    return 0;
}

static const char *version(const ort_factory *f) {
    (void)f;
    return ATTUNE_VERSION_STRING;
}

static ort_status *no_transfer(ort_factory *f, void **transfer) {
    (void)f;
    *transfer = NULL;
    return NULL;
}

static bool no_streams(const ort_factory *f) {
    (void)f;
    return false;
}

/* The provider also registers attune's own operators, if attune has a context. */
static ort_status *num_domains(ort_factory *f, size_t *count) {
    (void)f;
    *count = common_context(NULL, NULL) ? 1 : 0;
    return NULL;
}

static ort_status *own_domains(ort_factory *f, ort_domain **found, size_t count) {
    return count ? custom_ops_own(((factory *)f)->api, &found[0]) : NULL;
}

static ort_status *supported_devices(ort_factory *table, const ort_hardware *const *hardware, size_t num_hardware,
                                     ort_device **devices, size_t max_devices, size_t *num_devices) {
    factory *const f = (factory *)table;
    ort_status *status = NULL;
    *num_devices = 0;
    for (size_t i = 0; i < num_hardware && *num_devices < max_devices && !status; i++)
        if (f->api->HardwareDevice_Type(hardware[i]) == ORT_HARDWARE_CPU &&
            !(status = f->ep_api->CreateEpDevice(table, hardware[i], NULL, NULL, &devices[*num_devices])))
            ++*num_devices;
    return status;
}

/* Whether an option of the provider is "0". ONNX Runtime stores a provider's options under its name in lower case. */
static bool is_off(const ort_api *api, const ort_session_options *options, const char *key) {
    char text[8] = "";
    size_t size = sizeof text;
    ort_status *const status = api->GetSessionConfigEntry(options, key, text, &size);
    if (status) api->ReleaseStatus(status);
    return !status && !strcmp(text, "0");
}

static ort_status *create_provider(ort_factory *table, const ort_hardware *const *hardware,
                                   const ort_pairs *const *metadata, size_t num_devices,
                                   const ort_session_options *options, const ort_logger *logger, ort_ep **ep) {
    (void)hardware, (void)metadata, (void)num_devices, (void)logger;
    factory *const f = (factory *)table;
    provider *const p = calloc(1, sizeof *p);
    *ep = NULL;
    if (!p) return f->api->CreateStatus(ORT_FAIL, "attune: there is no memory");
    p->f = f;
    ep_context_read_wish(f->api, options, &p->session.wish);
    p->has_blocks = !is_off(f->api, options, "ep.attuneexecutionprovider.blocks");
    p->table = (ort_ep){.version = ORT_VERSION_EP,
                        .GetName = ep_name,
                        .GetCapability = get_capability,
                        .Compile = compile,
                        .ReleaseNodeComputeInfos = release_computes,
                        .GetKernelRegistry = get_registry};
    *ep = &p->table;
    return NULL;
}

static void release_provider(ort_factory *f, ort_ep *ep) {
    (void)f;
    fused_close(&((provider *)ep)->session);
    free(ep);
}

ort_status *CreateEpFactories(const char *name, const ort_base *base, const ort_logger *logger, ort_factory **factories,
                              size_t max_factories, size_t *num_factories) {
    (void)name, (void)logger;
    ort_status *status;
    *num_factories = 0;
    const ort_api *const api = adapter_open(base, ORT_VERSION_EP, &status);
    if (!api) return status;
    factory *const f = max_factories ? calloc(1, sizeof *f) : NULL;
    if (!f) return api->CreateStatus(ORT_FAIL, "attune: there is no memory");
    f->table = (ort_factory){.version = ORT_VERSION_EP,
                             .GetName = factory_name,
                             .GetVendor = vendor,
                             .GetSupportedDevices = supported_devices,
                             .CreateEp = create_provider,
                             .ReleaseEp = release_provider,
                             .GetVendorId = vendor_id,
                             .GetVersion = version,
                             .CreateDataTransfer = no_transfer,
                             .IsStreamAware = no_streams,
                             .GetNumCustomOpDomains = num_domains,
                             .GetCustomOpDomains = own_domains};
    f->api = api;
    f->ep_api = api->GetEpApi();
    if ((status = make_registry(f))) {
        ReleaseEpFactory(&f->table);
        return status;
    }
    factories[0] = &f->table;
    *num_factories = 1;
    return NULL;
}

ort_status *ReleaseEpFactory(ort_factory *table) {
    factory *const f = (factory *)table;
    if (f && f->registry) f->ep_api->ReleaseKernelRegistry(f->registry);
    free(f);
    return NULL;
}
