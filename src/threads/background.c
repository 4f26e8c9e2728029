/* Jobs are a queue under one mutex. Waits end when the job is done, at a deadline, or when the waiting job itself is
 * abandoned. */
#define _GNU_SOURCE
#include "threads/background.h"

#include "threads/pool.h"

#include <sys/resource.h>
#include <time.h>

/* ---- Waiting ---- */

void at_condition_init(pthread_cond_t *condition) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

static struct timespec in(int64_t microseconds) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const int64_t ns = until.tv_nsec + microseconds % 1000000 * 1000;
    until.tv_sec += (time_t)(microseconds / 1000000 + ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    return until;
}

static _Thread_local const at_background *of_this_thread;

bool at_background_is_here(void) { return of_this_thread != NULL; }

bool at_background_is_abandoned(void) { return of_this_thread && atomic_load(&of_this_thread->is_abandoned); }

attune_status at_background_fail(at_error *err) {
    return at_fail(err, ATTUNE_CANCELLED, "the compile was abandoned, because its plan or its context ends");
}

void at_background_pause(pthread_cond_t *condition, pthread_mutex_t *mutex) {
    if (!of_this_thread) {
        pthread_cond_wait(condition, mutex);
        return;
    }
    const struct timespec until = in(AT_BACKGROUND_LOOK_MS * 1000);
    pthread_cond_timedwait(condition, mutex, &until);
}

/* ---- The thread ---- */

void at_background_init(at_background *b, uint32_t niceness) {
    *b = (at_background){.niceness = niceness};
    pthread_mutex_init(&b->mutex, NULL);
    at_condition_init(&b->changed);
}

/* The next job is `running` from here on; NULL: the thread is to end. Under the mutex. */
static at_background_job *take(at_background *b) {
    while (!b->first && !b->is_ending) pthread_cond_wait(&b->changed, &b->mutex);
    if (b->is_ending) return NULL;
    at_background_job *const job = b->first;
    b->first = job->next;
    if (!b->first) b->last = NULL;
    b->running = job;
    atomic_store(&b->is_abandoned, false);
    return job;
}

/* Never the idle class: others may wait for a lock that this thread holds, so it must always get on. The niceness of
 * "process 0" is that of the calling thread alone. It is only ever raised here, which needs no privilege. */
static void be_nice(int niceness) {
    if (getpriority(PRIO_PROCESS, 0) < niceness) setpriority(PRIO_PROCESS, 0, niceness);
}

static void *work(void *user) {
    at_background *const b = user;
    pthread_setname_np(pthread_self(), "attune-jobs");
    of_this_thread = b;
    if (b->niceness) be_nice((int)b->niceness);
    pthread_mutex_lock(&b->mutex);
    for (at_background_job *job; (job = take(b));) {
        pthread_mutex_unlock(&b->mutex);
        job->run(job->user);
        pthread_mutex_lock(&b->mutex);
        b->running = NULL;
        pthread_cond_broadcast(&b->changed);
    }
    pthread_mutex_unlock(&b->mutex);
    return NULL;
}

/* LLVM runs on it. Under the mutex. */
static bool start(at_background *b) {
    enum { STACK_BYTES = 8 << 20 };
    pthread_attr_t attributes;
    sigset_t before;
    if (b->has_thread || pthread_attr_init(&attributes)) return b->has_thread;
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    at_block_signals(&before);
    b->has_thread = !pthread_create(&b->thread, &attributes, work, b);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return b->has_thread;
}

bool at_background_submit(at_background *b, at_background_job *job) {
    pthread_mutex_lock(&b->mutex);
    const bool has_thread = start(b);
    if (has_thread) {
        job->next = NULL;
        if (b->last)
            b->last->next = job;
        else
            b->first = job;
        b->last = job;
        pthread_cond_broadcast(&b->changed);
    }
    pthread_mutex_unlock(&b->mutex);
    return has_thread;
}

static void unlink_job(at_background *b, const at_background_job *job) {
    at_background_job *before = NULL;
    for (at_background_job *j = b->first; j; before = j, j = j->next) {
        if (j != job) continue;
        if (before)
            before->next = j->next;
        else
            b->first = j->next;
        if (b->last == j) b->last = before;
        return;
    }
}

void at_background_withdraw(at_background *b, at_background_job *job) {
    pthread_mutex_lock(&b->mutex);
    unlink_job(b, job);
    if (b->running == job) atomic_store(&b->is_abandoned, true);
    while (b->running == job) pthread_cond_wait(&b->changed, &b->mutex);
    pthread_mutex_unlock(&b->mutex);
}

static bool is_pending(const at_background *b, const at_background_job *job) {
    for (const at_background_job *j = b->first; j; j = j->next)
        if (j == job) return true;
    return b->running == job;
}

void at_background_wait_for(at_background *b, const at_background_job *job, int64_t microseconds) {
    const struct timespec until = in(microseconds);
    pthread_mutex_lock(&b->mutex);
    while (is_pending(b, job))
        if (pthread_cond_timedwait(&b->changed, &b->mutex, &until)) break;
    pthread_mutex_unlock(&b->mutex);
}

void at_background_wait(at_background *b) {
    pthread_mutex_lock(&b->mutex);
    while (b->first || b->running) pthread_cond_wait(&b->changed, &b->mutex);
    pthread_mutex_unlock(&b->mutex);
}

void at_background_end(at_background *b) {
    pthread_mutex_lock(&b->mutex);
    b->is_ending = true;
    atomic_store(&b->is_abandoned, true);
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->mutex);
    if (b->has_thread) pthread_join(b->thread, NULL);
}

void at_background_free(at_background *b) {
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->mutex);
}

void at_background_before_fork(at_background *b) { pthread_mutex_lock(&b->mutex); }

/* Threads that waited in the parent do not exist in the child either. */
void at_background_after_fork(at_background *b, bool is_child) {
    if (is_child) {
        at_condition_init(&b->changed);
        b->first = b->last = NULL;
        b->running = NULL;
        b->has_thread = false;
    }
    pthread_mutex_unlock(&b->mutex);
}
