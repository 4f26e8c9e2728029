/* Users' functions on scores, masks and probabilities in a kernel (src/expr).
 *
 * A builder opens places from the outside in: a task, a row, a key. At each it computes the nodes whose variables are
 * known there (mha_fill_values), so that no node is computed more often than its operands change. A value has one lane
 * if all lanes agree. mha_row_values lists the values of rows, for a builder that keeps them in memory.
 *
 * An index that the prover cannot bound is clamped to its dim. src/expr has proved most indices, so that changes
 * nothing; with the clamp, no read is outside its tensor, whatever the tensor's elements are. */
#ifndef ATTUNE_ATTEND_SHARED_FUNCTIONS_H
#define ATTUNE_ATTEND_SHARED_FUNCTIONS_H

#include "attend/shared/sequence.h"

/* The variables that are known at a place, as idx; the others are NULL. A place has `lanes` keys, from `key` on. */
typedef struct mha_place {
    const mha_sequence *sequence;
    const ir_expr *head, *kv_head, *query, *key;
    int lanes;
} mha_place;

/* Values of the nodes of c->functions; NULL: not computed yet. A block of the IR copies it, as its values end with it.
 */
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
 * and added to `values` unless they have it. */
const ir_expr *mha_variable_at(const mha_place *place, ex_var var);
const ir_expr *mha_fill_value(const mha_context *c, int node, const mha_place *place, mha_values *values);

/* Computes the nodes of the function that can be computed at this place, unless `values` have them. */
void mha_fill_values(const mha_context *c, mha_function f, const mha_place *place, mha_values *values);

/* Lists the values that depend on the row (its query, and with `has_heads` its head) and on no key, and that nodes with
 * keys use; returns how many. */
int mha_row_values(const mha_context *c, mha_function f, bool has_heads, int nodes[EX_MAX_NODES]);
/* The element type that such a value has in scratch; the value converted to it, and back. */
ir_elem mha_kept_elem(const mha_context *c, int node);
const ir_expr *mha_keep_value(const mha_context *c, int node, const mha_values *values);
const ir_expr *mha_kept_value(const mha_context *c, int node, const ir_expr *kept);

/* Marks the nodes that the function uses; returns its root, -1 without a function. */
int mha_needed_nodes(const mha_context *c, mha_function f, bool needed[EX_MAX_NODES]);

/* functions_distance.c: lists the values that depend on query and key through kv - q alone, are expensive, and are
 * operands of other nodes; returns how many. They are right for keys up to `beyond` after the last one, too. */
int mha_distance_values(const mha_context *c, mha_function f, int64_t beyond, int nodes[EX_MAX_NODES]);

/* Lists the values that are elements of float tensors with an element for each row and key, contiguous along keys;
 * returns how many. mha_load_keys loads such a value for `lanes` keys, which must exist, as c->elem. */
int mha_keys_in_rows(const mha_context *c, mha_function f, bool has_heads, int nodes[EX_MAX_NODES]);
const ir_expr *mha_load_keys(const mha_context *c, int node, const mha_place *place);

/* The score, or probability, z after the function; z itself without a function. */
const ir_expr *mha_modified(const mha_context *c, mha_function f, const mha_place *place, const mha_values *values,
                            const ir_expr *z);
/* Whether mask_mod shows the keys, `lanes` of bool; NULL without mask_mod. */
const ir_expr *mha_function_sees(const mha_context *c, const mha_place *place, const mha_values *values, int lanes);

#endif
