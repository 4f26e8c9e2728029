/* The tier for engines (attune/attention.h), on top of plans: a description becomes a problem and its plan, a step
 * becomes the arguments of a call. Nothing here knows how attention is computed. */
#ifndef ATTUNE_ATTENTION_ATTENTION_H
#define ATTUNE_ATTENTION_ATTENTION_H

#include "problem/signature.h"

#include <attune.h>

/* How many tokens a tensor has for each sequence (or page). */
typedef enum an_tokens { AN_QUERIES, AN_KEYS, AN_PAGE } an_tokens;

/* A view of the step that is a tensor of the problem: where it comes from and goes to. */
typedef struct an_place {
    const char *name; /* of the view */
    size_t view;      /* its offset in attune_step */
    size_t pointer, strides; /* offsets in attune_arguments; strides 0: the tensor has none */
    an_tokens tokens;
    int rank;
    int64_t heads, row; /* of a tensor of rank 3: row is 1 */
    int64_t panel;      /* tokens that lie together as one; else 1 */
    int64_t bytes;      /* of an element */
} an_place;

enum { AN_MOST_PLACES = 9 };

struct attune_attention {
    attune_context *context;
    attune_plan *plan;
    attune_problem problem;
    attune_layout layout;
    attune_kv kv;
    bool appends;
    attune_arguments arguments; /* what all steps begin with */
    an_place places[AN_MOST_PLACES];
    size_t num_places;
};

/* Which views the attention's problem has. */
void an_settle_places(attune_attention *attention);

/* The context of attentions that were given none. */
attune_status an_shared_context(attune_context **context);

#endif
