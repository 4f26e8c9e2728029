/* What runs the tasks of a call: the context's pool, or a runner of the host. */
#ifndef ATTUNE_THREADS_TEAM_H
#define ATTUNE_THREADS_TEAM_H

#include "base/error.h"
#include "base/struct.h"
#include "threads/pool.h"

enum { AT_MOST_WORKERS = 65536 };

typedef struct at_team {
    at_pool *pool;        /* NULL: the runner works */
    attune_runner runner; /* only the members that the host's version of the struct has */
    const attune_allocator *allocator;
    uint32_t max_workers; /* worker numbers are below it */
    uint32_t l3_cores;    /* that share a third cache; 0: all do */
} at_team;

extern const at_struct at_runner_struct;

/* Refuses a runner that cannot work. Completes the struct of an older program. */
attune_status at_runner_take(const attune_runner *runner, attune_runner *taken, at_error *err);

/* Work that pays for another thread (threads/pool.h has the unit): some 3 µs. */
enum { AT_SMALL_WORK = 300 * 1000 };

/* How many worker numbers a run may see. A runner with parallel_for may use all of its numbers; otherwise there are no
 * more than the work is worth. */
uint32_t at_workers_of(const at_team *team, double work);

/* Equals fn(argument, 0, n, 0), n > 0. fn itself must notice a runner with parallel_for that passes wrong ranges or
 * numbers. Work for one thread stays on the calling thread. falling: as in an at_job; parallel_for does not know it. */
void at_team_run(const at_team *team, attune_range_fn *fn, void *argument, int64_t n, double work, int64_t falling);

#endif
