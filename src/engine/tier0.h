/* Tier 0: kernels that were compiled when attune was built, for problems that are not compiled yet. They are bundles
 * (docs/bundles.md) in libattune-tier0.so, next to the library, and take as run-time arguments whatever a kernel can. A
 * process loads the file when it first needs it, and goes on without it if it is missing. */
#ifndef ATTUNE_ENGINE_TIER0_H
#define ATTUNE_ENGINE_TIER0_H

#include "engine/bundles.h"
#include "host/log.h"
#include "target/bundle_abi.h"
#include "target/target.h"

#include "problem/problem.h"

/* A kernel of tier 0 that computes a problem. */
typedef struct at_tier0_kernel {
    const at_bundle_kernel *kernel;
    const at_bundle_code *code;
    bool folds_group; /* it computes the heads of a group as queries (call/call.h) */
} at_tier0_kernel;

/* Whether the environment lets contexts use tier 0: ATTUNE_TIER0=off does not. */
bool at_tier0_is_on(void);

/* Where kernels are looked for. */
typedef struct at_tier0_place {
    const at_target *target;
    const char *machine;          /* tuning class */
    const at_bundles *registered; /* bundles of the program: general kernels in them belong to tier 0, too */
    const at_log *log;
} at_tier0_place;

/* The fastest kernel of tier 0 for a problem. `reproducible` problems get such kernels only. false: there is none. */
bool at_tier0_find(const attune_problem *canonical, const at_tier0_place *place, at_tier0_kernel *found);

/* The kernel of tier 0 with the text of a described operation. */
bool at_tier0_find_described(at_operation operation, const at_tier0_place *place, at_tier0_kernel *found);

/* The canonical problem that a kernel was compiled for. */
attune_status at_tier0_problem(const at_bundle_kernel *kernel, attune_problem *problem, at_error *err);

#endif
