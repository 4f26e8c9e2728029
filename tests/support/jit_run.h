/* Compiles a lowered kernel with the code generator in this process and runs it, for tests. */
#ifndef TESTS_JIT_RUN_H
#define TESTS_JIT_RUN_H

#include "ir/ir.h"
#include "target/target.h"

#include <stdlib.h>
#include <string.h>

/* Whether a test goes through this target: all, with ATTUNE_TEST_TARGETS=here those that this CPU runs, with =best the
 * best of them. An emulated CPU has no time to interpret again what was interpreted outside, and a sanitizer sees the
 * same code with each target. */
bool target_is_tested(const at_target *target);

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
