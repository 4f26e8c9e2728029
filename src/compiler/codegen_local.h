/* The code generator in this process: the plug-in, which is loaded by the first compile.
 *
 * LLVM cannot be interrupted. So a job of the background (threads/background.h) has it run in a thread of its own,
 * which owns all that it needs. If the job is abandoned, that thread finishes alone, after the context perhaps. The
 * next job takes its result if it needs the same, and compiles nothing before that thread has finished. So plans that
 * live shorter than a compile get their kernel in the end, and compiles that nobody waits for do not pile up. */
#ifndef ATTUNE_COMPILER_CODEGEN_LOCAL_H
#define ATTUNE_COMPILER_CODEGEN_LOCAL_H

#include "base/error.h"
#include "base/memory.h"
#include "compiler/codegen_path.h"
#include "target/codegen_abi.h"

#include <stdatomic.h>
#include <stdbool.h>

/* Compiles; *data is a block of the allocator with a NUL after its last byte. */
typedef attune_status at_compile_fn(void *user, const at_codegen_request *request, const attune_allocator *allocator,
                                    void **data, size_t *bytes, at_error *err);

typedef struct at_local_plugin {
    at_codegen_file file;
    _Atomic(const at_codegen_exports *) exports; /* NULL: it is not loaded yet */
    _Atomic bool is_unwanted;                    /* in a thread of its own: the job is abandoned */
    _Atomic bool is_first;                       /* the same: the job must wait for this compile */
} at_local_plugin;

/* An at_compile_fn; user is the at_local_plugin. Compiles nothing if that is unwanted once the plug-in is loaded. */
at_compile_fn at_plugin_compile;

/* Calls `compile` in a thread of its own for a job, which waits for it unless it is abandoned: ATTUNE_CANCELLED. `user`
 * then outlives the job. With a plug-in, at_plugin_compile with a copy of that instead. */
attune_status at_compile_apart(at_compile_fn *compile, void *user, at_local_plugin *plugin,
                               const at_codegen_request *request, const attune_allocator *allocator, void **data,
                               size_t *bytes, at_error *err);

/* Copies data into a block of the allocator, with a NUL after it. */
attune_status at_codegen_copy(const attune_allocator *allocator, const void *from, size_t bytes, void **data,
                              at_error *err);

#endif
