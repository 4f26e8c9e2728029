/* Plans whose calls wait for no kernel that another one can stand in for. */
#include "engine/create.h"
#include "plan/plan.h"
#include "support/plans.h"
#include "support/problems.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define SAME       ",reproducible=1"
#define IN_PLAN    OPEN SAME
#define BACKGROUND {sizeof(attune_plan_options), .max_specialised = 8, .repeats = 3, .background = 1, .deadline_us = -1}

/* ---- Lengths that come back ---- */

static void lengths_get_a_kernel_later(void **state) {
    (void)state;
    const attune_plan_options options = BACKGROUND;
    attune_plan *plan = plan_of(IN_PLAN, &options);
    const sample call = sized(IN_PLAN, "seq_q=30,seq_kv=50");
    for (int i = 0; i < 3; i++) assert_runs_as(plan, &call, IN_PLAN);
    wait_for_background();
    assert_history(plan, "kernels 0 1 1, calls 0 3 0");
    assert_runs_as(plan, &call, HEADS ",seq_q=30,seq_kv=50" SAME);
    assert_history(plan, "kernels 0 1 1, calls 0 3 1");
    assert_int_equal(compiled_by_caller, 1); /* the first kernel of the plan */
    assert_int_equal(compiled_behind, 1);
    assert_int_equal(swapped, 2);
    attune_plan_destroy(plan);
}

/* The kernel for many takes one query too, with the same bits. */
static void few_queries_do_not_wait(void **state) {
    (void)state;
    const attune_plan_options options = BACKGROUND;
    attune_plan *plan = plan_of(IN_PLAN, &options);
    char sizes[64], kernel[128];
    snprintf(sizes, sizeof sizes, "seq_q=%d,seq_kv=50", few_rows_of(plan));
    snprintf(kernel, sizeof kernel, IN_PLAN ",max_seq_q=%d", few_rows_of(plan));
    const sample many = sized(IN_PLAN, "seq_q=30,seq_kv=50"), one = sized(IN_PLAN, "seq_q=1,seq_kv=50"),
                 few = sized(IN_PLAN, sizes);
    assert_runs_as(plan, &many, IN_PLAN);
    assert_runs_as(plan, &one, IN_PLAN);
    wait_for_background(); /* it may have ended already: only calls tell what did not wait */
    assert_history(plan, "kernels 1 1 0, calls 0 2 0");
    assert_runs_as(plan, &one, HEADS ",seq_q=1,seq_kv=dynamic" SAME);
    assert_history(plan, "kernels 1 1 0, calls 1 2 0");
    assert_runs_as(plan, &few, IN_PLAN);
    wait_for_background();
    assert_runs_as(plan, &few, kernel);
    assert_history(plan, "kernels 2 1 0, calls 2 3 0");
    assert_int_equal(compiled_by_caller, 1);
    assert_int_equal(compiled_behind, 2);
    attune_plan_destroy(plan);
}

/* Many different lengths, one after the other: at most eight kernels, and nothing else grows. */
static void no_call_waits_after_preparation(void **state) {
    (void)state;
    attune_plan_options options = BACKGROUND;
    options.repeats = 1;
    attune_plan *plan = plan_of(IN_PLAN, &options);
    assert_int_equal(attune_plan_prepare(plan), ATTUNE_OK);
    assert_history(plan, "kernels 2 1 0, calls 0 0 0");
    compiled_by_caller = 0;
    for (int i = 0; i < 40; i++) {
        char sizes[64];
        snprintf(sizes, sizeof sizes, "seq_q=%d,seq_kv=%d", 1 + i * 7 % 40, 40 + i);
        run_sized(plan, IN_PLAN, sizes);
    }
    wait_for_background();
    assert_int_equal(compiled_by_caller, 0);
    assert_true(info_of(plan).specialised_kernels <= 8);
    attune_plan_destroy(plan);
}

/* ---- What it is worth ---- */

static void lengths_that_gain_little_keep_their_kernel(void **state) {
    (void)state;
    static const struct {
        const char *sizes;
        uint32_t kernels;
    } calls[] = {{"seq_q=4,seq_kv=4", 1}, {"seq_q=512,seq_kv=512", 0}};
    for (int background = 0; background < 2; background++)
        for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
            const attune_plan_options options = {.struct_size = sizeof options,
                                                 .max_specialised = 8,
                                                 .repeats = 2,
                                                 .background = background,
                                                 .least_gain = 10,
                                                 .deadline_us = -1};
            const char *const text = "num_heads=1,head_dim=64,seq_q=dynamic,seq_kv=dynamic";
            attune_plan *plan = plan_of(text, &options);
            const sample from = sized(text, calls[i].sizes);
            sample_call call;
            sample_call_open(&call, &from, ON_THE_HEAP);
            for (int n = 0; n < 5; n++) {
                assert_int_equal(attune_plan_run(plan, &call.arguments, NULL), ATTUNE_OK);
                wait_for_background();
            }
            assert_int_equal(info_of(plan).specialised_kernels, calls[i].kernels);
            sample_call_close(&call);
            attune_plan_destroy(plan);
        }
}

/* ---- Priority ---- */

typedef struct scheduling {
    int policy, niceness;
} scheduling;

static void look_at_scheduling(void *user) {
    *(scheduling *)user = (scheduling){sched_getscheduler(0), getpriority(PRIO_PROCESS, 0)};
}

/* What a job sees, and the thread that compiles for it. */
typedef struct looks {
    attune_context *context;
    scheduling job, compiler;
} looks;

static attune_status look_while_compiling(void *user, const at_codegen_request *request,
                                          const attune_allocator *allocator, void **data, size_t *bytes,
                                          at_error *err) {
    (void)request, (void)allocator, (void)data, (void)bytes;
    look_at_scheduling(user);
    return at_fail(err, ATTUNE_CODEGEN_FAILED, "this compiler only looks");
}

static void look_at_both(void *user) {
    looks *const l = user;
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    attune_kernel *kernel;
    look_at_scheduling(&l->job);
    if (!attune_problem_parse(&problem, IN_PLAN)) (void)!attune_compile(l->context, &problem, NULL, &kernel);
}

static looks look(uint32_t niceness, attune_compile_mode mode) {
    looks l = {.job = {-1, -100}, .compiler = {-1, -100}};
    const attune_context_options options = {
        .struct_size = sizeof options, .cache_dir = "", .background_niceness = niceness, .compile_mode = mode};
    const at_context_hooks hooks = {.compile = look_while_compiling, .compile_user = &l.compiler};
    at_background_job job = {.run = look_at_both, .user = &l};
    assert_int_equal(at_context_create(&options, &hooks, &l.context), ATTUNE_OK);
    assert_true(at_background_submit(&l.context->background, &job));
    at_background_wait(&l.context->background);
    attune_context_destroy(l.context);
    return l;
}

static void assert_scheduling(scheduling seen, int niceness) {
    assert_int_equal(seen.policy, sched_getscheduler(0));
    assert_int_equal(seen.niceness, niceness);
}

/* Never the idle class: a thread of that may hold a lock for as long as others keep the processors busy. Workers would
 * inherit the niceness for life. */
static void its_priority_is_that_of_the_caller_or_of_the_options(void **state) {
    (void)state;
    enum { NICEST = 19 };
    const int niceness = getpriority(PRIO_PROCESS, 0);
    looks seen = look(0, ATTUNE_COMPILE_IN_PROCESS);
    assert_scheduling(seen.job, niceness);
    assert_scheduling(seen.compiler, niceness);
    seen = look(NICEST, ATTUNE_COMPILE_IN_PROCESS);
    assert_scheduling(seen.job, NICEST);
    assert_scheduling(seen.compiler, NICEST);
    seen = look(NICEST, ATTUNE_COMPILE_WORKER);
    assert_scheduling(seen.job, niceness);
    assert_int_equal(getpriority(PRIO_PROCESS, 0), niceness);
}

/* ---- Ends, and what is refused ---- */

static void a_plan_may_end_at_once(void **state) {
    (void)state;
    attune_plan_options options = BACKGROUND;
    options.repeats = 1;
    for (int i = 0; i < 4; i++) {
        attune_plan *plans[2];
        char sizes[64];
        snprintf(sizes, sizeof sizes, "seq_q=%d,seq_kv=60", 31 + i);
        for (int p = 0; p < 2; p++) {
            plans[p] = plan_of(IN_PLAN, &options);
            const sample from = sized(IN_PLAN, sizes);
            assert_runs_as(plans[p], &from, IN_PLAN);
        }
        attune_plan_destroy(plans[1]);
        attune_plan_destroy(plans[0]);
    }
}

/* A workspace that was allocated for the kernel for many is used with that one, if a better one needs more. */
static void a_small_workspace_keeps_the_old_kernel(void **state) {
    (void)state;
    const attune_plan_options options = BACKGROUND;
    attune_plan *plan = plan_of(IN_PLAN, &options);
    const sample many = sized(IN_PLAN, "seq_q=30,seq_kv=50"), one = sized(IN_PLAN, "seq_q=1,seq_kv=5000");
    static _Alignas(64) char memory[1 << 20];
    sample_call call;
    size_t before, after;
    assert_runs_as(plan, &many, IN_PLAN);
    sample_call_open(&call, &one, ON_THE_HEAP);
    assert_int_equal(attune_plan_workspace_size(plan, &call.arguments, NULL, &before), ATTUNE_OK);
    wait_for_background();
    assert_int_equal(attune_plan_workspace_size(plan, &call.arguments, NULL, &after), ATTUNE_OK);
    assert_int_equal(info_of(plan).few_kernels, 1);
    assert_true(before <= sizeof memory);
    call.arguments.workspace = memory;
    call.arguments.workspace_bytes = before;
    assert_int_equal(attune_plan_run(plan, &call.arguments, NULL), ATTUNE_OK);
    assert_history(plan, after > before ? "kernels 1 1 0, calls 0 2 0" : "kernels 1 1 0, calls 1 1 0");
    sample_call_close(&call);
    attune_plan_destroy(plan);
}

static void options_are_checked(void **state) {
    (void)state;
    attune_plan *plan;
    attune_plan_options options = BACKGROUND;
    const attune_problem problem = problem_parsed(OPEN);
    options.background = 2;
    assert_int_equal(attune_plan_create(sample_context, &problem, &options, &plan), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(), "background is 2; it must be 0 or 1");
    options.background = 1;
    options.least_gain = 1001;
    assert_int_equal(attune_plan_create(sample_context, &problem, &options, &plan), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(), "least_gain is 1001 percent; it must be from 0 to 1000");
    assert_int_equal(attune_plan_prepare(NULL), ATTUNE_INVALID_ARGUMENT);
    const attune_context_options too_nice = {.struct_size = sizeof too_nice, .background_niceness = 20};
    attune_context *context;
    assert_int_equal(attune_context_create(&too_nice, &context), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(), "background_niceness is 20; it may be at most 19");
}

/* ---- fork ---- */

static int swaps_here(attune_plan *plan) {
    const sample from = sized(IN_PLAN, "seq_q=30,seq_kv=30");
    sample_call call;
    sample_call_open(&call, &from, ON_THE_HEAP);
    for (int i = 0; i < 3; i++)
        if (attune_plan_run(plan, &call.arguments, NULL)) return 1;
    wait_for_background();
    if (attune_plan_run(plan, &call.arguments, NULL)) return 2;
    return info_of(plan).specialised_calls ? 0 : 3;
}

/* The thread and its job do not exist in the child, wherever they are. */
static void a_child_has_a_background_of_its_own(void **state) {
    (void)state;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    skip(); /* they do not survive a fork beside threads; see test_fork.c */
#endif
    enum { FORKS = 4, STEP_US = 5000, SECONDS = 120 };
    const attune_plan_options options = BACKGROUND;
    for (int i = 0; i < FORKS; i++) {
        attune_plan *plan = plan_of(IN_PLAN, &options);
        const sample from = sized(IN_PLAN, "seq_q=40,seq_kv=40");
        int status;
        attune_drop_memory_cache(sample_context);
        for (int n = 0; n < 3; n++) assert_runs_as(plan, &from, IN_PLAN);
        usleep((useconds_t)i * STEP_US);
        const pid_t child = fork();
        if (!child) {
            alarm(SECONDS);
            _exit(swaps_here(plan));
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        wait_for_background();
        assert_int_equal(info_of(plan).specialised_kernels, 1);
        attune_plan_destroy(plan);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        WATCHED(lengths_get_a_kernel_later),
        WATCHED(few_queries_do_not_wait),
        WATCHED(no_call_waits_after_preparation),
        WATCHED(lengths_that_gain_little_keep_their_kernel),
        WATCHED(its_priority_is_that_of_the_caller_or_of_the_options),
        WATCHED(a_plan_may_end_at_once),
        WATCHED(a_small_workspace_keeps_the_old_kernel),
        WATCHED(options_are_checked),
        WATCHED(a_child_has_a_background_of_its_own),
    };
    return cmocka_run_group_tests(tests, sample_context_open, sample_context_close);
}
