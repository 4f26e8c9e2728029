/* Workers as processes of the host: what they inherit, how many there are, and what becomes of one that hangs. */
#define _GNU_SOURCE
#include "engine/context.h"
#include "support/engine/contexts.h"
#include "support/engine/stand_in.h"
#include "target/kernel_abi.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const char source[] = "kernel @double (x: f32[n] in, o: f32[n] out, n: idx) { assume n >= 0 parallel for i in "
                             "0..n { o[i] = x[i] + x[i] } }";

enum { PATIENT_MS = 100 * 1000, HANG_SECONDS = 100 };

static attune_status compile(at_workers *workers, const char *path, at_error *err) {
    const at_codegen_request request = {source, strlen(source), "x86-64", ATTUNE_STAGE_IMAGE};
    void *data = NULL;
    size_t bytes;
    at_codegen_file program, plugin = {0};
    at_codegen_name(path, &program);
    const attune_status status =
        at_workers_compile(workers, &program, &plugin, &request, at_default_allocator(), &data, &bytes, err);
    if (!status && at_image_check(data, bytes)) return ATTUNE_INTERNAL;
    at_free(at_default_allocator(), data);
    return status;
}

static void open_workers(at_workers *workers, uint32_t processes) {
    static const at_log silent = {0};
    at_workers_init(workers, processes, PATIENT_MS, at_default_io(), &silent);
}

/* The first who runs it hangs in the middle of its first request; later ones are workers. */
static void hang_once(void) {
    char real[PATH_MAX], before[PATH_MAX + 1024];
    stand_in_real(real);
    snprintf(before, sizeof before, "[ -e '%s/hung' ] && exec '%s' ''", stand_in_directory, real);
    stand_in(before, READ_HEAD "cd \"${0%/*}\" && : >hung && exec sleep 1000");
}

static void wait_until_it_hangs(void) {
    char marker[STAND_IN_CHARS];
    snprintf(marker, sizeof marker, "%s/hung", stand_in_directory);
    while (access(marker, F_OK)) usleep(2000);
}

/* ---- What a worker inherits ---- */

/* Whether the process has a descriptor of `file`, or other descriptors than 0 to `most`. */
static int has_foreign_descriptor(pid_t pid, const char *file, int most) {
    char path[64], link[96], target[PATH_MAX];
    int found = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    if (!dir) return -1;
    for (const struct dirent *item; (item = readdir(dir));) {
        if (item->d_name[0] == '.') continue;
        snprintf(link, sizeof link, "%s/%.20s", path, item->d_name);
        const ssize_t n = readlink(link, target, sizeof target - 1);
        target[n > 0 ? n : 0] = '\0';
        found |= !strcmp(target, file) || atoi(item->d_name) > most;
    }
    closedir(dir);
    return found;
}

/* Compiles with descriptors open that a program would inherit; 0: the worker has none of them. */
static int compile_with_open_files(void) {
    char file[STAND_IN_CHARS], real[PATH_MAX];
    at_workers workers;
    at_error err = {0};
    stand_in_real(real);
    snprintf(file, sizeof file, "%s/open", stand_in_directory);
    const int fd = open(file, O_RDWR | O_CREAT, 0600), high = dup2(fd, 300);
    open_workers(&workers, 1);
    if (fd < 0 || high < 0 || compile(&workers, real, &err)) return fprintf(stderr, "%s\n", err.message), 1;
    /* 0, 1, 2 and the copy of stdout that it replies by */
    const int found = has_foreign_descriptor(workers.places[0].worker.pid, file, 3);
    at_workers_free(&workers);
    close(fd);
    close(high);
    return found;
}

static void descriptors_stay_with_the_host(void **state) {
    (void)state;
    assert_int_equal(compile_with_open_files(), 0);
}

/* A kernel before 5.9, and some sandboxes. */
static bool forbid_close_range(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 436 /* close_range, on all machines */, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {sizeof code / sizeof *code, code};
    return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static void also_without_close_range(void **state) {
    enum { NO_SECCOMP = 77 };
    int status = -1;
    (void)state;
    const pid_t child = fork();
    if (child == 0) _exit(forbid_close_range() ? compile_with_open_files() : NO_SECCOMP);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == NO_SECCOMP) skip();
    assert_int_equal(status, 0);
}

/* The masks of /proc/PID/status: "SigBlk:\t0000000000000000". */
static uint64_t mask_of(pid_t pid, const char *name) {
    char path[64], line[256];
    unsigned long long mask = ~0ULL;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, name, strlen(name))) mask = strtoull(line + strlen(name) + 1, NULL, 16);
    if (f) fclose(f);
    return mask;
}

static void so_do_signals_and_the_directory(void **state) {
    char real[PATH_MAX], link[64], directory[PATH_MAX];
    sigset_t set, before;
    at_workers workers;
    at_error err = {0};
    (void)state;
    stand_in_real(real);
    open_workers(&workers, 1);
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    assert_int_equal(pthread_sigmask(SIG_BLOCK, &set, &before), 0);
    void (*const usual)(int) = signal(SIGUSR2, SIG_IGN);
    const attune_status status = compile(&workers, real, &err);
    signal(SIGUSR2, usual);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status) fail_msg("%s", err.message);
    const pid_t pid = workers.places[0].worker.pid;
    assert_int_equal(mask_of(pid, "SigBlk") & 1u << (SIGUSR1 - 1), 0);
    assert_int_equal(mask_of(pid, "SigIgn") & 1u << (SIGUSR2 - 1), 0);
    snprintf(link, sizeof link, "/proc/%d/cwd", (int)pid);
    const ssize_t n = readlink(link, directory, sizeof directory - 1);
    assert_int_equal(n, 1);
    assert_int_equal(directory[0], '/');
    at_workers_free(&workers);
}

/* ---- How many there are ---- */

typedef struct compiling {
    at_workers *workers;
    attune_status status;
    at_error err;
} compiling;

static void *compile_once(void *argument) {
    compiling *c = argument;
    c->status = compile(c->workers, stand_in_path, &c->err);
    return NULL;
}

/* Each process leaves a file. */
static int processes_for(uint32_t processes) {
    enum { THREADS = 16 };
    char real[PATH_MAX], text[PATH_MAX + 1024];
    at_workers workers;
    compiling each[THREADS];
    pthread_t threads[THREADS];
    stand_in_real(real);
    snprintf(text, sizeof text, "#!/bin/sh\n: >'%s/process-'$$\nexec '%s' ''\n", stand_in_directory, real);
    stand_in_write(text);
    open_workers(&workers, processes);
    for (int i = 0; i < THREADS; i++) {
        each[i] = (compiling){.workers = &workers};
        assert_int_equal(pthread_create(&threads[i], NULL, compile_once, &each[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        if (each[i].status) fail_msg("%s", each[i].err.message);
    }
    assert_int_equal(atomic_load(&workers.restarts), 0);
    at_workers_free(&workers);
    return temp_dir_count(stand_in_directory, "process-", "");
}

static void sixteen_misses_share_few_workers(void **state) {
    (void)state;
    assert_in_range(processes_for(0), 1, 4);
}

static void one_is_enough(void **state) {
    (void)state;
    assert_int_equal(processes_for(1), 1);
}

/* ---- Hanging ---- */

static void after_one_that_hung_comes_a_fresh_one(void **state) {
    at_workers workers;
    at_error err = {0};
    (void)state;
    hang_once();
    open_workers(&workers, 1);
    workers.timeout_ms = 300;
    assert_int_equal(compile(&workers, stand_in_path, &err), ATTUNE_CODEGEN_FAILED);
    if (!strstr(err.message, "within 0.3 s (compile_timeout_ms) and was ended")) fail_msg("%s", err.message);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* killed, and reaped */
    assert_int_equal(errno, ECHILD);
    at_error_clear(&err);
    workers.timeout_ms = PATIENT_MS;
    if (compile(&workers, stand_in_path, &err)) fail_msg("%s", err.message);
    at_workers_free(&workers);
}

/* ---- A host that closes all descriptors ---- */

/* What the host opens in the place of a worker's descriptor, and the other end of it. */
typedef struct host_socket {
    int fd, other;
    struct stat opened;
} host_socket;

/* The first one, which a compile of another thread may have just started: it did so under the lock. */
static at_worker first_worker(at_workers *workers) {
    pthread_mutex_lock(&workers->mutex);
    const at_worker worker = workers->places[0].worker;
    pthread_mutex_unlock(&workers->mutex);
    return worker;
}

/* As after closefrom() and many socketpair(). */
static void take_number(const at_worker *worker, host_socket *host) {
    int pair[2];
    host->fd = worker->fd;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_int_equal(dup2(pair[0], host->fd), host->fd);
    close(pair[0]);
    host->other = pair[1];
    assert_int_equal(fstat(host->fd, &host->opened), 0);
}

/* It is open still, and nothing has gone through it in either direction. */
static void assert_untouched(const host_socket *host) {
    struct stat now;
    char byte;
    assert_int_equal(fstat(host->fd, &now), 0);
    assert_true(at_io_is_same(&now, &host->opened));
    assert_int_equal(recv(host->other, &byte, 1, MSG_DONTWAIT), -1);
    assert_int_equal(errno, EAGAIN);
    assert_int_equal(recv(host->fd, &byte, 1, MSG_DONTWAIT), 1);
    assert_int_equal(byte, 'h');
    close(host->fd);
    close(host->other);
}

static void a_child_leaves_the_hosts_sockets_alone(void **state) {
    char real[PATH_MAX];
    at_workers workers;
    at_error err = {0};
    host_socket host;
    (void)state;
    stand_in_real(real);
    open_workers(&workers, 1);
    if (compile(&workers, real, &err)) fail_msg("%s", err.message);
    const at_worker worker = first_worker(&workers);
    take_number(&worker, &host);
    assert_int_equal(write(host.other, "h", 1), 1);
    at_workers_before_fork(&workers);
    const pid_t child = fork();
    at_workers_after_fork(&workers, !child);
    if (!child) _exit(fcntl(host.fd, F_GETFD) < 0);
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    at_workers_free(&workers);
    assert_untouched(&host);
}

/* It closes them while a worker compiles, and poll() goes on waiting. */
static void so_does_the_middle_of_a_compile(void **state) {
    at_workers workers;
    host_socket host;
    pthread_t thread;
    (void)state;
    hang_once();
    open_workers(&workers, 1);
    compiling c = {.workers = &workers};
    assert_int_equal(pthread_create(&thread, NULL, compile_once, &c), 0);
    wait_until_it_hangs();
    const at_worker first = first_worker(&workers);
    take_number(&first, &host);
    assert_int_equal(write(host.other, "h", 1), 1);
    assert_int_equal(kill(first.pid, SIGKILL), 0);
    pthread_join(thread, NULL);
    if (c.status) fail_msg("%s", c.err.message);
    assert_int_not_equal(workers.places[0].worker.pid, first.pid);
    at_workers_free(&workers);
    assert_untouched(&host);
}

static int no_dev_null(int dir, const char *path, int flags, mode_t mode) {
    if (!strcmp(path, "/dev/null")) return errno = ENOENT, -1;
    return at_default_io()->openat(dir, path, flags, mode);
}

/* A container or chroot may lack it. */
static void a_worker_needs_no_dev_null(void **state) {
    static const at_log silent = {0};
    char real[PATH_MAX];
    at_workers workers;
    at_error err = {0};
    at_io io = *at_default_io();
    (void)state;
    io.openat = no_dev_null;
    stand_in_real(real);
    at_workers_init(&workers, 1, PATIENT_MS, &io, &silent);
    if (compile(&workers, real, &err)) fail_msg("%s", err.message);
    at_workers_free(&workers);
}

/* ---- The same by a context ---- */

static attune_context *open_context(uint32_t timeout_ms) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.cache_dir = "";
    options.compile_mode = ATTUNE_COMPILE_WORKER;
    options.compile_timeout_ms = timeout_ms;
    options.compile_processes = 1;
    setenv("ATTUNE_CODEGEN_WORKER", stand_in_path, 1);
    return test_context(&options, NULL);
}

static attune_status compile_problem(attune_context *context, int64_t seq_q) {
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    attune_kernel *kernel;
    problem.seq_q = seq_q;
    problem.head_dim = 8;
    const attune_status status = attune_compile(context, &problem, NULL, &kernel);
    if (!status) attune_kernel_release(kernel);
    return status;
}

static void the_error_names_time_and_problem(void **state) {
    (void)state;
    hang_once();
    attune_context *context = open_context(250);
    assert_int_equal(compile_problem(context, 4321), ATTUNE_CODEGEN_FAILED);
    const char *message = attune_last_message();
    if (!strstr(message, "within 0.25 s") || !strstr(message, "the problem is num_heads=1,seq_q=4321,"))
        fail_msg("%s", message);
    attune_context_destroy(context);
}

static void the_environment_sets_the_time(void **state) {
    static const char *const bad[] = {"0", "-1", "1.5", "soon", "4294967296", "99999999999999999999"};
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *context = NULL;
    (void)state;
    hang_once();
    setenv("ATTUNE_COMPILE_TIMEOUT_MS", "200", 1);
    context = open_context(0);
    assert_int_equal(compile_problem(context, 8), ATTUNE_CODEGEN_FAILED);
    if (!strstr(attune_last_message(), "within 0.2 s")) fail_msg("%s", attune_last_message());
    attune_context_destroy(context);
    options.cache_dir = "";
    setenv("ATTUNE_COMPILE_TIMEOUT_MS", "soon", 1);
    assert_int_equal(attune_context_create(&options, &context), ATTUNE_OK); /* which uses no worker */
    attune_context_destroy(context);
    options.compile_mode = ATTUNE_COMPILE_WORKER;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv("ATTUNE_COMPILE_TIMEOUT_MS", bad[i], 1);
        assert_int_equal(attune_context_create(&options, &context), ATTUNE_INVALID_ARGUMENT);
        assert_non_null(strstr(attune_last_message(), bad[i]));
    }
    options.compile_timeout_ms = 1; /* which comes first */
    assert_int_equal(attune_context_create(&options, &context), ATTUNE_OK);
    attune_context_destroy(context);
    unsetenv("ATTUNE_COMPILE_TIMEOUT_MS");
    options.compile_processes = AT_MOST_PROCESSES + 1;
    assert_int_equal(attune_context_create(&options, &context), ATTUNE_INVALID_ARGUMENT);
    assert_non_null(strstr(attune_last_message(), "compile_processes is 65; it may be at most 64"));
}

static void *compile_in_thread(void *context) {
    compile_problem(context, 8);
    return NULL;
}

/* It takes effect when the compile has ended; the one place for a worker is free again. */
static void a_cancelled_thread_leaves_its_place(void **state) {
    pthread_t thread;
    void *result;
    (void)state;
    hang_once();
    attune_context *context = open_context(1000);
    assert_int_equal(pthread_create(&thread, NULL, compile_in_thread, context), 0);
    wait_until_it_hangs();
    pthread_cancel(thread);
    pthread_join(thread, &result);
    context->codegen.workers.timeout_ms = PATIENT_MS;
    if (compile_problem(context, 8)) fail_msg("%s", attune_last_message());
    attune_context_destroy(context);
}

/* The child has a place, although the parent's only one is taken, and the kernel that the parent is compiling is
 * nobody's. */
static void a_child_has_workers_of_its_own(void **state) {
    pthread_t thread;
    int status = -1;
    (void)state;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    skip(); /* as in test_fork.c */
#endif
    hang_once();
    attune_context *context = open_context(3000);
    assert_int_equal(pthread_create(&thread, NULL, compile_in_thread, context), 0);
    wait_until_it_hangs();
    const pid_t child = fork();
    if (child == 0) {
        alarm(HANG_SECONDS);
        context->codegen.workers.timeout_ms = PATIENT_MS;
        if (compile_problem(context, 8)) _exit(1);
        attune_context_destroy(context);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    pthread_join(thread, NULL);
    attune_context_destroy(context);
}

/* Daemons close all descriptors that they find, and open sockets of their own, which get the same numbers. */
static void a_host_that_has_closed_all_keeps_its_own(void **state) {
    enum { FIRST = 3, COUNT = 32 };
    at_workers workers;
    at_error err = {0};
    struct stat before[FIRST + COUNT], now;
    char real[PATH_MAX], byte;
    (void)state;
    stand_in_real(real);
    open_workers(&workers, 1);
    if (compile(&workers, real, &err)) fail_msg("%s", err.message);
    const pid_t first = workers.places[0].worker.pid;
    for (int fd = FIRST; fd < FIRST + COUNT; fd++) close(fd);
    for (int fd = FIRST; fd < FIRST + COUNT; fd += 2) {
        int pair[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        assert_true(pair[0] == fd && pair[1] == fd + 1);
        for (int i = 0; i < 2; i++) assert_int_equal(fstat(pair[i], &before[pair[i]]), 0);
    }
    if (compile(&workers, real, &err)) fail_msg("%s", err.message);
    assert_int_not_equal(workers.places[0].worker.pid, first);
    assert_int_equal(kill(first, 0), -1); /* it is ended all the same */
    assert_int_equal(atomic_load(&workers.restarts), 1);
    at_workers_free(&workers);
    for (int fd = FIRST; fd < FIRST + COUNT; fd++) {
        assert_int_equal(fstat(fd, &now), 0);
        assert_int_equal(now.st_ino, before[fd].st_ino);
        assert_int_equal(recv(fd, &byte, 1, MSG_DONTWAIT), -1);
    }
    for (int fd = FIRST; fd < FIRST + COUNT; fd++) close(fd);
}

static int setup(void **state) {
    alarm(HANG_SECONDS); /* ends the test where it would hang */
    return stand_in_setup(state);
}

static int teardown(void **state) {
    alarm(0);
    unsetenv("ATTUNE_CODEGEN_WORKER");
    return stand_in_teardown(state);
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(descriptors_stay_with_the_host),
        CASE(also_without_close_range),
        CASE(so_do_signals_and_the_directory),
        CASE(sixteen_misses_share_few_workers),
        CASE(one_is_enough),
        CASE(after_one_that_hung_comes_a_fresh_one),
        CASE(a_child_leaves_the_hosts_sockets_alone),
        CASE(so_does_the_middle_of_a_compile),
        CASE(a_worker_needs_no_dev_null),
        CASE(the_error_names_time_and_problem),
        CASE(the_environment_sets_the_time),
        CASE(a_cancelled_thread_leaves_its_place),
        CASE(a_child_has_workers_of_its_own),
        CASE(a_host_that_has_closed_all_keeps_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
