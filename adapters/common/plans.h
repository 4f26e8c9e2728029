/* A table of plans by the kind of call, which all adapters keep between calls. It has no lock, as fork() could leave
 * one locked. */
#ifndef ATTUNE_COMMON_PLANS_H
#define ATTUNE_COMMON_PLANS_H

#include "attune.h"
#include "kind.h"

#include <stdatomic.h>

/* A plan, and arguments with which calls begin. Only the table writes it. */
typedef struct common_plan {
    struct common_plan *next; /* of the bucket */
    uint64_t hash;            /* of the key */
    size_t length;
    attune_context *context;
    attune_plan *plan;          /* NULL: attune rejects the problem; see `status` and `message` */
    attune_problem problem;     /* what the plan computes */
    attune_arguments arguments; /* with everything set that is the same in all calls */
    attune_status status;
    char message[ATTUNE_MESSAGE_BYTES];
    bool is_kept; /* it is in the table, and freed with it */
    char key[];   /* with a NUL behind its bytes */
} common_plan;

enum { COMMON_BUCKETS = 256 };

/* The plans of an engine, or of a node. All zeros is an empty table. A table in static storage is never freed. All keys
 * of a table have one type. */
typedef struct common_plans {
    attune_context *context;                        /* NULL: common_context */
    const attune_problem *functions;                /* see common_describe */
    _Atomic(common_plan *) buckets[COMMON_BUCKETS]; /* lists that grow at the front, and never shrink */
    atomic_uint count;
} common_plans;

/* The plan of a kind of call, or of a problem as text, created on the first call. NULL after a failure: then *status is
 * set, and *message is a sentence, as long as that of attune_last_message(). If attune rejects the problem, that is
 * remembered; after any other failure the next call tries again.
 *
 * The table keeps at most common_engine.max_plans. When it is full, an engine that can compute calls itself gets
 * ATTUNE_UNSUPPORTED, and any other engine gets a plan for one call. Thread-safe and lock-free. */
common_plan *common_plan_of(common_plans *all, const common_kind *kind, attune_status *status, const char **message);
common_plan *common_plan_of_text(common_plans *all, const char *text, size_t length, attune_status *status,
                                 const char **message);

/* Runs a call. runner: the engine's threads; NULL: at most max_threads (0: all) of the context's. After a failure
 * *message is a sentence, as above. */
attune_status common_plan_run(const common_plan *p, const attune_arguments *arguments, const attune_runner *runner,
                              unsigned max_threads, const char **message);

/* After a call: frees a plan that was created for that call. p may be NULL. */
void common_plan_release(common_plan *p);

/* Frees all plans of a table; none may be in use. */
void common_plans_free(common_plans *all);

#endif
