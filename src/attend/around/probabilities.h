/* The weights output: scores or probabilities of all keys, one row of them for each query.
 *
 * Vector lanes run along keys, so that masks and biases are read and weights written as they lie.
 *
 *   row     one query of one head
 *   band    of queries: its rows are the queries times the group, the heads of a query side by side
 *   slice   of keys: their transpose is packed into scratch once for all rows of the task
 *   task    a band of queries against a chunk of keys: of one KV head, or of all of them where their mean is wanted
 *
 * For each slice of keys: S = Q K^T (probabilities_score.c), then row by row the steps that the mode asks for
 * (probabilities.c).
 */
#ifndef ATTUNE_ATTEND_AROUND_PROBABILITIES_H
#define ATTUNE_ATTEND_AROUND_PROBABILITIES_H

#include "attend/shared/functions.h"
#include "attend/shared/score.h"
#include "attend/shared/sight.h"
#include "attend/shared/softmax.h"

typedef struct probabilities {
    mha_context *c; /* its scores are natural */
    ir_builder *b;
    int lanes;
    int64_t queries, rows;                 /* of a band */
    int64_t keys;                          /* of a slice, a multiple of lanes */
    int64_t tile_rows, tile_vectors;       /* of a register tile */
    const ir_expr *all_queries, *all_keys; /* rows and columns of the output */
    const ir_buffer *q, *kt, *scores;      /* scratch: [rows, head_dim], [head_dim, keys], [rows, keys] */
    const ir_buffer *scales;               /* scratch [keys]: of K; NULL if there are none */
    const ir_buffer *sums;                 /* scratch [queries, keys]: over the heads, where their mean is wanted */
    mha_sequence e;                        /* of the task */
    const ir_expr *first_query, *count_queries; /* rows of the output; the number of those in the band */
    const ir_expr *limit;                       /* keys from here on have no score that counts; may be negative */
} probabilities;

/* probabilities_score.c: the query of row `row` of the output, not beyond the last one; fills w->q; and w->scores for
 * the keys from first_key on. */
const ir_expr *probabilities_query(const probabilities *w, const ir_expr *row);
void probabilities_load_queries(const probabilities *w, const ir_expr *kv_head);
void probabilities_scores(const probabilities *w, const ir_expr *kv_head, const ir_expr *first_key);

#endif
