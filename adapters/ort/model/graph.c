/* Short questions about nodes and values, each some calls of ONNX Runtime; what fails is treated as absent, so that a
 * strange graph is left alone. */
#include "graph.h"

#include <string.h>

enum { MOST = 64 }; /* inputs or outputs of a node that is examined */

static bool done(const ort_api *api, ort_status *status) {
    if (status) api->ReleaseStatus(status);
    return !status;
}

bool graph_shape_of_type(const ort_api *api, const ort_type_info *type, graph_shape *s) {
    const ort_shape *shape = NULL;
    size_t rank = 0;
    memset(s, 0, sizeof *s);
    if (!done(api, api->CastTypeInfoToTensorInfo(type, &shape)) || !shape ||
        !done(api, api->GetTensorElementType(shape, &s->type)) || !done(api, api->GetDimensionsCount(shape, &rank)) ||
        !rank || rank > TENSOR_MAX_RANK)
        return false;
    s->rank = (int)rank;
    return done(api, api->GetDimensions(shape, s->dims, rank)) &&
           done(api, api->GetSymbolicDimensions(shape, s->names, rank));
}

bool graph_shape_of(const ort_api *api, const ort_value_info *value, graph_shape *s) {
    const ort_type_info *type = NULL;
    return done(api, api->GetValueInfoTypeInfo(value, &type)) && type && graph_shape_of_type(api, type, s);
}

const ort_node *graph_producer(const ort_api *api, const ort_value_info *value, size_t *index) {
    const ort_node *n = NULL;
    return done(api, api->ValueInfo_GetValueProducer(value, &n, index)) ? n : NULL;
}

bool graph_consumers(const ort_api *api, const ort_value_info *value, const ort_node *nodes[GRAPH_MAX_CONSUMERS],
                     size_t *count) {
    int64_t indices[GRAPH_MAX_CONSUMERS];
    return done(api, api->ValueInfo_GetValueNumConsumers(value, count)) && *count <= GRAPH_MAX_CONSUMERS &&
           done(api, api->ValueInfo_GetValueConsumers(value, nodes, indices, *count));
}

bool graph_is_output(const ort_api *api, const ort_value_info *value) {
    bool is_output = true;
    return !done(api, api->ValueInfo_IsGraphOutput(value, &is_output)) || is_output;
}

static bool is(const ort_api *api, const ort_node *n, const char *wanted_domain, const char *wanted) {
    const char *type, *domain;
    if (!done(api, api->Node_GetOperatorType(n, &type)) || strcmp(type, wanted) ||
        !done(api, api->Node_GetDomain(n, &domain)))
        return false;
    if (!strcmp(domain, "ai.onnx")) domain = "";
    return !strcmp(domain, wanted_domain);
}

bool graph_is(const ort_api *api, const ort_node *n, const char *type) { return is(api, n, "", type); }

bool graph_is_contributed(const ort_api *api, const ort_node *n, const char *type) {
    return is(api, n, "com.microsoft", type);
}

int graph_version(const ort_api *api, const ort_node *n) {
    int version = 0;
    return done(api, api->Node_GetSinceVersion(n, &version)) ? version : 0;
}

const ort_value_info *graph_input(const ort_api *api, const ort_node *n, size_t index) {
    const ort_value_info *all[MOST];
    size_t count;
    return done(api, api->Node_GetNumInputs(n, &count)) && index < count && count <= MOST &&
                   done(api, api->Node_GetInputs(n, all, count))
               ? all[index]
               : NULL;
}

const ort_value_info *graph_output(const ort_api *api, const ort_node *n, size_t index) {
    const ort_value_info *all[MOST];
    size_t count;
    return done(api, api->Node_GetNumOutputs(n, &count)) && index < count && count <= MOST &&
                   done(api, api->Node_GetOutputs(n, all, count))
               ? all[index]
               : NULL;
}

bool graph_constant(const ort_api *api, const ort_value_info *value, tensor *t) {
    bool is_constant = false;
    const ort_value *constant = NULL;
    return value && done(api, api->ValueInfo_IsConstantInitializer(value, &is_constant)) && is_constant &&
           done(api, api->ValueInfo_GetInitializerValue(value, &constant)) && constant &&
           done(api, tensor_read(api, constant, t)) && t->rank <= TENSOR_MAX_RANK;
}

bool graph_number(const ort_api *api, const ort_value_info *value, double *number) {
    tensor t;
    if (!graph_constant(api, value, &t) || tensor_count(&t) != 1) return false;
    if (t.dtype == ATTUNE_F32) *number = (double)*(const float *)t.data;
    if (t.dtype == ATTUNE_F64) *number = *(const double *)t.data;
    return t.dtype == ATTUNE_F32 || t.dtype == ATTUNE_F64;
}

const char *graph_name(const ort_api *api, const ort_value_info *value) {
    const char *name;
    return done(api, api->GetValueInfoName(value, &name)) ? name : "";
}
