/* The run time of a bundle: the functions that the functions of a bundle's header lead to. `attune bundle` gives each
 * a name of the bundle's own, so that any number of bundles can be in one program.
 *
 * The functions of a header have no kernel among their parameters: a few instructions, which src/bundle/thunk.c
 * writes, put it into the register of the last parameter and jump here. Results are values of attune_status. */
#ifndef ATTUNE_BUNDLE_RUN_RUN_H
#define ATTUNE_BUNDLE_RUN_RUN_H

#include "target/bundle_abi.h"

#include <attune.h>

typedef struct at_bundle_call at_bundle_call;

#define AT_BUNDLE_EXPORT __attribute__((visibility("default")))

/* A whole call, on this thread. `arguments` are the kernel's own struct. */
AT_BUNDLE_EXPORT int at_bundle_run(const void *arguments, const at_bundle_kernel *kernel);

/* Whether a run would begin, and if not, why: a sentence of at most `bytes`, its NUL among them. */
AT_BUNDLE_EXPORT int at_bundle_check(const void *arguments, char *message, size_t bytes,
                                     const at_bundle_kernel *kernel);

AT_BUNDLE_EXPORT int at_bundle_workspace(const void *arguments, uint32_t workers, size_t *bytes,
                                         const at_bundle_kernel *kernel);

/* The code in use, as text; NULL: there is none for this CPU. */
AT_BUNDLE_EXPORT const char *at_bundle_target(const at_bundle_kernel *kernel);

/* A call in parts: at_bundle_begin checks it and fills `call`; then the tasks of each phase run on any threads, each
 * with a worker number of its own below `workers`; a phase begins when the one before has ended. */
AT_BUNDLE_EXPORT int at_bundle_begin(const void *arguments, uint32_t workers, at_bundle_call *call,
                                     const at_bundle_kernel *kernel);
AT_BUNDLE_EXPORT uint32_t at_bundle_phases(const at_bundle_call *call);
AT_BUNDLE_EXPORT int64_t at_bundle_tasks(const at_bundle_call *call, uint32_t phase);
AT_BUNDLE_EXPORT int at_bundle_execute(const at_bundle_call *call, uint32_t phase, int64_t begin, int64_t end,
                                       uint32_t worker);

/* Makes all kernels use the code of this name, or (NULL) the best that this CPU runs. Nothing changes on failure. */
AT_BUNDLE_EXPORT int at_bundle_use(const char *target, const at_bundle *bundle);

/* ---- Within the run time ---- */

/* The code in use; NULL: there is none for this CPU. */
const at_bundle_code *at_bundle_code_of(const at_bundle_kernel *kernel);

#endif
