/* Results of measurements as a table. */
#ifndef ATTUNE_TOOLS_BENCH_TEXT_H
#define ATTUNE_TOOLS_BENCH_TEXT_H

#include "measure/bench.h"

/* Prints a row for each case. With schedules the cases' wishes are elements of `schedules`, and the last column has
 * their numbers. */
void bench_print(const bench_case *cases, size_t count, const char *const *schedules, size_t num_schedules);

#endif
