/* Expert tier: most programs need attune/attention.h alone.
 *
 * Calls with options (threads, cancelling), and calls in parts, whose tasks the threads of an engine execute. */
#ifndef ATTUNE_CALL_H
#define ATTUNE_CALL_H

#include "kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Threads and cancelling, call by call ---- */

/* Options of one call. */
typedef struct attune_run_options {
    size_t struct_size;
    const attune_runner *runner; /* NULL: the context's, or its pool */
    uint32_t max_threads;        /* of attune's pool or of a runner with submit, the caller included; 0: all. A number
                                  * above theirs means all. Must be 0 with parallel_for, which decides itself */
    const int *cancel;           /* NULL, or a flag that any thread may set (atomically, to a value other than 0) while
                                  * the call runs. attune looks at it before each task, finishes the tasks that have
                                  * begun, and returns ATTUNE_CANCELLED. A call without tasks left succeeds. The
                                  * interpreter looks once, at the beginning */
} attune_run_options;

#ifdef __cplusplus
#define ATTUNE_RUN_OPTIONS_INIT attune_initial(attune_run_options_init)
#else
#define ATTUNE_RUN_OPTIONS_INIT { .struct_size = sizeof(attune_run_options) }
#endif

ATTUNE_API attune_status attune_run_options_init(attune_run_options *options, size_t struct_size);

/* attune_run with options, which may be NULL. */
ATTUNE_CHECKED attune_status attune_run_with(attune_context *context, const attune_kernel *kernel,
                                             const attune_arguments *arguments, const attune_run_options *options);

/* Bytes of workspace that attune_run_with needs; they depend on the number of workers that may take part. */
ATTUNE_CHECKED attune_status attune_workspace_size_with(const attune_context *context, const attune_kernel *kernel,
                                                        const attune_arguments *arguments,
                                                        const attune_run_options *options, size_t *bytes);

/* A call in parts, for engines whose threads already run and all execute the same program. One thread begins the call.
 * Then any threads execute ranges of the tasks of phase 0; when all of these are done, those of phase 1; and so on.
 * Equals attune_run:
 *
 *     attune_call_begin(context, kernel, &arguments, num_threads, &call);
 *     for (phase = 0; phase < attune_call_num_phases(call); phase++) {
 *         [all threads] attune_call_execute(call, phase, begin, end, thread);  ranges that cover 0 to num_tasks
 *         [barrier]
 *     }
 *     attune_call_end(call); */
typedef struct attune_call attune_call;

/* Checks the arguments as attune_run does, and prepares the call. Context, kernel and the memory that the arguments
 * point to must stay until the call has ended; the struct itself need not. `max_workers`, 1 to 65536, is the number of
 * worker numbers. A runner with as many workers needs the same workspace (attune_workspace_size_with). A failure sets
 * *call to NULL. */
ATTUNE_CHECKED attune_status attune_call_begin(attune_context *context, const attune_kernel *kernel,
                                               const attune_arguments *arguments, uint32_t max_workers,
                                               attune_call **call);

/* Number of phases; 0 if there is nothing to compute. */
ATTUNE_API uint32_t attune_call_num_phases(const attune_call *call);

/* Number of tasks of a phase; may be 0, and is 0 for a phase that does not exist. Tasks of one phase take about the
 * same time, unless rows attend to different numbers of keys. */
ATTUNE_API int64_t attune_call_num_tasks(const attune_call *call, uint32_t phase);

/* Executes the tasks from `begin` to before `end` of one phase, on the calling thread. Thread-safe with different
 * worker numbers. Executes nothing and returns ATTUNE_INVALID_ARGUMENT for a phase, range or worker that does not
 * exist, and for a phase before all tasks of the previous one are done. */
ATTUNE_CHECKED attune_status attune_call_execute(attune_call *call, uint32_t phase, int64_t begin, int64_t end,
                                                 uint32_t worker);

/* Frees the call; no thread may be executing it. ATTUNE_INVALID_ARGUMENT means that the tasks of some phase were not
 * executed as often as there are tasks: the outputs are then wrong. NULL is fine. Compilers do not warn where the
 * status is ignored, because a program that gives a call up ends it, too. */
ATTUNE_API attune_status attune_call_end(attune_call *call);

#ifdef __cplusplus
}
#endif

#endif
