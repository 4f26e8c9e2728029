/* What the costs of both strategies share: a problem as costs see it, and the time of a register tile. */
#ifndef ATTUNE_SCHEDULE_COST_PARTS_H
#define ATTUNE_SCHEDULE_COST_PARTS_H

#include "schedule/cost.h"

typedef struct cost_constants {
#define COST(name, value, meaning) double name;
#include "schedule/cost.def"
} cost_constants;

/* bench/cost_fit.c changes them, in a build of this folder of its own. */
#ifdef MHA_COST_FIT
extern cost_constants mha_cost_constants;
#else
extern const cost_constants mha_cost_constants;
#endif
#define COST_OF(name) (mha_cost_constants.name)

static inline double cost_larger(double x, double y) { return x > y ? x : y; }
static inline double cost_smaller(double x, double y) { return x < y ? x : y; }

/* Two limits of a loop: near each other, each is in the other's way. */
static inline double cost_limit(double x, double y) {
    const double longer = cost_larger(x, y), shorter = cost_smaller(x, y);
    return longer + COST_OF(soft) * cost_larger(0, 4 * shorter - 3 * longer);
}

/* How many steps make x; both are whole numbers. */
static inline double cost_steps(double x, double step) {
    const int64_t s = (int64_t)step;
    return (double)(((int64_t)x + s - 1) / s);
}

/* Cycles of the operations on a vector. */
typedef struct cost_vector {
    double multiply, dot, load, store, shuffle; /* dot: of bf16 */
} cost_vector;

cost_vector mha_cost_vector(const mha_machine *machine, double bytes);

/* A turn of an innermost loop: a register tile of rows x vectors, the loads of `elements` that all lanes share and of
 * `operands`. */
typedef struct cost_turn {
    double rows, vectors, elements, operands, unroll;
} cost_turn;

double mha_cost_turn(const mha_cost_context *c, const cost_vector *v, const cost_turn *t, bool pairs);

mha_costs mha_cost_q_lanes(const mha_cost_context *context, const attune_schedule *schedule);
mha_costs mha_cost_d_lanes(const mha_cost_context *context, const attune_schedule *schedule);

#endif
