/* One set of questions with two answers: from the node of a graph, while a session is made, and from a kernel's info,
 * where ONNX Runtime makes the kernel itself. */
#include "source.h"

#include "graph.h"
#include "note.h"

#include <string.h>

enum { MOST = 64 }; /* inputs, outputs or attributes of a node that is examined */

static bool done(const ort_api *api, ort_status *status) {
    if (status) api->ReleaseStatus(status);
    return !status;
}

static const ort_attribute *attribute_at(const node_source *s, size_t index) {
    const ort_attribute *all[MOST];
    size_t count;
    if (!done(s->api, s->api->Node_GetNumAttributes(s->node, &count)) || count > MOST || index >= count ||
        !done(s->api, s->api->Node_GetAttributes(s->node, all, count)))
        return NULL;
    return all[index];
}

const char *source_attribute(const node_source *s, size_t index) {
    const char *name;
    const ort_attribute *const attribute = s->node && !s->note ? attribute_at(s, index) : NULL;
    return attribute && done(s->api, s->api->OpAttr_GetName(attribute, &name)) ? name : NULL;
}

static bool read_attribute(const node_source *s, const char *name, int type, void *value, size_t bytes) {
    size_t needed;
    for (size_t i = 0;; i++) {
        const char *const have = source_attribute(s, i);
        if (!have) return false;
        if (!strcmp(have, name))
            return done(s->api, s->api->ReadOpAttr(attribute_at(s, i), type, value, bytes, &needed));
    }
}

bool source_whole(const node_source *s, const char *name, int64_t *value) {
    if (s->note) return note_get(s->note, name, value, 1) == 1;
    if (s->node) return read_attribute(s, name, ORT_ATTRIBUTE_INT, value, sizeof *value);
    return done(s->api, s->api->KernelInfoGetAttribute_int64(s->info, name, value));
}

bool source_real(const node_source *s, const char *name, float *value) {
    if (s->note) return note_get_real(s->note, name, value);
    if (s->node) return read_attribute(s, name, ORT_ATTRIBUTE_FLOAT, value, sizeof *value);
    return done(s->api, s->api->KernelInfoGetAttribute_float(s->info, name, value));
}

size_t source_wholes(const node_source *s, const char *name, int64_t *values, size_t capacity) {
    const char *have;
    size_t bytes = 0;
    if (s->note) return note_get(s->note, name, values, capacity);
    if (!s->node)
        return done(s->api, s->api->KernelInfoGetAttributeArray_int64(s->info, name, values, &capacity)) ? capacity : 0;
    for (size_t i = 0; (have = source_attribute(s, i)); i++)
        if (!strcmp(have, name))
            return done(s->api, s->api->ReadOpAttr(attribute_at(s, i), ORT_ATTRIBUTE_INTS, values,
                                                   capacity * sizeof *values, &bytes))
                       ? bytes / sizeof *values
                       : 0;
    return 0;
}

bool source_text(const node_source *s, const char *name, char *text, size_t capacity) {
    memset(text, 0, capacity);
    if (s->node) return read_attribute(s, name, ORT_ATTRIBUTE_STRING, text, capacity - 1);
    return done(s->api, s->api->KernelInfoGetAttribute_string(s->info, name, text, &capacity));
}

bool source_has_text(const node_source *s, const char *name) {
    size_t size = 0;
    if (!s->node) return done(s->api, s->api->KernelInfoGetAttribute_string(s->info, name, NULL, &size));
    const char *have;
    for (size_t i = 0; (have = source_attribute(s, i)); i++)
        if (!strcmp(have, name)) return true;
    return false;
}

typedef ort_status *count_fn(const ort_kernel_info *info, size_t *count);
typedef ort_status *name_fn(const ort_kernel_info *info, size_t index, char *name, size_t *size);

/* An absent input or output has an empty name, whose size is 1, the NUL. */
static bool is_named(const node_source *s, size_t index, count_fn *count_of, name_fn *name_of) {
    size_t count, size = 0;
    return done(s->api, count_of(s->info, &count)) && index < count &&
           done(s->api, name_of(s->info, index, NULL, &size)) && size > 1;
}

typedef ort_status *node_count_fn(const ort_node *node, size_t *count);
typedef ort_status *node_values_fn(const ort_node *node, const ort_value_info **values, size_t count);

static bool is_given(const node_source *s, size_t index, node_count_fn *count_of, node_values_fn *values_of) {
    const ort_value_info *all[MOST];
    size_t count;
    return done(s->api, count_of(s->node, &count)) && index < count && count <= MOST &&
           done(s->api, values_of(s->node, all, count)) && all[index];
}

/* The index of an input or output of the operator; MOST: there is none. */
static size_t place_of(const node_source *s, const int8_t *places, size_t most, size_t index) {
    if (!s->note) return index;
    return index < most && places[index] >= 0 ? (size_t)places[index] : MOST;
}

static size_t input_place(const node_source *s, size_t index) {
    return place_of(s, s->note ? s->places->inputs : NULL, NODE_MAX_INPUTS, index);
}

bool source_has_input(const node_source *s, size_t index) {
    index = input_place(s, index);
    if (s->node) return is_given(s, index, s->api->Node_GetNumInputs, s->api->Node_GetInputs);
    return is_named(s, index, s->api->KernelInfo_GetInputCount, s->api->KernelInfo_GetInputName);
}

bool source_has_output(const node_source *s, size_t index) {
    index = place_of(s, s->note ? s->places->outputs : NULL, NODE_MAX_OUTPUTS, index);
    if (s->node) return is_given(s, index, s->api->Node_GetNumOutputs, s->api->Node_GetOutputs);
    return is_named(s, index, s->api->KernelInfo_GetOutputCount, s->api->KernelInfo_GetOutputName);
}

bool source_constant(const node_source *s, size_t index, tensor *t) {
    const ort_value *value = NULL;
    int is_constant = 0;
    if (s->node) return graph_constant(s->api, graph_input(s->api, s->node, input_place(s, index)), t);
    return source_has_input(s, index) &&
           done(s->api, s->api->KernelInfoGetConstantInput_tensor(s->info, index, &is_constant, &value)) &&
           is_constant && value && done(s->api, tensor_read(s->api, value, t)) && t->rank <= TENSOR_MAX_RANK;
}

bool source_shape(const node_source *s, size_t index, graph_shape *shape) {
    ort_type_info *type;
    if (!source_has_input(s, index)) return false;
    if (s->node) return graph_shape_of(s->api, graph_input(s->api, s->node, input_place(s, index)), shape);
    if (!done(s->api, s->api->KernelInfo_GetInputTypeInfo(s->info, index, &type))) return false;
    const bool is_known = graph_shape_of_type(s->api, type, shape);
    for (int i = 0; i < TENSOR_MAX_RANK; i++) shape->names[i] = ""; /* they go with the type */
    s->api->ReleaseTypeInfo(type);
    return is_known;
}

int source_input_type(const node_source *s, size_t index) {
    ort_type_info *info;
    const ort_shape *shape = NULL;
    int type = ORT_UNDEFINED;
    if (!s->info || !source_has_input(s, index) ||
        !done(s->api, s->api->KernelInfo_GetInputTypeInfo(s->info, index, &info)))
        return type;
    if (!done(s->api, s->api->CastTypeInfoToTensorInfo(info, &shape)) || !shape ||
        !done(s->api, s->api->GetTensorElementType(shape, &type)))
        type = ORT_UNDEFINED;
    s->api->ReleaseTypeInfo(info);
    return type;
}
