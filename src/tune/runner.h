/* Kernels of one problem under different schedules, run on the caller's tensors: compiled outside the caches, checked
 * against the interpreter, timed. */
#ifndef ATTUNE_TUNE_RUNNER_H
#define ATTUNE_TUNE_RUNNER_H

#include "runtime/kernel.h"

typedef struct tune_runner {
    attune_context *context;
    at_signature signature;
    at_call call;
    at_run_part sample; /* what is timed: some heads, or if one takes long one of every so many tasks */
    int64_t repeats;    /* calls in a sample, so that it is not too short */
    bool is_long;       /* a sample takes milliseconds all the same */
    void *workspace;
    size_t workspace_bytes;
    uint64_t seed;
} tune_runner;

/* The call is checked as attune_run checks it, and it and what it points to must stay as long as the runner does. A
 * call without work is ATTUNE_INVALID_ARGUMENT. */
attune_status tune_runner_init(tune_runner *runner, attune_context *context, const attune_problem *canonical,
                               const attune_arguments *arguments, at_error *err);
void tune_runner_free(tune_runner *runner);

/* Every step-th task of a kernel that has so many, those at both ends equally far from the ends: under a causal mask
 * tasks become cheaper one by one, and however many there are their mean must be the same. */
at_run_part tune_centred_part(at_run_part sample, int64_t tasks);

/* Chooses what a sample is by running the kernel. */
attune_status tune_runner_calibrate(tune_runner *runner, const attune_kernel *kernel, at_error *err);

/* Seconds of one sample. */
attune_status tune_runner_time(tune_runner *runner, const attune_kernel *kernel, double *seconds, at_error *err);

/* Runs part of the call by the kernel and by the interpreter: one task if the kernel has one phase, else all. *same
 * says whether the outputs have the same bits; two NaN count as the same. The caller's outputs are left alone. */
attune_status tune_runner_check(tune_runner *runner, const attune_kernel *kernel, const attune_schedule *schedule,
                                bool *same, at_error *err);

#endif
