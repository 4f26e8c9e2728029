/* One register tile of scores, in the loop that score.c builds, and the functions that multiply it: score.c (lanes
 * along rows), score_columns.c (along columns), score_quantised.c (in integers). */
#ifndef ATTUNE_ATTEND_PREFILL_SCORE_TILE_H
#define ATTUNE_ATTEND_PREFILL_SCORE_TILE_H

#include "attend/prefill/layout.h"

enum { QL_MAX_KEYS = 64 };

typedef struct ql_score_tile {
    bool is_last;                    /* of the last stripe, whose rows may be fewer */
    const ir_expr *number;           /* of the register tile within the tile */
    const ir_expr *first;            /* its first key within the tile */
    const ir_expr *key[QL_MAX_KEYS]; /* its keys, clamped to the last one */
    mha_kv_row row[QL_MAX_KEYS];     /* their place in K */
    const ir_expr *j[QL_MAX_KEYS];   /* and in c->keys */
    mha_product product;             /* score_keys by score_row_vectors */
    const ir_buffer *max;            /* registers [score_row_vectors]: running maximum over the tile */
} ql_score_tile;

/* Writes the scores of all register tiles of a tile and stripe. `multiply` computes the products of one. */
typedef void ql_products(q_lanes *c, const q_lanes_tile *tile, ql_score_tile *t);
void ql_score_tiles(q_lanes *c, const q_lanes_tile *tile, ql_products *multiply);

/* K[key, d] * Q^T[d, rows], summed in the order of d, for the first vectors of rows. */
void ql_multiply_rows(q_lanes *c, const q_lanes_tile *tile, const ql_score_tile *t, int64_t vectors);

#endif
