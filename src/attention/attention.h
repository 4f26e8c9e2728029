/* The tier for engines (attune/attention.h), on top of plans: a description becomes a problem and its plan, a step
 * becomes the arguments of a call. Nothing here knows how attention is computed. */
#ifndef ATTUNE_ATTENTION_ATTENTION_H
#define ATTUNE_ATTENTION_ATTENTION_H

#include "base/error.h"
#include "problem/signature.h"

#include <attune.h>

/* How many tokens a tensor has for each sequence (or page). */
typedef enum an_tokens { AN_QUERIES, AN_KEYS, AN_PAGE, AN_NUM_TOKENS } an_tokens;

/* A view of the step that is a tensor of the problem: where it comes from and goes to. */
typedef struct an_place {
    const char *name;   /* of the view */
    const char *tensor; /* its name in the problem; static storage */
    size_t view;        /* its offset in attune_step */
    size_t pointer;     /* offset in attune_arguments, of a view if has_strides */
    bool has_strides;
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

/* ---- Steps ---- */

/* Copies a caller's step. `object`: what else the function was given, by its name for the message. */
attune_status an_take_step(const char *function, const char *object, const void *given_object, const attune_step *given,
                           attune_step *step, at_error *err);

/* Puts the step's sizes and lists into arguments, and says how many tokens its tensors have. */
attune_status an_put_sizes(const attune_attention *attention, const attune_step *step, attune_arguments *arguments,
                           int64_t tokens[AN_NUM_TOKENS], at_error *err);

/* Puts its tensors, bindings and workspace there. is_run: no pointer may be NULL. */
attune_status an_put_tensors(const attune_attention *attention, const attune_step *step,
                             const int64_t tokens[AN_NUM_TOKENS], bool is_run, attune_arguments *arguments,
                             at_error *err);

/* Reports the status of a call made of a step. Its message names the problem's tensors; here they become views. */
attune_status an_report_call(const attune_attention *attention, attune_status status);

attune_run_options an_options_of(const attune_step *step);

#endif
