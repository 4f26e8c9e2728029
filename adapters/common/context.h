/* attune's context of a process. */
#ifndef ATTUNE_COMMON_CONTEXT_H
#define ATTUNE_COMMON_CONTEXT_H

#include "attune.h"
#include "counters.h"

#include <stdbool.h>

/* What the adapter defines about its engine. */
typedef struct common_engine_info {
    bool has_threads;   /* calls pass the engine's threads; otherwise attune's context has its own */
    bool has_stock;     /* the engine computes calls for which attune has no machine code; otherwise attune's virtual
                           machine computes them, which is slower than an engine's kernels */
    unsigned max_plans; /* plans in a table, see common/plans.h */
    unsigned repeats;   /* attune_plan_options.repeats of each plan; 0: the default */
    bool compiles_in_background; /* attune_plan_options.background of each plan */
    bool never_waits; /* plans have a deadline of 0 (or ATTUNE_DEADLINE_US) and do not use the virtual machine: the
                         engine checks by attune_plan_get_info whether it may call a plan */
} common_engine_info;
extern const common_engine_info common_engine;

/* The context of all calls. It is created once per process and never destroyed, as kernels may run until the process
 * ends. With the engine's threads it has none of its own, so no thread of attune runs when the engine unloads the
 * adapter. NULL after a failure; then *status is set, and *message is a sentence that stays valid. Both may be NULL. */
attune_context *common_context(attune_status *status, const char **message);

/* Another context with the same options, which also reads kernels from a signed pack. *message is a sentence after a
 * failure, and if the pack is not used. Free it by attune_context_destroy. */
attune_context *common_context_of_pack(const char *pack, char message[ATTUNE_MESSAGE_BYTES]);

/* How many kernels these contexts have compiled, and read from the disk cache or a pack. */
extern adapter_counter common_compiles, common_disk_hits;

#endif
