#include "runtime/process.h"

#include "runtime/context.h"

#include <pthread.h>
#include <stdlib.h>

/* ---- Foreign code ---- */

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER; /* guards all below */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int inside[AT_NUM_FOREIGN]; /* threads */
static int forking;                /* threads that fork, or wait until no thread is inside */
static bool is_exiting, has_destructors;
static _Thread_local int depth; /* this thread's calls: a nested one must not wait for a fork that waits for it */

attune_status at_process_enter(at_foreign what, at_error *err) {
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

void at_process_leave(at_foreign what) {
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
void at_process_watch_exit(at_exit_watch since, bool destructors) {
    static pthread_once_t watched[AT_NUM_EXIT_WATCHES] = {PTHREAD_ONCE_INIT, PTHREAD_ONCE_INIT};
    pthread_once(&watched[since], register_exit);
    if (!destructors) return;
    pthread_mutex_lock(&gate);
    has_destructors = true;
    pthread_mutex_unlock(&gate);
}

/* ---- fork ---- */

static pthread_mutex_t registry = PTHREAD_MUTEX_INITIALIZER; /* guards the list of contexts */

/* The pointers in the list are inverted, so that leak checkers do not count them: a context that its owner has
 * forgotten is still a leak. */
static at_hidden_context contexts = ~(at_hidden_context)0;

static at_hidden_context hide(const attune_context *context) { return ~(at_hidden_context)context; }
static attune_context *show(at_hidden_context hidden) { return (attune_context *)~hidden; }

/* Locks are always taken in this order. No thread enters foreign code while it holds one of them, so all that are
 * inside come out again. */
static void before_fork(void) {
    pthread_mutex_lock(&gate);
    forking++;
    while (threads_inside() > depth) pthread_cond_wait(&changed, &gate);
    pthread_mutex_lock(&registry);
    for (attune_context *c = show(contexts); c; c = show(c->following)) at_context_before_fork(c);
    at_symbols_before_fork();
}

static void after_fork(bool is_child) {
    at_symbols_after_fork();
    for (attune_context *c = show(contexts); c; c = show(c->following)) at_context_after_fork(c, is_child);
    pthread_mutex_unlock(&registry);
    forking = is_child ? 0 : forking - 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&gate);
}

static void in_parent(void) { after_fork(false); }

/* Threads that waited do not exist in the child. */
static void in_child(void) {
    pthread_cond_init(&changed, NULL);
    after_fork(true);
}

static void watch_fork(void) { pthread_atfork(before_fork, in_parent, in_child); }

/* ---- Contexts ---- */

void at_process_add(attune_context *context) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_fork);
    pthread_mutex_lock(&registry);
    context->following = contexts;
    contexts = hide(context);
    pthread_mutex_unlock(&registry);
}

void at_process_remove(attune_context *context) {
    pthread_mutex_lock(&registry);
    at_hidden_context *link = &contexts;
    while (show(*link) != context) link = &show(*link)->following;
    *link = context->following;
    pthread_mutex_unlock(&registry);
}
