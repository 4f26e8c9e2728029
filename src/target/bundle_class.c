/* Which code of a bundle a CPU runs, among those of one target: the code of its tuning class, else that of the class
 * that is nearest to it, else the first. The run time of a bundle links this file. */
#include "target/bundle_abi.h"

#include "target/tuning_class.h"

#include <string.h>

/* The code of a class among those of one target. */
static const at_bundle_code *find_class(const at_bundle_code *first, const at_bundle_code *end, const char *machine) {
    for (const at_bundle_code *code = first;
         code < end && !strcmp(at_bundle_code_target(code), at_bundle_code_target(first)); code++)
        if (!strcmp(at_bundle_code_machine(code), machine)) return code;
    return NULL;
}

const at_bundle_code *at_bundle_nearest(const at_bundle_code *first, const at_bundle_code *end, const char *machine) {
    const char *order[AT_MAX_CLASSES];
    const at_bundle_code *code = find_class(first, end, machine);
    const size_t count = at_class_neighbours(machine, order);
    for (size_t i = 0; i < count && !code; i++) code = find_class(first, end, order[i]);
    return code ? code : first;
}
