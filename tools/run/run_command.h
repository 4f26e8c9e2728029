/* attune run and attune mha share this: one call on .npy files, with its measurement and its checks. */
#ifndef ATTUNE_TOOLS_RUN_COMMAND_H
#define ATTUNE_TOOLS_RUN_COMMAND_H

#include "run/run_files.h"

typedef struct run_options {
    tool_common common;
    run_files files;
    const char *problem, *sizes, *expect, *schedule;
    attune_engine engine;
    uint32_t threads;
    bool check, json;
    const char *weights;     /* a line that tells where a block's weights come from; NULL: none */
    const char *save_packed; /* the packed weights are written here, too; NULL: nowhere */
} run_options;

/* The options of both, and the problem; its input is a run_options. Stands in a list of children like
 * tool_common_children, which it has itself. */
extern const struct argp_child run_command_children[];

/* Notes a file for an input; it replaces an earlier one for the same input. Too many files are a usage error. */
void run_add_input(run_options *o, struct argp_state *state, const char *name, const char *path);

/* Cuts an argument of the form "NAME=FILE" in two and gives FILE, or is a usage error. argv may be written to. */
const char *run_cut_name(struct argp_state *state, const char *form, char *argument);

/* Runs the command. Returns its exit code. */
int run_command(run_options *o);

#endif
