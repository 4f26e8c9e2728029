/* A context begins and ends. */
#ifndef ATTUNE_ENGINE_CREATE_H
#define ATTUNE_ENGINE_CREATE_H

#include "engine/context.h"

/* Tests replace the system calls and the compiler. NULL members mean the real ones. */
typedef struct at_context_hooks {
    const at_io *io;
    at_compile_fn *compile;
    void *compile_user;
    at_find_tuned_fn *find_tuned; /* set by the caller, as src/tune is above; NULL: no schedule is tuned */
} at_context_hooks;

extern const at_struct at_context_options;
attune_status at_context_create(const attune_context_options *options, const at_context_hooks *hooks,
                                attune_context **context);
void at_context_destroy(attune_context *context);

#endif
