/* attune as a device of ggml that computes FLASH_ATTN_EXT in the memory of the CPU. Each backend owns a backend of
 * ggml's CPU device, which computes what attune cannot, so no graph fails. The functions below fill ggml's tables from
 * the bottom up: nodes, backends, the device, the plug-in. */
#include "attend.h"
#include "common/counters.h"
#include "host.h"
#include "node.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((visibility("default"))) ggml_reg *ggml_backend_init(void);

typedef struct state {
    ggml_backend *cpu; /* computes what attune does not */
    ggml_set_n_threads *cpu_set_n_threads;
    ggml_set_abort_callback *cpu_set_abort_callback;
    ggml_abort_callback *abort; /* NULL: none */
    void *abort_data;
    attend_state attend;
    const char *last_reason; /* why the CPU computed the last node that attune left */
} state;

static state *state_of(const ggml_backend *backend) {
    return host.is_0_9 ? ((const ggml_backend_0_9 *)backend)->context : backend->context;
}

static const char *name_of_reg(ggml_reg *reg) { return (void)reg, "attune"; }
static const char *name_of_device(ggml_device *device) { return (void)device, "attune"; }
static const char *name_of_backend(ggml_backend *backend) { return (void)backend, "attune"; }

/* ---- Which nodes attune computes ---- */

/* With -fa auto llama.cpp makes a graph for one token of each sequence right after the backends, and turns flash
 * attention off if these nodes are on another device than their layer's. It checks this once. So supports_op says no to
 * the first graph of a backend: until it is called for another number of tokens, or set_n_threads is called. */
static atomic_bool is_first_graph;
static atomic_llong first_tokens; /* tokens of the first node; 0: there was none */

static bool is_of_first_graph(const ggml_tensor *op) {
    if (!atomic_load(&is_first_graph) || !op->src[0]) return false;
    const long long tokens = op->src[0]->ne[1] * op->src[0]->ne[3];
    long long none = 0;
    if (atomic_compare_exchange_strong(&first_tokens, &none, tokens) || none == tokens) return true;
    atomic_store(&is_first_graph, false);
    return false;
}

/* Logs each reason once. */
static void log_refusal(const char *reason, const ggml_tensor *op) {
    enum { MOST = 32 };
    static _Atomic(const char *) told[MOST];
    for (int i = 0; i < MOST; i++) {
        const char *none = NULL;
        if (atomic_compare_exchange_strong(&told[i], &none, reason)) break;
        if (none == reason) return;
    }
    host_log(GGML_ABI_LOG_INFO, "the CPU computes %.64s: %s", op->name, reason);
}

static bool is_view(const ggml_tensor *op) {
    for (size_t i = 0; i < sizeof host.views / sizeof *host.views; i++)
        if (op->op == host.views[i]) return true;
    return false;
}

/* Called before tensors have data. It allocates nothing and compiles nothing. */
static bool supports_op(ggml_device *device, const ggml_tensor *op) {
    (void)device;
    ggml_node node;
    if (op->op == host.soft_max && op->src[1]) /* a softmax with a mask: attention without the fused operator */
        log_refusal("it is no flash attention, which -fa on or flash_attn=True switches on", op);
    if (op->op != host.flash_attn_ext) return is_view(op);
    const char *const reason = node_read(op, &node);
    if (reason) log_refusal(reason, op);
    return !reason && !is_of_first_graph(op);
}

/* ---- Computing ---- */

/* Has the CPU backend compute one node of a graph, which is passed as a graph of its own (as by ggml_graph_view). */
static int compute_on_cpu(state *s, const ggml_graph *graph, int index) {
    ggml_graph one = {.n_nodes = 1,
                      .nodes = graph->nodes + index,
                      .use_counts = graph->use_counts,
                      .visited = graph->visited,
                      .order = graph->order};
    return host.ggml_backend_graph_compute(s->cpu, &one);
}

static int compute_node(state *s, const ggml_graph *graph, int index) {
    ggml_node node;
    const char *reason = node_read(graph->nodes[index], &node);
    if (!reason && attend(&s->attend, &node, &reason)) {
        ADAPTER_COUNT("nodes");
        return GGML_ABI_SUCCESS;
    }
    ADAPTER_COUNT("nodes_on_cpu");
    if (reason != s->last_reason) host_log(GGML_ABI_LOG_DEBUG, "the CPU computes %.64s: %s", node.out->name, reason);
    s->last_reason = reason;
    return compute_on_cpu(s, graph, index);
}

static int graph_compute(ggml_backend *backend, ggml_graph *graph) {
    state *const s = state_of(backend);
    for (int i = 0; i < graph->n_nodes; i++) {
        const ggml_tensor *const node = graph->nodes[i];
        if (!(node->flags & GGML_ABI_COMPUTE) || is_view(node)) continue;
        if (s->abort && s->abort(s->abort_data)) return GGML_ABI_ABORTED;
        const int status = node->op == host.flash_attn_ext ? compute_node(s, graph, i) : compute_on_cpu(s, graph, i);
        if (status) return status;
    }
    return GGML_ABI_SUCCESS;
}

/* ---- Backends ---- */

static void set_n_threads(ggml_backend *backend, int n_threads) {
    state *const s = state_of(backend);
    s->attend.threads.n_threads = n_threads < 1 ? 1 : n_threads;
    if (s->cpu_set_n_threads) s->cpu_set_n_threads(s->cpu, n_threads);
    atomic_store(&is_first_graph, false);
}

static void set_abort_callback(ggml_backend *backend, ggml_abort_callback *callback, void *data) {
    state *const s = state_of(backend);
    s->abort = callback;
    s->abort_data = data;
    if (s->cpu_set_abort_callback) s->cpu_set_abort_callback(s->cpu, callback, data);
}

static void free_backend(ggml_backend *backend) {
    char text[1024];
    state *const s = state_of(backend);
    adapter_counters(text, sizeof text);
    for (char *end = text; (end = strchr(end, '\n'));) *end = end[1] ? ',' : 0;
    host_log(GGML_ABI_LOG_DEBUG, "counted so far: %s", text);
    attend_free(&s->attend);
    host.ggml_backend_free(s->cpu);
    free(s);
    free(backend);
}

static const uint8_t guid[16] = {0x61, 0x74, 0x74, 0x75, 0x6e, 0x65, 0x2d, 0x67,
                                 0x67, 0x6d, 0x6c, 0x2d, 0x61, 0x63, 0x63, 0x31};

static ggml_backend *init_backend(ggml_device *device, const char *params) {
    (void)params;
    ggml_backend *const backend = calloc(1, sizeof *backend), *const cpu =
                                                                  host.ggml_backend_init_by_type(GGML_ABI_CPU, NULL);
    state *const s = calloc(1, sizeof *s);
    if (!backend || !cpu || !s) {
        host_log(GGML_ABI_LOG_WARN, "%s", cpu ? "there is no memory" : "there is no CPU backend");
        if (cpu) host.ggml_backend_free(cpu);
        free(backend);
        free(s);
        return NULL;
    }
    ggml_reg *const reg = host.ggml_backend_dev_backend_reg(host.ggml_backend_get_device(cpu));
    void *const found[] = {host.ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads"),
                           host.ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_abort_callback")};
    s->cpu = cpu;
    memcpy(&s->cpu_set_n_threads, &found[0], sizeof found[0]);
    memcpy(&s->cpu_set_abort_callback, &found[1], sizeof found[1]);
    s->attend.threads.n_threads = 1;
    if (host.is_0_9)
        *(ggml_backend_0_9 *)backend = (ggml_backend_0_9){.guid = &guid,
                                                          .get_name = name_of_backend,
                                                          .free = free_backend,
                                                          .graph_compute = graph_compute,
                                                          .device = device,
                                                          .context = s};
    else
        *backend = (ggml_backend){.guid = &guid,
                                  .get_name = name_of_backend,
                                  .free = free_backend,
                                  .graph_compute = graph_compute,
                                  .device = device,
                                  .context = s};
    atomic_store(&first_tokens, 0);
    atomic_store(&is_first_graph, true);
    return backend;
}

/* ---- The device ---- */

static const char *description = "attune " ATTUNE_VERSION_STRING ": attention compiled for this CPU";

static const char *get_description(ggml_device *device) { return (void)device, description; }

static void get_memory(ggml_device *device, size_t *free_bytes, size_t *total) {
    (void)device;
    *free_bytes = *total = 0;
}

static int get_type(ggml_device *device) { return (void)device, GGML_ABI_ACCEL; }

static void get_props(ggml_device *device, ggml_device_props *props) {
    (void)device;
    *props = (ggml_device_props){.name = "attune", .description = description, .type = GGML_ABI_ACCEL};
}

static ggml_buffer_type *get_buffer_type(ggml_device *device) {
    return (void)device, host.ggml_backend_cpu_buffer_type();
}

static bool supports_buft(ggml_device *device, ggml_buffer_type *type) {
    return (void)device, host.ggml_backend_buft_is_host(type);
}

static ggml_device device = {.get_name = name_of_device,
                             .get_description = get_description,
                             .get_memory = get_memory,
                             .get_type = get_type,
                             .get_props = get_props,
                             .init_backend = init_backend,
                             .get_buffer_type = get_buffer_type,
                             .supports_op = supports_op,
                             .supports_buft = supports_buft};

/* ---- The plug-in ---- */

static bool is_open;

static size_t get_device_count(ggml_reg *reg) { return (void)reg, is_open; }

static ggml_device *get_device(ggml_reg *reg, size_t index) {
    device.reg = reg;
    return is_open && !index ? &device : NULL;
}

static const ggml_feature *get_features(ggml_reg *reg) {
    static const ggml_feature features[] = {{"FLASH_ATTN_EXT", "1"}, {NULL, NULL}};
    return (void)reg, features;
}

static void *get_proc_address(ggml_reg *reg, const char *name) {
    (void)reg;
    void *found = NULL;
    ggml_set_n_threads *const threads = set_n_threads;
    ggml_set_abort_callback *const abort_callback = set_abort_callback;
    const ggml_feature *(*const features)(ggml_reg *) = get_features;
    if (!strcmp(name, "ggml_backend_set_n_threads")) memcpy(&found, &threads, sizeof found);
    if (!strcmp(name, "ggml_backend_set_abort_callback")) memcpy(&found, &abort_callback, sizeof found);
    if (!strcmp(name, "ggml_backend_get_features") && is_open) memcpy(&found, &features, sizeof found);
    return found;
}

static ggml_reg reg = {.api_version = GGML_ABI_API_VERSION,
                       .get_name = name_of_reg,
                       .get_device_count = get_device_count,
                       .get_device = get_device,
                       .get_proc_address = get_proc_address};

/* Called whenever ggml loads the plug-in, perhaps again while a backend computes. */
ggml_reg *ggml_backend_init(void) {
    is_open = host_open(__builtin_return_address(0));
    return &reg;
}
