/* Results of measurements as a table. */
#ifndef ATTUNE_TOOLS_BENCH_TEXT_H
#define ATTUNE_TOOLS_BENCH_TEXT_H

#include "measure/bench.h"

/* Prints a row for each entry. With several schedules the entries' wishes are elements of `wishes`, as many for each
 * problem, and the last column has their numbers. */
void bench_print(const bench_entry *entries, size_t count, const mha_schedule *wishes, size_t num_schedules);

#endif
