/* attune's object for a description of attune/linear.h, which its node keeps. Calls only differ in lengths, unless the
 * model leaves other dims open; for a description that differs from the first call's, an object is created for that
 * call alone. */
#ifndef ATTUNE_ORT_KEPT_H
#define ATTUNE_ORT_KEPT_H

#include "call.h"

typedef struct kept_kind {
    size_t bytes; /* of a description, which is compared including its padding */
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

/* After a call: frees an object that was created for that call. k may be NULL. */
void kept_release(kept *k);

/* Frees what a node has kept. */
void kept_free(node *n);

#endif
