/* Which keys a query sees, in numbers: by causality, window, global tokens and length, masks apart. sight.h says the
 * same in a kernel. */
#ifndef ATTUNE_PROBLEM_PROBLEM_SIGHT_H
#define ATTUNE_PROBLEM_PROBLEM_SIGHT_H

#include "problem/mha.h"

/* Queries begin … end - 1 of a sequence. */
typedef struct mha_queries {
    int64_t seq_q, seq_kv; /* of the sequence */
    int64_t causal_offset; /* its element of causal_offsets, or 0 */
    int64_t begin, end;
} mha_queries;

/* Their sight; attune/expert/problem.h describes it. */
attune_sight mha_sight_of_queries(const attune_problem *canonical, const mha_queries *queries);

/* Whether queries have a first (last) key of their own. */
bool mha_has_first_key(const attune_problem *canonical);
bool mha_has_last_key(const attune_problem *canonical);
/* Whether later queries see more keys: causality without a window, or with one of at least half of the keys. */
bool mha_sees_more_later(const attune_problem *canonical);
/* Whether the position of a query makes a difference, to its sight or otherwise. */
bool mha_positions_matter(const attune_problem *p);

#endif
