/* The work of a ragged batch as one list: tasks of several kernels, each for the sequences that suit it.
 *
 *     sequences ► parts     a kernel for each kind of sequence; its call has the whole batch, whatever the order
 *     part ► segments       the tasks of a sequence in a phase; those of a long prompt in four, by their length
 *     segments ► stages     the phases of all parts with one number: one parallel loop each, the longest tasks first
 *
 * No pointer is moved: a kernel's tasks are numbered by sequence first, so a part runs those of its own sequences and
 * no others. Threads only decide who runs a task, so the list has the bits of its kernels. */
#ifndef ATTUNE_PLAN_WORK_H
#define ATTUNE_PLAN_WORK_H

#include "api/api_run.h"
#include "plan/plan.h"

/* A kernel for some kinds of sequences. */
typedef struct pl_choice {
    attune_kernel *kernel; /* NULL: there is no such sequence */
    pl_kind kind;
    int64_t queries, keys; /* of its longest sequence */
} pl_choice;

/* The same, and its call on the whole batch. */
typedef struct pl_part {
    pl_choice of;
    at_settled settled;
    int64_t plan[AT_PLAN_WORDS]; /* task counts of its phases, and sizes of its shared buffers */
} pl_part;

/* Tasks of a part: runs of `run` tasks each, where each run begins `leap` after the one before. */
typedef struct pl_segment {
    uint16_t part, phase;
    int64_t first, run, leap, count;
    double cost;       /* of a task; only compared with others */
    int64_t begin;     /* tasks of the stage before these */
    double cost_after; /* of the segments after this one in its stage */
} pl_segment;

typedef struct pl_work {
    attune_plan *plan;
    const attune_arguments *arguments; /* with the lists that say how long sequences are */
    pl_part parts[PL_NUM_KINDS];
    uint8_t part_of[PL_NUM_KINDS]; /* the part for sequences of a kind */
    uint32_t num_parts, num_stages;
    pl_segment *segments; /* stage by stage */
    size_t num_segments;
    size_t stage_begin[AT_MAX_PHASES + 1];
} pl_work;

/* The kernels of a batch's sequences, by kind; compiles what is missing. keys: the most that a sequence may have.
 * is_bound: no list is read, and each kind counts. before: what ran before the kernels of now, by a number (plan.h); 0:
 * the kernels of now. */
attune_status pl_work_choose(attune_plan *plan, const attune_arguments *arguments, int64_t keys, bool is_bound,
                             int before, pl_choice choices[PL_NUM_KINDS], at_error *err);

/* An upper bound of the lengths holds for all kinds, and may exceed what the kernel of one kind takes. Strides are set,
 * because contiguous ones depend on the sizes of the whole batch. */
void pl_bound_queries(const attune_plan *plan, const at_settled *settled, pl_kind kind, attune_arguments *arguments);

/* Their calls. settled: of the whole call. */
attune_status pl_work_settle(attune_plan *plan, const attune_arguments *arguments, const at_settled *settled,
                             const pl_choice choices[PL_NUM_KINDS], pl_work *work, at_error *err);

/* Tasks and costs of a stage. */
static inline int64_t pl_stage_tasks(const pl_work *work, uint32_t stage) {
    const size_t begin = work->stage_begin[stage], end = work->stage_begin[stage + 1];
    return begin < end ? work->segments[end - 1].begin + work->segments[end - 1].count : 0;
}
static inline double pl_stage_cost(const pl_work *work, uint32_t stage) {
    const size_t begin = work->stage_begin[stage], end = work->stage_begin[stage + 1];
    const pl_segment *const first = &work->segments[begin];
    return begin < end ? first->cost_after + first->cost * (double)first->count : 0;
}

/* Finds the segment of a stage's task. `from`: a segment that is not after it. */
static inline const pl_segment *pl_segment_at(const pl_segment *from, int64_t task) {
    while (task >= from->begin + from->count) from++;
    return from;
}

/* How many tasks a thread takes at once, from number `task` of a segment on: a share of the cost that is left. It
 * shrinks towards the end, so that all threads end at about the same time. */
static inline int64_t pl_tasks_at_once(const pl_segment *s, int64_t task, uint32_t workers) {
    enum { RANGES_PER_WORKER = 8 };
    const int64_t left = s->begin + s->count - task;
    if (workers == 1) return left;
    const double share = (s->cost_after + (double)left * s->cost) / (workers * RANGES_PER_WORKER) / s->cost;
    return share < 1 ? 1 : share < (double)left ? (int64_t)share : left;
}

/* The most segments that the list may have. */
size_t pl_work_most_segments(const pl_work *work);

/* Makes the list in `memory`, which has room for that many. For one thread sequences stay in their order. */
void pl_work_list(pl_work *work, bool for_many, pl_segment *memory);

/* Bytes of shared buffers, and of the scratch of so many workers. */
attune_status pl_work_bytes(const pl_work *work, uint32_t workers, size_t *bytes, at_error *err);

/* Counts a run. */
void pl_work_count(const pl_work *work);

/* Whether all kernels have tasks; the interpreter has none. */
bool pl_have_phases(const pl_choice choices[PL_NUM_KINDS]);

/* Runs the list. buffers: of the call, in the order of the plan's tensors. */
attune_status pl_work_run(const pl_work *work, void *const *buffers, const at_team *team, double flops,
                          const int *cancel, void *workspace, at_error *err);

/* ---- The list of a step, kept ---- */

/* What all runs of a step with the same strides share. */
typedef struct pl_step pl_step;

/* For a call whose index tensors were checked and do not change. *step NULL: the plan has no lists of work, or the
 * strides are refused, for which the call itself gives the reason. */
attune_status pl_step_create(attune_plan *plan, const attune_arguments *arguments, pl_step **step, at_error *err);
void pl_step_destroy(pl_step *step);

/* Runs the call with the index tensors of the plan. *fits false: the strides differ, and nothing was done. */
attune_status pl_step_run(const pl_step *step, const attune_arguments *arguments, const attune_run_options *options,
                          bool *fits, at_error *err);
attune_status pl_step_workspace(const pl_step *step, const attune_run_options *options, size_t *bytes, at_error *err);

/* ---- Idle time ---- */

/* What `workers` threads that take equally long for equal costs do: the costs of the list, and the time until the last
 * one ends in the same unit. The tasks of a segment count as alike; the longest of a piece of a prompt is a seventh
 * longer than the mean. */
typedef struct pl_idle {
    double cost, time;
} pl_idle;
pl_idle pl_work_simulate(const pl_work *work, uint32_t workers);

#endif
