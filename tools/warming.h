/* Many kernels acquired at once, on all CPUs: what `attune warm` is, and how `attune sweep` begins. */
#ifndef ATTUNE_TOOLS_WARMING_H
#define ATTUNE_TOOLS_WARMING_H

#include "manifest.h"

#include <signal.h>

/* What happened to an entry. */
typedef enum warm_outcome { WARM_LEFT = 0, WARM_COMPILED, WARM_CACHED, WARM_FAILED, WARM_OUTCOMES } warm_outcome;

typedef struct warming {
    size_t count[WARM_OUTCOMES];
    double compile_ms; /* of all that were compiled, added up */
    double seconds;    /* on the clock */
} warming;

/* Acquires every kernel of the list in `jobs` threads and releases it. Failures are printed, and do not stop the
 * others. After `budget` seconds (0: no end), or when *is_interrupted becomes non-zero, no more are begun. On a
 * terminal a line on stderr shows how far it is. */
void warming_run(warming *w, attune_context *context, const manifest *list, uint32_t jobs, double budget,
                 const volatile sig_atomic_t *is_interrupted);

#endif
