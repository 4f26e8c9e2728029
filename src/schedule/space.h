/* The space of schedules, for all who look for one: the choosers, the tuner and the tests. space.c has the idea. */
#ifndef ATTUNE_SCHEDULE_SPACE_H
#define ATTUNE_SCHEDULE_SPACE_H

#include "schedule/schedule.h"

/* Lanes of a whole vector; and of the narrowest that are worth a thought: vectors of half the width and of a quarter
 * leave fewer lanes empty where rows are few. Products share the lanes of attention, so a block keeps whole vectors,
 * and so does `reproducible`. */
int32_t mha_widest_lanes(const attune_problem *canonical, const at_target *target);
int32_t mha_narrowest_lanes(const attune_problem *canonical, const at_target *target);

/* Gets a schedule of the space: normalised, legal, not hopeless, and with its choices settled. The same schedule may
 * come more than once. */
typedef void mha_space_fn(void *to, const mha_schedule *schedule);

typedef struct mha_space {
    const attune_problem *p;
    const mha_machine *machine;
    bool has_minor; /* numbers that matter little (schedule.def: is_minor) have all their values, too */
    mha_space_fn *found;
    void *to;
} mha_space;

/* The schedule itself, normalised, unless it is illegal or hopeless. */
void mha_space_offer(const mha_space *space, const mha_schedule *schedule);
/* All combinations of the values of the fields of `part` (MHA_PART_ of schedule_fields.h), and for prefill of the
 * lanes. All else is as in `from`. */
void mha_space_all(const mha_space *space, unsigned part, const mha_schedule *from);
/* What differs from the schedule in one number, which is the next larger or smaller one, or in one choice. Choices that
 * attune would make follow when a number changes. */
void mha_space_steps(const mha_space *space, const mha_schedule *schedule);

#endif
