/* Tuning classes: groups of CPUs for which the same schedules are best. The name is found by the CPU's identity,
 * without measuring. Virtual machines of several generations have one brand string and different classes. */
#ifndef ATTUNE_TARGET_TUNING_CLASS_H
#define ATTUNE_TARGET_TUNING_CLASS_H

#include "base/error.h"
#include "target/cpu.h"

#include <stdbool.h>

/* Bytes of a class's name with its NUL. */
enum { AT_CLASS_BYTES = 25, AT_MAX_CLASSES = 64 };

/* The class of a CPU; at_class_generic if the table does not know it. Static storage, as all names here. */
extern const char at_class_generic[];
const char *at_class_of(const at_cpu_identity *cpu);

/* The name of a class, if there is such a class; else NULL. */
const char *at_class_find(const char *name);

/* Whether a CPU of the architecture can be of the class; any can be generic. */
bool at_class_is_of(const char *name, bool is_arm);

/* ATTUNE_INVALID_ARGUMENT with the list of the architecture's names: `what` was set to `name`. */
attune_status at_class_refuse(const char *what, const char *name, bool is_arm, at_error *err);

/* All other classes of this one's architecture, the nearest first: those of the same line by distance, of two as far
 * away the newer one, then generic, then the other lines in the order of the table. Returns how many. Of a class that
 * the table does not know: generic, then all. */
size_t at_class_neighbours(const char *name, const char *order[AT_MAX_CLASSES]);

/* The measurements of a core by a probe, as ratios, so that they depend on no clock. 0: not measured, or not known of
 * the class. */
typedef struct at_core_measures {
    double fma;      /* time of a multiply-add that waits for the one before / of one that does not, 256 bits */
    double fma_wide; /* the same with 512 bits */
    double add;      /* time of an addition that waits / of a multiply-add that waits */
} at_core_measures;

/* The newest class of the CPU's maker (or of any, where the maker is not known) all of whose measures are known and
 * within a tenth of these; generic if there is none. */
const char *at_class_round(const at_cpu_identity *cpu, const at_core_measures *measures);

#endif
