/* A sweep's results for people: a row for each problem, columns for what tells the problems apart. */
#ifndef ATTUNE_TOOLS_SWEEP_TABLE_H
#define ATTUNE_TOOLS_SWEEP_TABLE_H

#include "sweep_file.h"
#include "sweep_keys.h"

/* Those of the list that have a result, in its order. */
void sweep_print_table(const sweep_keys *keys, const manifest *list, const sweep_file *file);

#endif
