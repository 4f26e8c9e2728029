/* Operators of the user, which a context knows by name. */
#ifndef ATTUNE_RUNTIME_OWN_OPERATOR_H
#define ATTUNE_RUNTIME_OWN_OPERATOR_H

#include "operator/own.h"
#include "runtime/kernel.h"

struct attune_operator {
    at_own own;
    attune_context *context;
    attune_operator *next; /* that was added before it */
};

/* Checks a problem, and the numbers of a schedule unless they are NULL; these become *schedule. */
attune_status at_operator_schedule(const attune_operator *op, const char *problem, const int32_t *numbers,
                                   attune_schedule *schedule, at_error *err);

#endif
