/* A gate around code of others.
 *
 * LLVM, SQLite and the dynamic linker have locks that attune cannot take. So each call of these is announced here, and
 * fork() waits until there are none. Once exit() runs, no compile begins any more. It waits for those under way only if
 * it runs LLVM's destructors, which it does unless the code generator has its own LLVM (codegen/no_destructors.c). */
#ifndef ATTUNE_HOST_FOREIGN_H
#define ATTUNE_HOST_FOREIGN_H

#include "base/error.h"

#include <stdbool.h>

typedef enum at_foreign { AT_FOREIGN_COMPILER, AT_FOREIGN_DATABASE, AT_NUM_FOREIGN } at_foreign;

/* Around calls of code that has its own locks; may be nested. Waits while some thread forks. ATTUNE_CODEGEN_FAILED: the
 * process is exiting, and no compile may begin. */
attune_status at_foreign_enter(at_foreign what, at_error *err);
void at_foreign_leave(at_foreign what);

/* Makes exit() refuse compiles from here on and, if LLVM has destructors, wait for those under way before it runs what
 * LLVM has registered so far. */
typedef enum at_exit_watch { AT_LLVM_IS_LOADED, AT_LLVM_HAS_COMPILED, AT_NUM_EXIT_WATCHES } at_exit_watch;
void at_foreign_watch_exit(at_exit_watch since, bool has_destructors);

/* Around fork(): waits until no other thread is inside, and lets none in until after it. No thread enters while it
 * holds a lock of attune's, so all that are inside come out again. */
void at_foreign_before_fork(void);
void at_foreign_after_fork(bool is_child);

#endif
