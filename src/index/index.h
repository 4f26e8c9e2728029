/* The struct of an index, for the files of this folder. */
#ifndef ATTUNE_INDEX_INDEX_H
#define ATTUNE_INDEX_INDEX_H

#include "base/error.h"
#include "engine/own_operator.h"
#include "index/kernel.h"

struct attune_index {
    attune_context *context;
    attune_operator *op;
    attune_index_desc desc; /* with all defaults filled in */
    char problem[IDX_PROBLEM_BYTES];
    _Atomic(attune_kernel *) kernel;
};

/* Copies a caller's step. */
attune_status idx_take_step(const attune_index_step *given, attune_index_step *step, at_error *err);

/* Checks the starts of a step's sequences, and counts their queries. */
attune_status idx_count_queries(const attune_index *index, const attune_index_step *step, int64_t *queries,
                                at_error *err);

/* Checks and runs a copy of a step. */
attune_status idx_run_step(attune_index *index, const attune_index_step *step, bool is_interpreted, at_error *err);

#endif
