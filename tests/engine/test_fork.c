/* fork() and exit() while other threads run and compile. ATTUNE_STRESS=N multiplies the work; `make stress` forks more
 * than ten thousand times. The children use the parent's kernels, caches and pool. */
#define _GNU_SOURCE
#include <attune.h>

#include "support/engine/contexts.h"
#include "support/statuses.h"
#include "support/temp_dir.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { FORKS = 120, EXITS = 25, CHILD_SECONDS = 60 };
enum { HEADS = 4, ROWS = 64, DIM = 32, FLOATS = HEADS * ROWS * DIM };

static int stress = 1;

/* ---- What parent and child do ---- */

typedef struct work {
    attune_context *context;
    attune_kernel *kernel; /* of PROBLEM */
    float *memory, *expected;
    atomic_bool ends;
    atomic_int failures, runs, compiles;
} work;

/* 0 is the one that is run; all others are different kernels, too. */
static attune_problem problem_of(int number) {
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    problem.num_heads = HEADS;
    problem.seq_q = ROWS;
    problem.seq_kv = number ? 1 + number : ROWS;
    problem.head_dim = number ? DIM / 2 : DIM;
    return problem;
}

/* false: it failed, or gave other bits. */
static bool run_once(work *w, float *out) {
    const attune_problem problem = problem_of(0);
    attune_arguments arguments;
    if (attune_arguments_init(&arguments, &problem)) return false;
    arguments.q.data = w->memory;
    arguments.k.data = w->memory + FLOATS;
    arguments.v.data = w->memory + 2 * FLOATS;
    arguments.out.data = out;
    return attune_run(w->context, w->kernel, &arguments) == ATTUNE_OK &&
           (!w->expected || !memcmp(out, w->expected, FLOATS * sizeof *out));
}

static bool compile_once(work *w, int number) {
    const attune_problem problem = problem_of(number);
    attune_kernel *kernel;
    if (attune_compile(w->context, &problem, NULL, &kernel)) return false;
    attune_kernel_release(kernel);
    return true;
}

static void open_work(work *w, attune_compile_mode mode, const char *cache_dir) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    *w = (work){0};
    options.cache_dir = cache_dir;
    options.max_workers = 3;
    options.compile_mode = mode;
    w->context = test_context(&options, NULL);
    const attune_problem problem = problem_of(0);
    if (attune_compile(w->context, &problem, NULL, &w->kernel)) fail_msg("%s", attune_last_message());
    w->memory = malloc(4 * FLOATS * sizeof *w->memory);
    assert_non_null(w->memory);
    for (int i = 0; i < 3 * FLOATS; i++) w->memory[i] = (float)(i % 97) / 97.0f - 0.5f;
    assert_true(run_once(w, w->memory + 3 * FLOATS));
    w->expected = w->memory + 3 * FLOATS;
}

static void close_work(work *w) {
    attune_kernel_release(w->kernel);
    attune_context_destroy(w->context);
    free(w->memory);
}

static void *keep_running(void *argument) {
    work *w = argument;
    float *out = malloc(FLOATS * sizeof *out);
    while (!w->ends) {
        if (!run_once(w, out)) w->failures++;
        w->runs++;
    }
    free(out);
    return NULL;
}

/* New kernels all the time. */
static void *keep_compiling(void *argument) {
    work *w = argument;
    for (int number = 1; !w->ends; number++) {
        if (!compile_once(w, number)) w->failures++;
        w->compiles++;
    }
    return NULL;
}

/* ---- fork ---- */

/* Everything that a child may want: a run on the parent's kernel, by a pool of its own; a kernel that the parent may be
 * compiling just now; and one that is not compiled yet. */
static void be_child(work *w, int number) {
    float *out = malloc(FLOATS * sizeof *out);
    alarm(CHILD_SECONDS);
    if (!run_once(w, out)) _exit(1);
    if (number % 4 == 0 && !compile_once(w, 1 + w->compiles)) _exit(2);
    if (number % 4 == 1 && !compile_once(w, 1000000 + number)) _exit(3);
    if (number % 8 == 2) {
        attune_kernel_release(w->kernel);
        attune_context_destroy(w->context);
    }
    _exit(0);
}

/* ThreadSanitizer has no threads in a child of a process that had some, and AddressSanitizer's malloc (gcc 12) waits
 * there for locks that vanished threads hold. */
static void fork_often(attune_compile_mode mode, const char *cache_dir) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    skip();
#endif
    work w;
    pthread_t runner, compiler;
    open_work(&w, mode, cache_dir);
    assert_int_equal(pthread_create(&runner, NULL, keep_running, &w), 0);
    assert_int_equal(pthread_create(&compiler, NULL, keep_compiling, &w), 0);
    for (int number = 0; number < FORKS * stress; number++) {
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) be_child(&w, number);
        int status = -1;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (status) fail_msg("child %d ended with status 0x%x", number, status);
    }
    w.ends = true;
    pthread_join(runner, NULL);
    pthread_join(compiler, NULL);
    assert_int_equal(w.failures, 0);
    assert_true(w.runs > 0 && w.compiles > 0);
    const attune_statistics statistics = statistics_of(w.context);
    assert_true(statistics.compiles >= (uint64_t)w.compiles); /* to the end, and none of them a hit */
    assert_true(compile_once(&w, 999999));
    close_work(&w);
}

static void forks_while_others_run_and_compile(void **state) { fork_often(ATTUNE_COMPILE_IN_PROCESS, *state); }

static void forks_with_a_worker(void **state) { fork_often(ATTUNE_COMPILE_WORKER, *state); }

/* ---- Callbacks that fork: a Python logger may start a program ---- */

static void fork_in_callback(void *user, const attune_event *event) {
    int status = -1;
    (void)event;
    const pid_t child = fork();
    if (child == 0) _exit(0);
    if (waitpid(child, &status, 0) == child && status == 0) ++*(int *)user;
}

static void a_callback_may_fork(void **state) {
    (void)state;
    int forks = 0;
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    work w = {0};
    options.cache_dir = "";
    options.event = fork_in_callback;
    options.event_user = &forks;
    alarm(CHILD_SECONDS);
    w.context = test_context(&options, NULL);
    assert_true(compile_once(&w, 7));
    assert_int_equal(forks, 3); /* miss, begin, end */
    attune_context_destroy(w.context);
    alarm(0);
}

/* ---- exit ---- */

/* The process ends by exit() in the middle of others' compiles, the first one of the process among them. */
static void be_exiting_child(int number) {
    static work w;
    pthread_t threads[2];
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    alarm(CHILD_SECONDS);
    signal(SIGSEGV, SIG_DFL); /* cmocka's handler would end the process as if it had meant to */
    options.cache_dir = "";
    options.compile_mode = ATTUNE_COMPILE_IN_PROCESS;
    if (attune_context_create(&options, &w.context)) _exit(1);
    for (int i = 0; i < 2; i++)
        if (pthread_create(&threads[i], NULL, keep_compiling, &w)) _exit(2);
    usleep((unsigned)(number * 1700 % 60000));
    exit(0);
}

/* The destructors of an LLVM that others may use, too, are beyond attune: exit() in the middle of the very first
 * compile may then run before they are known. */
static bool has_shared_llvm(void) {
    const pid_t child = fork();
    if (child == 0) {
        work w = {0};
        char line[1024];
        int found = 0;
        attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
        options.cache_dir = "";
        options.compile_mode = ATTUNE_COMPILE_IN_PROCESS;
        if (attune_context_create(&options, &w.context) || !compile_once(&w, 12)) _exit(2);
        FILE *maps = fopen("/proc/self/maps", "r");
        while (maps && fgets(line, sizeof line, maps)) found = found || strstr(line, "libLLVM");
        _exit(found);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WEXITSTATUS(status) == 1;
}

static void exits_while_others_compile(void **state) {
    (void)state;
    if (has_shared_llvm()) skip();
    for (int number = 0; number < EXITS * stress; number++) {
        fflush(NULL);
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) be_exiting_child(number);
        int status = -1;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (status) fail_msg("child %d ended with status 0x%x", number, status);
    }
}

/* A destructor of the program that compiles after exit() has begun gets an answer. */
static attune_context *late_context;

static void compile_at_exit(void) {
    work w = {.context = late_context};
    if (compile_once(&w, 11)) _exit(4);
    _exit(strstr(attune_last_message(), "the process is exiting") ? 0 : 5);
}

static void compiling_at_exit_is_refused(void **state) {
    (void)state;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
        alarm(CHILD_SECONDS);
        options.cache_dir = "";
        options.compile_mode = ATTUNE_COMPILE_IN_PROCESS;
        atexit(compile_at_exit); /* registered before attune's, and so called after it */
        if (attune_context_create(&options, &late_context)) _exit(1);
        work w = {.context = late_context};
        if (!compile_once(&w, 10)) _exit(2);
        exit(3);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

#define WITH_DIRECTORY(test) cmocka_unit_test_setup_teardown(test, temp_dir_setup, temp_dir_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exits_while_others_compile), /* the first three in a process that has not loaded LLVM */
        cmocka_unit_test(compiling_at_exit_is_refused),     WITH_DIRECTORY(forks_with_a_worker),
        WITH_DIRECTORY(forks_while_others_run_and_compile), cmocka_unit_test(a_callback_may_fork),
    };
    const char *wish = getenv("ATTUNE_STRESS");
    if (wish && atoi(wish) > 0) stress = atoi(wish);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
