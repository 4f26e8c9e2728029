/* Which tensor of a source is which weight of a block, by the names that libraries and models give them. */
#ifndef ATTUNE_TOOLS_WEIGHTS_NAMES_H
#define ATTUNE_TOOLS_WEIGHTS_NAMES_H

#include "weights/weights_source.h"

/* Names and layout from the command line. */
typedef struct weights_request {
    const char *prefix;                    /* names of one block begin with this; NULL: there is only one block */
    const char *names[ATTUNE_NUM_WEIGHTS]; /* full names of tensors; NULL: as the convention says */
    const char **ignored;                  /* full names of tensors to leave aside */
    size_t num_ignored;
    bool has_layout;
    attune_weight_layout layout; /* with has_layout: instead of the convention's */
} weights_request;

enum { WEIGHTS_NORMS = 2 };

/* The result. */
typedef struct weights_match {
    const char *convention; /* "torch.nn.MultiheadAttention"; NULL: all names were given */
    char *prefix;
    attune_weight_layout layout;
    bool has[ATTUNE_NUM_WEIGHTS];
    size_t index[ATTUNE_NUM_WEIGHTS]; /* of the tensor in the source */
    bool has_norm[WEIGHTS_NORMS];     /* of q_norm and k_norm, which are no weights of the blob */
    size_t norm_index[WEIGHTS_NORMS];
    /* Its name in a convention; NULL: the convention has no such weight. For messages about missing weights. */
    const char *called[ATTUNE_NUM_WEIGHTS];
} weights_match;

/* false after a message: no block, several, or tensors beside it that would be forgotten. Free with
 * weights_match_free. */
bool weights_match_find(weights_match *match, const weights_source *source, const weights_request *request);
void weights_match_free(weights_match *match);

/* A weight by its name in attune, "q_weight"; ATTUNE_NUM_WEIGHTS if there is none. */
int weights_id(const char *name, size_t length);

/* Some names that begin with `prefix`, "'a', 'b', 'c' and 4 more"; "nothing" if there are none. Returns `text`. */
enum { SOME_NAMES_TEXT = 240 };
const char *weights_some_names(const weights_source *source, const char *prefix, char text[SOME_NAMES_TEXT]);

#endif
