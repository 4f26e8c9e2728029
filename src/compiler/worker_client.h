/* Compiling in worker processes: an abort inside LLVM ends a worker, never the host. */
#ifndef ATTUNE_COMPILER_WORKER_CLIENT_H
#define ATTUNE_COMPILER_WORKER_CLIENT_H

#include "base/error.h"
#include "base/memory.h"
#include "compiler/codegen_path.h"
#include "compiler/worker_process.h"
#include "host/io.h"
#include "host/log.h"
#include "target/codegen_abi.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { AT_MOST_PROCESSES = 64 };

/* Room for one process. */
typedef struct at_worker_place {
    at_worker worker;
    bool taken; /* by a thread that compiles: the worker is its own */
} at_worker_place;

typedef struct at_workers {
    const at_io *io;
    const at_log *log;
    atomic_ullong restarts; /* workers that died, were late or lost, and that others replace */
    pthread_mutex_t mutex;  /* guards all below */
    pthread_cond_t turn;    /* a place became free */
    at_worker_place places[AT_MOST_PROCESSES];
    uint32_t processes;  /* places in use; 0: not settled yet */
    uint32_t timeout_ms; /* of one compile, after its turn has come */
} at_workers;

/* processes 0: as many as there are CPUs, at most 4. timeout_ms 0: 30 seconds. */
void at_workers_init(at_workers *workers, uint32_t processes, uint32_t timeout_ms, const at_io *io, const at_log *log);
void at_workers_free(at_workers *workers);

/* Waits for its turn, then sends the request to an idle worker or to a new one, which loads `plugin` (worker_main.c
 * says what no path means). Both files are checked again before each start. A worker that dies or speaks nonsense is
 * replaced once; one that is late is killed. All of that takes no longer than timeout_ms; a host that was stopped
 * meanwhile still takes a reply that is there. ATTUNE_CODEGEN_MISSING: `program` cannot be started or is no worker of
 * this build, so nothing can be compiled here. The thread must not be cancelled meanwhile. */
attune_status at_workers_compile(at_workers *workers, const at_codegen_file *program, const at_codegen_file *plugin,
                                 const at_codegen_request *request, const attune_allocator *allocator, void **data,
                                 size_t *bytes, at_error *err);

/* Around fork(). The child has no workers: those are its parent's. */
void at_workers_before_fork(at_workers *workers);
void at_workers_after_fork(at_workers *workers, bool is_child);

#endif
