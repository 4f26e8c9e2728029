/* One context for all objects that were created without one. It is published by one compare-and-swap and never freed,
 * so it needs no lock that fork() could leave taken. */
#include "attention/attention.h"

#include "engine/context.h"

#include <stdatomic.h>

attune_status attune_shared_context(attune_context **context) {
    static _Atomic(attune_context *) shared;
    at_error err = {0};
    if (!context) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_shared_context was given NULL");
        return at_report(&err);
    }
    *context = atomic_load(&shared);
    if (*context) return ATTUNE_OK;
    const attune_status status = attune_context_create(NULL, context);
    attune_context *first = NULL;
    if (status || atomic_compare_exchange_strong(&shared, &first, *context)) return status;
    attune_context_destroy(*context); /* another thread was faster */
    *context = first;
    return ATTUNE_OK;
}
