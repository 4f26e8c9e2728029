/* The visible range of a query, as loop IR (problem_sight.h has it as C integers). A causal mask, a window and the
 * sequence's length give an interval of keys; global tokens add the first keys:
 *
 *     keys     | visible     | hidden    | visible | hidden     |
 *              0 … last_global             first … last           seq_kv - 1 */
#ifndef ATTUNE_ATTEND_SHARED_SIGHT_H
#define ATTUNE_ATTEND_SHARED_SIGHT_H

#include "attend/shared/sequence.h"

/* By causality, window and length, a query attends to keys first … last; none if last < first. By global_tokens it also
 * attends to keys 0 … last_global; -1: none. NULL: there is no such limit. For one query, or a vector of queries. */
typedef struct mha_sight {
    const ir_expr *first, *last, *last_global;
} mha_sight;

/* The visible range at any position, as idx. first is at least 0, last at most the sequence's last key. */
mha_sight mha_sight_at(const mha_context *c, const mha_sequence *e, const ir_expr *position);

/* The visible ranges of the queries at positions first … last together, as idx. */
typedef struct mha_sights {
    const ir_expr *some_first, *some_end; /* has all keys that some query attends to by causality, window and length */
    const ir_expr *globals_end;           /* some query also attends to keys before this; NULL without global_tokens */
    const ir_expr *all_first, *all_end;   /* keys that all queries attend to; only without global_tokens */
} mha_sights;
mha_sights mha_sights_of(const mha_context *c, const mha_sequence *e, const ir_expr *first, const ir_expr *last);

/* Whether it is known that no query's position is beyond the last key: then a causal range ends at the position itself
 * (e->positions_are_keys). */
bool mha_positions_are_keys(const mha_context *c, const mha_sequence *e);

/* Everything that may hide a key from a query. NULL: the problem does not have it. One lane stands for all. */
typedef struct mha_hiding {
    mha_sight sight;            /* i32 */
    const ir_expr *key;         /* i32; needed with `sight` */
    const ir_expr *bias;        /* attn_bias, as c->elem: -inf hides */
    const ir_expr *there;       /* bool: whether the bias has this column; false hides */
    const ir_expr *mask;        /* attn_mask, as i32: 0 hides */
    const ir_expr *by_function; /* bool: mask_mod; false hides */
} mha_hiding;

/* Whether the query attends to the key, `lanes` of bool; NULL: always. */
const ir_expr *mha_sees(const mha_context *c, const mha_hiding *h, int lanes);

#endif
