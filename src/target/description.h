/* The description of a machine: some numbers about a core and its caches, from which schedules are chosen and their
 * cost is modelled. Each tuning class has one (machines.def). One that was given by hand, or probed on a CPU that
 * nobody knows, has a class of its own, whose name is a hash of the numbers: so a class always means the same
 * description, and equal classes choose equal schedules. */
#ifndef ATTUNE_TARGET_DESCRIPTION_H
#define ATTUNE_TARGET_DESCRIPTION_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

/* The numbers' meanings: description.def. All are exact to three decimals. */
typedef struct at_description {
#define FIELD(name, kind, least, most, meaning) double name;
#include "target/description.def"
#undef FIELD
} at_description;

/* Bytes of a description's text with its NUL. */
enum { AT_DESCRIPTION_TEXT = 512 };

/* That of a CPU of which nothing is known, of the architecture. It is what the rules without a description were made
 * for: two multiply-adds and two loads of 256 bits a cycle; on Arm of 128. */
const at_description *at_description_generic(bool is_arm);

/* That of a tuning class; NULL if there is no such class. Of "generic": at_description_generic. */
const at_description *at_description_of(const char *class_name, bool is_arm);

/* "width=32,fma=2,...,l1=32K,...": all numbers, in one order and one spelling. Returns the length. */
size_t at_description_print(const at_description *description, char text[AT_DESCRIPTION_TEXT]);

/* Sets the numbers that the text names: "fma=2,l1=48K", any of them, once each, in any order. A sentence that begins
 * with `what`, if a name is unknown, a value is no number or out of range, or the caches contradict each other; then
 * *description is undefined. */
attune_status at_description_parse(const char *what, const char *text, at_description *description, at_error *err);

/* Writes "custom-" and 16 hexadecimal digits of a hash of the numbers; `name` has AT_CLASS_BYTES. */
void at_description_name(const at_description *description, char *name);

/* Bytes of the last cache. */
static inline double at_description_last_cache(const at_description *d) { return d->l3 > 0 ? d->l3 : d->l2; }

/* Slots of a unit that a vector of `bytes` takes: at least one. */
static inline double at_description_slots(const at_description *d, double bytes) {
    return bytes > d->width ? bytes / d->width : 1;
}

#endif
