/* What attune run and attune mha share: a call on .npy files that is completed, made, measured, checked and shown. */
#ifndef ATTUNE_TOOLS_RUN_COMMAND_H
#define ATTUNE_TOOLS_RUN_COMMAND_H

#include "run_files.h"

typedef struct run_options {
    tool_common common;
    run_files files;
    const char *problem, *sizes, *expect, *schedule;
    attune_engine engine;
    uint32_t threads;
    bool check, json;
    const char *weights;     /* a line about where a block's weights come from; NULL: there is none */
    const char *save_packed; /* where those are written beside the outputs; NULL: nowhere */
} run_options;

/* The options of both, and the problem; its input is a run_options. Stands in a list of children like
 * tool_common_children, which it has itself. */
extern const struct argp_child run_command_children[];

/* What argp finds: a file for an input, in place of one for the same. A usage error if there are too many. */
void run_add_input(run_options *o, struct argp_state *state, const char *name, const char *path);

/* Cuts an argument of the form "NAME=FILE" in two and gives FILE, or is a usage error. argv may be written to. */
const char *run_cut_name(struct argp_state *state, const char *form, char *argument);

/* Does it all. An exit code. */
int run_command(run_options *o);

#endif
