/* A register tile of a product of matrices, for gemm.c alone: the state of a task, and functions that build one tile of
 * it. */
#ifndef ATTUNE_NEST_GEMM_TILE_H
#define ATTUNE_NEST_GEMM_TILE_H

#include "nest/gemm.h"
#include "nest/product.h"

typedef struct mha_gemm_task {
    mha_context *m;
    ir_builder *b;
    const mha_gemm *g;
    int64_t rows, vectors, task_rows; /* of the schedule */
    mha_kind kind;
    ir_elem elem;   /* of the slab */
    int64_t inputs; /* columns of A in a step along the depth */
    int64_t steps;  /* all of them, */
    int64_t depth;  /* and those of a pass */
    bool one_pass;
    int64_t rest; /* rows of the smaller register tile that ends the last task; 0: it has none */
    const ir_buffer *slab, *tile;
    mha_quantised_left encoded; /* quantised A, from the phase before, */
    mha_quantised_left left;    /* and the task's rows of it, instead of the slab */
    /* variables of the task */
    const ir_expr *first, *count; /* its rows */
} mha_gemm_task;

enum { MHA_MAX_NEXT = 2 };

typedef struct mha_gemm_tile {
    const ir_expr *base;   /* its first row in slab and tile */
    const ir_expr *column; /* its first column in the group */
    mha_product product;
    mha_token next[MHA_MAX_NEXT];
    int64_t num_next; /* rows of A to prefetch meanwhile */
} mha_gemm_tile;

/* A vector of start in these columns. */
const ir_expr *mha_gemm_start(const mha_gemm_task *c, const ir_expr *column);

/* A vector of the task's rows of C, in scratch. */
const ir_access *mha_gemm_at(const mha_gemm_task *c, const ir_expr *row, const ir_expr *column);

/* Whether a register tile of `rows` rows consists of hardware tiles. */
bool mha_gemm_goes_by_tiles(const mha_gemm_task *c, int64_t rows);

/* The register tile of steps `from` to `to` of the depth. */
void mha_gemm_build_tile(const mha_gemm_task *c, mha_gemm_tile *t, const ir_expr *from, const ir_expr *to);

#endif
