/* Reads the graph of a model. A failure of ONNX Runtime counts as "absent". */
#ifndef ATTUNE_ORT_GRAPH_H
#define ATTUNE_ORT_GRAPH_H

#include "ort/tensor.h"

enum { GRAPH_MAX_CONSUMERS = 32 };

/* What is known of a value's shape before the model runs. */
typedef struct graph_shape {
    int type, rank;
    int64_t dims[TENSOR_MAX_RANK]; /* -1: unknown */
    const char
        *names[TENSOR_MAX_RANK]; /* names of unknown dims; "" if there is none. Dims with the same name are equal */
} graph_shape;

/* False if the type is not a tensor, or the rank is unknown, 0, or above TENSOR_MAX_RANK. */
bool graph_shape_of_type(const ort_api *api, const ort_type_info *type, graph_shape *shape);
bool graph_shape_of(const ort_api *api, const ort_value_info *value, graph_shape *shape);

/* The node that computes a value, as its output *index; NULL for inputs and constants. */
const ort_node *graph_producer(const ort_api *api, const ort_value_info *value, size_t *index);

/* The nodes that read a value, each as often as it reads it. False if there are too many. */
bool graph_consumers(const ort_api *api, const ort_value_info *value, const ort_node *nodes[GRAPH_MAX_CONSUMERS],
                     size_t *count);

bool graph_is_output(const ort_api *api, const ort_value_info *value);

/* Whether a node is this operator of ONNX's domain, or of com.microsoft. */
bool graph_is(const ort_api *api, const ort_node *n, const char *type);
bool graph_is_contributed(const ort_api *api, const ort_node *n, const char *type);
int graph_version(const ort_api *api, const ort_node *n);

/* An input or output; NULL if it is absent. */
const ort_value_info *graph_input(const ort_api *api, const ort_node *n, size_t index);
const ort_value_info *graph_output(const ort_api *api, const ort_node *n, size_t index);

/* The tensor of a constant. False if the value is no constant. */
bool graph_constant(const ort_api *api, const ort_value_info *value, tensor *t);

/* The same for a single float of any rank. */
bool graph_number(const ort_api *api, const ort_value_info *value, double *number);

const char *graph_name(const ort_api *api, const ort_value_info *value);

#endif
