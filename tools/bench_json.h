/* One result of a measurement, as `attune bench --json` and `attune sweep` write it. */
#ifndef ATTUNE_TOOLS_BENCH_JSON_H
#define ATTUNE_TOOLS_BENCH_JSON_H

#include "bench.h"

#include <jansson.h>

/* A new object; NULL when out of memory. What acquiring costs is in it if bench_acquire has measured it. */
json_t *bench_result_json(const bench_entry *entry, const call_sizes *sizes, uint32_t threads);

#endif
