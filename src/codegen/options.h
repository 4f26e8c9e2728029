/* LLVM's options for a target. LLVM has one set of options for the whole process. */
#ifndef ATTUNE_CODEGEN_OPTIONS_H
#define ATTUNE_CODEGEN_OPTIONS_H

#include "target/target.h"

/* Between the two calls LLVM's options are those for the target, independent of this CPU and of other compiles.
 * Compiles for targets with the same options run in parallel; others wait. The threads of one compile belong to the
 * batch of the thread that entered. */
void cg_options_enter(const at_target *target);
void cg_options_leave(void);

#endif
