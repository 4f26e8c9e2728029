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
    int64_t most;   /* tasks of the thread that gets most of them */
    double seconds; /* of all tasks on one thread; 0: not measured */
    double idle;    /* the share of the threads' time in which they have nothing to do */
} phase_tasks;

typedef struct task_report {
    uint32_t threads, cores; /* cores: that share a third cache; 0: all */
    int64_t heads;           /* whose tasks get shorter, under causality; 0: all are alike */
    size_t num_phases;       /* those with tasks; at most TASKS_PHASES are shown */
    phase_tasks phases[TASKS_PHASES];
    bool is_measured; /* each task has its own time; otherwise all tasks of a phase take the same */
    bool has_idle;    /* lengths of tasks of several phases compare only if they were measured */
    double idle;      /* of all phases */
} task_report;

/* Finds out about a call of the problem with these sizes. `schedule` NULL: the usual one. Measuring runs each task
 * alone on this thread. false, and a message, if that cannot be. */
bool tasks_find(attune_context *context, const attune_problem *problem, const char *schedule, const call_sizes *sizes,
                uint32_t threads, bool measured, task_report *report);

#endif
