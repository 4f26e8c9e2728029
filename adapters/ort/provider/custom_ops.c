/* Custom operators: those with ONNX Runtime's domains and names, which override its operators in sessions that register
 * them, and attune's own. */
#include "custom_ops.h"

#include "ort/attune_ort.h"
#include "common/context.h"
#include "ort/operators/node_run.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* An operator for one element type. ONNX Runtime passes back the table, which is the first member. */
typedef struct typed_op {
    ort_custom_op table;
    node_op op;
    int type;
} typed_op;

static const typed_op *typed(const ort_custom_op *op) { return (const typed_op *)op; }
static const node_rule *rule_of(const ort_custom_op *op) { return node_rule_of(typed(op)->op); }

static const char *get_name(const ort_custom_op *op) { return rule_of(op)->type; }

static const char *get_provider(const ort_custom_op *op) {
    (void)op;
    return NULL; /* the CPU's */
}

static size_t input_count(const ort_custom_op *op) { return rule_of(op)->num_inputs; }
static size_t output_count(const ort_custom_op *op) { return rule_of(op)->num_outputs; }

/* Inputs for lengths, positions and masks have their own types, which each call checks. Caches and states do not,
 * because a custom operator cannot declare that for its outputs; so only the execution provider supports quantised
 * caches, and states of another type. */
static int input_type(const ort_custom_op *op, size_t index) {
    const uint32_t own = node_own_types(typed(op)->op) & ~node_carried(typed(op)->op);
    return own >> index & 1 ? ORT_UNDEFINED : typed(op)->type;
}

static int output_type(const ort_custom_op *op, size_t index) {
    (void)index;
    return typed(op)->type;
}

static int input_kind(const ort_custom_op *op, size_t index) {
    return index < rule_of(op)->num_required ? ORT_REQUIRED : ORT_OPTIONAL;
}

static int output_kind(const ort_custom_op *op, size_t index) {
    (void)op;
    return index ? ORT_OPTIONAL : ORT_REQUIRED;
}

static int memory_type(const ort_custom_op *op, size_t index) {
    (void)op, (void)index;
    return ORT_MEMORY_DEFAULT;
}

static int no_arity(const ort_custom_op *op) {
    (void)op;
    return 0; /* nothing is variadic */
}

static int first_version(const ort_custom_op *op) { return rule_of(op)->first_version; }
static int last_version(const ort_custom_op *op) { return rule_of(op)->last_version; }

static ort_status *create_kernel(const ort_custom_op *op, const ort_api *api, const ort_kernel_info *info,
                                 void **kernel) {
    ort_status *status = NULL;
    *kernel = node_create(api, info, typed(op)->op, &status);
    return status;
}

static ort_status *compute(void *kernel, ort_kernel_context *context) { return node_compute(kernel, context); }
static void destroy(void *kernel) { node_destroy(kernel); }

static const ort_custom_op table = {
    .version = ORT_VERSION_OPS,
    .GetName = get_name,
    .GetExecutionProviderType = get_provider,
    .GetInputType = input_type,
    .GetInputTypeCount = input_count,
    .GetOutputType = output_type,
    .GetOutputTypeCount = output_count,
    .KernelDestroy = destroy,
    .GetInputCharacteristic = input_kind,
    .GetOutputCharacteristic = output_kind,
    .GetInputMemoryType = memory_type,
    .GetVariadicInputMinArity = no_arity,
    .GetVariadicInputHomogeneity = no_arity,
    .GetVariadicOutputMinArity = no_arity,
    .GetVariadicOutputHomogeneity = no_arity,
    .CreateKernelV2 = create_kernel,
    .KernelComputeV2 = compute,
    .GetStartVersion = first_version,
    .GetEndVersion = last_version,
};

/* ---- Registration ---- */

enum { NUM_TYPES = 4, NUM_DOMAINS = 3, OWN_DOMAIN = 2 };
static const int types[NUM_TYPES] = {ORT_FLOAT, ORT_FLOAT16, ORT_BFLOAT16, ORT_DOUBLE};
static const char *const domain_names[NUM_DOMAINS] = {"", "com.microsoft", "attune"};

/* The domains of an ONNX Runtime, shared by all its sessions. They are never freed, as sessions refer to them, and
 * there is no callback after the last session. A process has one ONNX Runtime, seldom two. */
typedef struct domains {
    const ort_api *api;
    ort_domain *made[NUM_DOMAINS];
    typed_op ops[NODE_KIND_COUNT][NUM_TYPES];
    struct domains *next;
} domains;

/* The operators of com.microsoft do not support double. */
static int num_types(node_op op) {
    if (op == NODE_BLOCK) return 0;
    return op == NODE_ATTENTION || op == NODE_FLEX ? NUM_TYPES : NUM_TYPES - 1;
}

static int domain_of(node_op op) {
    int i = 0;
    while (strcmp(domain_names[i], node_rule_of(op)->domain)) i++;
    return i;
}

static ort_status *fill(domains *d) {
    ort_status *status = NULL;
    for (int i = 0; i < NUM_DOMAINS && !status; i++)
        status = d->api->CreateCustomOpDomain(domain_names[i], &d->made[i]);
    for (int op = 0; op < NODE_KIND_COUNT && !status; op++)
        for (int i = 0; i < num_types((node_op)op) && !status; i++) {
            d->ops[op][i] = (typed_op){.table = table, .op = (node_op)op, .type = types[i]};
            status = d->api->CustomOpDomain_Add(d->made[domain_of((node_op)op)], &d->ops[op][i].table);
        }
    return status;
}

static ort_status *find_domains(const ort_api *api, domains **found) {
    static domains *all;
    ort_status *status = NULL;
    domains *d = all;
    while (d && d->api != api) d = d->next;
    *found = d;
    if (d) return NULL;
    if (!(d = calloc(1, sizeof *d))) return api->CreateStatus(ORT_FAIL, "attune: there is no memory");
    d->api = api;
    if ((status = fill(d))) {
        free(d);
        return status;
    }
    d->next = all;
    *found = all = d;
    return NULL;
}

static ort_status *domains_of(const ort_api *api, domains **found) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    const char *message;
    if (!common_context(NULL, &message)) return api->CreateStatus(ORT_FAIL, message);
    pthread_mutex_lock(&lock);
    ort_status *const status = find_domains(api, found);
    pthread_mutex_unlock(&lock);
    return status;
}

ort_status *custom_ops_own(const ort_api *api, ort_domain **domain) {
    domains *d = NULL;
    ort_status *const status = domains_of(api, &d);
    if (!status) *domain = d->made[OWN_DOMAIN];
    return status;
}

ort_status *RegisterCustomOps(ort_session_options *options, const ort_base *base) {
    ort_status *status;
    domains *d = NULL;
    const ort_api *const api = adapter_open(base, ORT_VERSION_OPS, &status);
    if (!api) return status;
    status = domains_of(api, &d);
    for (int i = 0; i < NUM_DOMAINS && !status; i++) status = api->AddCustomOpDomain(options, d->made[i]);
    return status;
}
