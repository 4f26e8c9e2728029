/* A worker as a process: starting one, and ending it. */
#ifndef ATTUNE_COMPILER_WORKER_PROCESS_H
#define ATTUNE_COMPILER_WORKER_PROCESS_H

#include "base/error.h"
#include "host/io.h"

#include <sys/stat.h>
#include <sys/types.h>

typedef struct at_worker {
    pid_t pid;
    int fd;             /* our end of its stdin and stdout; -1: there is no process */
    struct stat opened; /* of fd: the host may have closed it since (at_io_is_lost) */
} at_worker;

/* Starts the program `path`, an absolute path, with the argument `plugin`. It gets no other descriptor of the host, no
 * signal mask, default signals, and the root directory as its own. Its stderr leads nowhere. */
attune_status at_worker_spawn(const at_io *io, const char *path, const char *plugin, at_worker *worker, at_error *err);

/* Kills the process unless it has ended, and waits for its end. The descriptor is the caller's to close. */
void at_worker_kill(pid_t pid);

#endif
