/* One thread of a context for work that nobody waits for: it runs jobs one after the other, at niceness 19 (unless it
 * starts workers), so that it takes little time that another thread wants. It starts with the first job and ends with
 * the context. */
#ifndef ATTUNE_RUNTIME_BACKGROUND_H
#define ATTUNE_RUNTIME_BACKGROUND_H

#include <pthread.h>
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
    bool has_thread, is_ending, is_nice;
} at_background;

/* is_nice: its thread takes niceness 19, as do processes that it starts. */
void at_background_init(at_background *background, bool is_nice);

/* Waits for the job that is running; the others never run. A fork() may still find it. */
void at_background_end(at_background *background);

/* After its end, when no fork() finds it any more. */
void at_background_free(at_background *background);

/* Appends a job, which must not be in the list. It may be submitted again from its own function's end on. false: there
 * is no thread, and the system gives none. */
bool at_background_submit(at_background *background, at_background_job *job);

/* Takes a job out of the list, or waits until it has run. */
void at_background_withdraw(at_background *background, at_background_job *job);

/* Waits until the job is not in the list and does not run, and no longer than so many microseconds. */
void at_background_wait_for(at_background *background, const at_background_job *job, int64_t microseconds);

/* Waits until there is no job. */
void at_background_wait(at_background *background);

/* Around fork(): locks; then unlocks, and makes the child's one without a thread and without jobs. */
void at_background_before_fork(at_background *background);
void at_background_after_fork(at_background *background, bool is_child);

#endif
