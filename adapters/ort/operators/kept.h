/* attune's object for a description of attune/linear.h, kept by its node. Calls differ in lengths only, unless the
 * model leaves other dims open: what differs from the first call is made for one call. */
#ifndef ATTUNE_ORT_KEPT_H
#define ATTUNE_ORT_KEPT_H

#include "call.h"

typedef struct kept_kind {
    size_t bytes; /* of a description, which is compared with its padding */
    attune_status (*create)(attune_context *context, const void *desc, void **object);
    void (*destroy)(void *object);
} kept_kind;

typedef struct kept {
    const kept_kind *kind;
    void *object, *desc;
    bool is_kept; /* by the node, until it ends */
} kept;

/* NULL after a failure of the call. */
kept *kept_find(call *c, const kept_kind *kind, const void *desc);

/* After a call: frees what was made for it alone. k may be NULL. */
void kept_release(kept *k);

/* Frees what a node has kept. */
void kept_free(node *n);

#endif
