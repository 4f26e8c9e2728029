/* Reports of a context: events, and a line of log for each compile. */
#define _GNU_SOURCE
#include <attune.h>

#include "support/engine/contexts.h"
#include "support/problems.h"
#include "support/temp_dir.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST = 64 };

typedef struct heard {
    attune_event events[MOST];
    char keys[MOST][40], problems[MOST][200], messages[MOST][600];
    int count, lines;
    char line[600];        /* the last at level INFO */
    attune_context *calls; /* called by the event function */
} heard;

static void hear(void *user, const attune_event *event) {
    heard *h = user;
    assert_int_equal(event->struct_size, sizeof *event);
    assert_in_range(h->count, 0, MOST - 1);
    h->events[h->count] = *event;
    snprintf(h->keys[h->count], sizeof h->keys[0], "%s", event->key);
    snprintf(h->problems[h->count], sizeof h->problems[0], "%s", event->problem);
    snprintf(h->messages[h->count++], sizeof h->messages[0], "%s", event->message);
    attune_statistics statistics = {.struct_size = sizeof statistics};
    if (h->calls) assert_int_equal(attune_get_statistics(h->calls, &statistics), ATTUNE_OK);
}

static void read_line(void *user, attune_log_level level, const char *message) {
    heard *h = user;
    if (level != ATTUNE_LOG_INFO) return;
    h->lines++;
    snprintf(h->line, sizeof h->line, "%s", message);
}

static attune_context *open_context(heard *h, const char *cache_dir, uint64_t memory_bytes) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.cache_dir = cache_dir;
    options.memory_cache_bytes = memory_bytes;
    options.event = hear;
    options.event_user = h;
    options.log = read_line;
    options.log_user = h;
    return test_context(&options, NULL);
}

static attune_status compile(attune_context *context, const char *text) {
    attune_kernel *kernel;
    const attune_problem problem = problem_parsed(text);
    const attune_status status = attune_compile(context, &problem, NULL, &kernel);
    attune_kernel_release(kernel);
    return status;
}

#define ONE "seq_q=3,head_dim=8"
#define TWO "seq_q=4,head_dim=8"

static void assert_event(const heard *h, int number, attune_event_kind kind, const char *problem) {
    assert_int_equal(h->events[number].kind, kind);
    assert_int_equal(strlen(h->keys[number]), 32);
    if (!strstr(h->problems[number], problem)) fail_msg("\"%s\" is not in: %s", problem, h->problems[number]);
}

static void a_compile_and_a_hit(void **state) {
    heard h = {0};
    attune_context *context = open_context(&h, *state, 0);
    h.calls = context; /* no lock is held */
    assert_int_equal(compile(context, ONE), ATTUNE_OK);
    assert_int_equal(h.count, 3);
    assert_event(&h, 0, ATTUNE_EVENT_MISS, "head_dim=8");
    assert_event(&h, 1, ATTUNE_EVENT_COMPILE_BEGIN, "head_dim=8");
    assert_event(&h, 2, ATTUNE_EVENT_COMPILE_END, "head_dim=8");
    assert_int_equal(h.events[2].status, ATTUNE_OK);
    assert_true(h.events[2].milliseconds > 0);
    assert_string_equal(h.keys[0], h.keys[2]);
    assert_int_equal(h.lines, 1);
    assert_non_null(strstr(h.line, h.keys[0]));
    assert_non_null(strstr(h.line, " ms in this process: "));
    assert_int_equal(compile(context, ONE), ATTUNE_OK); /* from memory: nothing happens */
    assert_int_equal(h.count, 3);
    attune_drop_memory_cache(context);
    assert_int_equal(compile(context, ONE), ATTUNE_OK);
    assert_int_equal(h.count, 4);
    assert_event(&h, 3, ATTUNE_EVENT_DISK_HIT, "head_dim=8");
    assert_true(h.events[3].milliseconds > 0);
    assert_int_equal(h.lines, 1);
    attune_context_destroy(context);
}

/* It would wait for itself. */
typedef struct eager {
    attune_context *context;
    attune_status same, other;
    int misses;
} eager;

static void compile_too(void *user, const attune_event *event) {
    eager *e = user;
    if (event->kind != ATTUNE_EVENT_MISS || e->misses++) return;
    e->same = compile(e->context, ONE);
    e->other = compile(e->context, TWO);
}

static void a_callback_may_compile_another_kernel(void **state) {
    (void)state;
    eager e = {.same = ATTUNE_OK, .other = ATTUNE_INTERNAL};
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.cache_dir = "";
    options.event = compile_too;
    options.event_user = &e;
    e.context = test_context(&options, NULL);
    alarm(60); /* ends the test where it would hang */
    assert_int_equal(compile(e.context, ONE), ATTUNE_OK);
    alarm(0);
    assert_int_equal(e.same, ATTUNE_INVALID_ARGUMENT);
    assert_int_equal(e.other, ATTUNE_OK);
    attune_context_destroy(e.context);
}

static void a_missing_compiler_is_told(void **state) {
    (void)state;
    heard h = {0};
    setenv("ATTUNE_CODEGEN", "/nowhere/libattune-codegen.so", 1);
    attune_context *context = open_context(&h, "", 0);
    assert_int_equal(compile(context, ONE), ATTUNE_OK);
    unsetenv("ATTUNE_CODEGEN");
    assert_int_equal(h.count, 4);
    assert_event(&h, 2, ATTUNE_EVENT_TIER0_HIT, "head_dim=8");
    assert_non_null(strstr(h.messages[2], "the virtual machine computes it: the code generator could not be loaded"));
    assert_event(&h, 3, ATTUNE_EVENT_COMPILE_END, "head_dim=8");
    assert_int_equal(h.events[3].status, ATTUNE_CODEGEN_MISSING);
    assert_string_equal(h.messages[3], "the virtual machine runs it");
    assert_int_equal(h.lines, 0);
    attune_context_destroy(context);
}

static void strict_misses_are_told(void **state) {
    (void)state;
    heard h = {0};
    setenv("ATTUNE_STRICT", "1", 1);
    attune_context *context = open_context(&h, "", 0);
    unsetenv("ATTUNE_STRICT");
    assert_int_equal(compile(context, ONE), ATTUNE_NOT_CACHED);
    assert_int_equal(h.count, 1);
    assert_event(&h, 0, ATTUNE_EVENT_MISS, "head_dim=8");
    attune_context_destroy(context);
}

static void options_are_strict_and_record(void **state) {
    (void)state;
    char path[] = "/tmp/attune-record-XXXXXX", line[256] = "";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.cache_dir = "", options.strict = 1, options.record = path;
    attune_context *context = test_context(&options, NULL);
    assert_int_equal(compile(context, ONE), ATTUNE_NOT_CACHED);
    attune_context_destroy(context);
    assert_true(read(fd, line, sizeof line - 1) > 0);
    assert_non_null(strstr(line, "head_dim=8"));
    setenv("ATTUNE_RECORD", path, 1);
    setenv("ATTUNE_STRICT", "1", 1);
    options.strict = -1, options.record = "";
    context = test_context(&options, NULL);
    unsetenv("ATTUNE_RECORD");
    unsetenv("ATTUNE_STRICT");
    assert_int_equal(compile(context, ONE), ATTUNE_OK);
    attune_context_destroy(context);
    assert_int_equal(read(fd, line, sizeof line), 0);
    close(fd);
    unlink(path);
    options.strict = 2;
    assert_int_equal(attune_context_create(&options, &context), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(), "strict is 2; it must be 1, 0 or -1");
}

static void evictions_are_told(void **state) {
    (void)state;
    heard h = {0};
    attune_context *context = open_context(&h, "", 1); /* room for one kernel at a time */
    h.calls = context;
    assert_int_equal(compile(context, ONE), ATTUNE_OK);
    assert_int_equal(compile(context, TWO), ATTUNE_OK);
    assert_int_equal(h.count, 7);
    assert_event(&h, 6, ATTUNE_EVENT_EVICTED, "");
    assert_string_equal(h.keys[6], h.keys[0]);
    attune_context_destroy(context);
}

static void damaged_files_are_told(void **state) {
    heard h = {0};
    char file[TEMP_DIR_CHARS];
    attune_context *context = open_context(&h, *state, 0);
    assert_int_equal(compile(context, ONE), ATTUNE_OK);
    temp_dir_first(*state, "", file);
    const int fd = open(file, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "?", 1, 100), 1);
    close(fd);
    attune_drop_memory_cache(context);
    assert_int_equal(compile(context, ONE), ATTUNE_OK);
    assert_int_equal(h.count, 7);
    assert_event(&h, 3, ATTUNE_EVENT_DAMAGED, "");
    assert_string_equal(h.keys[3], h.keys[0]);
    assert_string_not_equal(h.messages[3], "");
    assert_event(&h, 4, ATTUNE_EVENT_MISS, "head_dim=8");
    attune_context_destroy(context);
}

static void the_worker_is_named(void **state) {
    (void)state;
    heard h = {0};
    setenv("ATTUNE_COMPILE", "worker", 1);
    attune_context *context = open_context(&h, "", 0);
    unsetenv("ATTUNE_COMPILE");
    assert_int_equal(compile(context, ONE), ATTUNE_OK);
    assert_int_equal(h.lines, 1);
    assert_non_null(strstr(h.line, " ms by the worker: "));
    attune_context_destroy(context);
}

#define WITH_DIRECTORY(test) cmocka_unit_test_setup_teardown(test, temp_dir_setup, temp_dir_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_callback_may_compile_another_kernel),
        WITH_DIRECTORY(a_compile_and_a_hit),
        cmocka_unit_test(a_missing_compiler_is_told),
        cmocka_unit_test(strict_misses_are_told),
        cmocka_unit_test(options_are_strict_and_record),
        cmocka_unit_test(evictions_are_told),
        WITH_DIRECTORY(damaged_files_are_told),
        cmocka_unit_test(the_worker_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
