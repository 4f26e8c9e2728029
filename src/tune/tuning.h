/* What has been tuned: a schedule for a miss, and where results lie. */
#ifndef ATTUNE_TUNE_TUNING_H
#define ATTUNE_TUNE_TUNING_H

#include "engine/tuned.h"
#include "tune/database.h"

/* An at_find_tuned_fn. */
bool at_tuning_find(attune_context *context, at_operation operation, mha_schedule *schedule);

/* The place in the database of results for a problem. It points to `text`. */
void at_tuning_place(const attune_context *context, at_operation operation, char *text, size_t capacity,
                     tune_place *place);

#endif
