/* Runs steps of an operator of attune/linear.h with an object that the node keeps. Calls only differ in lengths, unless
 * the model leaves other dims open; for a description that differs from the first call's, an object is created for that
 * call alone. */
#ifndef ATTUNE_ORT_KEPT_H
#define ATTUNE_ORT_KEPT_H

#include "call.h"

/* The functions of an operator. */
typedef struct kept_kind {
    size_t bytes; /* of a description, which is compared including its padding */
    attune_status (*create)(attune_context *context, const void *desc, void **object);
    attune_status (*run)(void *object, const void *step);
    void (*destroy)(void *object);
} kept_kind;

/* Defines the kind of attune_OP_create, _run and _destroy. */
#define KEPT_KIND(op)                                                                                                  \
    static attune_status create(attune_context *context, const void *desc, void **object) {                            \
        attune_##op *made;                                                                                             \
        const attune_status status = attune_##op##_create(context, desc, &made);                                       \
        *object = made;                                                                                                \
        return status;                                                                                                 \
    }                                                                                                                  \
    static attune_status run(void *object, const void *given) { return attune_##op##_run(object, given); }             \
    static void destroy(void *object) { attune_##op##_destroy(object); }                                               \
    static const kept_kind kind = {sizeof(attune_##op##_desc), create, run, destroy}

/* Runs a step. False after a failure of the call. */
bool kept_run(call *c, const kept_kind *kind, const void *desc, const void *step);

/* Frees what a node has kept. */
void kept_free(node *n);

#endif
