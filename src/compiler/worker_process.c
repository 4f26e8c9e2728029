/* A worker is spawned with a socket as stdin and stdout. It inherits little of the host: no open descriptors where
 * the system can tell them, no blocked or handled signals, another directory, and no environment if the program has
 * raised privileges. */
#define _GNU_SOURCE
#include "compiler/worker_process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* The host may have reaped the child itself, and another process may have its number: waitid() tells. */
void at_worker_kill(pid_t pid) {
    siginfo_t info = {0};
    if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT | WNOHANG)) return;
    if (info.si_pid == 0) kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
}

/* ---- What the child does before it becomes the worker ---- */

enum { FIRST_OTHER = STDERR_FILENO + 1 };

/* A host's descriptors without FD_CLOEXEC would stay open as long as the worker lives: pipes would not end, files and
 * ports would stay in use. */
#ifndef __GLIBC_PREREQ
#define __GLIBC_PREREQ(major, minor) 0
#endif
#if __GLIBC_PREREQ(2, 34)
/* By close_range(), and by /proc/self/fd where the kernel has no such call. */
static int close_others(posix_spawn_file_actions_t *actions) {
    return posix_spawn_file_actions_addclosefrom_np(actions, FIRST_OTHER);
}
#else
/* Without /proc. A file above the limit, or above 65536, stays open. */
static int close_by_number(posix_spawn_file_actions_t *actions) {
    enum { MOST = 1 << 16 };
    struct rlimit limit;
    int failure = 0;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur > MOST) limit.rlim_cur = MOST;
    for (int fd = FIRST_OTHER; !failure && fd < (int)limit.rlim_cur; fd++)
        if (fcntl(fd, F_GETFD) >= 0) failure = posix_spawn_file_actions_addclose(actions, fd);
    return failure;
}

/* Those that are open now: another thread may open more before the child starts. */
static int close_others(posix_spawn_file_actions_t *actions) {
    DIR *dir = opendir("/proc/self/fd");
    int failure = 0;
    if (!dir) return close_by_number(actions);
    for (const struct dirent *item; !failure && (item = readdir(dir));) {
        const int fd = atoi(item->d_name);
        if (fd >= FIRST_OTHER) failure = posix_spawn_file_actions_addclose(actions, fd);
    }
    closedir(dir);
    return failure;
}
#endif

/* The last words of LLVM are not for the host's terminal. In a container or chroot without /dev/null the worker's
 * stderr is the root directory, where each write fails. */
static int open_nowhere(const at_io *io) {
    const int fd = at_io_open(io, AT_FDCWD, "/dev/null", O_WRONLY | O_CLOEXEC, 0);
    return fd < 0 ? at_io_open(io, AT_FDCWD, "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0) : fd;
}

/* The socket is stdin and stdout. In its own directory a worker would keep a file system of the host from being
 * unmounted. */
static int prepare_files(posix_spawn_file_actions_t *actions, int fd, int nowhere) {
    int failure = posix_spawn_file_actions_adddup2(actions, fd, STDIN_FILENO);
    if (!failure) failure = posix_spawn_file_actions_adddup2(actions, fd, STDOUT_FILENO);
    if (!failure) failure = posix_spawn_file_actions_adddup2(actions, nowhere, STDERR_FILENO);
    if (!failure) failure = close_others(actions);
    if (!failure) failure = posix_spawn_file_actions_addchdir_np(actions, "/");
    return failure;
}

static void prepare_signals(posix_spawnattr_t *attributes) {
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(attributes, &none);
    posix_spawnattr_setsigdefault(attributes, &all);
    posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
}

/* Who started a program with raised privileges chose its environment, and the worker may have no raised privileges by
 * which its dynamic linker could tell. */
static char **environment(void) {
    static char *nothing[] = {NULL};
    return getauxval(AT_SECURE) ? nothing : environ;
}

static int spawn(const char *path, const char *plugin, int fd, int nowhere, pid_t *pid) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    prepare_signals(&attributes);
    char *const arguments[] = {(char *)path, (char *)plugin, NULL};
    int failure = prepare_files(&actions, fd, nowhere);
    if (!failure) failure = posix_spawn(pid, path, &actions, &attributes, arguments, environment());
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return failure;
}

attune_status at_worker_spawn(const at_io *io, const char *path, const char *plugin, at_worker *worker, at_error *err) {
    int fds[2];
    if (io->socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds))
        return at_fail(err, ATTUNE_CODEGEN_MISSING, "no socket pair for a worker: %s", strerror(errno));
    const int nowhere = open_nowhere(io);
    int failure = nowhere < 0 || at_io_stat(io, fds[0], &worker->opened) ? errno : 0;
    if (!failure) failure = spawn(path, plugin, fds[1], nowhere, &worker->pid);
    close(fds[1]);
    if (nowhere >= 0) close(nowhere);
    if (failure) {
        close(fds[0]);
        return at_fail(err, ATTUNE_CODEGEN_MISSING, "the worker %.300s could not be started: %s", path,
                       strerror(failure));
    }
    worker->fd = fds[0];
    return ATTUNE_OK;
}
