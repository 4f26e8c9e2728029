/* One result of a measurement, as `attune bench --json` and `attune sweep` write it. docs/json.md lists its members. */
#ifndef ATTUNE_TOOLS_BENCH_JSON_H
#define ATTUNE_TOOLS_BENCH_JSON_H

#include "measure/bench.h"

#include <jansson.h>

/* A new object; NULL when out of memory. It has the times of acquiring the kernel if bench_acquire has measured them.
 */
json_t *bench_result_json(const bench_case *c, const call_sizes *sizes, uint32_t threads);

/* Adds is_busy to a result, and puts null in place of what is no figure on a busy machine. Returns it; NULL stays so.
 */
json_t *bench_busy_json(const bench_case *c, json_t *result);

#endif
