/* Making a node checks it and says why it cannot be computed; computing it then only chooses by its operator. */
#include "node_run.h"

#include "block.h"
#include "call.h"
#include "common/context.h"
#include "flex.h"
#include "kept.h"
#include "projected.h"

#include <stdio.h>
#include <stdlib.h>

static void read_name(const ort_api *api, const ort_kernel_info *info, char name[NODE_MAX_NAME]) {
    size_t size = NODE_MAX_NAME;
    ort_status *const status = api->KernelInfo_GetNodeName(info, name, &size);
    if (!status) return;
    api->ReleaseStatus(status); /* it is longer */
    snprintf(name, NODE_MAX_NAME, "with a long name");
}

node *node_create_from(const node_source *source, node_op op, const char *name, char message[ATTUNE_MESSAGE_BYTES]) {
    node *const n = calloc(1, sizeof *n);
    snprintf(message, ATTUNE_MESSAGE_BYTES, "there is no memory");
    bool is_made = n && node_describe(source, op, &n->spec, message);
    if (is_made && op == NODE_PROJECTED)
        is_made = (n->block = projected_create(source, n->spec.attributes.num_heads, message));
    if (is_made && op == NODE_FLEX) is_made = (n->functions = flex_create(source, message));
    if (is_made) {
        n->api = source->api;
        n->plans.context = common_context(NULL, NULL);
        n->plans.functions = n->functions;
        snprintf(n->spec.name, sizeof n->spec.name, "%s", name);
        return n;
    }
    free(n);
    return NULL;
}

node *node_create(const ort_api *api, const ort_kernel_info *info, node_op op, ort_status **status) {
    const node_source source = {.api = api, .info = info};
    char message[ATTUNE_MESSAGE_BYTES], name[NODE_MAX_NAME];
    char text[sizeof message + sizeof name + 80];
    read_name(api, info, name);
    node *const n = node_create_from(&source, op, name, message);
    if (n) return n;
    snprintf(text, sizeof text, "attune cannot compute node '%s' (%s): %s", name, node_rule_of(op)->type, message);
    *status = api->CreateStatus(ORT_NOT_IMPLEMENTED, text);
    return NULL;
}

node *node_create_block(const ort_api *api, const node_spec *spec, block *b) {
    node *const n = calloc(1, sizeof *n);
    if (n) *n = (node){.api = api, .spec = *spec, .block = b, .plans.context = common_context(NULL, NULL)};
    return n;
}

void node_destroy(node *n) {
    if (!n) return;
    common_plans_free(&n->plans);
    block_free(n->block);
    free(n->functions);
    kept_free(n);
    free(n->places);
    free(n);
}

ort_status *node_compute(node *n, ort_kernel_context *context) {
    static bool (*const compute[NODE_KIND_COUNT])(call *) = {
        call_attention, call_multi_head, call_group_query, call_block, call_linear,
        call_linear,    call_conv,       call_conv,        call_block, call_flex};
    static adapter_counter ran[NODE_KIND_COUNT] = {{.name = "Attention.ran"},
                                                   {.name = "MultiHeadAttention.ran"},
                                                   {.name = "GroupQueryAttention.ran"},
                                                   {.name = "com.microsoft.Attention.ran"},
                                                   {.name = "LinearAttention.ran"},
                                                   {.name = "com.microsoft.LinearAttention.ran"},
                                                   {.name = "CausalConvWithState.ran"},
                                                   {.name = "com.microsoft.CausalConvWithState.ran"},
                                                   {.name = "block.ran"},
                                                   {.name = "FlexAttention.ran"}};
    __attribute__((cleanup(call_free))) call c; /* also when ONNX Runtime throws */
    call_begin(&c, n, context);
    if (!compute[n->spec.op](&c)) return call_failure(&c);
    adapter_count(&ran[n->spec.op]);
    return NULL;
}
