/* Places of results. at_tuning_find, by which a miss of the runtime asks for a tuned schedule, is declared there
 * (runtime/tuned.h) and defined in tuning.c. */
#ifndef ATTUNE_TUNE_TUNING_H
#define ATTUNE_TUNE_TUNING_H

#include "runtime/tuned.h"
#include "tune/database.h"

/* The place in the database of results for a problem. It points to `text`. */
void at_tuning_place(const attune_context *context, at_operation operation, char *text, size_t capacity,
                     tune_place *place);

#endif
