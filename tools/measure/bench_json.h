/* One result of a measurement, as `attune bench --json` and `attune sweep` write it. docs/json.md lists its members. */
#ifndef ATTUNE_TOOLS_BENCH_JSON_H
#define ATTUNE_TOOLS_BENCH_JSON_H

#include "measure/bench.h"

#include <jansson.h>

/* A new object; NULL when out of memory. It has the times of acquiring the kernel if bench_acquire has measured them.
 */
json_t *bench_result_json(const bench_entry *entry, const call_sizes *sizes, uint32_t threads);

/* Adds is_busy to a result, and puts null in place of what is no figure on a busy machine. Returns it; NULL stays so.
 */
json_t *bench_busy_json(const bench_entry *entry, json_t *result);

/* The fields of a problem by name, whole numbers and reals as such, everything else as text: those of the canonical
 * text, and those that `given` (may be NULL) names although they have their defaults, so that all rows of a grid have
 * the same fields. A new object; NULL when out of memory. */
json_t *bench_fields_json(const char *canonical, const char *given);

#endif
