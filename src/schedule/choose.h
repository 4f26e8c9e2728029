/* Good schedules without measuring, part by part: mha_choose (schedule.h) asks them all. */
#ifndef ATTUNE_SCHEDULE_CHOOSE_H
#define ATTUNE_SCHEDULE_CHOOSE_H

#include "schedule/cost.h"

/* choose.c. Where the order of sums follows from a choice, it is made for one entry and a usual number of heads: a row
 * has the same bits in every batch. */
attune_problem mha_usual_call(const attune_problem *canonical);
/* A problem without lists whose queries score as many keys, which lie side by side. */
attune_problem mha_as_unlisted(const attune_problem *canonical);
/* Of one head, with what a schedule leaves to attune. */
double mha_cost_of_choice(const mha_cost_context *context, const attune_schedule *schedule);

/* Fills in the gemm fields of a schedule whose lanes are chosen. All 0 without a block. */
void mha_choose_products(const attune_problem *canonical, const mha_machine *machine, attune_schedule *schedule);

/* choose_q_lanes.c: the schedule of q-lanes that costs least. */
void mha_choose_q_lanes(const attune_problem *canonical, const at_target *target, const at_description *machine,
                        attune_schedule *schedule);

/* The same, unless it costs `most` or more for a usual call: then false, and the schedule is no choice. */
bool mha_choose_q_lanes_below(const attune_problem *canonical, const at_target *target, const at_description *machine,
                              double most, attune_schedule *schedule);

/* choose_d_lanes.c. Whether d-lanes computes this problem; and the schedule of it that costs least, without its
 * products. */
bool mha_may_go_by_d_lanes(const attune_problem *canonical);
void mha_choose_d_lanes(const attune_problem *canonical, const at_target *target, const at_description *machine,
                        attune_schedule *s);
/* Makes such a schedule one with fewer instructions, if heads are narrow and registers few. Instructions count beside a
 * busy thread on the same core: each of the two begins half as many in a cycle. Scores go through the columns without a
 * loop, and sums of values stay in registers. Keys come from the same streams, so no sum changes. Strategies are
 * compared without it: with it, d-lanes was chosen for 8 and 13 rows that took up to 1.2 times as long. */
void mha_hold_narrow_heads(const attune_problem *canonical, const mha_machine *machine, attune_schedule *schedule);

/* settle.c. Whether V is put in pairs once for all tasks for any call: lengths are known, so no call has many keys for
 * few queries; tasks see nearly all keys, and not those of a window; and V in pairs is not large. */
bool mha_pairs_are_shared(const attune_problem *canonical);

#endif
