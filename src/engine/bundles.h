/* Bundles that a program has registered. Their kernels are part of the program, so their code is neither loaded nor
 * copied. They are looked up after the memory cache and before the disk cache. */
#ifndef ATTUNE_ENGINE_BUNDLES_H
#define ATTUNE_ENGINE_BUNDLES_H

#include "base/error.h"
#include "base/memory.h"
#include "operator/own.h"
#include "target/bundle_abi.h"

typedef struct at_registered at_registered;

/* A list that only grows, without a lock. */
typedef struct at_bundles {
    const attune_allocator *allocator;
    _Atomic(at_registered *) first;
} at_bundles;

void at_bundles_init(at_bundles *bundles, const attune_allocator *allocator);
void at_bundles_free(at_bundles *bundles);
attune_status at_bundles_add(at_bundles *bundles, const at_bundle *bundle, at_error *err);

/* Finds the kernel of an operation of attune's for a target: with a schedule (as text) the one compiled with it,
 * otherwise the one of the nearest tuning class. NULL: none. The bundle added last is searched first. *kernel, if not
 * NULL, becomes the kernel that the code is of. */
const at_bundle_code *at_bundles_find(const at_bundles *bundles, at_operation operation, const char *target,
                                      const char *machine, const char *schedule, const at_bundle_kernel **kernel);

/* Whether none was added. */
bool at_bundles_are_empty(const at_bundles *bundles);

#endif
