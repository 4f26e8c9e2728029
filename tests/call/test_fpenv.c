/* Every public function under every floating-point environment of its caller: results, keys and text are those of the
 * default environment, and the caller's is as it was after each call, flags included. */
#include <attune.h>

#include "base/fpenv.h"
#include "support/every_function/every_function.h"
#include "support/every_function/record.h"
#include "support/statuses.h"

#include <glob.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void every_function(void **state) {
    (void)state;
    compare_environments(go_through_all);
}

/* A worker compiles: it begins with the environment of a new program. */
static void compile_by_a_worker(void) {
    attune_context *const context = record_context(ATTUNE_COMPILE_WORKER);
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    attune_kernel *kernel = NULL;
    OK(attune_problem_parse(&problem, every_text[1]));
    OK(attune_compile(context, &problem, NULL, &kernel));
    note_kernel(kernel);
    note_emitted(context, &problem, ATTUNE_STAGE_IMAGE);
    CALL(attune_kernel_release(kernel));
    CALL(attune_context_destroy(context));
}

static void a_worker(void **state) {
    (void)state;
    compare_environments(compile_by_a_worker);
}

/* Nothing is compiled: the virtual machine, or code of tier 0. */
static void compute_without_a_compiler(void) {
    attune_context *const context = record_context(ATTUNE_COMPILE_NEVER);
    static const sample some = {.problem =
                                    "num_heads=2,seq_q=9,seq_kv=21,head_dim=16,softmax_scale=0.1,score_mod=\"score "
                                    "+ float(kv) * 0.1\""};
    const sample *const both[] = {&some, &samples[PLAIN]};
    for (int i = 0; i < 2; i++) {
        sample_call c;
        attune_kernel *kernel = NULL;
        sample_call_open(&c, both[i], ON_THE_HEAP);
        make_denormals(&c);
        OK(attune_compile(context, &c.problem, NULL, &kernel));
        OK(attune_run(context, kernel, &c.arguments));
        note_outputs(&c);
        CALL(attune_kernel_release(kernel));
        sample_call_close(&c);
    }
    CALL(attune_context_destroy(context));
}

static void without_a_compiler(void **state) {
    (void)state;
    compare_environments(compute_without_a_compiler);
}

/* ---- The list of functions ---- */

static void check_header(const char *path) {
    static char text[1 << 17];
    FILE *const f = fopen(path, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    for (char *at = text; (at = strstr(at, "\nATTUNE_"));) {
        char name[48];
        const bool is_checked = !strncmp(at, "\nATTUNE_CHECKED ", strlen("\nATTUNE_CHECKED "));
        if (!is_checked && strncmp(at, "\nATTUNE_API ", strlen("\nATTUNE_API "))) {
            at++;
            continue;
        }
        at += strlen("\nATTUNE_API ");
        while (strncmp(at, "attune_", 7) || strcspn(at, " (*;") != strcspn(at, "(")) at++;
        assert_int_equal(sscanf(at, "%47[a-z_0-9]", name), 1);
        if (!was_called(name)) fail_msg("%s: %s is not called in this test", path, name);
    }
}

/* A function that is new must be called above. */
static void all_are_called(void **state) {
    (void)state;
    glob_t found;
    assert_int_equal(glob("include/attune/*.h", 0, NULL, &found), 0);
    assert_int_equal(glob("include/attune/expert/*.h", GLOB_APPEND, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) check_header(found.gl_pathv[i]);
    globfree(&found);
    check_header("include/attune.h");
}

/* ---- Threads of the host ---- */

typedef struct host {
    environment where;
    bool submits;
    pthread_t threads[8];
    int num_threads;
    attune_task_fn *task;
    attune_range_fn *fn;
    void *argument;
    int64_t n;
} host;

static void *run_on_a_thread(void *user) {
    host *const h = user;
    environment_enter(h->where);
    if (h->submits)
        h->task(h->argument);
    else
        h->fn(h->argument, 0, h->n, 0);
    environment_leave(h->where, "a task on a thread of the host");
    return NULL;
}

static void host_parallel_for(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    host *const h = user;
    h->fn = fn, h->argument = argument, h->n = n;
    assert_int_equal(pthread_create(&h->threads[0], NULL, run_on_a_thread, h), 0);
    pthread_join(h->threads[0], NULL);
}

/* Ends the helper before the caller begins to work, so the helper computes everything. */
static int host_submit(void *user, attune_task_fn *task, void *argument) {
    host *const h = user;
    h->task = task, h->argument = argument;
    assert_int_equal(pthread_create(&h->threads[0], NULL, run_on_a_thread, h), 0);
    pthread_join(h->threads[0], NULL);
    return 0;
}

static void run_by_host(const sample_call *c, environment where, bool submits) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *context = NULL;
    attune_runner runner = ATTUNE_RUNNER_INIT;
    host h = {.where = where, .submits = submits};
    runner.user = &h;
    runner.max_workers = 2;
    if (submits)
        runner.submit = host_submit;
    else
        runner.parallel_for = host_parallel_for;
    options.runner = &runner;
    options.cache_dir = "";
    assert_int_equal(attune_context_create(&options, &context), ATTUNE_OK);
    attune_kernel *kernel = kernel_of(context, &c->problem);
    if (attune_run(context, kernel, &c->arguments)) fail_msg("%s", attune_last_message());
    assert_true(h.num_threads || h.argument);
    attune_kernel_release(kernel);
    attune_context_destroy(context);
}

static void threads_of_the_host(void **state) {
    (void)state;
    static const sample large = {.problem = "num_heads=8,seq_q=128,seq_kv=200,head_dim=64,softmax_scale=0.1"};
    sample_call a, b;
    sample_call_open(&a, &large, ON_THE_HEAP);
    sample_call_open(&b, &large, ON_THE_HEAP);
    make_denormals(&a);
    make_denormals(&b);
    run_by_host(&a, ENV_DEFAULT, false);
    for (int submits = 0; submits < 2; submits++)
        for (environment where = ENV_DOWNWARD; where < NUM_ENVIRONMENTS; where++) {
            run_by_host(&b, where, submits);
            if (!sample_calls_agree(&a, &b)) fail_msg("under %s", environment_names[where]);
        }
    sample_call_close(&a);
    sample_call_close(&b);
}

/* ---- The mechanism ---- */

static int early(int which) {
    AT_DEFAULT_FPENV;
    if (which == 1) return 1;
    for (;;)
        if (which == 2) break;
    return 2;
}

static void every_way_out(void **state) {
    (void)state;
    for (environment where = ENV_DEFAULT; where < NUM_ENVIRONMENTS; where++)
        for (int which = 1; which <= 2; which++) {
            environment_enter(where);
            const int got = early(which);
            environment_leave(where, "every_way_out");
            assert_int_equal(got, which);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_out), cmocka_unit_test(every_function),     cmocka_unit_test(all_are_called),
        cmocka_unit_test(a_worker),      cmocka_unit_test(without_a_compiler), cmocka_unit_test(threads_of_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
