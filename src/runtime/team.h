/* Who works for a call: the context's pool or a runner of the host, and how many. */
#ifndef ATTUNE_RUNTIME_TEAM_H
#define ATTUNE_RUNTIME_TEAM_H

#include "base/error.h"
#include "runtime/pool.h"

enum { AT_MOST_WORKERS = 65536 };

typedef struct at_team {
    at_pool *pool;        /* NULL: the runner works */
    attune_runner runner; /* of the struct only what the host's version has */
    const attune_allocator *allocator;
    uint32_t max_workers; /* worker numbers are below it */
} at_team;

/* Refuses a runner that cannot work, and completes one of an older program. */
attune_status at_runner_take(const attune_runner *runner, attune_runner *taken, at_error *err);

/* Work that another thread is worth having for (runtime/pool.h has the unit): some 3 µs. */
enum { AT_SMALL_WORK = 300 * 1000 };

/* How many worker numbers a run may see: those of a host that gives them itself are all that it says, else no more than
 * there is work for. */
uint32_t at_workers_of(const at_team *team, double work);

/* Equals fn(argument, 0, n, 0), n > 0. What a runner with parallel_for does with ranges and numbers is for fn to see.
 * Work for one thread stays on the calling one. */
void at_team_run(const at_team *team, attune_range_fn *fn, void *argument, int64_t n, double work);

#endif
