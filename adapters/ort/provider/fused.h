/* Blocks that ONNX Runtime fuses into one node each, and attune computes. */
#ifndef ATTUNE_ORT_FUSED_H
#define ATTUNE_ORT_FUSED_H

#include "block_match.h"
#include "ep_context.h"

typedef struct fused_block fused_block;

/* The blocks that a provider has found in the graphs of its session. All zeros is an empty list. */
typedef struct fused_blocks {
    fused_block *first;
} fused_blocks;

/* Whether attune can compute blocks of these sizes. */
bool fused_is_supported(const block_match *m);

/* Records what is needed to compile a block: names, because it will be in another graph object. False if out of memory.
 */
bool fused_add(fused_blocks *all, const ort_api *api, const block_match *m);

/* The options of a session's provider, and the contexts of its EPContext nodes. */
typedef struct fused_session {
    fused_blocks blocks;
    ep_context_wish wish;
    attune_context **contexts;
    size_t num_contexts;
} fused_session;

/* Compiles a fused node: packs the weights of a block, whose graph has its nodes only; makes the node of an operator,
 * or that which an EPContext node stands for, with the kernels of `context`. A note for another EPContext node is put
 * into *n. */
ort_status *fused_compile(const fused_session *s, const ort_api *api, const ort_graph *graph, const ort_node *fused,
                          attune_context *context, note *n, ort_compute **compute);

/* attune's context for the EPContext nodes among these graphs: that of their main node, which the session keeps. NULL,
 * and no status, if there are none. */
ort_status *fused_open_context(fused_session *s, const ort_api *api, const ort_graph **graphs, size_t count,
                               attune_context **context);
void fused_close(fused_session *s);

/* Whether an EPContext node replaces a node with packed weights, so that no call reads its constants. */
bool fused_packs_constants(const ort_api *api, const ort_node *n);
void fused_release(ort_compute *compute);

#endif
