/* Compiles a lowered kernel with the code generator in this process and runs it, for tests. */
#ifndef TESTS_JIT_RUN_H
#define TESTS_JIT_RUN_H

#include "ir/ir.h"
#include "target/target.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether a test goes through this target: all, with ATTUNE_TEST_TARGETS=here those that this CPU runs, with =best the
 * best of them. An emulated CPU has no time to interpret again what was interpreted outside, and a sanitizer sees the
 * same code with each target. */
static inline bool target_is_tested(const at_target *target) {
    const char *const chosen = getenv("ATTUNE_TEST_TARGETS");
    if (!chosen) return true;
    if (!at_target_runs_here(target)) return false;
    if (strcmp(chosen, "best") != 0) return true;
    /* Best first. */
    const at_target *best = at_targets();
    while (!at_target_runs_here(best)) best++;
    return target == best;
}

/* Whether this CPU runs machine code for the target. What it cannot run is said, once for each target. */
static inline bool target_can_run(const at_target *target) {
    static unsigned said;
    const unsigned bit = 1u << (target - at_targets());
    if (at_target_runs_here(target)) return true;
    if (!(said & bit)) printf("# machine code of %s is not run: this CPU cannot\n", target->name);
    said |= bit;
    return false;
}

/* With ATTUNE_TEST_SHORT=yes, as in .ci/run: where a test goes through all pairs of two things, each of the first
 * meets only one or a few of the second, always the same. */
static inline bool tests_are_short(void) {
    const char *const chosen = getenv("ATTUNE_TEST_SHORT");
    return chosen && strcmp(chosen, "yes") == 0;
}

/* Runs all phases on this thread, each cut into ranges of `range` tasks (0: all at once) that run last range first.
 * Scratch and shared memory hold garbage at the start and have guard bytes that are checked. */
attune_status jit_run(const ir_kernel *kernel, const at_target *target, void *const *buffers, const int64_t *scalars,
                      int64_t range, at_error *err);

/* Runs an image that exists. */
attune_status jit_run_image(const void *image, size_t bytes, void *const *buffers, const int64_t *scalars,
                            int64_t range, at_error *err);

#endif
