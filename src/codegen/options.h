/* LLVM's options, which are those of a process, as a target wants them. */
#ifndef ATTUNE_CODEGEN_OPTIONS_H
#define ATTUNE_CODEGEN_OPTIONS_H

#include "target/target.h"

/* Between the two calls LLVM's options are those for the target, whichever CPU this is and whatever else is compiled.
 * Compiles of targets with the same options run side by side, and those of others wait for their turn. The threads of
 * one compile share the turn of the thread that entered. */
void cg_options_enter(const at_target *target);
void cg_options_leave(void);

#endif
