/* What a kernel is like, as it follows from problem, schedule and target, beyond the numbers of the schedule. Choosers
 * and builders ask the same function, so neither has to know the other. */
#ifndef ATTUNE_SCHEDULE_DECIDE_H
#define ATTUNE_SCHEDULE_DECIDE_H

#include "problem/mha.h"
#include "target/target.h"

/* ---- Arithmetic by pairs of bf16 (dot2), where the target has that ---- */

/* Whether Q K^T and P V are computed so: Q, K, V and P are bf16 then, sums and softmax f32. Codes of f8 become bf16,
 * which holds them. Not with `reproducible`,
 * whose bits are those of f32 on every target, nor where a row of Q has half a pair. */
bool mha_attends_by_pairs(const attune_problem *canonical, const at_target *target);
/* Whether a block's projections are: inputs, weights and what the products are of are bf16 then, sums f32. */
bool mha_projects_by_pairs(const attune_problem *canonical, const at_target *target);
/* Whether these products may go by tiles, where their sizes allow it. Not with `reproducible`: these sums have another
 * order, and schedules for few rows have no tiles. */
bool mha_projects_by_tiles(const attune_problem *canonical, const at_target *target);

/* ---- Products by tiles ---- */

/* Whether a register tile of rows x vectors of 16 lanes is made of tiles, of which there are eight, and a depth of
 * whole ones. */
bool mha_gemm_tiles(int64_t rows, int64_t vectors, int64_t depth);

/* Whether a schedule's register tiles can be made of such tiles, for products whose depth has whole ones. */
bool mha_may_go_by_tiles(const attune_problem *canonical, const attune_schedule *schedule, const at_target *target);

/* ---- Attention ---- */

/* The number of keys that kv_tile of q-lanes is a multiple of. V of bf16 in panels has pairs of tokens, and a tile must
 * not begin between them. */
int32_t mha_tile_step(const attune_problem *canonical, const attune_schedule *schedule);

/* q-lanes: whether values by rows (value_by) go at once, without sums that are kept from one tile to the next: the keys
 * are one tile, all are seen, and rows come out even. */
bool mha_takes_rows_at_once(const attune_problem *canonical, const attune_schedule *schedule);
/* Whether the keys are one tile of which each row sees some, so that values by rows need not keep their sums, if they
 * go vector by vector of rows. */
bool mha_has_one_tile(const attune_problem *canonical, const attune_schedule *schedule);
/* Whether values by rows may keep their sums in scratch from one tile to the next. */
bool mha_may_keep_rows(const attune_problem *canonical, const attune_schedule *schedule);
/* Whether values may go by rows, in either way. */
bool mha_may_take_rows(const attune_problem *canonical, const attune_schedule *schedule);
/* q-lanes: values by rows go through the columns of V by strips of a few vectors. */
typedef struct mha_strips {
    int vectors;
    int64_t alike; /* so many strips, one after the other */
} mha_strips;

/* The next ones, where `left` vectors of columns are left. Under causality and windows strips of three vectors by four
 * rows just fit 16 registers where multiply-adds are fused, if there are to be so many sums. */
mha_strips mha_next_strips(const attune_problem *canonical, const attune_schedule *schedule, const at_target *target,
                           int64_t left);
/* q-lanes: the rows after the last whole vector of rows, if they are so few that their scores go by lanes along the
 * columns of Q and K; else 0. Their stripe is then the only one, or a vector of rows of its own. */
int64_t mha_rest_rows(const attune_problem *canonical, const attune_schedule *schedule, const at_target *target);
/* q-lanes: whether the scores of all rows go by columns. */
bool mha_scores_by_columns(const attune_problem *canonical, const attune_schedule *schedule, const at_target *target);
/* The same, and rows and keys are a causal square of as many keys in a register tile as rows in a stripe: row r of a
 * stripe sees the first r + 1 keys of the tile on the diagonal, and the tiles before. */
bool mha_has_square_tiles(const attune_problem *canonical, const attune_schedule *schedule, const at_target *target);
/* q-lanes: whether the last register tile of scores begins some keys earlier, as score_keys does not divide the number
 * of keys. Then all its keys exist, and lie side by side. What is laid out for the keys of a stripe, such as masks and
 * what score_mod makes of them, has none before its first one. */
bool mha_score_tiles_overlap(const attune_problem *canonical, const attune_schedule *schedule, const at_target *target);
/* q-lanes: whether V may be put in pairs of keys once for all tasks (kv_copy=once), in a phase of its own. Products are
 * of pairs then, tiles begin with whole pairs, and an entry's values lie by themselves, so that the copy is no larger
 * than V. */
bool mha_may_pair_once(const attune_problem *canonical, const attune_schedule *schedule, const at_target *target);

/* Whether that is a good choice for any call: lengths are known, so no call has many keys for few queries; tasks see
 * nearly all keys, and not those of a window; and V in pairs is not large. */
bool mha_pairs_are_shared(const attune_problem *canonical);
/* q-lanes: whether the phase of attention writes the probabilities that are an output, as it holds all of a row at
 * once. Otherwise a later phase computes them again. */
bool mha_attends_with_weights(const attune_problem *canonical, const attune_schedule *schedule,
                              const at_target *target);

/* Whether a table says which tiles mask_mod hides (attend/mask_tiles.h): the kernel's first phase fills its first
 * shared buffer. Not for a handful of keys, which a phase more does not pay for. */
bool mha_tabulates_mask(const attune_problem *canonical, const attune_schedule *schedule);
enum { MHA_MASK_TILE_BYTES = 20 }; /* of the table, for each tile */
/* Neighbouring keys that the table takes as one: those of a register tile of scores, and whole pairs. */
int64_t mha_mask_unit(const attune_problem *canonical, const attune_schedule *schedule, const at_target *target);

/* d-lanes: whether scores may come of four streams of keys, whose blocks are transposed by quarters of a vector. */
bool mha_may_stream_scores(const attune_schedule *schedule);

/* d-lanes: the most sums of a register tile, of scores and of values. */
enum { MHA_MAX_D_SUMS = 32 };

/* d-lanes: whether sums of values stay in registers while a block of keys is added (attend/d_lanes_held.c): those of
 * one key of each stream at a time, where these are no pairs. Codes of f8 that are widened by a table are an exception
 * that only the builder knows: their sums go through memory all the same. */
bool mha_holds_values(const attune_problem *canonical, const attune_schedule *schedule, const at_target *target);

/* d-lanes, integer products: the rows of Q that share a vector, a power of two. With scales of K by group no vector
 * holds columns of two groups. */
int mha_query_pack(const attune_problem *canonical, const attune_schedule *schedule);

/* d-lanes: whether all keys are one chunk, or a chunk is a tile, as integer=all needs: tiles then join in their order.
 */
bool mha_has_integer_chunk(const attune_problem *canonical, const attune_schedule *schedule);

/* Whether K and V of a head are so large that they come from memory rather than from a cache. */
bool mha_is_from_memory(const attune_problem *canonical);
/* Whether K and V of a call are so many that each head finds its own in a far cache, however small it is; `last`: bytes
 * of the machine's last cache. No sum may depend on it, as it depends on the batch. */
bool mha_is_from_afar(const attune_problem *canonical, double last);

#endif
