/* Counts the threads that are inside foreign code. fork() waits until there are none, exit() only for those that
 * compile. */
#include "host/foreign.h"

#include <pthread.h>
#include <stdlib.h>

/* ---- Foreign code ---- */

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER; /* guards all below */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int inside[AT_NUM_FOREIGN]; /* threads */
static int forking;                /* threads that fork, or wait until no thread is inside */
static bool is_exiting, has_destructors;
static _Thread_local int depth; /* this thread's calls: a nested one must not wait for a fork that waits for it */

attune_status at_foreign_enter(at_foreign what, at_error *err) {
    pthread_mutex_lock(&gate);
    while (forking && !depth) pthread_cond_wait(&changed, &gate);
    const bool refused = is_exiting && what == AT_FOREIGN_COMPILER;
    if (!refused) {
        inside[what]++;
        depth++;
    }
    pthread_mutex_unlock(&gate);
    if (!refused) return ATTUNE_OK;
    return at_fail(err, ATTUNE_CODEGEN_FAILED, "the process is exiting, and nothing is compiled any more");
}

void at_foreign_leave(at_foreign what) {
    pthread_mutex_lock(&gate);
    inside[what]--;
    depth--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&gate);
}

static int threads_inside(void) {
    int all = 0;
    for (int i = 0; i < AT_NUM_FOREIGN; i++) all += inside[i];
    return all;
}

/* ---- exit ---- */

static void before_exit(void) {
    pthread_mutex_lock(&gate);
    is_exiting = true;
    while (has_destructors && inside[AT_FOREIGN_COMPILER] && !depth) pthread_cond_wait(&changed, &gate);
    pthread_mutex_unlock(&gate);
}

static void register_exit(void) { atexit(before_exit); }

/* Handlers run in the reverse order of their registration, and so do destructors of static objects. LLVM registers more
 * destructors during its first compile. */
void at_foreign_watch_exit(at_exit_watch since, bool destructors) {
    static pthread_once_t watched[AT_NUM_EXIT_WATCHES] = {PTHREAD_ONCE_INIT, PTHREAD_ONCE_INIT};
    pthread_once(&watched[since], register_exit);
    if (!destructors) return;
    pthread_mutex_lock(&gate);
    has_destructors = true;
    pthread_mutex_unlock(&gate);
}

/* ---- fork ---- */

void at_foreign_before_fork(void) {
    pthread_mutex_lock(&gate);
    forking++;
    while (threads_inside() > depth) pthread_cond_wait(&changed, &gate);
}

/* Threads that waited do not exist in the child. */
void at_foreign_after_fork(bool is_child) {
    if (is_child) pthread_cond_init(&changed, NULL);
    forking = is_child ? 0 : forking - 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&gate);
}
