/* Operators of the user, which a context knows by name. */
#ifndef ATTUNE_ENGINE_OWN_OPERATOR_H
#define ATTUNE_ENGINE_OWN_OPERATOR_H

#include "engine/kernel.h"
#include "operator/own.h"

struct attune_operator {
    at_own own;
    attune_context *context;
    attune_operator *next; /* that was added before it */
};

/* Adds one to the context, from complete options. *op is written only on success. */
attune_status at_operator_add(attune_context *context, const attune_operator_options *options, attune_operator **op,
                              at_error *err);

/* The context's operator with this build function, which is one of attune's own. It is added if it is missing. */
attune_status at_operator_of(attune_context *context, const attune_operator_options *options,
                             at_general_fn *find_general, attune_operator **op, at_error *err);

/* Ends all of a context. No kernel of theirs may be left. */
void at_operators_free(attune_context *context);

/* Checks a problem, and the numbers of a schedule unless they are NULL; these become *schedule. */
attune_status at_operator_schedule(const attune_operator *op, const char *problem, const int32_t *numbers,
                                   mha_schedule *schedule, at_error *err);

/* ---- Attune's own operators ---- */

/* The kernel of a problem that an object keeps. Begin with zeros. */
typedef struct at_kept_kernel {
    _Atomic(attune_kernel *) now;  /* NULL: not needed so far */
    attune_kernel *before;         /* what stood in for it, as calls that began earlier may still run it; or NULL */
    _Atomic int64_t made_again_at; /* as of at_cache_node */
} at_kept_kernel;

/* The kernel of a problem, made at the first call. A fallback whose compile failed is replaced when that has become
 * possible. */
attune_status at_operator_kernel(attune_operator *op, const char *problem, at_kept_kernel *kept, attune_kernel **kernel,
                                 at_error *err);
void at_operator_release(at_kept_kernel *kept);

/* What runs a call: a runner, or if that is NULL at most max_threads (0: all) of the context's threads. */
attune_status at_operator_team(const attune_context *context, const attune_runner *runner, uint32_t max_threads,
                               at_team *team, at_error *err);

/* Runs the kernel on checked arguments: machine code, or the interpreter where the caller or the context wants that. */
attune_status at_operator_run(const attune_kernel *kernel, const at_run *run, bool is_interpreted, at_error *err);

#endif
