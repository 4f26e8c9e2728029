/* The tasks of a call, and how evenly many threads share them. */
#ifndef ATTUNE_TOOLS_EXPLAIN_TASKS_H
#define ATTUNE_TOOLS_EXPLAIN_TASKS_H

#include "common/tensors.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TASKS_PHASES = 16 };

typedef struct phase_tasks {
    int64_t tasks;
    int64_t waves;  /* tasks of the thread that has most of them, if all take as long */
    double seconds; /* of all tasks on one thread; 0: not measured */
    double idle;    /* the share of the threads' time in which they have nothing to do */
} phase_tasks;

typedef struct task_report {
    uint32_t threads;
    size_t num_phases; /* those with tasks; at most TASKS_PHASES are shown */
    phase_tasks phases[TASKS_PHASES];
    bool is_measured; /* each task has its own time; otherwise all tasks of a phase take the same */
    double idle;      /* of all phases; only if measured, or if there is one phase */
} task_report;

/* Finds out about a call of the problem with these sizes. `schedule` NULL: the usual one. Measuring runs each task
 * alone on this thread. false, and a message, if that cannot be. */
bool tasks_find(attune_context *context, const attune_problem *problem, const attune_schedule *schedule,
                const call_sizes *sizes, uint32_t threads, bool measured, task_report *report);

/* The share of idle time when `threads` take tasks of these lengths as attune's pool hands them out: in ranges, in
 * their order. */
double tasks_idle(const double *lengths, int64_t count, uint32_t threads, double *end);

#endif
