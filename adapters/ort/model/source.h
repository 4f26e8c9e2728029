/* Reads a node of a model, in either of the two forms that ONNX Runtime has for it. */
#ifndef ATTUNE_ORT_SOURCE_H
#define ATTUNE_ORT_SOURCE_H

#include "graph.h"
#include "note.h"

/* The description of a node: exactly one of the two is set. */
typedef struct node_source {
    const ort_api *api;
    const ort_kernel_info *info;      /* a kernel is being made */
    const ort_node *node;             /* the graph is being divided among the execution providers */
    const note *note;                 /* with `node`, which is the EPContext node of this note; else NULL */
    const struct node_places *places; /* with `note` */
} node_source;

enum { NODE_MAX_NAME = 256, NODE_MAX_INPUTS = 24, NODE_MAX_OUTPUTS = 4 };

/* The index of each input and output of an operator among those of the node that replaces it; -1: absent. */
typedef struct node_places {
    int8_t inputs[NODE_MAX_INPUTS], outputs[NODE_MAX_OUTPUTS];
    uint32_t own_types; /* bit i: input i has its own type, which each call checks */
} node_places;

/* graph_shape_of_type of an input; false also if it is absent. Only a node of a graph has names of dims. */
bool source_shape(const node_source *source, size_t index, graph_shape *shape);

/* The value of an attribute. False if the node has no attribute with this name and kind. */
bool source_whole(const node_source *source, const char *name, int64_t *value);
bool source_real(const node_source *source, const char *name, float *value);

/* The numbers of a list attribute. Returns how many there are; 0 if there is no such list, or it is longer than
 * `capacity`. */
size_t source_wholes(const node_source *source, const char *name, int64_t *values, size_t capacity);

/* The same for a string; false also if it is longer than the buffer. */
bool source_text(const node_source *source, const char *name, char *text, size_t capacity);

/* Whether the node has a string attribute with this name, of any length. */
bool source_has_text(const node_source *source, const char *name);

/* Whether an optional input or output is present. */
bool source_has_input(const node_source *source, size_t index);
bool source_has_output(const node_source *source, size_t index);

/* The tensor of a constant input. False if the input is not constant, or absent. */
bool source_constant(const node_source *source, size_t index, tensor *t);

/* The element type of an input, ORT_UNDEFINED if it is unknown. Only for a kernel. */
int source_input_type(const node_source *source, size_t index);

/* The name of the node's attribute `index`; NULL after the last one. Only for a node of a graph. */
const char *source_attribute(const node_source *source, size_t index);

#endif
