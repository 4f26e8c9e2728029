/* EPContext nodes are ONNX Runtime's form for what an execution provider has compiled. Each of attune's has a note of
 * the original node, and one of them, the main node, has a signed pack of kernels (docs/packs.md), or the name of its
 * file. */
#ifndef ATTUNE_ORT_EP_CONTEXT_H
#define ATTUNE_ORT_EP_CONTEXT_H

#include "ort/model/graph.h"
#include "ort/model/note.h"

enum { EP_CONTEXT_PATH = 4096 };

/* The options of a session. */
typedef struct ep_context_wish {
    bool is_made;               /* write a model with EPContext nodes */
    bool is_embedded;           /* with the pack in the model, not beside it */
    char pack[EP_CONTEXT_PATH]; /* "": that of ATTUNE_CACHE_PACK */
    char file[EP_CONTEXT_PATH]; /* the path of the written model; "": unknown */
} ep_context_wish;

void ep_context_read_wish(const ort_api *api, const ort_session_options *options, ep_context_wish *wish);

/* Whether a node is an EPContext node of attune. */
bool ep_context_is_own(const ort_api *api, const ort_node *n);

/* The EPContext node for a fused node of `graph`. NULL after a failure, with a sentence. */
ort_node *ep_context_make(const ort_api *api, const ep_context_wish *wish, const ort_graph *graph,
                          const ort_node *fused, const note *n, bool is_main, char message[ATTUNE_MESSAGE_BYTES]);

/* False if it is no note of this version, with a sentence. */
bool ep_context_note(const ort_api *api, const ort_node *n, note *read, char message[ATTUNE_MESSAGE_BYTES]);

bool ep_context_is_main(const ort_api *api, const ort_node *n);

/* attune's context with the kernels of a main node. NULL after a failure, with a sentence. */
attune_context *ep_context_open(const ort_api *api, const ep_context_wish *wish, const ort_graph *graph,
                                const ort_node *n, char message[ATTUNE_MESSAGE_BYTES]);

#endif
