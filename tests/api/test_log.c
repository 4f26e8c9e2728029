/* Lines for stderr (ATTUNE_LOG): which there are, that they are whole, and that no other file gets them. */
#define _GNU_SOURCE
#include <attune.h>

#include "support/engine/contexts.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { ROOM = 1 << 16 };

/* A pipe in the place of stderr. */
typedef struct captured {
    int ours, reading;
    char text[ROOM];
} captured;

static void capture(captured *c, int flags) {
    int fds[2];
    assert_int_equal(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
    if (!c->ours) c->ours = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    if (flags)
        assert_int_equal(dup3(fds[1], STDERR_FILENO, flags), STDERR_FILENO);
    else
        assert_int_equal(dup2(fds[1], STDERR_FILENO), STDERR_FILENO);
    close(fds[1]);
    c->reading = fds[0];
}

/* What has been written so far. */
static const char *heard(captured *c) {
    const ssize_t bytes = read(c->reading, c->text, ROOM - 1);
    c->text[bytes < 0 ? 0 : bytes] = '\0';
    return c->text;
}

static void release(captured *c) {
    assert_int_equal(dup2(c->ours, STDERR_FILENO), STDERR_FILENO);
    close(c->ours);
    close(c->reading);
    *c = (captured){0};
}

static attune_context *open_context(attune_stderr level) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.cache_dir = "";
    options.stderr_level = level;
    return test_context(&options, NULL);
}

static attune_status compile(attune_context *context, int seq_q) {
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    attune_kernel *kernel;
    problem.seq_q = seq_q;
    problem.head_dim = 8;
    const attune_status status = attune_compile(context, &problem, NULL, &kernel);
    attune_kernel_release(kernel);
    return status;
}

static size_t count_lines(const char *text) {
    size_t lines = 0;
    for (; *text; text++) lines += *text == '\n';
    return lines;
}

/* "attune[PID] SECONDS LEVEL: …", and nothing else in the line. */
static void assert_line(const char *text, const char *level, const char *part) {
    char form[64], rest[1024];
    long pid;
    double seconds;
    snprintf(form, sizeof form, "attune[%%ld] %%lf %s: %%1000[^\n]", level);
    if (sscanf(text, form, &pid, &seconds, rest) != 3 || !strstr(rest, part))
        fail_msg("no line of level %s with \"%s\": %s", level, part, text);
    assert_int_equal(pid, getpid());
    assert_true(seconds >= 0 && seconds < 1e5);
}

static void nothing_unasked(void **state) {
    (void)state;
    static captured c;
    unsetenv("ATTUNE_LOG");
    capture(&c, 0);
    attune_context *context = open_context(ATTUNE_STDERR_DEFAULT);
    const attune_status status = compile(context, 3);
    char text[8];
    snprintf(text, sizeof text, "%.7s", heard(&c));
    release(&c);
    attune_context_destroy(context);
    assert_int_equal(status, ATTUNE_OK);
    assert_string_equal(text, "");
}

static void misses_and_compiles(void **state) {
    (void)state;
    static captured c;
    setenv("ATTUNE_LOG", "info", 1);
    capture(&c, 0);
    attune_context *context = open_context(ATTUNE_STDERR_DEFAULT);
    unsetenv("ATTUNE_LOG");
    compile(context, 3);
    compile(context, 3); /* a hit */
    static char text[ROOM];
    strcpy(text, heard(&c));
    release(&c);
    attune_context_destroy(context);
    assert_int_equal(count_lines(text), 2);
    assert_line(text, "info", " is in no cache: num_heads=1,seq_q=3,seq_kv=3,head_dim=8");
    assert_line(strchr(text, '\n') + 1, "info", "compiled kernel ");
    assert_non_null(strstr(text, " ms in this process: "));
}

/* The option comes before the variable; a warning is no information. */
static void levels(void **state) {
    (void)state;
    static captured c;
    static char quiet[ROOM], warned[ROOM], strict[ROOM];
    setenv("ATTUNE_LOG", "debug", 1);
    setenv("ATTUNE_CODEGEN", "/nowhere/libattune-codegen.so", 1);
    setenv("ATTUNE_TIER0", "off", 1);
    capture(&c, 0);
    attune_context *context = open_context(ATTUNE_STDERR_NONE);
    compile(context, 3);
    strcpy(quiet, heard(&c));
    attune_context_destroy(context);
    context = open_context(ATTUNE_STDERR_WARNING);
    compile(context, 3);
    strcpy(warned, heard(&c));
    attune_context_destroy(context);
    setenv("ATTUNE_STRICT", "1", 1);
    context = open_context(ATTUNE_STDERR_ERROR);
    compile(context, 3);
    strcpy(strict, heard(&c));
    release(&c);
    attune_context_destroy(context);
    unsetenv("ATTUNE_STRICT");
    unsetenv("ATTUNE_TIER0");
    unsetenv("ATTUNE_CODEGEN");
    unsetenv("ATTUNE_LOG");
    assert_string_equal(quiet, "");
    assert_int_equal(count_lines(warned), 1);
    assert_line(warned, "warning", "the virtual machine runs this kernel: the code generator could not be loaded");
    assert_int_equal(count_lines(strict), 1);
    assert_line(strict, "error", "ATTUNE_STRICT: kernel ");
}

static void names_and_numbers_of_levels(void **state) {
    (void)state;
    static const struct {
        const char *name;
        bool is_level;
    } cases[] = {{"error", true}, {"warning", true}, {"info", true}, {"debug", true}, {"none", true}, {"", true},
                 {"0", true},     {"4", true},       {"5", false},   {"1x", false},   {"Info", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attune_context *context = NULL;
        attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
        setenv("ATTUNE_LOG", cases[i].name, 1);
        options.cache_dir = "";
        const attune_status status = attune_context_create(&options, &context);
        unsetenv("ATTUNE_LOG");
        assert_int_equal(status, cases[i].is_level ? ATTUNE_OK : ATTUNE_INVALID_ARGUMENT);
        if (status) assert_non_null(strstr(attune_last_message(), cases[i].name));
        attune_context_destroy(context);
    }
    attune_context *context;
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.stderr_level = ATTUNE_STDERR_COUNT;
    assert_int_equal(attune_context_create(&options, &context), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(), "stderr_level is 6, which is no attune_stderr");
}

/* Descriptor 2 is a file of the host by now, or was one from the start. */
static void other_files_get_no_lines(void **state) {
    (void)state;
    static captured c;
    static char first[ROOM], second[ROOM], third[ROOM];
    capture(&c, 0);
    attune_context *context = open_context(ATTUNE_STDERR_DEBUG);
    const int old = c.reading;
    capture(&c, 0);
    compile(context, 3);
    strcpy(second, heard(&c));
    close(c.reading);
    c.reading = old;
    strcpy(first, heard(&c));
    attune_context_destroy(context);
    close(c.reading);
    capture(&c, O_CLOEXEC);
    context = open_context(ATTUNE_STDERR_DEBUG);
    compile(context, 3);
    strcpy(third, heard(&c));
    close(STDERR_FILENO);
    compile(context, 4);
    attune_context_destroy(context);
    context = open_context(ATTUNE_STDERR_DEBUG); /* there is no stderr at all */
    compile(context, 3);
    attune_context_destroy(context);
    release(&c);
    assert_string_equal(first, "");
    assert_string_equal(second, "");
    assert_string_equal(third, "");
}

/* Nobody reads any more: no SIGPIPE ends the process, and the call succeeds. */
static void a_broken_pipe_is_survived(void **state) {
    (void)state;
    static captured c;
    capture(&c, 0);
    attune_context *context = open_context(ATTUNE_STDERR_DEBUG);
    const int reading = c.reading;
    c.reading = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
    close(reading);
    const attune_status status = compile(context, 3);
    release(&c);
    attune_context_destroy(context);
    assert_int_equal(status, ATTUNE_OK);
}

enum { THREADS = 4, EACH = 8 };

typedef struct writer {
    pthread_t thread;
    attune_context *context;
    int first;
} writer;

static void *compile_some(void *user) {
    const writer *w = user;
    for (int i = 0; i < EACH; i++) compile(w->context, w->first + i);
    return NULL;
}

static void lines_of_threads_do_not_mix(void **state) {
    (void)state;
    static captured c;
    static char text[ROOM];
    capture(&c, 0);
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *context;
    options.cache_dir = "";
    options.stderr_level = ATTUNE_STDERR_INFO;
    options.compile_mode = ATTUNE_COMPILE_NEVER;
    assert_int_equal(attune_context_create(&options, &context), ATTUNE_OK);
    writer writers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        writers[i] = (writer){.context = context, .first = 1 + EACH * i};
        assert_int_equal(pthread_create(&writers[i].thread, NULL, compile_some, &writers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(writers[i].thread, NULL);
    strcpy(text, heard(&c));
    release(&c);
    attune_context_destroy(context);
    assert_true(count_lines(text) >= THREADS * EACH);
    for (const char *line = text; *line; line = strchr(line, '\n') + 1) assert_line(line, "info", "kernel");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_unasked),
        cmocka_unit_test(misses_and_compiles),
        cmocka_unit_test(levels),
        cmocka_unit_test(names_and_numbers_of_levels),
        cmocka_unit_test(other_files_get_no_lines),
        cmocka_unit_test(a_broken_pipe_is_survived),
        cmocka_unit_test(lines_of_threads_do_not_mix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
