/* attune run op=linear: a step of linear attention on .npy files. */
#ifndef ATTUNE_TOOLS_RUN_LINEAR_H
#define ATTUNE_TOOLS_RUN_LINEAR_H

#include "run/run_command.h"

/* Runs the command. Returns its exit code. */
int run_linear(run_options *o);

#endif
