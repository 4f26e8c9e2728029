/* The schedules that the tuner tries, best first by their cost (schedule/cost.h). Some that cannot be good are left
 * out. Measuring decides which are good. */
#ifndef ATTUNE_TUNE_SPACE_H
#define ATTUNE_TUNE_SPACE_H

#include "operator/own.h"
#include "problem/mha.h"
#include "schedule/cost.h"

typedef struct tune_candidate {
    mha_schedule schedule;
    double cost; /* cycles, as the model has it; comparable among schedules of one problem only */
} tune_candidate;

mha_machine tune_machine_of(const attune_context *context);

/* Legal schedules, each once, in the order of their cost; at most `capacity`. Beside both strategies of attention a
 * block has the tiles of its products: those come with the best of attention, and the other way round. Returns how many
 * there are in candidates[], which is 0 only if capacity is. */
size_t tune_space(const attune_problem *canonical, const mha_machine *machine, tune_candidate *candidates,
                  size_t capacity);

/* The legal schedules that differ from `schedule` in one number, and that to the next larger or smaller value which
 * tune_space knows of, or in one choice. Choices that attune would make follow when a number changes. */
size_t tune_neighbours(const attune_problem *canonical, const mha_machine *machine, const mha_schedule *schedule,
                       tune_candidate *candidates, size_t capacity);

/* The same of an operator of the user: all combinations of the values of its choices, those with fewest steps from the
 * usual values first. If there are too many, some from everywhere: among them the usual one, and every value of every
 * choice, provided that `capacity` is no less than the values of a choice. */
size_t tune_own_space(const at_own *own, tune_candidate *candidates, size_t capacity);
size_t tune_own_neighbours(const at_own *own, const mha_schedule *schedule, tune_candidate *candidates,
                           size_t capacity);

#endif
