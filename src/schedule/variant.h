/* How a kernel computes. It follows from a problem, a schedule and a target: mha_variant_of decides all of it, once.
 * Legality, settling, costs, choosers, builders and tests read the struct and decide nothing themselves. */
#ifndef ATTUNE_SCHEDULE_VARIANT_H
#define ATTUNE_SCHEDULE_VARIANT_H

#include "problem/mha.h"
#include "schedule/schedule_fields.h"
#include "target/target.h"

/* Prefill, O = P V: what a vector's lanes run along, and where sums of values are between two tiles of keys. */
typedef enum mha_value_form {
    MHA_VALUES_TRANSPOSED, /* lanes run along query rows: O^T = V^T P^T, in scratch from tile to tile (value_by=columns)
                            */
    MHA_VALUES_WHOLE,      /* along columns of V. All rows see all keys, which are one tile: sums are the result */
    MHA_VALUES_ONE_TILE,   /* along columns of V. The keys are one tile, of which rows may see a part: the same */
    MHA_VALUES_KEPT        /* along columns of V: O in scratch from tile to tile */
} mha_value_form;

/* Decoding, S = Q K^T. */
typedef enum mha_score_form {
    MHA_SCORES_BY_COLUMNS,      /* lanes run along columns of a key, several keys side by side */
    MHA_SCORES_SERIAL,          /* each is summed as prefill sums it (reproducible) */
    MHA_SCORES_PANELS,          /* lanes run along keys, as panels hold them */
    MHA_SCORES_QUANTISED,       /* in integers, K as it lies (integer=scores or all) */
    MHA_SCORES_QUANTISED_PANELS /* the same of panels */
} mha_score_form;

/* Decoding, O = P V. */
typedef enum mha_sum_form {
    MHA_SUMS_IN_MEMORY, /* of a block of keys, from several streams */
    MHA_SUMS_HELD,      /* in registers while a block of keys is added */
    MHA_SUMS_QUANTISED, /* in integers, as are probabilities (integer=all) */
    MHA_SUMS_QUANTISED_PANELS
} mha_sum_form;

typedef struct mha_variant {
    /* Arithmetic by pairs of bf16 (dot2), sums and softmax in f32; mha_attends_by_pairs, mha_projects_by_pairs. */
    bool by_pairs, projects_by_pairs;

    /* ---- Prefill (q_lanes) ---- */

    /* Scores of all rows are dot products whose lanes run along the columns of Q and K. Then Q is not transposed. */
    bool scores_by_columns;
    /* The same, and rows and keys are a causal square of as many keys in a register tile as rows in a stripe: row r of
     * a stripe sees the first r + 1 keys of the tile on the diagonal, and the tiles before. */
    bool is_square;
    /* Rows after the last whole vector of rows, if they are so few that only their scores go by columns; else 0. Their
     * stripe is the only one, or a vector of rows of its own. */
    int64_t rest_rows;
    /* score_keys does not divide the number of keys, and the last register tile of scores begins some keys earlier.
     * Then all its keys exist, and lie side by side. What is laid out for the keys of a stripe, such as masks and what
     * score_mod makes of them, has none before its first one. */
    bool score_tiles_overlap;
    mha_value_form values; /* of a schedule whose value_by is not auto */
    bool may_keep_rows;    /* MHA_VALUES_KEPT is possible */
    bool may_go_by_rows;   /* value_by=rows is legal */
    bool usually_by_rows;  /* value_by=auto becomes rows */
    /* V may be put in pairs of keys once for all tasks (kv_copy=once), in a phase of its own. Products are of pairs
     * then, tiles begin with whole pairs, and a sequence's values lie by themselves, so the copy is no larger than V.
     */
    bool may_pair_once;
    /* The phase of attention writes the probabilities that are an output, as it holds all of a row at once. Otherwise a
     * later phase computes them again. */
    bool writes_probabilities;
    /* A table says which tiles mask_mod hides (attend/shared/mask_table.h): the kernel's first phase fills its first
     * shared buffer. Not for a handful of keys, which a phase more does not pay for. */
    bool has_mask_table;
    /* Neighbouring keys that the table takes as one: those of a register tile of scores, and whole pairs. */
    int64_t mask_unit;

    /* ---- Decoding (d_lanes) ---- */

    mha_score_form scores_of_keys;
    mha_sum_form sums_of_values;
    bool may_stream_scores; /* from four streams of keys, whose blocks are transposed by quarters of a vector */
    /* Sums of values stay in registers while a block of keys is added (attend/decode/value_held.c): those of one key
     * of each stream at a time, where these are no pairs. fp8 values that are widened by a table are an exception that
     * only the builder knows: their sums go through memory all the same. */
    bool holds_values;
    /* Integer products: rows of Q that share a vector, a power of two. With scales of K by group no vector holds
     * columns of two groups. */
    int rows_in_vector;
    /* All keys are one chunk, or a chunk is a tile, as integer=all needs: tiles then join in their order. */
    bool has_integer_chunk;

    /* ---- Products of a block ---- */

    bool may_use_tiles; /* hardware tiles, where the sizes of products allow them */
    bool by_tiles;      /* the register tiles of the schedule can be made of such tiles */
} mha_variant;

/* Whether chunks of keys are tasks of their own, whose results the last phase of attention merges. */
bool mha_merges_chunks(const attune_problem *canonical, const mha_schedule *schedule);

mha_variant mha_variant_of(const attune_problem *canonical, const mha_schedule *schedule, const at_target *target);

/* Whether sums of values are the result, without any that are kept from one tile to the next. */
static inline bool mha_values_at_once(const mha_variant *v) {
    return v->values == MHA_VALUES_WHOLE || v->values == MHA_VALUES_ONE_TILE;
}

/* ---- Parts of the answer that need less than a schedule, or more ---- */

/* Whether prefill multiplies pairs of bf16 in Q K^T and P V: Q, K, V and P are bf16 then, sums and softmax f32. fp8
 * values become bf16, which holds them; others are rounded to it where the problem lets them (matmul_precision). Not
 * with `reproducible`, whose bits are those of f32 on every target, nor where a row of Q has half a pair. */
bool mha_attends_by_pairs(const attune_problem *canonical, const at_target *target);
/* The same of decoding, which rounds nothing: reading K and V takes its time, and so would rounding them. */
bool mha_decodes_by_pairs(const attune_problem *canonical, const at_target *target);
/* Whether a block's projections are: inputs, weights and what the products are of are bf16 then, sums f32. */
bool mha_projects_by_pairs(const attune_problem *canonical, const at_target *target);

/* Prefill: kv_tile is a multiple of so many keys. V of bf16 in panels has pairs of tokens, and a tile must not begin
 * between them. */
int32_t mha_tile_step(const attune_problem *canonical, const mha_schedule *schedule);

/* Whether a register tile of rows x vectors of 16 lanes is made of hardware tiles, of which there are eight, and a
 * depth of whole ones. */
bool mha_gemm_tiles(int64_t rows, int64_t vectors, int64_t depth);

/* Prefill: values by rows go through the columns of V by strips of a few vectors. */
typedef struct mha_strips {
    int vectors;
    int64_t alike; /* so many strips, one after the other */
} mha_strips;

/* The next ones, where `left` vectors of columns are left. Under causality and windows strips of three vectors by four
 * rows just fit 16 registers where multiply-adds are fused, if there are to be so many sums. */
mha_strips mha_next_strips(const attune_problem *canonical, const mha_schedule *schedule, const at_target *target,
                           int64_t left);

enum {
    MHA_MASK_TILE_BYTES = 20, /* of the table of hidden tiles, for each tile */
    MHA_MAX_D_SUMS = 32       /* decoding: the most sums of a register tile, of scores and of values */
};

#endif
