/* The user's functions on scores, masks and probabilities in a kernel (src/expr).
 *
 * A builder opens places from the outside in: a task, a row, a key. At each it fills in what is known there
 * (mha_fill_values), so that nothing is computed more often than its operands change. Values have one lane where all
 * lanes agree. A builder that keeps values of rows in memory asks which those are (mha_row_values).
 *
 * An index of a tensor that the prover cannot follow is clamped to the dim. Where src/expr has proved it, that changes
 * nothing; with it nothing is read outside of a tensor, whatever it holds. */
#ifndef ATTUNE_ATTEND_SHARED_FUNCTIONS_H
#define ATTUNE_ATTEND_SHARED_FUNCTIONS_H

#include "attend/shared/sequence.h"

/* What is known at a place; NULL: nothing. All idx. `lanes` keys from `key` on. */
typedef struct mha_place {
    const mha_sequence *sequence;
    const ir_expr *head, *kv_head, *query, *key;
    int lanes;
} mha_place;

/* Of the nodes of c->functions. To be copied where a place is opened in a block of the IR of its own. */
typedef struct mha_values {
    const ir_expr *of[EX_MAX_NODES];
} mha_values;

typedef enum mha_function { MHA_SCORE_FUNCTION, MHA_MASK_FUNCTION, MHA_PROB_FUNCTION, MHA_NUM_FUNCTIONS } mha_function;

static inline int mha_function_root(const mha_context *c, mha_function f) {
    if (!c->functions) return -1;
    return f == MHA_SCORE_FUNCTION  ? c->functions->score
           : f == MHA_MASK_FUNCTION ? c->functions->mask
                                    : c->functions->prob;
}
static inline bool mha_has_function(const mha_context *c, mha_function f) { return mha_function_root(c, f) >= 0; }

/* functions_value.c: a variable at a place, NULL if it is not known there; and the value of a node, which is computed
 * and added to the values if it is not there yet. */
const ir_expr *mha_variable_at(const mha_place *place, ex_var var);
const ir_expr *mha_fill_value(const mha_context *c, int node, const mha_place *place, mha_values *values);

/* Computes all that the function needs of this place, and that is not there yet. */
void mha_fill_values(const mha_context *c, mha_function f, const mha_place *place, mha_values *values);

/* The values that depend on the row (its query, and its head where `has_heads`) and on no key, and are needed with
 * keys; returns how many. */
int mha_row_values(const mha_context *c, mha_function f, bool has_heads, int nodes[EX_MAX_NODES]);
/* The element that such a value is kept as; the value as that, and back. */
ir_elem mha_kept_elem(const mha_context *c, int node);
const ir_expr *mha_keep_value(const mha_context *c, int node, const mha_values *values);
const ir_expr *mha_kept_value(const mha_context *c, int node, const ir_expr *kept);

/* Which of the nodes up to the function's root it needs; returns the root. -1: there is no function. */
int mha_needed_nodes(const mha_context *c, mha_function f, bool needed[EX_MAX_NODES]);

/* functions_distance.c: the values that depend on query and key by kv - q alone, and otherwise on what all rows of a
 * head share, are dear, and are needed with other things; returns how many. They are right at keys that are up to
 * `beyond` after the last one, too. */
int mha_distance_values(const mha_context *c, mha_function f, int64_t beyond, int nodes[EX_MAX_NODES]);

/* The values that are elements of tensors of numbers which have one for each row and key, those of neighbouring keys
 * side by side; returns how many. Such a value of `lanes` keys, which are known to be inside, as c->elem. */
int mha_keys_in_rows(const mha_context *c, mha_function f, bool has_heads, int nodes[EX_MAX_NODES]);
const ir_expr *mha_load_keys(const mha_context *c, int node, const mha_place *place);

/* The score, or probability, z as the function has it; z where there is none. */
const ir_expr *mha_modified(const mha_context *c, mha_function f, const mha_place *place, const mha_values *values,
                            const ir_expr *z);
/* Whether the function lets keys be seen, `lanes` of bool; NULL: there is none. */
const ir_expr *mha_function_sees(const mha_context *c, const mha_place *place, const mha_values *values, int lanes);

#endif
