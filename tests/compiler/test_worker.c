/* The worker process, spoken to as the runtime does: frames over pipes. */
#include "target/codegen_abi.h"
#include "target/kernel_abi.h"
#include "target/target.h"

#include "generator_id.h"

#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const char source[] = "kernel @double (x: f32[n] in, o: f32[n] out, n: idx) { assume n >= 0 parallel for i in "
                             "0..n { o[i] = x[i] + x[i] } }";

typedef struct worker {
    pid_t pid;
    int to, from;
} worker;

/* The program lies in the build directory, one above the tests. */
static void worker_path(char path[PATH_MAX]) {
    const ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 64);
    assert_true(n > 0);
    path[n] = '\0';
    strcpy(strrchr(path, '/'), "/../attune-codegen-worker");
}

static worker start_with(const char *plugin) {
    char path[PATH_MAX];
    int to[2], from[2];
    worker_path(path);
    assert_int_equal(pipe(to) | pipe(from), 0);
    worker w = {.pid = fork(), .to = to[1], .from = from[0]};
    assert_true(w.pid >= 0);
    if (w.pid == 0) {
        dup2(to[0], STDIN_FILENO);
        dup2(from[1], STDOUT_FILENO);
        close(to[0]), close(to[1]), close(from[0]), close(from[1]);
        execl(path, path, plugin, (char *)NULL);
        _exit(127);
    }
    close(to[0]), close(from[1]);
    return w;
}

static worker start(void) { return start_with(NULL); }

static void read_exactly(const worker *w, void *data, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        const ssize_t n = read(w->from, (char *)data + done, bytes - done);
        if (n <= 0) fail_msg("the worker closed its output after %zu of %zu bytes", done, bytes);
        done += (size_t)n;
    }
}

static void send(const worker *w, const void *data, size_t bytes) {
    assert_int_equal(write(w->to, data, bytes), (ssize_t)bytes);
}

static void expect_hello(const worker *w) {
    uint32_t words[3];
    char id[256] = "";
    read_exactly(w, words, sizeof words);
    assert_int_equal(words[0], AT_WORKER_MAGIC);
    assert_int_equal(words[1], AT_CODEGEN_ABI);
    assert_true(words[2] < sizeof id);
    read_exactly(w, id, words[2]);
    assert_string_equal(id, ATTUNE_GENERATOR_ID);
}

static uint32_t ask(const worker *w, uint32_t stage, const char *target, const char *ir, char **data, uint32_t *bytes) {
    const uint32_t request[] = {AT_WORKER_MAGIC, stage, (uint32_t)strlen(target), (uint32_t)strlen(ir)};
    uint32_t reply[4];
    send(w, request, sizeof request);
    send(w, target, request[2]);
    send(w, ir, request[3]);
    read_exactly(w, reply, sizeof reply);
    assert_int_equal(reply[0], AT_WORKER_MAGIC);
    assert_int_equal(reply[3], 0);
    *bytes = reply[2];
    *data = calloc(1, (size_t)reply[2] + 1);
    assert_non_null(*data);
    read_exactly(w, *data, reply[2]);
    return reply[1];
}

/* Nothing may follow; the exit status of the worker. */
static int finish(worker *w) {
    char more;
    int status;
    close(w->to);
    assert_int_equal(read(w->from, &more, 1), 0);
    close(w->from);
    assert_int_equal(waitpid(w->pid, &status, 0), w->pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* In the middle of a request, where it would wait for the rest of it. */
static void test_ends_with_its_host(void **state) {
    (void)state;
    enum { SECONDS = 100 };
    const uint32_t request[] = {AT_WORKER_MAGIC, ATTUNE_STAGE_IMAGE, 4, 1000};
    worker w = start();
    int status;
    expect_hello(&w);
    send(&w, request, sizeof request);
    alarm(SECONDS);
    close(w.from);
    assert_int_equal(waitpid(w.pid, &status, 0), w.pid);
    alarm(0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    close(w.to);
}

static void test_requests_and_replies(void **state) {
    (void)state;
    worker w = start();
    char *data, *again;
    uint32_t bytes, again_bytes;
    expect_hello(&w);
    assert_int_equal(ask(&w, ATTUNE_STAGE_IMAGE, "x86-64", source, &data, &bytes), ATTUNE_OK);
    assert_null(at_image_check(data, bytes));
    assert_int_equal(ask(&w, ATTUNE_STAGE_IMAGE, "x86-64", source, &again, &again_bytes), ATTUNE_OK);
    assert_int_equal(bytes, again_bytes);
    assert_memory_equal(data, again, bytes);
    free(data);
    free(again);

    assert_int_equal(ask(&w, ATTUNE_STAGE_LLVM, "avx2", source, &data, &bytes), ATTUNE_OK);
    assert_non_null(strstr(data, "define void @phase0"));
    free(data);
    assert_int_equal(ask(&w, ATTUNE_STAGE_ASM, "avx512", source, &data, &bytes), ATTUNE_OK);
    assert_non_null(strstr(data, "phase0:"));
    free(data);
    assert_int_equal(ask(&w, ATTUNE_STAGE_OBJECT, "avx512", source, &data, &bytes), ATTUNE_OK);
    assert_memory_equal(data, "\177ELF", 4);
    free(data);
    assert_int_equal(finish(&w), 0);
}

static void test_errors_leave_it_alive(void **state) {
    (void)state;
    worker w = start();
    char *message;
    uint32_t bytes;
    expect_hello(&w);
    assert_int_equal(ask(&w, ATTUNE_STAGE_IMAGE, "avx1024", source, &message, &bytes), ATTUNE_INVALID_ARGUMENT);
    assert_non_null(strstr(message, "avx1024"));
    free(message);
    assert_int_equal(ask(&w, ATTUNE_STAGE_IMAGE, "avx2", "kernel @k (", &message, &bytes), ATTUNE_INVALID_IR);
    assert_true(bytes > 0);
    free(message);
    assert_int_equal(ask(&w, ATTUNE_STAGE_LOWERED, "avx2", source, &message, &bytes), ATTUNE_INVALID_ARGUMENT);
    free(message);
    /* Does not verify: out of bounds. */
    assert_int_equal(ask(&w, ATTUNE_STAGE_IMAGE, "avx2",
                         "kernel @k (o: f32[4] out) { parallel for i in 0..5 { o[i] = 1.0 } }", &message, &bytes),
                     ATTUNE_INVALID_IR);
    free(message);
    assert_int_equal(ask(&w, ATTUNE_STAGE_IMAGE, "avx2", source, &message, &bytes), ATTUNE_OK);
    free(message);
    assert_int_equal(finish(&w), 0);
}

static void expect_end_after(const uint32_t *words, size_t bytes) {
    worker w = start();
    expect_hello(&w);
    send(&w, words, bytes);
    assert_int_equal(finish(&w), 1);
}

static void test_ends_on_bad_frames(void **state) {
    (void)state;
    const uint32_t bad_magic[4] = {7, ATTUNE_STAGE_IMAGE, 4, 10};
    const uint32_t long_target[4] = {AT_WORKER_MAGIC, ATTUNE_STAGE_IMAGE, AT_WORKER_MAX_TARGET + 1, 10};
    const uint32_t long_ir[4] = {AT_WORKER_MAGIC, ATTUNE_STAGE_IMAGE, 4, UINT32_MAX};
    const uint32_t cut[4] = {AT_WORKER_MAGIC, ATTUNE_STAGE_IMAGE, 4, 10};
    expect_end_after(bad_magic, sizeof bad_magic);
    expect_end_after(long_target, sizeof long_target);
    expect_end_after(long_ir, sizeof long_ir);
    expect_end_after(cut, sizeof cut);
    expect_end_after(cut, 6);
}

static void test_ends_with_its_input(void **state) {
    (void)state;
    worker w = start();
    expect_hello(&w);
    assert_int_equal(finish(&w), 0);
}

/* It speaks the protocol all the same, so the host learns why. */
static void test_says_that_there_is_no_plugin(void **state) {
    (void)state;
    setenv("ATTUNE_CODEGEN", "/nonexistent/codegen.so", 1);
    worker w = start();
    unsetenv("ATTUNE_CODEGEN");
    for (int i = 0; i < 2; i++) {
        char *message;
        uint32_t bytes;
        if (i == 0) expect_hello(&w);
        assert_int_equal(ask(&w, ATTUNE_STAGE_IMAGE, "avx2", source, &message, &bytes), ATTUNE_CODEGEN_MISSING);
        assert_non_null(strstr(message, "/nonexistent/codegen.so"));
        free(message);
    }
    assert_int_equal(finish(&w), 0);
}

/* A host's own setting takes precedence over the environment, which a host of raised privileges does not trust. */
static void test_takes_the_plugin_of_its_host(void **state) {
    static const struct {
        const char *plugin;
        attune_status status;
    } cases[] = {{"/nonexistent/argument.so", ATTUNE_CODEGEN_MISSING}, {"", ATTUNE_OK}};
    (void)state;
    setenv("ATTUNE_CODEGEN", "/nonexistent/environment.so", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *reply;
        uint32_t bytes;
        worker w = start_with(cases[i].plugin);
        expect_hello(&w);
        assert_int_equal(ask(&w, ATTUNE_STAGE_IMAGE, "avx2", source, &reply, &bytes), cases[i].status);
        if (cases[i].status) assert_non_null(strstr(reply, cases[i].plugin));
        free(reply);
        assert_int_equal(finish(&w), 0);
    }
    unsetenv("ATTUNE_CODEGEN");
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests_and_replies),         cmocka_unit_test(test_ends_with_its_host),
        cmocka_unit_test(test_errors_leave_it_alive),        cmocka_unit_test(test_ends_on_bad_frames),
        cmocka_unit_test(test_ends_with_its_input),          cmocka_unit_test(test_says_that_there_is_no_plugin),
        cmocka_unit_test(test_takes_the_plugin_of_its_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
