/* Expert tier: most programs need attune/attention.h alone.
 *
 * Schedules: how a kernel computes. attune chooses one unless a program passes its own.
 *
 * A schedule has numbers and choices. The choices of a schedule that attune has chosen, or printed, are settled. AUTO,
 * 0, leaves one to attune, which chooses it for the schedule's numbers; task_prefetch and kv_prefetch as on a machine
 * whose last-level cache has 32 MB. */
#ifndef ATTUNE_SCHEDULE_H
#define ATTUNE_SCHEDULE_H

#include "kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Schedules ---- */

typedef enum mha_strategy { MHA_Q_LANES = 0, MHA_D_LANES, MHA_STRATEGY_COUNT } mha_strategy;

/* What the lanes of the values' product run along in q_lanes: query rows, for one column of V after the other (by
 * columns); or columns of V, for one query row after the other (by rows). */
typedef enum mha_value_by { MHA_VALUE_AUTO = 0, MHA_VALUE_BY_COLUMNS, MHA_VALUE_BY_ROWS } mha_value_by;

/* Which of K and V a task of q_lanes copies, tile by tile, in the type of the arithmetic: none, those of another type,
 * or all. Values by rows read V in place, unless products are of pairs of bf16: then each task packs V in pairs
 * (converted); or it is packed once, in the workspace, for all tasks of a KV head. */
typedef enum mha_kv_copy {
    MHA_COPY_AUTO = 0,
    MHA_COPY_NONE,
    MHA_COPY_CONVERTED,
    MHA_COPY_ALL,
    MHA_COPY_ONCE
} mha_kv_copy;

/* What a task of q_lanes prefetches while it computes: nothing; or the next head, which helps batches of short
 * sequences. */
typedef enum mha_task_prefetch {
    MHA_PREFETCH_AUTO = 0,
    MHA_PREFETCH_NONE,
    MHA_PREFETCH_HEAD
} mha_task_prefetch;

/* The instructions of a block's products: those on vectors; or on hardware tiles (AMX), for all products whose depth
 * has whole ones. */
typedef enum mha_gemm_by { MHA_GEMM_AUTO = 0, MHA_GEMM_BY_VECTORS, MHA_GEMM_BY_TILES } mha_gemm_by;

/* Columns in a task of a block's products: a column group of the packed weights; or the fewest that are whole heads and
 * whole register tiles, for more tasks. */
typedef enum mha_gemm_groups {
    MHA_GROUPS_AUTO = 0,
    MHA_GROUPS_WHOLE,
    MHA_GROUPS_NARROW
} mha_gemm_groups;

/* Rows that fill no register tile of a block's products: the last row is computed several times to fill it; or a
 * smaller register tile computes them, if their number is known and that saves a fiftieth of the rows. */
typedef enum mha_gemm_rest { MHA_REST_AUTO = 0, MHA_REST_FILLED, MHA_REST_OWN } mha_gemm_rest;

/* How a kernel computes. Programs read and write it as text (attune_schedule_parse, attune_schedule_print), copy it and
 * pass it on. Its size never changes, but the fields may change with every version: today they are what the autotuner
 * searches. docs/tuning.md has them in a table.
 *
 * Strategy q_lanes (many query rows): vector lanes run along query rows. Strategy d_lanes (few query rows): lanes run
 * along head_dim, and the keys are cut into tasks of kv_chunk, whose results are merged in order. The query rows of a
 * KV head are those of all heads of its group. Fields of the other strategy are 0. attune_schedule_check says which
 * values are legal. A register tile is what a product has in registers at a time; an iteration is one of its inner
 * loop. */
struct mha_schedule {
    size_t struct_size;
    mha_strategy strategy;
    int32_t lanes;                /* elements of a vector */
    /* The scores, Q.K^T. */
    int32_t score_rows;           /* d_lanes: query rows in a register tile */
    int32_t score_row_vectors;    /* q_lanes: vectors of query rows in it */
    int32_t score_keys;           /* keys in it */
    int32_t score_columns;        /* q_lanes: elements of head_dim in an iteration, divides head_dim */
    int32_t score_column_vectors; /* d_lanes: vectors of head_dim in an iteration */
    int32_t score_streams;        /* d_lanes: streams of keys that are read at once, 1 or 4; 0: auto */
    /* The values, P.V. */
    mha_value_by value_by;     /* q_lanes */
    int32_t value_rows;           /* d_lanes: query rows in a register tile */
    int32_t value_row_vectors;    /* q_lanes: vectors of query rows in it, divides score_row_vectors */
    int32_t value_columns;        /* q_lanes: columns of V in it. By rows it has value_row_vectors * value_columns
                                   * accumulators, of query rows by vectors of columns */
    int32_t value_column_vectors; /* d_lanes: vectors of columns of V in an iteration */
    int32_t value_keys;           /* keys, or pairs of keys, in an iteration; d_lanes: in a register tile. 1:
                                   * accumulators stay in registers, and an iteration has a key of each stream (not with
                                   * pairs of bf16, V in panels or i4, scales of its elements, or integer products) */
    int32_t value_streams;        /* d_lanes: streams that they come from, divides value_keys, unless accumulators stay
                                   * in registers; 0: auto */
    /* Tasks, and K and V. */
    int32_t task_row_vectors;     /* q_lanes: vectors of query rows in a task, a multiple of score_row_vectors */
    int32_t kv_tile;              /* keys between two rescalings, a multiple of score_keys */
    int32_t kv_chunk;             /* d_lanes: keys in a task, a multiple of kv_tile */
    mha_kv_copy kv_copy;       /* q_lanes */
    mha_task_prefetch task_prefetch; /* q_lanes */
    int32_t kv_prefetch;          /* d_lanes: bytes of a stream that are prefetched ahead; -1: none; 0: auto */
    /* A block's projections; all 0 where there is no embed_dim. */
    int32_t gemm_rows;            /* rows in a register tile */
    int32_t gemm_column_vectors;  /* vectors of columns in it: gemm_column_vectors * lanes divides 64 */
    int32_t gemm_task_rows;       /* rows in a task, at most; a multiple of gemm_rows */
    int32_t gemm_depth;           /* columns of the left factor after which a register tile is stored; 0: all */
    mha_gemm_by gemm_by;
    int32_t gemm_prefetch;        /* iterations by which weights are prefetched ahead; -1: none; 0: auto */
    mha_gemm_groups gemm_groups;
    mha_gemm_rest gemm_rest;
    int32_t reserved[33];         /* 0 */
};

#ifdef __cplusplus
#define ATTUNE_SCHEDULE_INIT attune_initial(attune_schedule_init)
#else
#define ATTUNE_SCHEDULE_INIT { .struct_size = sizeof(mha_schedule) }
#endif

ATTUNE_API attune_status attune_schedule_init(mha_schedule *schedule, size_t struct_size);

/* Chooses a good schedule without measuring, for the context's ISA. */
ATTUNE_CHECKED attune_status attune_schedule_choose(const attune_context *context, const attune_problem *problem,
                                                    mha_schedule *schedule);

/* Checks whether a schedule is legal for the problem and the context's ISA; the message says why not. */
ATTUNE_CHECKED attune_status attune_schedule_check(const attune_context *context, const attune_problem *problem,
                                                   const mha_schedule *schedule);

/* Text form, as for problems: "strategy=q_lanes,lanes=8,score_keys=6,…". Parsing keeps numbers that are not named.
 * Choices that are not named become auto, since good ones depend on the numbers. Three stay as they are while the
 * numbers do that they have to suit: value_by while lanes stay, score_streams while score_keys and lanes do,
 * value_streams while value_keys and lanes do. Fields of the other strategy become 0. A struct that cannot be read
 * prints as "". Text that names a field for which the caller's struct has no room is ATTUNE_INVALID_ARGUMENT. */
ATTUNE_CHECKED attune_status attune_schedule_parse(mha_schedule *schedule, const char *text);
ATTUNE_API size_t attune_schedule_print(const mha_schedule *schedule, char *text, size_t capacity);

#ifdef __cplusplus
}
#endif

#endif
