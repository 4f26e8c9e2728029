/* attune's context of a process. */
#ifndef ATTUNE_COMMON_CONTEXT_H
#define ATTUNE_COMMON_CONTEXT_H

#include "attune.h"
#include "counters.h"

#include <stdbool.h>

/* What the adapter says of its engine. */
typedef struct common_engine_info {
    bool has_threads; /* calls pass the engine's threads. Otherwise attune's context has threads of its own */
    bool has_stock; /* the engine computes a call by itself where attune has no machine code for it. Otherwise attune's
                     * virtual machine does, which is slower than an engine's kernels */
    unsigned max_plans;          /* in one table, see common/plans.h */
    unsigned repeats;            /* attune_plan_options.repeats of each plan; 0: the default */
    bool compiles_in_background; /* attune_plan_options.background of each plan */
    bool never_waits; /* plans have a deadline of 0, unless ATTUNE_DEADLINE_US names one, and the virtual machine
                       * computes nothing: the engine asks attune_plan_get_info whether it may call a plan */
} common_engine_info;
extern const common_engine_info common_engine;

/* The context of all calls, made once per process and never destroyed: kernels may run until the very end. With the
 * engine's threads it has none of its own, so that nothing of attune runs when the engine unloads the adapter.
 * NULL after a failure: *status, and *message is a sentence that stays. Both may be NULL. */
attune_context *common_context(attune_status *status, const char **message);

/* Another context as that one is, which reads its kernels from a signed pack, too. *message is a sentence after a
 * failure, also if the pack is not used. attune_context_destroy frees it. */
attune_context *common_context_of_pack(const char *pack, char message[ATTUNE_MESSAGE_BYTES]);

/* Kernels that these contexts compiled, and that they read from the disk cache or a pack. */
extern adapter_counter common_compiles, common_disk_hits;

#endif
