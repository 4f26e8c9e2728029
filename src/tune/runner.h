/* Kernels of one problem under different schedules, run on the caller's tensors: compiled outside the caches, checked
 * against the interpreter (check.c), timed. */
#ifndef ATTUNE_TUNE_RUNNER_H
#define ATTUNE_TUNE_RUNNER_H

#include "tune/sample.h"

typedef struct tune_runner {
    attune_context *context;
    at_signature signature;
    at_call call;
    double share;    /* of the call that a sample is; 1: all of it, */
    int64_t repeats; /* as often as makes it long enough */
    int64_t turn;    /* samples so far */
    double whole;    /* seconds of the whole call, about */
    int samples;     /* of which a pair takes the shortest; fewer where they take milliseconds all the same */
    int64_t timed, interrupted; /* measurements, and those during which another program took a CPU away */
    void *workspace;
    size_t workspace_bytes;
    uint64_t seed;
} tune_runner;

/* The call is checked as attune_run checks it, and it and what it points to must stay as long as the runner does. A
 * call without work is ATTUNE_INVALID_ARGUMENT. */
attune_status tune_runner_init(tune_runner *runner, attune_context *context, const attune_problem *canonical,
                               const attune_arguments *arguments, at_error *err);
void tune_runner_free(tune_runner *runner);

/* Chooses the size of a sample by running the kernel. All kernels here are made by at_kernel_make_uncached. */
attune_status tune_runner_calibrate(tune_runner *runner, const attune_kernel *kernel, at_error *err);

/* The shortest times of each part of a sample; begins as zeros. A disturbance only makes a part longer. */
typedef struct tune_times {
    int count;
    double parts[AT_MAX_PHASES * TUNE_MAX_PARTS];
} tune_times;

/* Takes a sample. Interrupted measurements are repeated, three times at most. Each phase is timed by itself, on numbers
 * that earlier runs have left in the workspace; they are seldom those of this call. */
attune_status tune_runner_time(tune_runner *runner, const attune_kernel *kernel, tune_times *times, at_error *err);

/* Seconds of the call, or of the repeats of a short one, as these samples tell them. */
double tune_times_sum(const tune_times *times);

/* Seconds that tune_runner_check may take, from those that machine code takes for a task of each phase. */
attune_status tune_runner_check_cost(tune_runner *runner, const attune_kernel *kernel, double *seconds, at_error *err);

/* Runs a random task of each phase by the kernel and by the interpreter, on what the kernel's phases before it have
 * left, and says whether outputs and shared buffers then have the same bits; two NaN count as the same. The caller's
 * tensors are left alone. `meaning` is the kernel's lowered IR. */
attune_status tune_runner_check(tune_runner *runner, const attune_kernel *kernel, const ir_kernel *meaning, bool *same,
                                at_error *err);

#endif
