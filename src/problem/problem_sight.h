/* The visible range of a query as C integers: by causality, window, global tokens and length, without masks.
 * attend/shared/sight.h has it as loop IR. */
#ifndef ATTUNE_PROBLEM_PROBLEM_SIGHT_H
#define ATTUNE_PROBLEM_PROBLEM_SIGHT_H

#include "problem/mha.h"

/* Queries begin … end - 1 of a sequence. */
typedef struct mha_queries {
    int64_t seq_q, seq_kv; /* of the sequence */
    int64_t causal_offset; /* its element of causal_offsets, or 0 */
    int64_t begin, end;
} mha_queries;

/* The visible ranges; attune/expert/problem.h describes them. */
attune_sight mha_sight_of_queries(const attune_problem *canonical, const mha_queries *queries);

/* Whether queries have their own first (last) key. */
bool mha_has_first_key(const attune_problem *canonical);
bool mha_has_last_key(const attune_problem *canonical);
/* Whether later queries attend to more keys: causality without a window, or with a window of at least half of the keys.
 */
bool mha_sees_more_later(const attune_problem *canonical);
/* Whether the position of a query matters, for its visible range or otherwise. */
bool mha_positions_matter(const attune_problem *p);

#endif
