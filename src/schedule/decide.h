/* What a kernel is like, as it follows from problem, schedule and target, beyond the numbers of the schedule. Choosers
 * and builders ask the same function, so neither has to know the other. */
#ifndef ATTUNE_SCHEDULE_DECIDE_H
#define ATTUNE_SCHEDULE_DECIDE_H

#include "problem/mha.h"
#include "target/target.h"

/* ---- Arithmetic by pairs of bf16 (dot2), where the target has that ---- */

/* Whether Q K^T and P V are computed so: Q, K, V and P are bf16 then, sums and softmax f32. Not with `reproducible`,
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

/* ---- Attention ---- */

/* q-lanes: whether values are computed row by row of O, as V and O lie, because the keys are one tile and all seen. */
bool mha_values_by_rows(const attune_problem *canonical, const attune_schedule *schedule);
/* The same over several tiles: sums are kept in scratch from one to the next. */
bool mha_keeps_rows(const attune_problem *canonical, const attune_schedule *schedule, const at_target *target);

/* Whether K and V of a head are so large that they come from memory rather than from a cache. */
bool mha_is_from_memory(const attune_problem *canonical);

#endif
