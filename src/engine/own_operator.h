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

/* Adds one to the context, from options that are whole. *op is written only if that succeeds. */
attune_status at_operator_add(attune_context *context, const attune_operator_options *options, attune_operator **op,
                              at_error *err);

/* The operator of the context with the same build, which is attune's own; added if it is not there. */
attune_status at_operator_of(attune_context *context, const attune_operator_options *options, attune_operator **op,
                             at_error *err);

/* Ends all of a context. No kernel of theirs may be left. */
void at_operators_free(attune_context *context);

/* Checks a problem, and the numbers of a schedule unless they are NULL; these become *schedule. */
attune_status at_operator_schedule(const attune_operator *op, const char *problem, const int32_t *numbers,
                                   mha_schedule *schedule, at_error *err);

/* ---- Attune's own operators ---- */

/* The kernel of a problem: *kept once it was asked for, and its owner releases it. */
attune_status at_operator_kernel(attune_operator *op, const char *problem, _Atomic(attune_kernel *) *kept,
                                 attune_kernel **kernel, at_error *err);

/* Who works for a call: the context's threads, at most max_threads (0: all), or a runner (NULL: none). */
attune_status at_operator_team(const attune_context *context, const attune_runner *runner, uint32_t max_threads,
                               at_team *team, at_error *err);

/* Runs the kernel on checked arguments: by machine code, or by the interpreter if that is asked for, or if it is what
 * the context has. */
attune_status at_operator_run(const attune_kernel *kernel, const at_run *run, bool is_interpreted, at_error *err);

#endif
