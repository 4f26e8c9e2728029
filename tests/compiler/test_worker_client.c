/* The host's side of the worker protocol: workers that die or hang in the middle of a compile, or answer nonsense. */
#define _GNU_SOURCE
#include "compiler/worker_client.h"
#include "support/engine/stand_in.h"
#include "target/kernel_abi.h"

#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static const char source[] = "kernel @double (x: f32[n] in, o: f32[n] out, n: idx) { assume n >= 0 parallel for i in "
                             "0..n { o[i] = x[i] + x[i] } }";

/* ---- One compile ---- */

static size_t largest; /* that was asked of the allocator */

static void *noting_alloc(void *user, size_t bytes, size_t align) {
    if (bytes > largest) largest = bytes;
    return at_default_allocator()->alloc(user, bytes, align);
}

static void noting_free(void *user, void *pointer) { at_default_allocator()->free(user, pointer); }

typedef struct outcome {
    attune_status status;
    at_error err;
    void *data;
    size_t bytes;
    unsigned long long restarts;
} outcome;

static outcome compile(const char *ir, size_t ir_bytes, int timeout_ms) {
    static const at_log silent = {0};
    static const attune_allocator noting = {noting_alloc, noting_free, NULL};
    const at_codegen_request request = {ir, ir_bytes, "x86-64", ATTUNE_STAGE_IMAGE};
    outcome result = {0};
    at_workers workers;
    at_codegen_file program, plugin;
    at_codegen_name(stand_in_path, &program);
    at_codegen_name("the plug-in", &plugin);
    at_workers_init(&workers, 0, (uint32_t)timeout_ms, at_default_io(), &silent);
    largest = 0;
    alarm(100); /* ends the test where it would hang */
    result.status =
        at_workers_compile(&workers, &program, &plugin, &request, &noting, &result.data, &result.bytes, &result.err);
    alarm(0);
    result.restarts = atomic_load(&workers.restarts);
    at_workers_free(&workers);
    return result;
}

static void assert_gave_up(const outcome *result) {
    assert_int_equal(result->status, ATTUNE_CODEGEN_FAILED);
    assert_non_null(strstr(result->err.message, "died twice"));
    assert_null(result->data);
    assert_int_equal(result->restarts, 1);
}

/* No second try: it would take as long again. */
static void assert_late(const outcome *result) {
    assert_int_equal(result->status, ATTUNE_CODEGEN_FAILED);
    if (!strstr(result->err.message, "within 2 s (compile_timeout_ms) and was ended"))
        fail_msg("%s", result->err.message);
    assert_non_null(strstr(result->err.message, stand_in_path));
    assert_null(result->data);
    assert_int_equal(result->restarts, 1);
}

/* ---- Death ---- */

static void dies_once(const char *signal_name) {
    char real[PATH_MAX], before[PATH_MAX + 1024], marker[TEMP_DIR_CHARS + 16], after[128];
    stand_in_real(real);
    snprintf(marker, sizeof marker, "%s/died", stand_in_directory);
    snprintf(before, sizeof before, "[ -e '%s' ] && exec '%s' ''\n: >'%s'", marker, real, marker);
    snprintf(after, sizeof after, READ_HEAD "kill -%s $$", signal_name);
    stand_in(before, after);
    const outcome result = compile(source, strlen(source), 0);
    assert_int_equal(access(marker, F_OK), 0);
    unlink(marker);
    if (result.status) fail_msg("%s", result.err.message);
    assert_null(at_image_check(result.data, result.bytes));
    assert_int_equal(result.restarts, 1);
    at_free(NULL, result.data);
}

static void a_worker_that_dies_once_is_replaced(void **state) {
    (void)state;
    dies_once("KILL");
    dies_once("ABRT");
}

static void workers_that_always_die_end_the_compile_only(void **state) {
    (void)state;
    stand_in("", READ_HEAD "kill -KILL $$");
    outcome result = compile(source, strlen(source), 0);
    assert_gave_up(&result);
    stand_in("", READ_HEAD "kill -ABRT $$");
    result = compile(source, strlen(source), 0);
    assert_gave_up(&result);
}

/* ---- Those that never become a worker ---- */

static void assert_missing(const char *text, const char *part, int timeout_ms) {
    stand_in_write(text);
    const outcome result = compile(source, strlen(source), timeout_ms);
    assert_int_equal(result.status, ATTUNE_CODEGEN_MISSING);
    if (!strstr(result.err.message, part)) fail_msg("%s", result.err.message);
    assert_non_null(strstr(result.err.message, stand_in_path));
    assert_null(result.data);
}

static void what_does_not_start_is_missing(void **state) {
    (void)state;
    assert_missing("no program\n", "could not be started: Exec format error", 0);
    assert_missing("#!/nowhere/sh\n", "could not be started: No such file", 0);
    assert_missing("#!/bin/sh\nexit 1\n", "does not start", 0);
    assert_missing("#!/bin/sh\nkill -ABRT $$\n", "does not start", 0);
    assert_missing("#!/bin/sh\necho not a frame at all\n", "does not start", 0);
    assert_missing("#!/bin/sh\nexec sleep 50\n", "does not start", 200);
}

/* ---- What it is told ---- */

static void the_plugin_is_its_argument(void **state) {
    char note[TEMP_DIR_CHARS + 16], before[TEMP_DIR_CHARS + 64], said[64] = "";
    (void)state;
    snprintf(note, sizeof note, "%s/said", stand_in_directory);
    snprintf(before, sizeof before, "printf '%%s of %%s' \"$1\" $# >'%s'", note);
    stand_in(before, READ_HEAD "kill -KILL $$");
    compile(source, strlen(source), 0);
    const int fd = open(note, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_true(read(fd, said, sizeof said - 1) > 0);
    close(fd);
    assert_string_equal(said, "the plug-in of 1");
}

/* ---- Nonsense ---- */

static outcome answered(const char *frame) {
    char after[256];
    snprintf(after, sizeof after, READ_HEAD "printf '%s'", frame);
    stand_in("", after);
    return compile(source, strlen(source), 0);
}

#define WORD(low) low "\\000\\000\\000"

static void hostile_replies_are_refused(void **state) {
    (void)state;
    static const char *const hostile[] = {
        "XtWK" WORD("\\000") WORD("\\003") WORD("\\000") "abc",     /* magic */
        "AtWK" WORD("\\377") WORD("\\003") WORD("\\000") "abc",     /* status */
        "AtWK\\000\\000\\000\\200" WORD("\\003") WORD("\\000") "a", /* a status that is negative as an int */
        "AtWK" WORD("\\000") "\\001\\000\\000\\020" WORD("\\000"),  /* 256 MiB and a byte */
        "AtWK" WORD("\\000") "\\377\\377\\377\\377" WORD("\\000"),  /* 4 GiB */
        "AtWK" WORD("\\000") WORD("\\012") WORD("\\000") "abc",     /* 10 bytes, but there are 3 */
        "AtWK" WORD("\\000"),                                       /* half a head */
    };
    outcome result = answered("AtWK" WORD("\\000") WORD("\\003") WORD("\\000") "abc");
    assert_int_equal(result.status, ATTUNE_OK); /* so the stand-in sends the right reply */
    assert_int_equal(result.bytes, 3);
    assert_string_equal(result.data, "abc");
    at_free(NULL, result.data);
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        result = answered(hostile[i]);
        assert_gave_up(&result);
        assert_true(largest < 1000); /* nothing was allocated on the word of a hostile frame */
    }
}

/* ---- Hanging ---- */

/* Longer than a worker takes to start on a slow and busy machine. */
enum { SHORT_MS = 2000 };

/* The request does not fit the socket's buffer, and no process reads it. */
static void a_stopped_worker_is_given_up(void **state) {
    (void)state;
    enum { IR_BYTES = 8 << 20 };
    char *ir = malloc(IR_BYTES);
    assert_non_null(ir);
    memset(ir, ' ', IR_BYTES);
    stand_in("", "kill -STOP $$");
    const outcome result = compile(ir, IR_BYTES, SHORT_MS);
    assert_late(&result);
    free(ir);
}

/* Each byte comes soon after the one before it, but the last one never does. */
static void a_dripping_worker_is_given_up(void **state) {
    (void)state;
    stand_in("", READ_HEAD
             "printf 'AtWK" WORD("\\000") "\\000\\000\\001\\000" WORD("\\000") "'\n"
                                                                               "while printf x; do sleep 0.1; done");
    const outcome result = compile(source, strlen(source), SHORT_MS);
    assert_late(&result);
}

static void on_alarm(int number) { (void)number; }

/* The host's own signals come faster than the time runs out. */
static void signals_do_not_extend_the_time(void **state) {
    (void)state;
    const struct sigaction handler = {.sa_handler = on_alarm}; /* no SA_RESTART */
    struct sigaction before;
    stand_in("", READ_HEAD "exec sleep 50");
    assert_int_equal(sigaction(SIGPROF, &handler, &before), 0);
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGPROF};
    const struct itimerspec period = {{0, 50000000}, {0, 50000000}};
    assert_int_equal(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
    assert_int_equal(timer_settime(timer, 0, &period, NULL), 0);
    const outcome result = compile(source, strlen(source), SHORT_MS);
    timer_delete(timer);
    sigaction(SIGPROF, &before, NULL);
    assert_late(&result);
}

/* ---- A host that is stopped, by SIGSTOP or a debugger, until its time is over ---- */

/* A child is the host; its worker stops it. 0: it compiled `bytes`. */
static int compile_while_stopped(size_t bytes) {
    int status = -1;
    const pid_t host = fork();
    if (host == 0) {
        const outcome result = compile(source, strlen(source), SHORT_MS);
        if (result.status) fprintf(stderr, "%s\n", result.err.message);
        _exit(result.status || result.bytes != bytes || result.restarts);
    }
    assert_int_equal(waitpid(host, &status, 0), host);
    return status;
}

static void a_stopped_host_takes_the_reply(void **state) {
    (void)state;
    stand_in("", READ_HEAD "kill -STOP $PPID\nprintf 'AtWK" WORD("\\000") WORD("\\003")
                     WORD("\\000") "abc'\n"
                                   "sleep 2.2\nkill -CONT $PPID\nsleep 50");
    assert_int_equal(compile_while_stopped(3), 0);
}

/* The reply, of 1 MiB, does not fit the socket's buffer: the worker writes the rest when the host reads again. */
static void and_the_rest_of_it(void **state) {
    (void)state;
    stand_in("", READ_HEAD
             "kill -STOP $PPID\n(sleep 2.2; kill -CONT $PPID) >/dev/null &\n"
             "printf 'AtWK" WORD("\\000") "\\000\\000\\020\\000" WORD("\\000") "'\n"
                                                                               "head -c 1048576 /dev/zero\nsleep 50");
    assert_int_equal(compile_while_stopped(1 << 20), 0);
}

/* The time is over when its second worker would start: it was late, and not "missing". */
static void a_death_before_the_end_is_no_missing_worker(void **state) {
    char marker[TEMP_DIR_CHARS + 16], before[2 * sizeof marker + 64];
    (void)state;
    snprintf(marker, sizeof marker, "%s/died", stand_in_directory);
    snprintf(before, sizeof before, "[ -e '%s' ] && exec sleep 50\n: >'%s'", marker, marker);
    stand_in(before, READ_HEAD "kill -KILL $$");
    const outcome result = compile(source, strlen(source), SHORT_MS);
    unlink(marker);
    assert_late(&result);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_worker_that_dies_once_is_replaced),
        cmocka_unit_test(workers_that_always_die_end_the_compile_only),
        cmocka_unit_test(what_does_not_start_is_missing),
        cmocka_unit_test(the_plugin_is_its_argument),
        cmocka_unit_test(hostile_replies_are_refused),
        cmocka_unit_test(a_stopped_worker_is_given_up),
        cmocka_unit_test(a_dripping_worker_is_given_up),
        cmocka_unit_test(signals_do_not_extend_the_time),
        cmocka_unit_test(a_stopped_host_takes_the_reply),
        cmocka_unit_test(and_the_rest_of_it),
        cmocka_unit_test(a_death_before_the_end_is_no_missing_worker),
    };
    return cmocka_run_group_tests(tests, stand_in_setup, stand_in_teardown);
}
