/* A sweep's results as a table: a row for each problem, a column for each key that varies. */
#ifndef ATTUNE_TOOLS_SWEEP_TABLE_H
#define ATTUNE_TOOLS_SWEEP_TABLE_H

#include "sweep/sweep_file.h"
#include "sweep/sweep_keys.h"

/* Prints the problems of the list that have a result, in its order. */
void sweep_print_table(const sweep_keys *keys, const manifest *list, const sweep_file *file);

#endif
