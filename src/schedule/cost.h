/* What a schedule costs: cycles of one thread for a call, as they follow from problem, schedule and the description of
 * the machine. The choosers take the schedule that costs least, the tuner tries the cheapest first, and a winner of the
 * tuner is carried over to its neighbours by the ratio of their costs. */
#ifndef ATTUNE_SCHEDULE_COST_H
#define ATTUNE_SCHEDULE_COST_H

#include "schedule/schedule.h"

/* Where the cycles of a call go. */
typedef struct mha_costs {
    double scores, softmax, values; /* the three steps of attention; d-lanes: of which reading memory may take longer */
    double tasks;                   /* beginning tasks, bringing Q in and O out, merging chunks */
    double products;                /* projections of a block */
} mha_costs;

typedef enum mha_cost_level { MHA_COST_L2, MHA_COST_L3, MHA_COST_MEMORY } mha_cost_level;

/* settle.c. What settling needs of a problem, a target and a machine, computed once for all schedules of a search. */
typedef struct mha_usual {
    int64_t known_rows;   /* of a head of K and V, where they are known */
    bool shares_pairs;    /* V is put in pairs once for all tasks for any call: lengths are known, so no call has many
                             keys for few queries; tasks see nearly all keys, not those of a window; V in pairs is not
                             large */
    bool scores_in_order; /* of decoding: not from several streams */
    bool values_in_order;
    bool asks_of_one_stream; /* kv_prefetch is for one stream as well */
    int32_t kv_prefetch;     /* bytes, or MHA_SCHEDULE_NONE */
    bool may_prefetch_task;  /* prefetching the next head is possible, and pays from this many … */
    int64_t task_rows;
    double seen, columns, paying; /* … so much for each line */
    int64_t product_rows;         /* of a block; else 0 */
} mha_usual;

mha_usual mha_usual_of(const attune_problem *canonical, const at_target *target, const at_description *machine);
/* As mha_schedule_settle, which makes a mha_usual for it. */
void mha_settle(const mha_usual *usual, const attune_problem *canonical, const at_target *target,
                mha_schedule *schedule);

/* A problem as the costs use it: per head of K and V. Lengths that only the call gives have expected values. */
typedef struct mha_cost_context {
    const attune_problem *p;
    mha_machine machine;
    double rows, keys, columns, columns_v, group;
    double seen;       /* keys that a query sees, in the mean */
    double ends;       /* ends of the interval of those that move on from query to query */
    double lane_bytes; /* of the arithmetic */
    double k_bytes, v_bytes, q_bytes;
    mha_cost_level level;            /* where a call finds K and V */
    bool is_far;                     /* all of a call takes a large part of the last cache */
    bool by_pairs, decodes_by_pairs; /* mha_attends_by_pairs, mha_decodes_by_pairs */
    bool has_elements;               /* a mask or a bias for each score */
    bool hides;                      /* causality or a window hides keys */
    bool is_from_memory;             /* K and V of a head: mha_is_from_memory */
    bool is_from_afar;               /* K and V of a call: mha_is_from_afar */
    bool converts_k, converts_v;     /* their elements are narrower than those of the arithmetic */
    int32_t fixed_tile;              /* kv_tile of every schedule; 0: it is free */
    bool few_registers, is_wide;     /* of the target; wide: vectors of 64 bytes */
    int32_t widest, narrowest;       /* lanes: mha_widest_lanes, mha_narrowest_lanes */
    mha_usual usual;                 /* how its schedules are settled */
    int without;                     /* the row of corrections.def that does not count, from 1 on; 0: all count */
} mha_cost_context;

mha_cost_context mha_cost_context_of(const attune_problem *canonical, const mha_machine *machine);

/* Cycles of one thread for attention of one head of K and V. Choices that the schedule leaves open are settled. */
double mha_cost_of_choice(const mha_cost_context *context, const mha_schedule *schedule);

/* Cycles of one thread for a call. */
mha_costs mha_costs_of_call(const mha_cost_context *context, const mha_schedule *schedule);

/* Cycles that one thread is expected to take for a call of the canonical problem. The schedule is legal and settled. */
mha_costs mha_costs_of(const attune_problem *canonical, const mha_machine *machine, const mha_schedule *schedule);

/* Whether K and V of a head are so large that they come from memory rather than from a cache. */
bool mha_is_from_memory(const attune_problem *canonical);
/* Whether K and V of a call are so large that each head finds its own evicted from the near caches, however small the
 * head is. `last`: bytes of the machine's last cache. The order of sums must not depend on this, because it depends on
 * the batch. */
bool mha_is_from_afar(const attune_problem *canonical, double last);

double mha_costs_sum(const mha_costs *costs);

/* The sum of them. */
double mha_cost(const attune_problem *canonical, const mha_machine *machine, const mha_schedule *schedule);

/* The most operations per cycle: with whole vectors of the target, as a measured peak has them, and with dot products
 * if the kernel uses them. */
double mha_peak_flops(const attune_problem *canonical, const mha_machine *machine);

#endif
