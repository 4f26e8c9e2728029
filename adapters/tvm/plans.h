/* Plans by the text of their problem. */
#ifndef ATTUNE_TVM_PLANS_H
#define ATTUNE_TVM_PLANS_H

#include "attune.h"
#include "common/list.h"

typedef struct plan_entry {
    common_link link; /* first */
    attune_plan *plan;
    int is_kept; /* for good */
    size_t length;
    char text[];
} plan_entry;

/* The context of all calls, with attune's own threads, made once per process and never destroyed. NULL: *status. */
attune_context *plans_context(attune_status *status);

/* The plan of a problem, made on the first call. NULL: *status, with attune's message. Thread-safe, without a lock. */
plan_entry *plans_find(const char *text, size_t length, attune_status *status);

/* After a call: destroys a plan for which there was no room. */
void plans_release(plan_entry *entry);

#endif
