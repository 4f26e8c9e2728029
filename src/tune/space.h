/* The schedules that the tuner tries, best first by a model of their cost.
 *
 * The model counts, for each loop nest, fused multiply-adds, loads and loop overhead, in cycles of the machine that is
 * described; registers that do not suffice, operands that leave the first cache, rows and keys that fill no tile all
 * cost extra. It leaves out schedules that cannot be good and puts promising ones first. Measuring decides which are
 * good. */
#ifndef ATTUNE_TUNE_SPACE_H
#define ATTUNE_TUNE_SPACE_H

#include "operator/own.h"
#include "problem/mha.h"
#include "target/description.h"
#include "target/target.h"

typedef struct tune_candidate {
    attune_schedule schedule;
    double cost; /* cycles, as the model has it; comparable among schedules of one problem only */
} tune_candidate;

/* What code is for, and what the core that runs it can do. */
typedef struct tune_machine {
    const at_target *target;
    const at_description *description;
} tune_machine;

tune_machine tune_machine_of(const attune_context *context);

/* Where the cycles of a call go. */
typedef struct tune_costs {
    double scores, softmax, values; /* the three steps of attention; d-lanes: of which reading memory may take longer */
    double tasks;                   /* beginning tasks, bringing Q in and O out, merging chunks */
    double products;                /* projections of a block */
} tune_costs;

/* Cycles that the model expects of one thread for a call of the canonical problem. The schedule is legal. */
tune_costs tune_model(const attune_problem *canonical, const tune_machine *machine, const attune_schedule *schedule);

/* The sum of them. */
double tune_model_cost(const attune_problem *canonical, const tune_machine *machine, const attune_schedule *schedule);

/* Operations that the machine does in a cycle at most: with the target's whole vectors, as a measured peak has them,
 * and by dot products where the kernel has them. */
double tune_model_flops(const attune_problem *canonical, const tune_machine *machine);

/* Legal schedules, each once, in the order of their cost; at most `capacity`. Beside both strategies of attention a
 * block has the tiles of its products: those come with the best of attention, and the other way round. Returns how many
 * there are in candidates[], which is 0 only if capacity is. */
size_t tune_space(const attune_problem *canonical, const tune_machine *machine, tune_candidate *candidates,
                  size_t capacity);

/* The legal schedules that differ from `schedule` in one number, and that to the next larger or smaller value which
 * tune_space knows of, or in one choice. Choices that attune would make follow when a number changes. */
size_t tune_neighbours(const attune_problem *canonical, const tune_machine *machine, const attune_schedule *schedule,
                       tune_candidate *candidates, size_t capacity);

/* The same of an operator of the user: all combinations of the values of its choices, those with fewest steps from the
 * usual values first. If there are too many, some from everywhere: among them the usual one, and every value of every
 * choice, provided that `capacity` is no less than the values of a choice. */
size_t tune_own_space(const at_own *own, tune_candidate *candidates, size_t capacity);
size_t tune_own_neighbours(const at_own *own, const attune_schedule *schedule, tune_candidate *candidates,
                           size_t capacity);

#endif
