/* A parallel loop that threads join and leave at any time.
 *
 * An atomic counter hands out its tasks in ranges, which get shorter towards the end. With more threads than cores that
 * share a last-level cache, the tasks are divided into parts, one for each such cache, with a counter each. A thread
 * begins with the part of its CPU's cache, so that neighbouring tasks, which read the same keys and values, are near
 * each other. A thread that finds nothing left there continues with the other parts. Parts are counted by cores,
 * threads by CPUs: with two threads on each core a chip with one last-level cache has two parts, which costs a little
 * locality and nothing else.
 *
 * Under causality the tasks of a head get shorter, from the first to the last. Where each worker gets few of them,
 * those of a part are handed out by quarters: the longest quarter of all its heads, then the next one. Otherwise the
 * long tasks of the last head begin late, and others wait for them.
 *
 * The thread that began the loop works too. In the end it waits for the ranges that other threads have begun, and never
 * for a thread that has not begun one. So a helper may come at any time, even long after the loop: it then finds no
 * tasks, and touches only the job, which lives until the last thread has released it. */
#ifndef ATTUNE_THREADS_JOB_H
#define ATTUNE_THREADS_JOB_H

#include "base/memory.h"

#include <stdatomic.h>
#include <stdbool.h>

typedef struct at_job_part {
    _Alignas(64) _Atomic int64_t next; /* the first task that is not claimed */
    int64_t begin, end;
} at_job_part;

typedef struct at_job {
    _Atomic uint32_t refs;
    attune_allocator allocator; /* a copy: the job may outlive the context */
    attune_range_fn *fn;
    void *argument;
    int64_t n;
    uint32_t max_workers, num_parts;
    uint32_t cores;  /* that share a third cache */
    int64_t falling; /* so many tasks are each shorter than the one before, then it begins anew; 0: all alike */
    struct at_job *following; /* in the list of a pool, guarded by its mutex */

    _Alignas(64) _Atomic uint32_t workers; /* worker numbers that were given out; the caller has 0 */
    _Alignas(64) _Atomic int64_t done;     /* finished tasks */
    _Atomic uint32_t state;                /* a futex: running; running and the caller sleeps; finished */
    at_job_part parts[];
} at_job;

/* A loop over [0, n), 0 < n <= AT_JOB_MOST, for at most max_workers threads, with one reference. `cores` share a third
 * cache; 0: all do. falling: as in the job. NULL: no memory. */
#define AT_JOB_MOST (INT64_MAX / 4) /* the counters go on counting beyond their ends, by a range for each thread */
at_job *at_job_new(const attune_allocator *allocator, attune_range_fn *fn, void *argument, int64_t n,
                   uint32_t max_workers, uint32_t cores, int64_t falling);
void at_job_hold(at_job *job);
void at_job_drop(at_job *job);

/* Whether there are unclaimed tasks, and a number for another worker. */
static inline bool at_job_wants_help(const at_job *job) {
    if (atomic_load_explicit(&job->workers, memory_order_relaxed) >= job->max_workers) return false;
    for (uint32_t i = 0; i < job->num_parts; i++)
        if (atomic_load_explicit(&job->parts[i].next, memory_order_relaxed) < job->parts[i].end) return true;
    return false;
}

/* Works as a helper until all tasks are claimed; does nothing unless the job wants help. */
void at_job_help(at_job *job);

/* Works as the caller, worker 0, until all tasks are claimed. */
void at_job_work(at_job *job);

/* To be called after at_job_work: returns when the other threads have finished the ranges that they have begun. */
void at_job_wait(at_job *job);

/* Spins for a short time until the word is not `seen` any more. false: it still is. */
bool at_spin_while(_Atomic uint32_t *word, uint32_t seen);

/* How long that is. */
enum { AT_SPIN_NANOSECONDS = 50 * 1000 };

#endif
