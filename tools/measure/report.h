/* The description of the machine in `attune bench --report`, which is made to be sent to others. It has no names of
 * hosts, users or files. */
#ifndef ATTUNE_TOOLS_REPORT_H
#define ATTUNE_TOOLS_REPORT_H

#include "measure/bench.h"

#include <jansson.h>

/* The description of the machine, its system, and the peak of each type that was probed beside these cases. NULL when
 * out of memory. */
json_t *report_json(const attune_machine_info *machine, const bench_case *cases, size_t count);

#endif
