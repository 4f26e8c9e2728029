/* Kernels that are compiled while calls go on, and how much faster they are expected to be. */
#include "plan/plan.h"

#include <unistd.h>

/* ---- The promoter ---- */

/* Only one thread is the promoter. In a child of fork() the promoter's thread may be missing. */
bool pl_begin(attune_plan *plan) {
    const int32_t self = (int32_t)getpid();
    int32_t found = atomic_load(&plan->promoter);
    return found != self && atomic_compare_exchange_strong(&plan->promoter, &found, self);
}

static void work(void *user) {
    attune_plan *const plan = user;
    attune_kernel *kernel;
    if (plan->job_is_special)
        pl_specialise(plan, &plan->job_arguments, plan->job_kind, &plan->job_key);
    else if (plan->deadline_us >= 0)
        pl_replace_stopgap(plan, plan->job_kind);
    else if (pl_kernel(plan, plan->job_kind, &kernel, NULL))
        plan->next_try[plan->job_kind] = PL_NEVER;
    plan->awaited = 0;
    pl_end(plan);
}

void pl_submit(attune_plan *plan) {
    plan->job.run = work;
    plan->job.user = plan;
    if (at_background_submit(&plan->context->background, &plan->job)) return;
    plan->awaited = 0;
    pl_end(plan);
}

void pl_tell_swap(const attune_plan *plan, const attune_kernel *kernel, const attune_problem *problem) {
    char name[AT_NAME_CHARS + 1], text[MHA_PROBLEM_TEXT];
    const at_log *const log = &plan->context->log;
    if (!at_log_wants_event(log, ATTUNE_EVENT_SWAPPED)) return;
    at_key_name(&kernel->node.key, name);
    if (attune_problem_print(problem, text, sizeof text) >= sizeof text) text[0] = '\0';
    at_log_event(log, (attune_event){.kind = ATTUNE_EVENT_SWAPPED, .key = name, .problem = text});
}

/* ---- What a kernel for lengths gains ---- */

/* Where lengths are open, beginning a task takes 1.45 times as long, and the rest 1.03 times: 25 % in all for 16 x 16,
 * 18 % for 32 x 32, 8 % for 64 x 64 and 4 to 5 % from 128 x 128 on (head_dim 64, Zen 4; measured were 24, 16, 9, and 0
 * to 5 %). */
static const double OPEN_TASKS = 1.45, OPEN_REST = 1.03;

static double cycles(const attune_prediction *p, double tasks, double rest) {
    return tasks * p->tasks + rest * (p->scores + p->softmax + p->values + p->products);
}

/* The model compares schedules of large problems better than those of small ones. So another schedule for the open
 * lengths counts only if the model rates it worse. */
bool pl_is_worth(const attune_plan *plan, pl_kind kind, const attune_problem *exact) {
    attune_prediction now = {.struct_size = sizeof now}, then = {.struct_size = sizeof then};
    const attune_kernel *const kernel = plan->kernels[kind];
    if (!plan->options.least_gain || !kernel) return true;
    /* If the schedule is illegal for these lengths, or there is no model, the kernel is tried. */
    if (attune_schedule_predict(plan->context, exact, NULL, &then) ||
        attune_schedule_predict(plan->context, exact, mha_schedule_text(&kernel->schedule).text, &now))
        return true;
    const double open = cycles(&then, OPEN_TASKS, OPEN_REST), own = cycles(&now, OPEN_TASKS, OPEN_REST);
    const double least = 1 + plan->options.least_gain / 100.0;
    return (own > open ? own : open) >= least * cycles(&then, 1, 1);
}
