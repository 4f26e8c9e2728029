/* What concerns the whole process: fork() and exit() while other threads are inside attune.
 *
 * attune's own locks are taken before fork() and given back on both sides. What lies inside LLVM, SQLite and the
 * dynamic linker has locks that nobody else can take: who calls them says so here, and fork() waits until nobody does.
 * exit() runs LLVM's destructors, unless the code generator has an LLVM of its own (codegen/no_destructors.c): so it
 * waits for compiles as well, and none begins any more. */
#ifndef ATTUNE_RUNTIME_PROCESS_H
#define ATTUNE_RUNTIME_PROCESS_H

#include "base/error.h"

#include <stdbool.h>

struct attune_context;

/* A context begins and ends: in between its locks are looked after. */
void at_process_add(struct attune_context *context);
void at_process_remove(struct attune_context *context);

typedef enum at_foreign { AT_FOREIGN_COMPILER, AT_FOREIGN_DATABASE, AT_NUM_FOREIGN } at_foreign;

/* Around calls into code with locks of its own; may be nested. Waits while some thread forks. ATTUNE_CODEGEN_FAILED:
 * the process is exiting, and no compile may begin. */
attune_status at_process_enter(at_foreign what, at_error *err);
void at_process_leave(at_foreign what);

/* Lets exit() come here before the destructors run that LLVM has registered so far. */
typedef enum at_exit_watch { AT_LLVM_IS_LOADED, AT_LLVM_HAS_COMPILED, AT_NUM_EXIT_WATCHES } at_exit_watch;
void at_process_watch_exit(at_exit_watch since);

#endif
