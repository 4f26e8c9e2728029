/* Who works for a call: the context's pool or a runner of the host, and how many. */
#ifndef ATTUNE_RUNTIME_TEAM_H
#define ATTUNE_RUNTIME_TEAM_H

#include "base/error.h"
#include "runtime/pool.h"

typedef struct at_team {
    at_pool *pool;        /* NULL: the runner works */
    attune_runner runner; /* of the struct only what the host's version has */
    const attune_allocator *allocator;
    uint32_t max_workers; /* worker numbers are below it */
} at_team;

/* Refuses a runner that cannot work, and completes one of an older program. */
attune_status at_runner_take(const attune_runner *runner, attune_runner *taken, at_error *err);

/* Equals fn(argument, 0, n, 0), n > 0. What a runner with parallel_for does with ranges and numbers is for fn to see.
 */
void at_team_run(const at_team *team, attune_range_fn *fn, void *argument, int64_t n);

#endif
