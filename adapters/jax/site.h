/* Kernels by the text of their problem. */
#ifndef ATTUNE_JAX_SITE_H
#define ATTUNE_JAX_SITE_H

#include "attune.h"
#include "common/list.h"

typedef struct site {
    common_link link;  /* first */
    attune_plan *plan; /* so that ATTUNE_DEADLINE_US holds; the problem leaves no length open */
    attune_problem problem;
    attune_arguments arguments; /* with all that does not vary set */
    bool is_kept;               /* in the table, for good */
    size_t length;
    char text[];
} site;

/* The site of a problem: its first run compiles. NULL after a failure, whose reason is *message; the next call
 * tries again. Thread-safe, without a lock. */
site *site_find(const char *text, size_t length, attune_status *status, const char **message);

/* After a call: frees a site for which the table had no room. */
void site_release(site *s);

#endif
