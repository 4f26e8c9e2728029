#define _GNU_SOURCE
#include "runtime/worker_client.h"

#include "generator_id.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { TIMEOUT_MS = 120 * 1000, MAX_REPLY_BYTES = 256 << 20, MAX_ID_BYTES = 256 };

/* What a failed try means: a worker died while compiling, or never said that it is one (another may do better), or give
 * up with the error as it is. */
typedef enum outcome { DONE, DEAD, SILENT, REFUSED } outcome;

void at_workers_init(at_workers *workers, const at_io *io, const at_log *log) {
    *workers = (at_workers){.io = io, .log = log, .owner = getpid(), .timeout_ms = TIMEOUT_MS};
    pthread_mutex_init(&workers->mutex, NULL);
}

/* ---- Bytes, each call until a deadline in milliseconds of the monotonic clock ---- */

static int64_t monotonic_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static bool wait_for(int fd, short events, int64_t deadline) {
    for (;;) {
        struct pollfd wait = {.fd = fd, .events = events};
        const int64_t left = deadline - monotonic_ms();
        if (left <= 0) return false;
        const int ready = poll(&wait, 1, (int)left);
        if (ready > 0) return true;
        if (ready < 0 && errno != EINTR) return false;
    }
}

static bool try_again(ssize_t n) { return n < 0 && (errno == EINTR || errno == EAGAIN); }

static bool send_all(int fd, const void *data, size_t bytes, int64_t deadline) {
    for (size_t done = 0; done < bytes;) {
        if (!wait_for(fd, POLLOUT, deadline)) return false;
        const ssize_t n = send(fd, (const char *)data + done, bytes - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (try_again(n)) continue;
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

static bool receive_all(int fd, void *data, size_t bytes, int64_t deadline) {
    for (size_t done = 0; done < bytes;) {
        if (!wait_for(fd, POLLIN, deadline)) return false;
        const ssize_t n = recv(fd, (char *)data + done, bytes - done, MSG_DONTWAIT);
        if (try_again(n)) continue;
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

/* ---- Processes ---- */

/* The host may have reaped the child itself; its number may then be somebody else's, so it is asked after first. */
static void worker_end(at_worker *worker) {
    close(worker->fd);
    siginfo_t info = {0};
    if (waitid(P_PID, (id_t)worker->pid, &info, WEXITED | WNOWAIT | WNOHANG) == 0) {
        if (info.si_pid == 0) kill(worker->pid, SIGKILL);
        while (waitpid(worker->pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
}

/* The child has our socket as stdin and stdout, nothing on stderr (what LLVM says when it aborts is not for the host's
 * terminal), and default signals. */
static int spawn(const char *path, const char *plugin, int fd, pid_t *pid) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, defaults;
    sigemptyset(&none);
    sigfillset(&defaults);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    int failure = posix_spawn_file_actions_adddup2(&actions, fd, STDIN_FILENO);
    if (!failure) failure = posix_spawn_file_actions_adddup2(&actions, fd, STDOUT_FILENO);
    if (!failure) failure = posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    char *const arguments[] = {(char *)path, (char *)plugin, NULL};
    if (!failure) failure = posix_spawn(pid, path, &actions, &attributes, arguments, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return failure;
}

static outcome check_hello(int fd, const char *path, int64_t deadline, at_error *err) {
    uint32_t hello[3];
    char id[MAX_ID_BYTES + 1];
    if (!receive_all(fd, hello, sizeof hello, deadline) || hello[0] != AT_WORKER_MAGIC) return SILENT;
    if (hello[1] != AT_CODEGEN_ABI || hello[2] > MAX_ID_BYTES) {
        at_fail(err, ATTUNE_CODEGEN_MISSING, "the worker %.200s has interface version %u, this library %d", path,
                hello[1], AT_CODEGEN_ABI);
        return REFUSED;
    }
    if (!receive_all(fd, id, hello[2], deadline)) return SILENT;
    id[hello[2]] = '\0';
    if (!strcmp(id, ATTUNE_GENERATOR_ID)) return DONE;
    at_fail(err, ATTUNE_CODEGEN_MISSING, "the worker %.200s is of build %.40s, this library of %.40s", path, id,
            ATTUNE_GENERATOR_ID);
    return REFUSED;
}

static outcome worker_start(at_workers *workers, const char *path, const char *plugin, int64_t deadline,
                            at_worker *worker, at_error *err) {
    int fds[2];
    if (!path[0] || access(path, X_OK)) {
        at_fail(err, ATTUNE_CODEGEN_MISSING, "the worker %s was not found; install it or set ATTUNE_CODEGEN_WORKER",
                path[0] ? path : "attune-codegen-worker");
        return REFUSED;
    }
    if (workers->io->socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds)) {
        at_fail(err, ATTUNE_CODEGEN_MISSING, "no socket pair for a worker: %s", strerror(errno));
        return REFUSED;
    }
    const int failure = spawn(path, plugin, fds[1], &worker->pid);
    close(fds[1]);
    worker->fd = fds[0];
    if (failure) {
        close(fds[0]);
        at_fail(err, ATTUNE_CODEGEN_MISSING, "the worker %.300s could not be started: %s", path, strerror(failure));
        return REFUSED;
    }
    const outcome result = check_hello(worker->fd, path, deadline, err);
    if (result != DONE) worker_end(worker);
    return result;
}

/* ---- One exchange ---- */

static outcome receive_reply(int fd, int64_t deadline, const attune_allocator *allocator, void **data, size_t *bytes,
                             at_error *err) {
    uint32_t reply[4];
    if (!receive_all(fd, reply, sizeof reply, deadline) || reply[0] != AT_WORKER_MAGIC) return DEAD;
    if (reply[1] >= ATTUNE_STATUS_COUNT || reply[2] > MAX_REPLY_BYTES) return DEAD;
    char *payload = at_alloc_aligned(allocator, (size_t)reply[2] + 1, 64);
    if (!payload) {
        at_fail_memory(err, (size_t)reply[2] + 1);
        return REFUSED;
    }
    if (!receive_all(fd, payload, reply[2], deadline)) {
        at_free(allocator, payload);
        return DEAD;
    }
    payload[reply[2]] = '\0';
    if (reply[1] == ATTUNE_OK) {
        *data = payload;
        *bytes = reply[2];
        return DONE;
    }
    at_fail(err, (attune_status)reply[1], "%s", payload);
    at_free(allocator, payload);
    return DONE;
}

static outcome exchange(int fd, int64_t deadline, const at_codegen_request *request, const attune_allocator *allocator,
                        void **data, size_t *bytes, at_error *err) {
    const uint32_t head[] = {AT_WORKER_MAGIC, (uint32_t)request->stage, (uint32_t)strlen(request->target),
                             (uint32_t)request->ir_bytes};
    if (!send_all(fd, head, sizeof head, deadline) || !send_all(fd, request->target, head[2], deadline) ||
        !send_all(fd, request->ir, request->ir_bytes, deadline))
        return DEAD;
    return receive_reply(fd, deadline, allocator, data, bytes, err);
}

/* ---- Pool of idle workers ---- */

static bool take_idle(at_workers *workers, at_worker *worker) {
    pthread_mutex_lock(&workers->mutex);
    if (workers->owner != getpid()) { /* forked: those are our parent's */
        for (int i = 0; i < workers->num_idle; i++) close(workers->idle[i].fd);
        workers->num_idle = 0;
        workers->owner = getpid();
    }
    const bool found = workers->num_idle > 0;
    if (found) *worker = workers->idle[--workers->num_idle];
    pthread_mutex_unlock(&workers->mutex);
    return found;
}

static void give_back(at_workers *workers, at_worker *worker) {
    pthread_mutex_lock(&workers->mutex);
    const bool keep = workers->num_idle < AT_MAX_IDLE_WORKERS;
    if (keep) workers->idle[workers->num_idle++] = *worker;
    pthread_mutex_unlock(&workers->mutex);
    if (!keep) worker_end(worker);
}

void at_workers_free(at_workers *workers) {
    at_worker worker;
    while (take_idle(workers, &worker)) worker_end(&worker);
    pthread_mutex_destroy(&workers->mutex);
}

/* `fresh`: not with an idle worker. */
static outcome try_once(at_workers *workers, const char *path, const char *plugin, bool fresh,
                        const at_codegen_request *request, const attune_allocator *allocator, void **data,
                        size_t *bytes, at_error *err) {
    const int64_t deadline = monotonic_ms() + workers->timeout_ms;
    at_worker worker;
    outcome result = DONE;
    if (fresh || !take_idle(workers, &worker)) result = worker_start(workers, path, plugin, deadline, &worker, err);
    if (result != DONE) return result;
    result = exchange(worker.fd, deadline, request, allocator, data, bytes, err);
    if (result == DONE)
        give_back(workers, &worker);
    else
        worker_end(&worker);
    return result;
}

attune_status at_workers_compile(at_workers *workers, const char *path, const char *plugin,
                                 const at_codegen_request *request, const attune_allocator *allocator, void **data,
                                 size_t *bytes, at_error *err) {
    if (request->ir_bytes > AT_WORKER_MAX_IR)
        return at_fail(err, ATTUNE_UNSUPPORTED, "%zu bytes of IR are too many for a worker", request->ir_bytes);
    at_error why = {0};
    outcome result = try_once(workers, path, plugin, false, request, allocator, data, bytes, &why);
    if (result == DEAD || result == SILENT) {
        atomic_fetch_add(&workers->restarts, 1);
        at_log_printf(workers->log, ATTUNE_LOG_WARNING, "a worker process %s; trying another",
                      result == DEAD ? "died while compiling" : "did not start");
        /* An idle one may have died of the same cause. */
        result = try_once(workers, path, plugin, true, request, allocator, data, bytes, &why);
    }
    if (result == DEAD)
        return at_fail(err, ATTUNE_CODEGEN_FAILED, "the worker %.300s died twice while compiling this kernel", path);
    if (result == SILENT)
        return at_fail(err, ATTUNE_CODEGEN_MISSING, "the worker %.300s does not start: it ends or waits without a word",
                       path);
    return why.status ? at_fail(err, why.status, "%s", why.message) : ATTUNE_OK;
}
