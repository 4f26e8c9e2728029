/* The tuning class of a context's kernels, and the probe for CPUs that attune does not know. */
#ifndef ATTUNE_MACHINE_MACHINE_H
#define ATTUNE_MACHINE_MACHINE_H

#include "base/error.h"
#include "target/description.h"
#include "target/target.h"
#include "target/tuning_class.h"

#include <stdbool.h>

/* The class and its description. */
typedef struct at_machine_class {
    char name[AT_CLASS_BYTES];
    const char *source; /* where it comes from: "option", "ATTUNE_MACHINE", "cpu", "probe" */
    at_description description;
    char text[AT_DESCRIPTION_TEXT]; /* of the description */
} at_machine_class;

/* The class of the option, else of ATTUNE_MACHINE, else of this CPU. For a target of another architecture
 * ATTUNE_MACHINE and this CPU are ignored, and the class is generic. An unknown name, or one of another architecture,
 * is ATTUNE_INVALID_ARGUMENT.
 *
 * Both texts are the name of a class; or numbers, "fma=2,l1=32K"; or a name and numbers, "zen4,l2=512K". Numbers that
 * are not named are those of the class, without one those of generic. A text with numbers means a class of its own,
 * even if the numbers are those of a known one. */
attune_status at_machine_choose(const char *option, const at_target *target, at_machine_class *machine, at_error *err);

/* Reads such a text. *is_other: the class is of the other architecture; the machine is then not set. what: how a
 * message calls the text; source: as in the class. */
attune_status at_machine_read(const char *what, const char *text, const char *source, bool arm,
                              at_machine_class *machine, bool *is_other, at_error *err);

/* Whether the target is of the other architecture. */
bool at_machine_is_foreign(const at_target *target);

/* Measures this machine: a class that is known, or one of its own. *kept is what to read it from again: of a known
 * class its name, of another CPU its description. */
attune_status at_machine_measure(at_core_measures *measures, at_machine_class *machine, const char **kept,
                                 at_error *err);

/* Measures the core that this thread runs on, in about 10 ms. ATTUNE_UNSUPPORTED where it lacks x86's fused
 * multiply-add. */
attune_status at_core_measure(at_core_measures *measures, at_error *err);

/* Cycles of one instruction where none waits for another, and of a chain, by the probe. 0: the CPU has no such
 * instruction. */
typedef struct at_core_cycles {
    double fma[3], load[3], store[3], shuffle[3]; /* of 128, 256 and 512 bits */
    double bf16, i8;                              /* of the widest vectors that the CPU has */
    double latency;                               /* of a multiply-add that waits for the one before */
} at_core_cycles;

/* Measures these in about 15 ms. The CPU is one that at_core_measure supports. */
void at_core_count(at_core_cycles *cycles);

/* The description of a core with these cycles, and with caches of these sizes (0: not known). Rates become the nearest
 * of 1/4, 1/2, 1, 2, 3 and so on up to 8, so that the noise of a measurement changes nothing. What is not measured is
 * generic. */
at_description at_core_describe(const at_core_cycles *cycles, int64_t l1, int64_t l2, int64_t l3);

#endif
