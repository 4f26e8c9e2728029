/* A phase that multiplies matrices, C = start + A B: the projections of a block. Callbacks give the addresses of rows
 * of A, B and C. The phase itself is tasks, scratch and register tiles (product.h).
 *
 * A task computes up to gemm_task_rows rows and one column group, gemm_rows rows at a time:
 *
 * - It copies these rows of A into scratch, as c->elem or bf16. They are an odd number of cache lines apart, so that
 * they do not compete for the same sets of the cache.
 * - It computes C in register tiles of gemm_column_vectors vectors of columns.
 * - It passes each row of C, in scratch, to store_row. This is the epilogue: it rotates, splits the row into heads,
 *   converts, and writes to where attention reads.
 *
 * If gemm_depth is less than the depth, scratch has all rows of the task, and each register tile is computed in several
 * passes of gemm_depth columns of A.
 *
 * The order of arithmetic of an element of C: acc = start, then acc = madd(A[r][k], B[k][c], acc) for k = 0, 1, … . If
 * B is quantised, B[k][c] is value * scale, unless A is quantised, too (gemm_quantised.c). If B is packed in pairs of
 * rows and the kernel projects by pairs, A is bf16, too, and acc = dot2((A[r][k], A[r][k + 1]), (B[k][c], B[k + 1][c]),
 * acc) for k = 0, 2, … . The order does not depend on the schedule, other rows or the number of tasks.
 *
 * There is one exception: if the kernel projects by hardware tiles, and the sizes allow these (mha_gemm_tiles), sums
 * are those of tile_dot2: 32 columns of A at a time, the even and the odd ones separately. */
#ifndef ATTUNE_NEST_GEMM_H
#define ATTUNE_NEST_GEMM_H

#include "nest/gemm_quantised.h"

enum { MHA_MAX_OUTER = 2 };

typedef struct mha_gemm mha_gemm;

/* A quantised B, whose elements are value * scale. */
typedef struct mha_quantised_weights {
    int inputs;                     /* quantised values in a word, of as many rows of B: 4 of 8 bits or 8 of 4 bits
                                       (problem/weights_layout.h) */
    int words;                      /* rows of B in a step, which share a scale */
    const mha_quantised_left *left; /* quantised A, in shared memory; NULL: A is not quantised */
    /* The scales of step `step`, as c->elem, for `lanes` columns. */
    const ir_expr *(*scale)(mha_context *c, const mha_gemm *g, const ir_expr *step, const ir_expr *column, int lanes);
} mha_quantised_weights;

/* A row of A as sequence and token of the tensor that it comes from. */
typedef struct mha_token {
    const ir_expr *sequence, *token;
} mha_token;

struct mha_gemm {
    const char *name; /* of the phase's matrices in IR, such as "x_kv" */
    int num_outer;    /* parallel loops around the product: independent products */
    const char *outer_names[MHA_MAX_OUTER];
    const ir_expr *outer_counts[MHA_MAX_OUTER];
    const ir_expr *outer[MHA_MAX_OUTER]; /* their variables, set when the phase is open */
    const ir_expr *rows;                 /* of A and C: a constant or a run-time size, >= 0 */
    int64_t depth;                       /* columns of A, rows of B; >= 1 */
    int64_t inputs; /* rows of B in a step of the depth, which is padded with zeros: 1, 2 for pairs of bf16, or as many
                       as share scales */
    const mha_quantised_weights *quantised; /* NULL unless B is quantised values and scales */
    int64_t num_groups;                     /* groups of columns of C */
    int64_t group_columns;                  /* columns that a task computes: whole register tiles */
    const ir_expr *column_group;            /* of the task, set when the phase is open */
    void *user;
    const struct mha_packed_section *packed; /* NULL unless start and right are packed weights (layer/block.h) */
    /* Copies row `row` of A, [0 … depth - 1], to the row `to` of scratch. It may be called for a row more than once. */
    void (*load_row)(mha_context *c, const mha_gemm *g, const ir_expr *row, const mha_row *to);
    /* An element of A by token and column k, which is prefetched while earlier rows are multiplied. NULL: not
     * prefetched. */
    mha_token (*locate)(mha_context *c, const mha_gemm *g, const ir_expr *row);
    const ir_access *(*left)(mha_context *c, const mha_gemm *g, const mha_token *token, const ir_expr *k);
    /* `lanes` neighbours of start, and of B[k], from column `column` of the group on; lanes divides column and 64. If
     * inputs is 2: bf16 pairs of B[2k] and B[2k + 1]. If B is quantised: words of B[k * quantised->inputs] and the rows
     * after it. */
    const ir_expr *(*start)(mha_context *c, const mha_gemm *g, const ir_expr *column, int lanes);
    const ir_expr *(*right)(mha_context *c, const mha_gemm *g, const ir_expr *k, const ir_expr *column, int lanes);
    /* Column `column` of the group in the row of C of that token, which is prefetched, too. NULL: not prefetched. */
    const ir_access *(*result)(mha_context *c, const mha_gemm *g, const mha_token *token, const ir_expr *column);
    /* Stores row `row` of C, the columns of the group: from[0 … group_columns - 1] of c->elem, in scratch. */
    void (*store_row)(mha_context *c, const mha_gemm *g, const ir_expr *row, const mha_row *from);
};

/* Builds the phase. */
void mha_gemm_phase(mha_context *c, mha_gemm *g);

#endif
