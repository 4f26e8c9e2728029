#include "runtime/context.h"

#include <string.h>

enum { MOST_WORKERS = 65536 };

static const at_struct runner_struct = {"attune_runner", "start from ATTUNE_RUNNER_INIT", sizeof(attune_runner), NULL};

attune_status attune_runner_init(attune_runner *runner, size_t struct_size) {
    at_error err = {0};
    at_struct_init(&runner_struct, runner, struct_size, &err);
    return at_report(&err);
}

attune_status at_runner_take(const attune_runner *given, attune_runner *taken, at_error *err) {
    const attune_status status = at_copy_in(&runner_struct, given, taken, err);
    const attune_runner *runner = taken;
    if (status) return status;
    if (!runner->parallel_for == !runner->submit)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the runner has %s parallel_for and submit; it must have one",
                       runner->submit ? "both" : "neither");
    if (runner->max_workers < 1 || runner->max_workers > MOST_WORKERS)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the runner's max_workers is %u; it must be from 1 to %d",
                       runner->max_workers, MOST_WORKERS);
    return ATTUNE_OK;
}

/* ---- submit ---- */

/* Begins at any time, perhaps after the call has returned. */
static void help(void *argument) {
    at_job *job = argument;
    at_job_help(job);
    at_job_drop(job);
}

/* As many helpers as there are workers beside the caller; those that the pool refuses are done without. */
static void run_submitted(const at_team *team, attune_range_fn *fn, void *argument, int64_t n) {
    at_job *job = at_job_new(team->allocator, fn, argument, n, team->max_workers);
    if (!job) {
        fn(argument, 0, n, 0);
        return;
    }
    for (uint32_t helper = 1; helper < job->max_workers && at_job_is_open(job); helper++) {
        at_job_hold(job);
        if (!team->runner.submit(team->runner.user, help, job)) continue;
        at_job_drop(job);
        break;
    }
    at_job_finish(job);
    at_job_drop(job);
}

/* ---- All of them ---- */

void at_team_run(const at_team *team, attune_range_fn *fn, void *argument, int64_t n) {
    if (team->max_workers == 1 || n == 1)
        fn(argument, 0, n, 0);
    else if (team->pool)
        at_pool_run(team->pool, fn, argument, n, team->max_workers);
    else if (team->runner.submit)
        run_submitted(team, fn, argument, n);
    else
        team->runner.parallel_for(team->runner.user, fn, argument, n);
}
