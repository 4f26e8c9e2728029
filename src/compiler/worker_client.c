/* A compile takes a place with a worker process, sends the request, and waits for the reply until a deadline. A
 * worker that died or was lost is replaced, and the compile is tried once more; then it fails. */
#define _GNU_SOURCE
#include "compiler/worker_client.h"

#include "generator_id.h"
#include "machine/cpus.h"
#include "threads/background.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { DEFAULT_TIMEOUT_MS = 30 * 1000, MAX_REPLY_BYTES = 256 << 20, MAX_ID_BYTES = 256 };

/* Each process takes 45 MB (most of that are pages of the plug-in, which all share) and compiles on two threads. */
enum { DEFAULT_PROCESSES = 4 };

/* How a try ended. DEAD: the worker died while compiling, or spoke nonsense. SILENT: it never said that it is one.
 * LATE: the time was over before its reply came. LOST: the host has closed its descriptor. REFUSED: another worker
 * would do no better; the error says why. */
typedef enum outcome { DONE, DEAD, SILENT, LATE, LOST, REFUSED } outcome;

/* ---- Bytes, each call until a deadline in milliseconds of the monotonic clock ---- */

static int64_t monotonic_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

typedef struct channel {
    const at_io *io;
    const at_worker *worker;
    int64_t deadline;
} channel;

static bool is_lost(const channel *c) { return at_io_is_lost(c->io, c->worker->fd, &c->worker->opened); }

/* Looks once even if the time is over: the host may have been stopped (SIGSTOP, a debugger) while the reply came. A job
 * that is abandoned stops waiting. A host that closes its descriptors meanwhile does not end poll(), and the number may
 * be its own socket afterwards. */
static bool wait_for(const channel *c, short events) {
    while (!is_lost(c)) {
        struct pollfd wait = {.fd = c->worker->fd, .events = events};
        const int64_t left = c->deadline - monotonic_ms(),
                      most = at_background_is_here() ? AT_BACKGROUND_LOOK_MS : INT_MAX;
        const int ready = poll(&wait, 1, left <= 0 ? 0 : left < most ? (int)left : (int)most);
        if (ready > 0) return !is_lost(c);
        if (at_background_is_abandoned()) return false;
        if (ready < 0 ? errno != EINTR : left <= 0) return false;
    }
    return false;
}

static bool try_again(ssize_t n) { return n < 0 && (errno == EINTR || errno == EAGAIN); }

static bool send_all(const channel *c, const void *data, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        if (!wait_for(c, POLLOUT)) return false;
        const ssize_t n = send(c->worker->fd, (const char *)data + done, bytes - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (try_again(n)) continue;
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

static bool receive_all(const channel *c, void *data, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        if (!wait_for(c, POLLIN)) return false;
        const ssize_t n = recv(c->worker->fd, (char *)data + done, bytes - done, MSG_DONTWAIT);
        if (try_again(n)) continue;
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

/* ---- Greeting ---- */

static outcome check_hello(const channel *c, const char *path, at_error *err) {
    uint32_t hello[3];
    char id[MAX_ID_BYTES + 1];
    if (!receive_all(c, hello, sizeof hello) || hello[0] != AT_WORKER_MAGIC) return SILENT;
    if (hello[1] != AT_CODEGEN_ABI || hello[2] > MAX_ID_BYTES) {
        at_fail(err, ATTUNE_CODEGEN_MISSING, "the worker %.200s has interface version %u, this library %d", path,
                hello[1], AT_CODEGEN_ABI);
        return REFUSED;
    }
    if (!receive_all(c, id, hello[2])) return SILENT;
    id[hello[2]] = '\0';
    if (!strcmp(id, ATTUNE_GENERATOR_ID)) return DONE;
    at_fail(err, ATTUNE_CODEGEN_MISSING, "the worker %.200s is of build %.40s, this library of %.40s", path, id,
            ATTUNE_GENERATOR_ID);
    return REFUSED;
}

/* ---- One exchange ---- */

/* If the beginning of a reply was there although the time was over, its worker waits to write the rest. */
static int64_t deadline_of_rest(int64_t deadline) {
    enum { REST_MS = 1000 };
    const int64_t now = monotonic_ms();
    return now < deadline ? deadline : now + REST_MS;
}

static outcome receive_reply(const channel *c, const attune_allocator *allocator, void **data, size_t *bytes,
                             at_error *err) {
    uint32_t reply[4];
    if (!receive_all(c, reply, sizeof reply) || reply[0] != AT_WORKER_MAGIC) return DEAD;
    if (reply[1] >= ATTUNE_STATUS_COUNT || reply[2] > MAX_REPLY_BYTES) return DEAD;
    char *payload = at_alloc_aligned(allocator, (size_t)reply[2] + 1, 64);
    if (!payload) {
        at_fail_memory(err, (size_t)reply[2] + 1);
        return REFUSED;
    }
    const channel rest = {c->io, c->worker, deadline_of_rest(c->deadline)};
    if (!receive_all(&rest, payload, reply[2])) {
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

static outcome exchange(const channel *c, const at_codegen_request *request, const attune_allocator *allocator,
                        void **data, size_t *bytes, at_error *err) {
    const uint32_t head[] = {AT_WORKER_MAGIC, (uint32_t)request->stage, (uint32_t)strlen(request->target),
                             (uint32_t)request->ir_bytes};
    if (!send_all(c, head, sizeof head) || !send_all(c, request->target, head[2]) ||
        !send_all(c, request->ir, request->ir_bytes))
        return DEAD;
    return receive_reply(c, allocator, data, bytes, err);
}

/* ---- Places for processes ---- */

void at_workers_init(at_workers *workers, uint32_t processes, uint32_t timeout_ms, const at_io *io, const at_log *log) {
    *workers = (at_workers){
        .io = io, .log = log, .processes = processes, .timeout_ms = timeout_ms ? timeout_ms : DEFAULT_TIMEOUT_MS};
    for (size_t i = 0; i < AT_MOST_PROCESSES; i++) workers->places[i].worker.fd = -1;
    pthread_mutex_init(&workers->mutex, NULL);
    at_condition_init(&workers->turn);
}

/* Prefers a place with a process. NULL: all are taken. */
static at_worker_place *free_place(at_workers *workers) {
    at_worker_place *empty = NULL;
    for (size_t i = 0; i < workers->processes; i++) {
        at_worker_place *place = &workers->places[i];
        if (!place->taken && place->worker.fd >= 0) return place;
        if (!place->taken && !empty) empty = place;
    }
    return empty;
}

/* NULL: this thread's job was abandoned. */
static at_worker_place *take_place(at_workers *workers) {
    at_worker_place *place;
    pthread_mutex_lock(&workers->mutex);
    if (!workers->processes) {
        const uint32_t cpus = at_cpus_allowed();
        workers->processes = cpus < DEFAULT_PROCESSES ? cpus : DEFAULT_PROCESSES;
    }
    while (!(place = free_place(workers)) && !at_background_is_abandoned())
        at_background_pause(&workers->turn, &workers->mutex);
    if (place) place->taken = true;
    pthread_mutex_unlock(&workers->mutex);
    return place;
}

static void leave_place(at_workers *workers, at_worker_place *place) {
    pthread_mutex_lock(&workers->mutex);
    place->taken = false;
    pthread_cond_broadcast(&workers->turn); /* one that is told may be about to stop waiting */
    pthread_mutex_unlock(&workers->mutex);
}

/* The lock keeps fork() away. A child would also hold the worker's end of the socket, so that its death would go
 * unnoticed. And a child closes exactly the descriptors in the places. */
static attune_status open_worker(at_workers *workers, at_worker *worker, const char *path, const char *plugin,
                                 at_error *err) {
    pthread_mutex_lock(&workers->mutex);
    const attune_status status = at_worker_spawn(workers->io, path, plugin, worker, err);
    pthread_mutex_unlock(&workers->mutex);
    return status;
}

static void close_worker(const at_workers *workers, at_worker *worker) {
    if (worker->fd >= 0 && !at_io_is_lost(workers->io, worker->fd, &worker->opened)) close(worker->fd);
    worker->fd = -1;
}

static void end_worker(at_workers *workers, at_worker *worker) {
    pthread_mutex_lock(&workers->mutex);
    close_worker(workers, worker);
    pthread_mutex_unlock(&workers->mutex);
    at_worker_kill(worker->pid);
}

void at_workers_free(at_workers *workers) {
    for (size_t i = 0; i < workers->processes; i++)
        if (workers->places[i].worker.fd >= 0) end_worker(workers, &workers->places[i].worker);
    pthread_cond_destroy(&workers->turn);
    pthread_mutex_destroy(&workers->mutex);
}

void at_workers_before_fork(at_workers *workers) { pthread_mutex_lock(&workers->mutex); }

void at_workers_after_fork(at_workers *workers, bool is_child) {
    if (is_child) {
        for (size_t i = 0; i < AT_MOST_PROCESSES; i++) {
            close_worker(workers, &workers->places[i].worker);
            workers->places[i] = (at_worker_place){.worker.fd = -1};
        }
        at_condition_init(&workers->turn);
    }
    pthread_mutex_unlock(&workers->mutex);
}

/* ---- Compiling ---- */

static outcome start_worker(at_workers *workers, const at_codegen_file *program, const at_codegen_file *plugin,
                            int64_t deadline, at_worker *worker, at_error *err) {
    const channel c = {workers->io, worker, deadline};
    const char *path = program->path;
    if (!path[0] || access(path, X_OK)) {
        at_fail(err, ATTUNE_CODEGEN_MISSING, "the worker %s was not found; install it or set ATTUNE_CODEGEN_WORKER",
                path[0] ? path : "attune-codegen-worker");
        return REFUSED;
    }
    if (at_codegen_check(program, err) || at_codegen_check(plugin, err)) return REFUSED;
    if (open_worker(workers, worker, path, plugin->path, err)) return REFUSED;
    return check_hello(&c, path, err);
}

/* A worker that was lost while it had nothing to do. */
static void end_lost(at_workers *workers, at_worker *worker) {
    end_worker(workers, worker);
    atomic_fetch_add(&workers->restarts, 1);
    at_log_printf(workers->log, ATTUNE_LOG_WARNING,
                  "other code in this process has closed the descriptor of a worker process; another one is started");
}

/* Uses the worker of the place, or a new one. A worker that has not replied in full, or is lost, is ended. */
static outcome try_once(at_workers *workers, at_worker *worker, const at_codegen_file *program,
                        const at_codegen_file *plugin, int64_t deadline, const at_codegen_request *request,
                        const attune_allocator *allocator, void **data, size_t *bytes, at_error *err) {
    const channel c = {workers->io, worker, deadline};
    outcome result = DONE;
    if (worker->fd >= 0 && is_lost(&c)) end_lost(workers, worker);
    if (worker->fd < 0) result = start_worker(workers, program, plugin, deadline, worker, err);
    if (result == DONE) result = exchange(&c, request, allocator, data, bytes, err);
    if ((result == DEAD || result == SILENT) && is_lost(&c)) result = LOST;
    if (result != DONE && worker->fd >= 0) end_worker(workers, worker);
    return result;
}

/* A worker that was silent has not started, unless the one before it had left it no time for that. */
static outcome by_clock(outcome result, outcome before, int64_t deadline) {
    const bool may_be_late = result == DEAD || (result == SILENT && (before == DEAD || before == LOST));
    return may_be_late && monotonic_ms() >= deadline ? LATE : result;
}

static attune_status judge(const at_workers *workers, outcome result, const char *path, const at_error *why,
                           at_error *err) {
    const double seconds = workers->timeout_ms / 1e3;
    if (result == DEAD)
        return at_fail(err, ATTUNE_CODEGEN_FAILED, "the worker %.200s died twice while compiling this kernel", path);
    if (result == LOST)
        return at_fail(err, ATTUNE_CODEGEN_FAILED,
                       "other code in this process has closed the descriptor of the worker %.200s twice", path);
    if (result == LATE)
        return at_fail(err, ATTUNE_CODEGEN_FAILED,
                       "the worker %.200s has not compiled this kernel within %g s (compile_timeout_ms) and was ended",
                       path, seconds);
    if (result == SILENT)
        return at_fail(err, ATTUNE_CODEGEN_MISSING,
                       "the worker %.200s does not start: it ends, or says nothing for %g s (compile_timeout_ms)", path,
                       seconds);
    return why->status ? at_fail(err, why->status, "%s", why->message) : ATTUNE_OK;
}

attune_status at_workers_compile(at_workers *workers, const at_codegen_file *program, const at_codegen_file *plugin,
                                 const at_codegen_request *request, const attune_allocator *allocator, void **data,
                                 size_t *bytes, at_error *err) {
    if (request->ir_bytes > AT_WORKER_MAX_IR)
        return at_fail(err, ATTUNE_UNSUPPORTED, "%zu bytes of IR are too many for a worker", request->ir_bytes);
    at_error why = {0};
    at_worker_place *place = take_place(workers);
    if (!place) return at_background_fail(err);
    const int64_t deadline = monotonic_ms() + workers->timeout_ms;
    const outcome first =
        by_clock(try_once(workers, &place->worker, program, plugin, deadline, request, allocator, data, bytes, &why),
                 DONE, deadline);
    const bool again = !at_background_is_abandoned() &&
                       (first == DEAD || first == LOST || (first == SILENT && monotonic_ms() < deadline));
    const outcome result = again ? by_clock(try_once(workers, &place->worker, program, plugin, deadline, request,
                                                     allocator, data, bytes, &why),
                                            first, deadline)
                                 : first;
    leave_place(workers, place);
    if (result != DONE && at_background_is_abandoned()) return at_background_fail(err); /* its worker is killed */
    if (again || result == LATE) atomic_fetch_add(&workers->restarts, 1);
    if (again)
        at_log_printf(workers->log, ATTUNE_LOG_WARNING, "a worker process %s; another one was tried",
                      first == DEAD   ? "died while compiling"
                      : first == LOST ? "was lost, because other code in this process has closed its descriptor"
                                      : "did not start");
    return judge(workers, result, program->path, &why, err);
}
