/* fork() and exit() while other threads are inside attune.
 *
 * attune takes its own locks before fork() and releases them on both sides. LLVM, SQLite and the dynamic linker have
 * locks that attune cannot take. So each call of these is announced here, and fork() waits until there are none. exit()
 * runs LLVM's destructors, unless the code generator has its own LLVM (codegen/no_destructors.c). So exit() waits for
 * compiles too, and none begins any more. */
#ifndef ATTUNE_RUNTIME_PROCESS_H
#define ATTUNE_RUNTIME_PROCESS_H

#include "base/error.h"

#include <stdbool.h>

struct attune_context;

/* A context begins and ends. In between, its locks are taken around fork(). */
void at_process_add(struct attune_context *context);
void at_process_remove(struct attune_context *context);

typedef enum at_foreign { AT_FOREIGN_COMPILER, AT_FOREIGN_DATABASE, AT_NUM_FOREIGN } at_foreign;

/* Around calls of code that has its own locks; may be nested. Waits while some thread forks. ATTUNE_CODEGEN_FAILED: the
 * process is exiting, and no compile may begin. */
attune_status at_process_enter(at_foreign what, at_error *err);
void at_process_leave(at_foreign what);

/* Makes exit() wait before it runs the destructors that LLVM has registered so far. */
typedef enum at_exit_watch { AT_LLVM_IS_LOADED, AT_LLVM_HAS_COMPILED, AT_NUM_EXIT_WATCHES } at_exit_watch;
void at_process_watch_exit(at_exit_watch since);

#endif
