/* Good schedules without measuring, part by part: mha_choose (schedule.h) asks them all. */
#ifndef ATTUNE_SCHEDULE_CHOOSE_H
#define ATTUNE_SCHEDULE_CHOOSE_H

#include "schedule/schedule.h"

/* choose_q_lanes.c: the schedule of q-lanes that costs least. */
void mha_choose_q_lanes(const attune_problem *canonical, const at_target *target, const at_description *machine,
                        attune_schedule *schedule);

/* choose_d_lanes.c. Whether few enough rows make d-lanes the better strategy; if so *s is the one for it that costs
 * least, without its products. */
bool mha_choose_d_lanes(const attune_problem *canonical, const at_target *target, const at_description *machine,
                        attune_schedule *s);

/* gemm_choose.c. Fills in the gemm fields of a schedule whose lanes are chosen. All 0 without a block. */
void mha_choose_gemm(const attune_problem *canonical, const at_target *target, attune_schedule *schedule);

/* settle.c. Whether values go by rows over several tiles, unless a schedule says otherwise. */
bool mha_keeps_rows(const attune_problem *canonical, const attune_schedule *schedule, const at_target *target);

#endif
