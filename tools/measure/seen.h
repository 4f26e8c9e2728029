/* Pairs of a query and a key that a mask_mod shows: work that a call cannot avoid. */
#ifndef ATTUNE_TOOLS_SEEN_H
#define ATTUNE_TOOLS_SEEN_H

#include "measure/work.h"

/* Counts the pairs of the call, and puts them and their arithmetic into `work`. Without a mask_mod, and where they
 * cannot be counted, `work` stays as it is: a mask_mod is then taken to show all. Computes one call. */
void seen_count(attune_context *context, const tensors *t, call_work *work);

#endif
