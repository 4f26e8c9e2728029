/* Reading a node of a model, in either of the two forms in which ONNX Runtime shows it. */
#ifndef ATTUNE_ORT_SOURCE_H
#define ATTUNE_ORT_SOURCE_H

#include "node.h"
#include "tensor.h"

/* What is known of a value's shape before the model runs. */
typedef struct graph_shape {
    int type, rank;
    int64_t dims[TENSOR_MAX_RANK];      /* -1: unknown */
    const char *names[TENSOR_MAX_RANK]; /* of unknown dims; "" if there is none. Dims of one name are equal */
} graph_shape;

/* False if the type is no tensor's, or the rank is unknown, 0, or more than TENSOR_MAX_RANK. */
bool source_shape_of_type(const ort_api *api, const ort_type_info *type, graph_shape *shape);

/* The same of an input; false if it is not there, too. Names of dims are those of a graph's node only. */
bool source_shape(const node_source *source, size_t index, graph_shape *shape);

/* The value of an attribute. False if the node has none of this name and kind. */
bool source_whole(const node_source *source, const char *name, int64_t *value);
bool source_real(const node_source *source, const char *name, float *value);

/* The numbers of a list. Returns how many there are; 0 if there is no such list, or it is longer than `capacity`. */
size_t source_wholes(const node_source *source, const char *name, int64_t *values, size_t capacity);

/* The same of a string; false if it is longer than the buffer, too. */
bool source_text(const node_source *source, const char *name, char *text, size_t capacity);

/* Whether the node has a text of this name, however long. */
bool source_has_text(const node_source *source, const char *name);

/* Whether an optional input or output is there. */
bool source_has_input(const node_source *source, size_t index);
bool source_has_output(const node_source *source, size_t index);

/* The tensor of a constant input. False if the input is none, or not there. */
bool source_constant(const node_source *source, size_t index, tensor *t);

/* The element type of an input, ORT_UNDEFINED if it is unknown. Of a kernel only. */
int source_input_type(const node_source *source, size_t index);

/* The name of the node's attribute `index`; NULL after the last one. Of a graph's node only: a kernel does not tell. */
const char *source_attribute(const node_source *source, size_t index);

#endif
