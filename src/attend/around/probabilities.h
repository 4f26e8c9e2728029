/* The output of scores or probabilities (op=weights): one row for each query, with all keys.
 *
 * Vector lanes run along keys, the direction in which masks and biases are read and the output is written.
 *
 *   row     one query of one head
 *   band    of queries: its rows are the queries times the group, with the heads of a query adjacent
 *   slice   of keys: K of the slice is transposed to scratch once for all rows of the task
 *   task    a band of queries and a chunk of keys, of one KV head; or of all KV heads if the output is their mean
 *
 * For each slice of keys: S = Q K^T (probabilities_score.c), and then row by row the steps of the mode
 * (probabilities.c). */
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
    const ir_buffer *scales;               /* scratch [keys]: scales of K; NULL if there are none */
    const ir_buffer *sums; /* scratch [queries, keys]: sums over the heads, if the output is their mean */
    mha_sequence e;        /* of the task */
    const ir_expr *first_query, *count_queries; /* rows of the output; the number of those in the band */
    const ir_expr *limit;                       /* scores of keys from here on are not needed; may be negative */
} probabilities;

/* probabilities_score.c: the query of row `row` of the output, clamped to the last one; fills w->q; fills w->scores for
 * the keys from first_key on. */
const ir_expr *probabilities_query(const probabilities *w, const ir_expr *row);
void probabilities_load_queries(const probabilities *w, const ir_expr *kv_head);
void probabilities_scores(const probabilities *w, const ir_expr *kv_head, const ir_expr *first_key);

#endif
