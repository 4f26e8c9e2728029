/* One thread of a context for work that no call waits for: it runs jobs one after the other. It starts with the first
 * job and ends with the context.
 *
 * Its priority is that of the thread that submits the first job, unless the context's options lower it. A thread
 * without privileges cannot raise it again, and at niceness 19 a compile that takes 0.15 s took 2 to 5 s on a busy
 * machine.
 *
 * A job is abandoned when its plan or its context ends: it then returns as soon as it can. Each wait in a job looks for
 * that, and code that cannot look runs in a thread of its own (compiler/codegen_local.h). */
#ifndef ATTUNE_THREADS_BACKGROUND_H
#define ATTUNE_THREADS_BACKGROUND_H

#include "base/error.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct at_background_job {
    void (*run)(void *user);
    void *user;
    struct at_background_job *next;
} at_background_job;

typedef struct at_background {
    pthread_mutex_t mutex; /* guards all below */
    pthread_cond_t changed;
    at_background_job *first, *last;
    const at_background_job *running;
    pthread_t thread;
    bool has_thread, is_ending;
    _Atomic bool is_abandoned; /* the job that is running */
    uint32_t niceness;
} at_background;

/* niceness: of its thread, and of threads and processes that it starts; 0: that of the thread that starts it. */
void at_background_init(at_background *background, uint32_t niceness);

/* Abandons the job that is running, and waits until it returns; the others never run. A fork() may still find it. */
void at_background_end(at_background *background);

/* Frees it after its end, when no fork() can find it. */
void at_background_free(at_background *background);

/* Appends a job, which must not be in the list. It may be submitted again from its own function's end on. false: there
 * is no thread, and the system gives none. */
bool at_background_submit(at_background *background, at_background_job *job);

/* Takes a job out of the list. If it is running, abandons it and waits until it returns. */
void at_background_withdraw(at_background *background, at_background_job *job);

/* Waits until the job is not in the list and does not run, and no longer than so many microseconds. */
void at_background_wait_for(at_background *background, const at_background_job *job, int64_t microseconds);

/* Waits until there is no job. */
void at_background_wait(at_background *background);

/* ---- For code that jobs run ---- */

/* Whether the calling thread is such a thread, and whether the job that it runs is abandoned. */
bool at_background_is_here(void);
bool at_background_is_abandoned(void);
attune_status at_background_fail(at_error *err); /* ATTUNE_CANCELLED */

/* How long a job waits before it looks whether it is abandoned. */
enum { AT_BACKGROUND_LOOK_MS = 5 };

/* pthread_cond_wait, which on such a thread returns after AT_BACKGROUND_LOOK_MS at the latest. The condition is one of
 * at_condition_init: times are those of CLOCK_MONOTONIC, because steps of the wall clock must not affect waits. */
void at_condition_init(pthread_cond_t *condition);
void at_background_pause(pthread_cond_t *condition, pthread_mutex_t *mutex);

/* ---- fork ---- */

/* Around fork(): locks; then unlocks, and makes the child's one without a thread and without jobs. */
void at_background_before_fork(at_background *background);
void at_background_after_fork(at_background *background, bool is_child);

#endif
