/* Outputs against the f64 reference, within the rounding errors that the data allows: for `attune run --check` and
 * `attune-lab check`. */
#ifndef ATTUNE_TOOLS_CHECK_REFERENCE_H
#define ATTUNE_TOOLS_CHECK_REFERENCE_H

#include "common/tensors.h"

/* Errors of `out` against the reference, of attune and of a plain implementation on the same data. */
typedef struct check_errors {
    double max, squares, max_ulp; /* ULP: of the largest output of a row, in the arithmetic's type */
    double plain_max, plain_squares, plain_max_ulp;
    uint64_t count;
    int64_t worst; /* the number of the random problem that has `max` */
} check_errors;

void check_add_errors(check_errors *sum, const check_errors *errors);

/* Gives the reference the values that a call has stored in its caches. `after` has the same inputs, and its outputs. */
void check_take_caches(ref_call *call, const tensors *after);

/* The kind of the inputs, as far as limits differ by it. */
input_kind check_kind_of(const tensors *t);

/* Why no error limits are known for a call with these inputs; NULL: they are known. */
const char *check_has_no_limits(const tensors *t, const ref_result *wanted);

/* Element number i of a row-major walk through a tensor. */
long double check_element(const tensor *one, int64_t i);

/* Compares with the reference. `plain`: what a plain implementation makes of the same data. false: `reason` says in one
 * sentence what is wrong. */
bool check_reference(const tensors *after, const ref_result *wanted, const ref_result *plain, input_kind inputs,
                     check_errors *errors, char reason[ATTUNE_MESSAGE_BYTES]);

#endif
