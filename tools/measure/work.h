/* The work that one call cannot avoid, for the roofline: arithmetic, and bytes of memory that it touches. */
#ifndef ATTUNE_TOOLS_WORK_H
#define ATTUNE_TOOLS_WORK_H

#include "common/tensors.h"

typedef struct call_work {
    double flops; /* as attune_problem_flops, with the sizes, lengths and offsets of this call */
    double bytes; /* of all tensors and packed weights, each element once; of K and V the keys that a query may see */
    double keys;  /* of all sequences, seen or not */
    double pairs, all_pairs; /* of attention, of a query and a key in all heads: that are seen, and that there are */
} call_work;

/* From the sizes and the tables of the call; masks and functions are not looked at (seen_count does the latter). */
call_work work_of_call(const tensors *t);

/* Whether rates and shares make sense: false, after a message that names the problem, if a call computes nothing, or
 * more than can be counted. */
bool work_can_be_measured(const char *problem, const tensors *t, const call_work *work);

#endif
