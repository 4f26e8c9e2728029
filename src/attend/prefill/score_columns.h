/* A register tile of scores, and those of its rows whose lanes run along the columns of Q and K. */
#ifndef ATTUNE_ATTEND_PREFILL_SCORE_COLUMNS_H
#define ATTUNE_ATTEND_PREFILL_SCORE_COLUMNS_H

#include "attend/prefill/layout.h"

enum { QL_MAX_KEYS = 64 };

typedef struct ql_score_tile {
    const ir_expr *first;            /* its first key within the tile */
    const ir_expr *key[QL_MAX_KEYS]; /* its keys, clamped to the last one */
    mha_kv_row row[QL_MAX_KEYS];     /* where they lie in K */
    const ir_expr *j[QL_MAX_KEYS];   /* and in c->keys */
    mha_product product;             /* score_keys by score_row_vectors */
    const ir_buffer *max;            /* registers [score_row_vectors]: running maximum over the tile */
} ql_score_tile;

/* Puts the products of the stripe's vectors of rows from `vector` on into those of the tile. `rows` of these exist;
 * all lanes after them hold what the last of them does. `is_diagonal`, or NULL for never: the first row sees the
 * tile's first key, each later one a key more, and what is hidden need not be right. */
void ql_multiply_columns(q_lanes *c, const q_lanes_tile *tile, const ql_score_tile *t, int64_t vector, int64_t rows,
                         const ir_expr *is_diagonal);

#endif
