/* What the costs of both strategies share: a problem as costs see it, and the time of a register tile. */
#ifndef ATTUNE_SCHEDULE_COST_PARTS_H
#define ATTUNE_SCHEDULE_COST_PARTS_H

#include "schedule/cost.h"
#include "schedule/variant.h"

typedef struct cost_constants {
#define COST(name, value, fit, meaning) double name;
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

/* Two limits of one loop. If they are close to each other, the loop takes longer than either. */
static inline double cost_limit(double x, double y) {
    const double longer = cost_larger(x, y), shorter = cost_smaller(x, y);
    return longer + COST_OF(soft) * cost_larger(0, 4 * shorter - 3 * longer);
}

/* How many steps make x; both are whole numbers. */
static inline double cost_steps(double x, double step) {
    const int64_t s = (int64_t)step;
    return (double)(((int64_t)x + s - 1) / s);
}

/* The share of repeatedly read data that a cache does not hold. Data slightly larger than the cache are always evicted
 * before they are read again. */
static inline double cost_beyond(double bytes, double cache) {
    return cost_smaller(1, cost_larger(0, (bytes - cache) / cache * 2));
}

/* Cycles of the operations on a vector. */
typedef struct cost_vector {
    double multiply, dot, load, store, shuffle, byte_dot; /* dot: of pairs of bf16; byte_dot: of four bytes */
} cost_vector;

enum { COST_DOT_CODES = 4 }; /* that a lane of a dot of bytes multiplies */

cost_vector mha_cost_vector(const mha_machine *machine, double bytes);

/* An iteration of an innermost loop: a register tile of rows x vectors, with loads of `elements` that all lanes share
 * and of `operands`. */
typedef struct cost_iteration {
    double rows, vectors, elements, operands, unroll;
} cost_iteration;

double mha_cost_iteration(const mha_cost_context *c, const cost_vector *v, const cost_iteration *t, bool pairs);

/* Cycles of one thread for one head of K and V, by the schedule's variant. */
mha_costs mha_cost_q_lanes(const mha_cost_context *context, const mha_schedule *schedule, const mha_variant *variant);
mha_costs mha_cost_d_lanes(const mha_cost_context *context, const mha_schedule *schedule, const mha_variant *variant);

/* A schedule's numbers for a head. A stripe is what a register tile of scores spans, rows of one or more vectors. */
typedef struct mha_q_head {
    const mha_cost_context *c;
    const mha_schedule *s;
    mha_variant variant;
    cost_vector v;
    double iterations;              /* of a product: by pairs half as many */
    double bytes, k_bytes, v_bytes; /* of elements in scratch, and of K and V as register tiles read them */
    double stripe_rows, stripes, stripes_of_task, tasks;
    double seen, tiles;           /* keys that a stripe computes, and tiles of them */
    double task_seen, task_tiles; /* the same of a task */
    double tile;                  /* keys of a tile */
    double score_tiles;           /* register tiles of the scores of a stripe */
    double causal_tiles;          /* the same where few stripes see more and more keys; else -1 */
    double key;                   /* of a register tile of scores: its address */
    double last_tile, other_tile; /* cycles of one of them, in the last stripe and in others */
} mha_q_head;

/* The costs of a schedule of q-lanes, and what they follow from. */
typedef struct mha_q_costs {
    mha_schedule schedule;
    mha_q_head head;
    mha_costs costs;
} mha_q_costs;

/* Computes the costs of another schedule and its variant in place. Parts that both have in common are not computed
 * again. Begin with zeros. */
void mha_cost_q_lanes_next(const mha_cost_context *context, const mha_schedule *schedule, const mha_variant *variant,
                           mha_q_costs *costs);

/* d-lanes, integer products, for some rows: a register tile of scores, of which some rows share a vector, and the keys
 * that it has; and four keys of values, which are integers as well. */
double mha_cost_quantised_scores(const mha_cost_context *c, const mha_schedule *s, const cost_vector *v,
                                 int rows_in_vector, double rows);
double mha_cost_quantised_keys(const mha_cost_context *c, const mha_schedule *s);
double mha_cost_quantised_values(const mha_cost_context *c, const mha_schedule *s, const cost_vector *v, double rows);

/* The products of a block. Projections with the same depth and the same width of column groups count as one. */
typedef struct mha_depth {
    int64_t depth, group, columns;
} mha_depth;

typedef struct mha_products {
    int count;
    mha_depth of[4];
} mha_products;

mha_products mha_products_of(const attune_problem *canonical);
double mha_cost_products(const mha_cost_context *context, const mha_products *products, const mha_schedule *s);

#endif
