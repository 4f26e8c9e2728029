/* The q-lanes strategy, for prefill: vector lanes run along query rows, so that the softmax is lane-wise and K and V
 * are read as broadcast scalars, as they lie.
 *
 *   row     one query row of one KV head; rows = seq_q * group, the heads of a group interleaved (row r is query
 *           r / group of head r % group), so that neighbours see nearly the same keys under a causal mask
 *   block   score_vectors * lanes rows: what a register tile spans
 *   task    up to q_vectors / score_vectors blocks of one KV head; the blocks are spread evenly over the tasks
 *   tile    kv_tile keys (the last one up to score_rows - 1 more, so that none is shorter than score_rows)
 *
 * For each tile and block of a task: S^T = K Q^T with the running maximum (q_lanes_score.c), P = exp2(S - max) and
 * the rescaling factor (q_lanes_softmax.c), O^T = O^T * factor + V^T P^T (q_lanes_value.c); at the end O^T / sum is
 * transposed into place (q_lanes_rows.c). Rows beyond the last are clamped to it: they compute and write the same bits
 * again. */
#ifndef ATTUNE_MHA_Q_LANES_H
#define ATTUNE_MHA_Q_LANES_H

#include "ir/build.h"
#include "mha/mha.h"

typedef struct q_lanes {
    ir_builder *b;
    const attune_problem *p;
    const attune_schedule *s;
    bool has_fma, has_scalef;
    int64_t group, rows, block_rows, num_blocks, num_tasks, max_blocks, num_tiles;
    bool rows_fill_tasks; /* no row number is ever beyond the last row */
    /* params */
    const ir_expr *num_batch, *num_kv_heads;
    const ir_buffer *q, *k, *v, *out, *lse;
    /* scratch of a task */
    const ir_buffer *qt;       /* f32 [block, head_dim, block_rows]: Q^T times the sign of softmax_scale */
    const ir_buffer *scores;   /* f32 [kv_tile + score_rows, block_rows]: S^T, then P^T */
    const ir_buffer *ot;       /* f32 [block, head_dim_v, block_rows]: O^T, not yet divided */
    const ir_buffer *row_max;  /* f32 [block, block_rows]: running maximum of the scores; at the end the LSE */
    const ir_buffer *row_sum;  /* f32 [block, block_rows] */
    const ir_buffer *tile_max; /* f32 [block_rows]: maximum over the tile, for the block at hand */
    const ir_buffer *factor;   /* f32 [block_rows]: what ot must be multiplied by, for the block at hand */
    const ir_buffer *last_key; /* i32 [block, block_rows], causal only: the last key each row sees */
    /* variables of the task */
    const ir_expr *batch, *kv_head, *first_block, *blocks;
} q_lanes;

/* What one tile means for one block: computed once, used by scores and values. */
typedef struct q_lanes_tile {
    const ir_expr *block;     /* within the task */
    const ir_expr *first_key; /* of the tile */
    const ir_expr *keys;      /* of the tile that some row of the block sees, > 0 */
    const ir_expr *full_keys; /* causal only: of those, how many every row sees */
} q_lanes_tile;

static inline const ir_expr *ql_i(const q_lanes *c, int64_t value) { return ir_idx(c->b, value); }

/* x * y + z: fused where the target can, else two roundings. */
const ir_expr *ql_madd(const q_lanes *c, const ir_expr *x, const ir_expr *y, const ir_expr *z);

/* What scores must be multiplied by. Q^T holds the sign of softmax_scale (0 if it is 0), so that the largest score is
 * the one that weighs most, and nothing but the sign: Q is not rounded a second time. */
float ql_score_scale(const q_lanes *c);

/* A vector of `lanes` equal floats. */
const ir_expr *ql_splat(const q_lanes *c, float value);

/* Opens an unrolled loop over 0 … count-1; close it with ir_for_end. */
const ir_expr *ql_unrolled(const q_lanes *c, const char *name, int64_t count);

/* An array of f32 vectors in registers. */
const ir_buffer *ql_registers(const q_lanes *c, const char *name, int num_dims, const int64_t *dims);

/* A row number, not beyond the last row. */
const ir_expr *ql_clamp_row(const q_lanes *c, const ir_expr *row);

/* Row number of the first row of the task's block `block`. */
const ir_expr *ql_first_row(const q_lanes *c, const ir_expr *block);

/* q_lanes_rows.c */
void ql_load_queries(q_lanes *c, const ir_expr *block);
void ql_store_rows(q_lanes *c, const ir_expr *block);

/* q_lanes_score.c: writes scores and tile_max */
void ql_scores(q_lanes *c, const q_lanes_tile *tile);

/* q_lanes_softmax.c: scores become probabilities; writes row_max, row_sum and factor */
void ql_softmax(q_lanes *c, const q_lanes_tile *tile);

/* q_lanes_value.c: ot = ot * factor + V^T P^T */
void ql_values(q_lanes *c, const q_lanes_tile *tile);

#endif
