/* A parallel loop that threads join and leave as they come.
 *
 * Its tasks are handed out in ranges by one atomic counter. The thread that began the loop works too, and in the end
 * waits for ranges that have begun on other threads, never for a thread that has not begun one. So a helper may come at
 * any time, also when the loop is long over: it then finds nothing to do and touches nothing but the job itself, which
 * lives until the last of them has let go of it. */
#ifndef ATTUNE_RUNTIME_JOB_H
#define ATTUNE_RUNTIME_JOB_H

#include "base/memory.h"

#include <stdatomic.h>
#include <stdbool.h>

typedef struct at_job {
    _Atomic uint32_t refs;
    attune_allocator allocator; /* a copy: the job may outlive the context */
    attune_range_fn *fn;
    void *argument;
    int64_t n, chunk;
    uint32_t max_workers;
    struct at_job *following; /* in the list of a pool, guarded by its mutex */

    _Alignas(64) _Atomic int64_t next; /* the first task that nobody has claimed */
    _Atomic uint32_t workers;          /* numbers given out so far; the caller has 0 */
    _Alignas(64) _Atomic int64_t done; /* finished tasks */
    _Atomic uint32_t state;            /* a futex: running, running with the caller asleep, finished */
} at_job;

/* A loop over [0, n), 0 < n <= AT_JOB_MOST, for at most max_workers threads, with one reference. NULL: no memory. */
#define AT_JOB_MOST (INT64_MAX / 4) /* the counter goes on counting beyond n, a range for each thread */
at_job *at_job_new(const attune_allocator *allocator, attune_range_fn *fn, void *argument, int64_t n,
                   uint32_t max_workers);
void at_job_hold(at_job *job);
void at_job_drop(at_job *job);

/* Whether there are tasks that nobody has claimed, and a number for one more worker. */
static inline bool at_job_wants_help(const at_job *job) {
    return atomic_load_explicit(&job->next, memory_order_relaxed) < job->n &&
           atomic_load_explicit(&job->workers, memory_order_relaxed) < job->max_workers;
}

/* Works as a helper until all tasks are claimed; does nothing unless the job wants help. */
void at_job_help(at_job *job);

/* Works as the caller, worker 0, until all tasks are claimed. */
void at_job_work(at_job *job);

/* Returns when all tasks are finished, after at_job_work: those that have begun on other threads. */
void at_job_wait(at_job *job);

/* Spins for a short time until the word is not `seen` any more; false: it still is. */
bool at_spin_while(_Atomic uint32_t *word, uint32_t seen);

/* How long that is. */
enum { AT_SPIN_NANOSECONDS = 50 * 1000 };

int64_t at_nanoseconds(void); /* of the monotonic clock */

#endif
