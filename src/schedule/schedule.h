/* Schedules: how a problem is computed. schedule.def lists their fields, schedule_text.c has their text, legal.c says
 * which are legal, choose*.c choose a good one without measuring, and settle.c settles the choices that one leaves to
 * attune. variant.h has what follows from problem, schedule and target. */
#ifndef ATTUNE_SCHEDULE_SCHEDULE_H
#define ATTUNE_SCHEDULE_SCHEDULE_H

#include "problem/problem_functions.h"
#include "schedule/schedule_fields.h"
#include "target/description.h"
#include "target/target.h"

/* What code is for, and what the core that runs it can do. */
typedef struct mha_machine {
    const at_target *target;
    const at_description *description;
} mha_machine;

/* Settles the choices of a schedule and checks it: `whole` is the result, and *schedule points there. NULL stays
 * NULL. */
attune_status mha_schedule_in(const mha_schedule **schedule, mha_schedule *whole, const attune_problem *canonical,
                              const at_target *target, at_error *err);

/* A caller's text over attune's own choice, settled and checked. */
attune_status mha_schedule_of(const char *text, const attune_problem *canonical, const at_target *target,
                              const at_description *machine, mha_schedule *schedule, at_error *err);

/* Whether two have the same values. */
bool mha_schedule_same(const mha_schedule *a, const mha_schedule *b);

/* Whether it is legal once its choices are settled. */
attune_status mha_schedule_check(const attune_problem *canonical, const mha_schedule *schedule, const at_target *target,
                                 at_error *err);
/* A good schedule without measuring; it follows from these three alone. */
void mha_choose(mha_problem problem, const at_target *target, const at_description *machine, mha_schedule *schedule);
/* Gives choices that are auto the value that attune chooses for these numbers, which are in range. Kernels are built of
 * settled schedules, and keys and text have these. What a caller's text leaves out is the same on all machines of a
 * target: machine NULL. */
void mha_schedule_settle(const attune_problem *canonical, const at_target *target, const at_description *machine,
                         mha_schedule *schedule);
/* The other way: leaves all choices to attune, or those that it would make so. These follow when something changes. */
void mha_schedule_leave_choices(mha_schedule *schedule);
void mha_schedule_leave_usual(const attune_problem *canonical, const at_target *target, const at_description *machine,
                              mha_schedule *schedule);
/* The kv_tile of every schedule with integer=all. The sum of a plane of quantised values is exact in f32: 512 * 255 *
 * 128 < 2^24.
 */
enum { MHA_INTEGER_KEYS = 512 };

/* The kv_tile that every schedule of a problem with `reproducible` has, or with integer=all. */
int32_t mha_reproducible_kv_tile(const attune_problem *canonical);

#endif
