/* Kernels by the text of their problem. */
#ifndef ATTUNE_JAX_SITE_H
#define ATTUNE_JAX_SITE_H

#include "attune.h"

#include <stdbool.h>

typedef struct site {
    struct site *next;
    attune_kernel *kernel;
    attune_problem problem;
    attune_arguments arguments; /* with all that does not vary set */
    bool is_kept;               /* in the table, for good */
    size_t length;
    char text[];
} site;

/* The context of all calls, made once per process and never destroyed: a task of XLA's pool may begin after the last
 * call. It starts no threads. NULL after a failure, whose reason is *message. */
attune_context *site_context(attune_status *status, const char **message);

/* The site of a problem: compiles on the first call. NULL after a failure, whose reason is *message; the next call
 * tries again. Thread-safe, without a lock. */
site *site_find(const char *text, size_t length, attune_status *status, const char **message);

/* After a call: frees a site for which the table had no room. */
void site_release(site *s);

typedef enum site_event { SITE_COMPILED, SITE_READ, SITE_NUM_EVENTS } site_event;
uint64_t site_count(site_event event);

#endif
