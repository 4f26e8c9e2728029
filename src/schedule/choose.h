/* Good schedules without measuring, part by part: mha_choose (schedule.h) asks them all. */
#ifndef ATTUNE_SCHEDULE_CHOOSE_H
#define ATTUNE_SCHEDULE_CHOOSE_H

#include "schedule/cost.h"

/* choose.c. The schedule of one strategy that costs least, complete and settled. */
void mha_choose_by(mha_strategy strategy, mha_problem problem, const at_target *target, const at_description *machine,
                   mha_schedule *schedule);
/* choose.c. As mha_choose, but one row of corrections.def does not count, by its number from 1 on. */
void mha_choose_without(int row, mha_problem problem, const mha_machine *machine, mha_schedule *schedule);
/* choose.c. The first row after number `after` that decides: without it another schedule is chosen, which is *instead.
 * That one may be illegal. 0: no row that follows decides. */
int mha_next_reason(int after, mha_problem problem, const mha_machine *machine, mha_schedule *instead);
/* choose.c. Fills in the gemm fields of a schedule whose lanes are chosen. All 0 without a block. */
void mha_choose_products(const mha_cost_context *call, mha_schedule *schedule);

/* Both strategies choose for the given call. Whatever decides the order of sums they choose for a usual call like it,
 * of one sequence and 16 heads: so a row has the same bits in every batch. Neither chooses the schedule of products. */

/* A call, and a usual one like it. */
typedef struct mha_calls {
    const attune_problem *p;
    attune_problem usual_problem;
    mha_cost_context call, usual;
    bool has_gaps; /* mha_problem */
} mha_calls;

/* choose_q_lanes.c: the schedule of prefill that costs least. If that is `most` or more for the usual call: false, and
 * *schedule is not set. schedule NULL: only says whether it costs less. */
bool mha_choose_q_lanes(const mha_calls *calls, double most, mha_schedule *schedule);

/* choose_d_lanes.c. Returns whether decoding's strategy can compute this problem. *schedule is the cheapest schedule of
 * it. */
bool mha_may_go_by_d_lanes(const attune_problem *canonical);
void mha_choose_d_lanes(const mha_cost_context *call, const mha_cost_context *usual, mha_schedule *schedule);
/* Changes such a schedule so that it has fewer instructions, if heads are narrow and registers few. Instructions cost
 * more if the core's other thread is busy, because each of the two threads then issues half as many per cycle. The loop
 * over the columns of scores is unrolled, and sums of values stay in registers. The streams of keys do not change, so
 * no sum does. Strategies are compared without this step: with it, d-lanes was chosen for 8 and 13 rows, and took up to
 * 1.2 times as long. */
void mha_hold_narrow_heads(const mha_cost_context *call, mha_schedule *schedule);

#endif
