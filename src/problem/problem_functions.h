/* The functions on scores and masks of a problem, read by src/expr. */
#ifndef ATTUNE_PROBLEM_PROBLEM_FUNCTIONS_H
#define ATTUNE_PROBLEM_PROBLEM_FUNCTIONS_H

#include "expr/expr.h"
#include "problem/mha.h"

/* Both functions of a problem whose other fields are canonical. The program refers to the problem's tensors. */
attune_status mha_read_functions(const attune_problem *p, ex_program *program, at_error *err);

/* Whether mask_mod is known to let each query see keys without a gap (ex_shows_intervals). */
bool mha_shows_intervals(const attune_problem *canonical);

#endif
