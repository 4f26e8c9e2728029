/* The struct of an index, for the files of this folder. */
#ifndef ATTUNE_INDEX_INDEX_H
#define ATTUNE_INDEX_INDEX_H

#include "described/described.h"
#include "index/kernel.h"

struct attune_index {
    at_described described;
    attune_index_desc desc; /* with all defaults filled in */
};

/* Checks the starts of a step's sequences, and counts their queries. */
attune_status idx_count_queries(const attune_index *index, const attune_index_step *step, int64_t *queries,
                                at_error *err);

/* Checks and runs a copy of a step, and a caller's. */
attune_status idx_run_step(attune_index *index, const attune_index_step *step, bool is_interpreted, at_error *err);
attune_status idx_run(at_described *index, const void *step, bool is_interpreted, at_error *err);

#endif
