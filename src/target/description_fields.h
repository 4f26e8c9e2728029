/* Names and meanings of a description's numbers, in the order of its text, for the command that shows them. It depends
 * on nothing else of attune. */
#ifndef ATTUNE_TARGET_DESCRIPTION_FIELDS_H
#define ATTUNE_TARGET_DESCRIPTION_FIELDS_H

static const struct {
    const char *name, *meaning;
} at_description_fields[] = {
#define FIELD(name, kind, least, most, meaning) {#name, meaning},
#include "description.def"
#undef FIELD
};

#endif
