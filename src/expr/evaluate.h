/* Evaluates a function for one query and key. */
#ifndef ATTUNE_EXPR_EVALUATE_H
#define ATTUNE_EXPR_EVALUATE_H

#include "expr/expr.h"

/* Reads an element of a user's tensor by its number. */
typedef double ex_load_fn(void *user, int tensor, const int64_t index[EX_MAX_RANK]);

typedef struct ex_place {
    int64_t variables[EX_NUM_VARS];
    int64_t dims[ATTUNE_MAX_USER_TENSORS][EX_MAX_RANK]; /* none of them is 0 */
    ex_load_fn *load;
    void *user;
} ex_place;

/* Whether the mask shows the key to the query; true without a mask. */
bool ex_mask_shows(const ex_program *program, const ex_place *place);

#endif
