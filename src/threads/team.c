/* One of three ways to run tasks: the context's pool, a host's pool that takes helpers (submit), or a host's own
 * parallel_for. Little work stays on the caller's thread. */
#include "threads/team.h"

#include "base/fpenv.h"

#include <string.h>

const at_struct at_runner_struct = {"attune_runner", "start from ATTUNE_RUNNER_INIT", sizeof(attune_runner), NULL, 40};

attune_status at_runner_take(const attune_runner *given, attune_runner *taken, at_error *err) {
    const attune_status status = at_copy_in(&at_runner_struct, given, taken, err);
    const attune_runner *runner = taken;
    if (status) return status;
    if (!runner->parallel_for == !runner->submit)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the runner has %s submit; it must have one of the two",
                       runner->submit ? "both parallel_for and" : "neither parallel_for nor");
    if (runner->max_workers < 1 || runner->max_workers > AT_MOST_WORKERS)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the runner's max_workers is %u; it must be from 1 to %d",
                       runner->max_workers, AT_MOST_WORKERS);
    return ATTUNE_OK;
}

/* ---- submit ---- */

/* A helper may begin at any time, even after the call has returned. */
static void help(void *argument) {
    AT_DEFAULT_FPENV;
    at_job *job = argument;
    at_job_help(job);
    at_job_drop(job);
}

/* As many helpers as there are workers besides the caller. If the host's pool refuses one, the run goes on without it.
 */
static void run_submitted(const at_team *team, attune_range_fn *fn, void *argument, int64_t n, uint32_t workers,
                          int64_t falling) {
    at_job *job = at_job_new(team->allocator, fn, argument, n, workers, team->l3_cores, falling);
    if (!job) {
        fn(argument, 0, n, 0);
        return;
    }
    for (uint32_t helper = 1; helper < job->max_workers && at_job_wants_help(job); helper++) {
        at_job_hold(job);
        if (!team->runner.submit(team->runner.user, help, job)) continue;
        at_job_drop(job);
        break;
    }
    at_job_work(job);
    at_job_wait(job);
    at_job_drop(job);
}

/* ---- parallel_for ---- */

typedef struct range_call {
    attune_range_fn *fn;
    void *argument;
} range_call;

/* On a thread of the host's. */
static void run_range(void *argument, int64_t begin, int64_t end, uint32_t worker) {
    AT_DEFAULT_FPENV;
    const range_call *const call = argument;
    call->fn(call->argument, begin, end, worker);
}

static void run_parallel_for(const at_team *team, attune_range_fn *fn, void *argument, int64_t n) {
    range_call call = {fn, argument};
    team->runner.parallel_for(team->runner.user, run_range, &call, n);
}

/* ---- All of them ---- */

uint32_t at_workers_of(const at_team *team, double work) {
    if (work < AT_SMALL_WORK) return 1;
    const double worth = 1 + work / AT_SMALL_WORK;
    return team->runner.parallel_for || worth > team->max_workers ? team->max_workers : (uint32_t)worth;
}

void at_team_run(const at_team *team, attune_range_fn *fn, void *argument, int64_t n, double work, int64_t falling) {
    const uint32_t workers = at_workers_of(team, work);
    if (workers == 1 || n == 1 || n > AT_JOB_MOST)
        fn(argument, 0, n, 0);
    else if (team->pool)
        at_pool_run(team->pool, fn, argument, n, workers, work, falling);
    else if (team->runner.submit)
        run_submitted(team, fn, argument, n, workers, falling);
    else
        run_parallel_for(team, fn, argument, n);
}
