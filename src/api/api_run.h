/* Running a kernel, for the public functions and for plans, and making arguments by name. */
#ifndef ATTUNE_API_API_RUN_H
#define ATTUNE_API_API_RUN_H

#include "engine/kernel.h"

/* attune_run_with, with the message in *err. likely: as in at_call_make. */
attune_status at_run_kernel(attune_context *context, const attune_kernel *kernel, const at_layout *likely,
                            const attune_arguments *arguments, const attune_run_options *options, at_error *err);

/* The options of one call, with defaults filled in. */
typedef struct at_run_choice {
    const at_team *team; /* `own`, or the context's */
    const int *cancel;
    at_team own;
} at_run_choice;
attune_status at_run_choose(const attune_context *context, const attune_run_options *options, at_run_choice *choice,
                            at_error *err);

/* Whether a kernel is one in loop IR. */
attune_status at_ir_check_kernel(const attune_kernel *kernel, at_error *err);

#endif
