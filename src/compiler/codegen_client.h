/* Calls the code generator: the plug-in, which is loaded on the first miss, or a worker process. */
#ifndef ATTUNE_COMPILER_CODEGEN_CLIENT_H
#define ATTUNE_COMPILER_CODEGEN_CLIENT_H

#include "base/error.h"
#include "base/memory.h"
#include "compiler/codegen_local.h"
#include "compiler/worker_client.h"
#include "host/io.h"
#include "host/log.h"
#include "target/codegen_abi.h"

#include <pthread.h>

typedef struct at_codegen {
    const attune_allocator *allocator;
    at_compile_fn *compile;   /* plug-in, worker, or a test's own */
    bool uses_worker, is_off; /* off: nothing is compiled */
    bool is_replaced;         /* by a test's own */
    void *user;
    pthread_mutex_t mutex; /* guards `searched`, and the files until it is true */
    bool searched;
    at_local_plugin plugin;
    at_codegen_file worker;
    at_workers workers;
} at_codegen;

/* Does not search yet, so that a process that only hits the cache does not pay for it. compile NULL: as the options and
 * the environment say. */
attune_status at_codegen_init(at_codegen *codegen, const attune_context_options *options, at_compile_fn *compile,
                              void *user, const attune_allocator *allocator, const at_io *io, const at_log *log,
                              at_error *err);
void at_codegen_free(at_codegen *codegen);

/* Fills in the paths if that has not happened yet, and tells the log of files that were refused. */
void at_codegen_search(at_codegen *codegen);

/* ATTUNE_CANCELLED: this thread's job was abandoned. */
attune_status at_codegen_compile(at_codegen *codegen, const at_codegen_request *request, void **data, size_t *bytes,
                                 at_error *err);

#endif
