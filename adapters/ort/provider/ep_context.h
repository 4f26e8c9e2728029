/* EPContext nodes, ONNX Runtime's form of what an execution provider has compiled: attune's have a note of the node
 * that each stands for, and one of them, the main one, has a signed pack of kernels (docs/packs.md) or its file's name.
 */
#ifndef ATTUNE_ORT_EP_CONTEXT_H
#define ATTUNE_ORT_EP_CONTEXT_H

#include "ort/model/graph.h"
#include "ort/model/note.h"

enum { EP_CONTEXT_PATH = 4096 };

/* What the options of a session say. */
typedef struct ep_context_wish {
    bool is_made;               /* a model with EPContext nodes is to be written */
    bool is_embedded;           /* with the pack in it, not beside it */
    char pack[EP_CONTEXT_PATH]; /* "": that of ATTUNE_CACHE_PACK */
    char file[EP_CONTEXT_PATH]; /* the model that is written, or that was; "": not said */
} ep_context_wish;

void ep_context_read_wish(const ort_api *api, const ort_session_options *options, ep_context_wish *wish);

/* Whether a node is an EPContext node of attune's. */
bool ep_context_is_own(const ort_api *api, const ort_node *n);

/* The EPContext node for a fused node of `graph`. NULL after a failure, with a sentence. */
ort_node *ep_context_make(const ort_api *api, const ep_context_wish *wish, const ort_graph *graph,
                          const ort_node *fused, const note *n, bool is_main, char message[ATTUNE_MESSAGE_BYTES]);

/* False if it is no note of this version: a sentence. */
bool ep_context_note(const ort_api *api, const ort_node *n, note *read, char message[ATTUNE_MESSAGE_BYTES]);

bool ep_context_is_main(const ort_api *api, const ort_node *n);

/* attune's context with the kernels of a main node. NULL after a failure, with a sentence. */
attune_context *ep_context_open(const ort_api *api, const ep_context_wish *wish, const ort_graph *graph,
                                const ort_node *n, char message[ATTUNE_MESSAGE_BYTES]);

#endif
