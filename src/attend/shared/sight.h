/* Which keys a query sees, in a kernel. problem_sight.h says the same in numbers. */
#ifndef ATTUNE_ATTEND_SHARED_SIGHT_H
#define ATTUNE_ATTEND_SHARED_SIGHT_H

#include "attend/shared/sequence.h"

/* By causality, window and length a query sees keys first … last, none if last < first. By global_tokens it sees keys
 * 0 … last_global as well (-1: none). NULL: there is no such limit. Of one query, or of a vector of them. */
typedef struct mha_sight {
    const ir_expr *first, *last, *last_global;
} mha_sight;

/* As idx, first being at least 0 and last at most the sequence's last key. Any position. */
mha_sight mha_sight_at(const mha_context *c, const mha_sequence *e, const ir_expr *position);

/* Keys that queries see which stand at the positions first … last, as idx. */
typedef struct mha_sights {
    const ir_expr *some_first, *some_end; /* keys that some see by causality, window and length lie in here */
    const ir_expr *globals_end;           /* some see the keys before as well; NULL without global_tokens */
    const ir_expr *all_first, *all_end;   /* all see these; only without global_tokens */
} mha_sights;
mha_sights mha_sights_of(const mha_context *c, const mha_sequence *e, const ir_expr *first, const ir_expr *last);

/* Whether it is known that a causal mask ends no row of the sequence beyond the last key: e->positions_are_keys. */
bool mha_positions_are_keys(const mha_context *c, const mha_sequence *e);

/* Whatever hides a key from a query. NULL: nothing of that kind. One lane stands for all. */
typedef struct mha_hiding {
    mha_sight sight;            /* i32 */
    const ir_expr *key;         /* i32; needed with `sight` */
    const ir_expr *bias;        /* attn_bias, as c->elem: -inf hides */
    const ir_expr *there;       /* bool: whether the bias has this column; false hides */
    const ir_expr *mask;        /* attn_mask, as i32: 0 hides */
    const ir_expr *by_function; /* bool: what mask_mod says; false hides */
} mha_hiding;

/* Whether the query sees the key, `lanes` of bool; NULL: it does. */
const ir_expr *mha_sees(const mha_context *c, const mha_hiding *h, int lanes);

#endif
