/* Kernels of one problem under different schedules, run on the caller's tensors: compiled outside the caches, checked
 * against the interpreter (check.c), timed. */
#ifndef ATTUNE_TUNE_CANDIDATES_H
#define ATTUNE_TUNE_CANDIDATES_H

#include "tune/sample.h"

/* The call to tune with. It and what it points to must stay as long as the runner does. */
typedef struct tune_task {
    at_operation operation;
    const attune_arguments *arguments; /* of attention */
    void *const *buffers;              /* of others, as attune_ir_run takes them */
    const int64_t *scalars;
} tune_task;

/* A tensor of the call. */
typedef struct tune_operand {
    ir_elem elem;
    bool is_input, is_output;
    uint64_t bytes;
} tune_operand;
enum { TUNE_MAX_OPERANDS = MHA_NUM_TENSORS };

typedef struct tune_runner {
    attune_context *context;
    at_operation operation;
    at_signature signature; /* of attention */
    at_call call;           /* of attention */
    void *const *buffers;
    const int64_t *scalars;
    tune_operand operands[TUNE_MAX_OPERANDS];
    size_t num_operands;
    at_string params;           /* of an operator of the user: as the kernel of the usual numbers has them */
    unsigned char *contents;    /* of its operands that are read and written, one after the other, before any run */
    double work;                /* as at_work_of gives it */
    bool are_alike, are_level;  /* the units of a phase, and the tasks of a unit (sample.h) */
    double share;               /* of the call that a sample is; 1: all of it, */
    int64_t repeats;            /* as often as makes it long enough */
    int64_t turn;               /* samples so far */
    double whole;               /* seconds of the whole call, about */
    int samples;                /* runs, of which a pair uses the shortest; fewer if a run takes milliseconds */
    int64_t timed, interrupted; /* measurements, and those during which another program took a CPU away */
    void *workspace;
    size_t workspace_bytes;
    uint64_t seed;
} tune_runner;

/* Bytes of an operand in `contents`. Attention's caches are not there: each run writes the same into them. */
static inline size_t tune_runner_kept_bytes(const tune_runner *runner, size_t operand) {
    const tune_operand *const o = &runner->operands[operand];
    const bool is_kept = runner->operation.op != &at_attention && o->is_input && o->is_output;
    return is_kept ? (size_t)(o->bytes + 63) / 64 * 64 : 0;
}

/* The call is checked as attune_run or attune_ir_run checks it. A call without work is ATTUNE_INVALID_ARGUMENT. */
attune_status tune_runner_init(tune_runner *runner, attune_context *context, const tune_task *task, at_error *err);
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

/* An estimate of the seconds of tune_runner_check, from the seconds of machine code for a task of each phase. */
attune_status tune_runner_check_cost(tune_runner *runner, const attune_kernel *kernel, double *seconds, at_error *err);

/* Runs a random task of each phase by the kernel and by the interpreter, on what the kernel's phases before it have
 * left, and says whether outputs and shared buffers then have the same bits; two NaN count as the same. The caller's
 * tensors are left alone. `meaning` is the kernel's lowered IR. */
attune_status tune_runner_check(tune_runner *runner, const attune_kernel *kernel, const ir_kernel *meaning, bool *same,
                                at_error *err);

/* Whether a kernel of an operator of the user takes the runner's call: the same parameters as the usual schedule's, and
 * nothing that its assumptions forbid. */
bool tune_runner_can_run(const tune_runner *runner, const attune_kernel *kernel);

/* Runs the whole call by both kernels and says whether all outputs have the same bits; two NaN count as the same. The
 * caller's tensors are left alone. */
attune_status tune_runner_compare(tune_runner *runner, const attune_kernel *kernel, const attune_kernel *other,
                                  bool *same, at_error *err);

#endif
