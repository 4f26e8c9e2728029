/* The functions on scores and masks of a problem, read by src/expr. */
#ifndef ATTUNE_PROBLEM_PROBLEM_FUNCTIONS_H
#define ATTUNE_PROBLEM_PROBLEM_FUNCTIONS_H

#include "expr/expr.h"
#include "problem/mha.h"

/* Both functions of a problem whose other fields are canonical. The program refers to the problem's tensors. */
attune_status mha_read_functions(const attune_problem *p, ex_program *program, at_error *err);

/* A canonical problem and what its functions say: whoever asks for a schedule reads them once, so no chooser does. */
typedef struct mha_problem {
    const attune_problem *p;
    bool has_gaps; /* a query may see keys on both sides of some that mask_mod hides from it (ex_shows_intervals) */
} mha_problem;

mha_problem mha_read(const attune_problem *canonical);

#endif
