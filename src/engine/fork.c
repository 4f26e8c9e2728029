/* All contexts are in one list, so that fork() can take their locks before, and release or renew them after. */
#include "engine/fork.h"

#include "engine/context.h"
#include "host/foreign.h"

#include <pthread.h>

static pthread_mutex_t registry = PTHREAD_MUTEX_INITIALIZER; /* guards the list of contexts */

/* The pointers in the list are inverted, so that leak checkers do not count them: a context that its owner has
 * forgotten is still a leak. */
static at_hidden_context contexts = ~(at_hidden_context)0;

static at_hidden_context hide(const attune_context *context) { return ~(at_hidden_context)context; }
static attune_context *show(at_hidden_context hidden) { return (attune_context *)~hidden; }

/* Locks are always taken in this order. */
static void lock_all(attune_context *c) {
    at_background_before_fork(&c->background);
    at_memory_cache_before_fork(&c->memory);
    pthread_mutex_lock(&c->tuning.mutex);
    pthread_mutex_lock(&c->codegen.mutex);
    at_workers_before_fork(&c->codegen.workers);
    pthread_mutex_lock(&c->disk.mutex);
    at_pool_before_fork(&c->pool);
}

/* Makes the context of the child whole again: the parent's other threads do not exist there, and may have been at work.
 */
static void unlock_all(attune_context *c, bool is_child) {
    at_pool_after_fork(&c->pool, is_child);
    pthread_mutex_unlock(&c->disk.mutex);
    at_workers_after_fork(&c->codegen.workers, is_child);
    pthread_mutex_unlock(&c->codegen.mutex);
    pthread_mutex_unlock(&c->tuning.mutex);
    at_memory_cache_after_fork(&c->memory, is_child);
    at_background_after_fork(&c->background, is_child);
}

static void before_fork(void) {
    at_foreign_before_fork();
    pthread_mutex_lock(&registry);
    for (attune_context *c = show(contexts); c; c = show(c->following)) lock_all(c);
    at_symbols_before_fork();
}

static void after_fork(bool is_child) {
    at_symbols_after_fork();
    for (attune_context *c = show(contexts); c; c = show(c->following)) unlock_all(c, is_child);
    pthread_mutex_unlock(&registry);
    at_foreign_after_fork(is_child);
}

static void in_parent(void) { after_fork(false); }
static void in_child(void) { after_fork(true); }

static void watch_fork(void) { pthread_atfork(before_fork, in_parent, in_child); }

/* ---- Contexts ---- */

void at_fork_add(attune_context *context) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_fork);
    pthread_mutex_lock(&registry);
    context->following = contexts;
    contexts = hide(context);
    pthread_mutex_unlock(&registry);
}

void at_fork_remove(attune_context *context) {
    pthread_mutex_lock(&registry);
    at_hidden_context *link = &contexts;
    while (show(*link) != context) link = &show(*link)->following;
    *link = context->following;
    pthread_mutex_unlock(&registry);
}
