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
                                   attune_schedule *schedule, at_error *err);

#endif
