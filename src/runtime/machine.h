/* Which tuning class a context's kernels are for, and the probe for CPUs that say nothing which is known. */
#ifndef ATTUNE_RUNTIME_MACHINE_H
#define ATTUNE_RUNTIME_MACHINE_H

#include "runtime/disk_cache.h"
#include "target/tuning_class.h"

typedef struct at_machine_class {
    const char *name;
    const char *source; /* what told it: "option", "ATTUNE_MACHINE", "cpu", "probe" */
} at_machine_class;

/* The class of an option, else of ATTUNE_MACHINE, else of this CPU, all for a target. What ATTUNE_MACHINE and this CPU
 * tell does not concern a target of another architecture, which is generic. An unknown name, and one of another
 * architecture, are ATTUNE_INVALID_ARGUMENT. */
attune_status at_machine_choose(const char *option, const at_target *target, at_machine_class *machine, at_error *err);

/* Where nothing told the class: what a probe of this CPU has left beside the cache, if there is that. */
void at_machine_recall(const at_disk_cache *cache, const at_target *target, at_machine_class *machine);

/* Measures the core that this thread runs on, for some 10 ms. ATTUNE_UNSUPPORTED where it has no fused multiply-add of
 * x86. */
attune_status at_core_measure(at_core_measures *measures, at_error *err);

#endif
