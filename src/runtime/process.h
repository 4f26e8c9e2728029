/* fork() and exit() while other threads are inside attune.
 *
 * attune takes its own locks before fork() and releases them on both sides. LLVM, SQLite and the dynamic linker have
 * locks that attune cannot take. So each call of these is announced here, and fork() waits until there are none. Once
 * exit() runs, no compile begins any more. It waits for those under way only if it runs LLVM's destructors, which it
 * does unless the code generator has its own LLVM (codegen/no_destructors.c). */
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

/* Makes exit() refuse compiles from here on and, if LLVM has destructors, wait for those under way before it runs what
 * LLVM has registered so far. */
typedef enum at_exit_watch { AT_LLVM_IS_LOADED, AT_LLVM_HAS_COMPILED, AT_NUM_EXIT_WATCHES } at_exit_watch;
void at_process_watch_exit(at_exit_watch since, bool has_destructors);

#endif
