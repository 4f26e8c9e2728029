/* How a kernel computes. It follows from a problem, a schedule and a target: mha_variant_of decides all of it, once.
 * Legality, settling, costs, choosers, builders and tests read the struct; its comments name the exceptions. */
#ifndef ATTUNE_SCHEDULE_VARIANT_H
#define ATTUNE_SCHEDULE_VARIANT_H

#include "problem/mha.h"
#include "schedule/schedule_fields.h"
#include "target/target.h"

/* Prefill, O = P V: what a vector's lanes run along, and where sums of values are between two tiles of keys. */
typedef enum mha_value_form {
    MHA_VALUES_TRANSPOSED, /* lanes run along query rows: O^T = V^T P^T, in scratch from tile to tile (value_by=columns)
                            */
    MHA_VALUES_WHOLE,      /* along columns of V. The keys are one tile, and visible to all rows: sums are the result */
    MHA_VALUES_ONE_TILE,   /* along columns of V. The keys are one tile, parts of which may be hidden: the same */
    MHA_VALUES_KEPT        /* along columns of V: O in scratch from tile to tile */
} mha_value_form;

/* Decoding, S = Q K^T. */
typedef enum mha_score_form {
    MHA_SCORES_BY_COLUMNS,      /* lanes run along columns of a key, several keys side by side */
    MHA_SCORES_SERIAL,          /* each is summed in the order of prefill (reproducible) */
    MHA_SCORES_PANELS,          /* lanes run along keys, which panels store contiguously */
    MHA_SCORES_QUANTISED,       /* in integers, K in rows (integer=scores or all) */
    MHA_SCORES_QUANTISED_PANELS /* the same of panels */
} mha_score_form;

/* Decoding, O = P V. */
typedef enum mha_sum_form {
    MHA_SUMS_IN_MEMORY, /* loaded and stored for every few keys */
    MHA_SUMS_HELD,      /* in registers while a block of keys is added */
    MHA_SUMS_QUANTISED, /* in integers, as are probabilities (integer=all) */
    MHA_SUMS_QUANTISED_PANELS
} mha_sum_form;

typedef struct mha_variant {
    /* Products of pairs of bf16 (dot2), with sums and softmax in f32; mha_attends_by_pairs, mha_projects_by_pairs. */
    bool by_pairs, projects_by_pairs;

    /* ---- Prefill (q_lanes) ---- */

    /* Scores of all rows are dot products whose lanes run along the columns of Q and K. Then Q is not transposed. */
    bool scores_by_columns;
    /* The same, and rows and keys are a causal square of as many keys in a register tile as rows in a stripe: row r of
     * a stripe attends to the first r + 1 keys of the tile on the diagonal, and to all earlier tiles. */
    bool is_square;
    /* Rows after the last whole vector of rows, if they are so few that only their scores go by columns; else 0. Their
     * stripe is the only one, or a vector of rows of its own. */
    int64_t rest_rows;
    /* score_keys does not divide the number of keys, and the last register tile of scores begins some keys earlier.
     * Then all its keys exist, and are contiguous. (Buffers that begin with a stripe's first key, such as masks and
     * tables of score_mod, have no elements for earlier keys.) */
    bool score_tiles_overlap;
    mha_value_form values; /* for a schedule whose value_by is not auto */
    bool may_keep_rows;    /* MHA_VALUES_KEPT is possible */
    bool may_go_by_rows;   /* value_by=rows is legal */
    bool usually_by_rows;  /* value_by=auto becomes rows */
    /* V may be interleaved to pairs of keys once for all tasks (kv_copy=once), in an earlier phase. This requires that
     * products are of pairs, tiles begin with whole pairs, and each sequence has its own V, so that the copy is no
     * larger than V. */
    bool may_pair_once;
    /* The phase of attention writes the probabilities that are an output, as it has all of a row in scratch. Otherwise
     * a later phase computes them again. */
    bool writes_probabilities;
    /* A table says which tiles mask_mod hides (attend/shared/mask_table.h): the kernel's first phase fills its first
     * shared buffer. Not for a handful of keys, for which another phase does not pay. */
    bool has_mask_table;
    /* The unit of the table in keys: those of a register tile of scores, and whole pairs. */
    int64_t mask_unit;

    /* ---- Decoding (d_lanes) ---- */

    mha_score_form scores_of_keys;
    mha_sum_form sums_of_values;
    bool may_stream_scores; /* scores may be computed from four streams of keys, whose results are transposed */
    /* Sums of values stay in registers while a block of keys is added (attend/decode/value_held.c): one key of each
     * stream at a time; not with pairs. V that is converted by tables is an exception that only the builder knows: its
     * sums stay in memory. */
    bool holds_values;
    /* Integer products: rows of Q that share a vector, a power of two. If K has scales by group, no vector has columns
     * of two groups. */
    int rows_in_vector;
    /* All keys are one chunk, or a chunk is a tile, as integer=all needs: tiles then join in their order. */
    bool has_integer_chunk;

    /* ---- Products of a block ---- */

    bool may_use_tiles; /* hardware tiles may be used, if the sizes of products allow them */
    bool by_tiles;      /* the register tiles of the schedule can be made of such tiles */
} mha_variant;

/* Whether chunks of keys are tasks of their own, whose results the last phase of attention merges. */
bool mha_merges_chunks(const attune_problem *canonical, const mha_schedule *schedule);

/* The most chunks of a sequence of `keys` keys, if chunks are merged: one for each kv_chunk keys. Where that gives more
 * tasks than MHA_CHUNK_TASKS for all KV heads, chunks are longer, so that what they leave for merging takes the same
 * memory however long the sequence is. Neither threads nor other sequences matter, so these change no bit. Not bounded
 * with integer=all, whose tiles are merged in their order whether they are chunks or not. */
bool mha_bounds_chunks(const attune_problem *canonical);
int64_t mha_most_chunks(const attune_problem *canonical, const mha_schedule *schedule, int64_t keys, int64_t kv_heads);

/* Prefill: the stripes of a task: as task_row_vectors says; at most; and in a call with so many KV heads, whose longest
 * sequence has so many stripes for each and so many keys. Every task reads all keys of its head. Where these are too
 * many for a cache, tasks have more stripes than usual, but no more than leave the longest sequence MHA_LONG_TASKS
 * tasks: others may be short, and have none. No bit depends on it. */
static inline int64_t mha_usual_stripes(const mha_schedule *s) { return s->task_row_vectors / s->score_row_vectors; }
int64_t mha_most_stripes(const attune_problem *canonical, const mha_schedule *schedule);
int64_t mha_task_stripes(const attune_problem *canonical, const mha_schedule *schedule, int64_t heads, int64_t stripes,
                         int64_t keys);

mha_variant mha_variant_of(const attune_problem *canonical, const mha_schedule *schedule, const at_target *target);

/* Whether the sums of the only tile are the result, so that no sums are kept from tile to tile. */
static inline bool mha_values_at_once(const mha_variant *v) {
    return v->values == MHA_VALUES_WHOLE || v->values == MHA_VALUES_ONE_TILE;
}

/* ---- Decisions that need no schedule, or more than one ---- */

/* Whether prefill multiplies pairs of bf16 in Q K^T and P V: Q, K, V and P are bf16 then, sums and softmax f32. fp8
 * values are converted exactly; other types are rounded if the problem allows it (matmul_precision). Not with
 * `reproducible`, whose bits are those of f32 on every target, nor if head_dim is odd. */
bool mha_attends_by_pairs(const attune_problem *canonical, const at_target *target);
/* The same for decoding, which does not round K and V: reading them takes most of the time, and rounding would add to
 * it. */
bool mha_decodes_by_pairs(const attune_problem *canonical, const at_target *target);
/* The same for a block's projections: inputs and weights are bf16 then, sums f32. */
bool mha_projects_by_pairs(const attune_problem *canonical, const at_target *target);

/* Prefill: kv_tile must be a multiple of this. V of bf16 in panels has pairs of tokens, and a tile must not split one.
 */
int32_t mha_tile_step(const attune_problem *canonical, const mha_schedule *schedule);

/* Whether a register tile of rows x vectors of 16 lanes fits into the eight hardware tiles, and the depth is whole
 * tiles. */
bool mha_gemm_tiles(int64_t rows, int64_t vectors, int64_t depth);

/* Prefill: values by rows compute the columns of V in strips of a few vectors. */
typedef struct mha_strips {
    int vectors;
    int64_t alike; /* how many such strips follow each other */
} mha_strips;

/* The next strips if `left` vectors of columns remain. With causality or a window, strips of three vectors by four rows
 * just fit into 16 registers if multiply-adds are fused. */
mha_strips mha_next_strips(const attune_problem *canonical, const mha_schedule *schedule, const at_target *target,
                           int64_t left);

enum {
    MHA_MASK_TILE_BYTES = 20, /* bytes of the mask table for each tile */
    MHA_MAX_D_SUMS = 32       /* decoding: the most sums of a register tile, of scores and of values */
};

#endif
