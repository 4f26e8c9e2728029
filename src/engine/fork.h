/* fork() while other threads are inside attune, which takes its own locks before it and releases them on both sides.
 * Code of others has locks, too: host/foreign.h. */
#ifndef ATTUNE_ENGINE_FORK_H
#define ATTUNE_ENGINE_FORK_H

struct attune_context;

/* Called when a context is created and destroyed. In between, its locks are taken around fork(). */
void at_fork_add(struct attune_context *context);
void at_fork_remove(struct attune_context *context);

#endif
