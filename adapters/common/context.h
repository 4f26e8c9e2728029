/* attune's context of a process. */
#ifndef ATTUNE_COMMON_CONTEXT_H
#define ATTUNE_COMMON_CONTEXT_H

#include "attune.h"
#include "counters.h"

/* The context of all calls, made once per process and never destroyed: kernels may run until the very end. Calls pass
 * the engine's threads; it has none of its own, so that nothing of attune runs when the engine unloads the adapter.
 * NULL after a failure: *status, and *message is a sentence that stays. Both may be NULL. */
attune_context *common_context(attune_status *status, const char **message);

/* Kernels that this context compiled, and that it read from the disk cache. */
extern adapter_counter common_compiles, common_disk_hits;

#endif
