/* attune's plans by the kind of call: what all adapters keep between calls. There is no lock, which fork() could leave
 * locked. */
#ifndef ATTUNE_COMMON_PLANS_H
#define ATTUNE_COMMON_PLANS_H

#include "attune.h"
#include "kind.h"

#include <stdatomic.h>

/* A plan, and what calls start from. Only the table writes it. */
typedef struct common_plan {
    struct common_plan *next; /* of the bucket */
    uint64_t hash;            /* of the key */
    size_t length;
    attune_context *context;
    attune_plan *plan;          /* NULL: attune refuses the problem, as `status` and `message` say */
    attune_problem problem;     /* what the plan computes */
    attune_arguments arguments; /* with everything set that does not vary */
    attune_status status;
    char message[ATTUNE_MESSAGE_BYTES];
    bool is_kept; /* in the table, until that is freed */
    char key[];   /* with a NUL behind its bytes */
} common_plan;

enum { COMMON_BUCKETS = 256 };

/* The plans of one engine or of one node. All zeros is an empty table; in static storage it is never freed. Its keys
 * are all of one type. */
typedef struct common_plans {
    attune_context *context;                        /* NULL: common_context */
    const attune_problem *functions;                /* see common_describe */
    _Atomic(common_plan *) buckets[COMMON_BUCKETS]; /* lists that only grow, at the front */
    atomic_uint count;
} common_plans;

/* The plan of a kind of call, or of a problem as text, made on the first call. NULL after a failure: *status, and
 * *message is a sentence, valid as that of attune_last_message(). A refusal by attune is remembered; after any other
 * failure the next call tries again.
 *
 * The table keeps common_engine.max_plans. Beyond them an engine that computes by itself gets none, with
 * ATTUNE_UNSUPPORTED, and another engine gets one for a single call. Thread-safe, and without a lock. */
common_plan *common_plan_of(common_plans *all, const common_kind *kind, attune_status *status, const char **message);
common_plan *common_plan_of_text(common_plans *all, const char *text, size_t length, attune_status *status,
                                 const char **message);

/* Runs a call. runner: the engine's threads, or NULL: the context's, at most max_threads (0: all). After a failure
 * *message is a sentence, as above. */
attune_status common_plan_run(const common_plan *p, const attune_arguments *arguments, const attune_runner *runner,
                              unsigned max_threads, const char **message);

/* After a call: frees a plan that was made for it alone. p may be NULL. */
void common_plan_release(common_plan *p);

/* Frees all plans of a table that nobody uses. */
void common_plans_free(common_plans *all);

#endif
