/* Acquires many kernels at once, on all CPUs, for `attune warm` and the beginning of `attune sweep`. */
#ifndef ATTUNE_TOOLS_WARMING_H
#define ATTUNE_TOOLS_WARMING_H

#include "common/manifest.h"

/* What became of a kernel of the list. WARM_SHARED: it is the same as another one, which is counted there. */
typedef enum warm_outcome {
    WARM_LEFT = 0,
    WARM_COMPILED,
    WARM_CACHED,
    WARM_FAILED,
    WARM_SHARED,
    WARM_OUTCOMES
} warm_outcome;

typedef struct warming {
    size_t count[WARM_OUTCOMES];
    double compile_ms;       /* of all that were compiled, added up */
    double seconds;          /* on the clock */
    uint64_t write_failures; /* of the disk cache: some of what was compiled is not there */
} warming;

/* Acquires every kernel of the list in `jobs` threads and releases it. Failures are printed and noted in the list, and
 * do not stop the others. After `budget` seconds (0: no end), or an interruption, no more are begun. On a
 * terminal a line on stderr shows how far it is. false only when out of memory, after a message. */
bool warming_run(warming *w, attune_context *context, manifest *list, uint32_t jobs, double budget);

/* The same. Then it looks for the compiled kernels in the disk cache, as a process does that may not compile. A kernel
 * that is not there has failed. */
bool warming_run_and_read_back(warming *w, attune_context *context, manifest *list, uint32_t jobs, double budget);

#endif
