/* Compiling in worker processes: an abort inside LLVM ends a worker, never the host. */
#ifndef ATTUNE_RUNTIME_WORKER_CLIENT_H
#define ATTUNE_RUNTIME_WORKER_CLIENT_H

#include "base/error.h"
#include "base/memory.h"
#include "runtime/io.h"
#include "runtime/log.h"
#include "target/codegen_abi.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

typedef struct at_worker {
    pid_t pid;
    int fd; /* our end of its stdin and stdout */
} at_worker;

enum { AT_MAX_IDLE_WORKERS = 4 };

typedef struct at_workers {
    const at_io *io;
    const at_log *log;
    atomic_ullong restarts; /* workers that died and were replaced */
    pthread_mutex_t mutex;  /* guards the idle ones */
    at_worker idle[AT_MAX_IDLE_WORKERS];
    int num_idle;
    pid_t owner;    /* after fork() the child must not talk to its parent's workers */
    int timeout_ms; /* for all of one try: starting a worker if need be, request and reply */
} at_workers;

void at_workers_init(at_workers *workers, const at_io *io, const at_log *log);
void at_workers_free(at_workers *workers);

/* One request to an idle worker or a new one, which loads `plugin` (worker_main.c says what "" means). A worker that
 * dies, hangs or speaks nonsense is replaced once. ATTUNE_CODEGEN_MISSING: `path` cannot be started or is no worker of
 * this build, so nothing can be compiled here. */
attune_status at_workers_compile(at_workers *workers, const char *path, const char *plugin,
                                 const at_codegen_request *request, const attune_allocator *allocator, void **data,
                                 size_t *bytes, at_error *err);

#endif
