/* The tuning class of a context's kernels, and the probe for CPUs that attune does not know. */
#ifndef ATTUNE_RUNTIME_MACHINE_H
#define ATTUNE_RUNTIME_MACHINE_H

#include "runtime/disk_cache.h"
#include "target/tuning_class.h"

typedef struct at_machine_class {
    const char *name;
    const char *source; /* where it comes from: "option", "ATTUNE_MACHINE", "cpu", "probe" */
} at_machine_class;

/* The class of the option, else of ATTUNE_MACHINE, else of this CPU. For a target of another architecture
 * ATTUNE_MACHINE and this CPU are ignored, and the class is generic. An unknown name, or one of another architecture,
 * is ATTUNE_INVALID_ARGUMENT. */
attune_status at_machine_choose(const char *option, const at_target *target, at_machine_class *machine, at_error *err);

/* If the class is not known yet: takes the one that an earlier probe of this CPU has left beside the cache. */
void at_machine_recall(const at_disk_cache *cache, const at_target *target, at_machine_class *machine);

/* Measures the core that this thread runs on, in about 10 ms. ATTUNE_UNSUPPORTED where it lacks x86's fused
 * multiply-add. */
attune_status at_core_measure(at_core_measures *measures, at_error *err);

#endif
