/* A node at run time: created from a node of a model, computes its calls. */
#ifndef ATTUNE_ORT_NODE_RUN_H
#define ATTUNE_ORT_NODE_RUN_H

#include "node.h"

/* Creates the node of a kernel. NULL after a failure; *status names the node. */
node *node_create(const ort_api *api, const ort_kernel_info *info, node_op op, ort_status **status);

/* The node of a graph's node. NULL after a failure, with a sentence. */
node *node_create_from(const node_source *source, node_op op, const char *name, char message[ATTUNE_MESSAGE_BYTES]);

/* The node of a block, whose ownership it takes. NULL if out of memory. */
node *node_create_block(const ort_api *api, const node_spec *spec, struct block *b);
ort_status *node_compute(node *n, ort_kernel_context *context);
void node_destroy(node *n);

#endif
