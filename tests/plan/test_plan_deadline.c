/* Plans whose calls wait for no compile: tier 0 computes until the kernel is there (docs/plans.md). */
#include "engine/create.h"
#include "plan/plan.h"
#include "support/engine/tier0.h"
#include "support/plans.h"
#include "support/problems.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define USUAL    "num_heads=2,head_dim=64"
#define ANY      USUAL ",seq_q=dynamic,seq_kv=dynamic"
#define SAME     ",reproducible=1"
#define OF_VM    ANY SAME ",score_mod=score+0.5*(q-kv)" /* tier 0 has no machine code for it */
#define DEADLINE {sizeof(attune_plan_options), .max_specialised = 8, .repeats = 3}

/* ---- The calls of a plan ---- */

static void run(attune_plan *plan, sample_call *call) {
    if (attune_plan_run(plan, &call->arguments, NULL)) fail_msg("%s", attune_last_message());
}

static void first_calls_are_answered_at_once(void **state) {
    (void)state;
    const attune_plan_options options = DEADLINE;
    attune_plan *plan = plan_of(ANY, &options);
    const sample from = sized(ANY, "seq_q=30,seq_kv=50");
    sample_call call;
    sample_call_open(&call, &from, ON_THE_HEAP);
    assert_int_equal(tier0_found, 3); /* one query, few, many: found when the plan was made */
    run(plan, &call);
    assert_int_equal(tier0_found, 3);
    wait_for_background();
    assert_int_equal(swapped, 1);
    assert_int_equal(info_of(plan).stopgap_calls, 1);
    run(plan, &call);
    assert_int_equal(info_of(plan).stopgap_calls, 1);
    assert_int_equal(info_of(plan).many_kernels, 1);
    assert_int_equal(compiled_by_caller, 0);
    assert_int_equal(compiled_behind, 1);
    sample_call_close(&call);
    attune_plan_destroy(plan);
}

/* Without a deadline nothing stands in. Where the virtual machine must not compute, only machine code does. */
static void a_plan_says_whether_it_needs_a_compiler(void **state) {
    (void)state;
    const attune_plan_options options = DEADLINE;
    attune_plan *plan = plan_of(ANY, &options);
    assert_int_equal(info_of(plan).is_ready, 1);
    attune_plan_destroy(plan);
    plan = plan_of(ANY, NULL);
    assert_int_equal(info_of(plan).is_ready, 0);
    assert_int_equal(attune_plan_prepare(plan), ATTUNE_OK);
    assert_int_equal(info_of(plan).is_ready, 1);
    attune_plan_destroy(plan);
    for (int least = 1; least <= 2; least++) {
        const attune_context_options with = {.struct_size = sizeof with,
                                             .cache_dir = "",
                                             .max_workers = 1,
                                             .compile_mode = ATTUNE_COMPILE_NEVER,
                                             .machine_code_only = least};
        const attune_problem of_vm = problem_parsed(OF_VM), any = problem_parsed(ANY);
        attune_context *context;
        assert_int_equal(attune_context_create(&with, &context), ATTUNE_OK);
        assert_int_equal(attune_plan_create(context, &of_vm, &options, &plan), ATTUNE_OK);
        assert_int_equal(info_of(plan).is_ready, least == 1);
        attune_plan_destroy(plan);
        assert_int_equal(attune_plan_create(context, &any, &options, &plan), ATTUNE_OK);
        assert_int_equal(info_of(plan).is_ready, 1);
        attune_plan_destroy(plan);
        attune_context_destroy(context);
    }
}

static void assert_has_bits(attune_plan *plan, const char *problem, const char *sizes) {
    const sample from = sized(problem, sizes);
    attune_context *const context = plan->context;
    sample_call call, expected;
    sample_call_open(&call, &from, ON_THE_HEAP);
    sample_call_open(&expected, &from, ON_THE_HEAP);
    if (attune_plan_run(plan, &call.arguments, NULL)) fail_msg("%s", attune_last_message());
    assert_int_equal(attune_run_interpreted(context, &expected.problem, NULL, &expected.arguments), ATTUNE_OK);
    if (!sample_calls_agree(&call, &expected)) fail_msg("%s has other bits", sizes);
    sample_call_close(&call);
    sample_call_close(&expected);
}

/* Its program takes as long as many calls, so there is one, and a plan makes it before the first call. That for many
 * queries serves all until a kernel comes or, where nothing can be compiled, a program for the kind. */
static void the_virtual_machine_is_prepared_before_the_first_call(void **state) {
    (void)state;
    static const char *const sizes[] = {"seq_q=30,seq_kv=50", "seq_q=5,seq_kv=50", "seq_q=1,seq_kv=50"};
    enum { NUM_SIZES = sizeof sizes / sizeof *sizes };
    const attune_context_options with = {.struct_size = sizeof with,
                                         .cache_dir = "",
                                         .max_workers = 1,
                                         .event = count_event,
                                         .compile_mode = ATTUNE_COMPILE_NEVER};
    attune_plan_options options = DEADLINE;
    attune_context *context;
    attune_plan *plan;
    options.max_specialised = 0;
    assert_int_equal(attune_context_create(&with, &context), ATTUNE_OK);
    const attune_problem problem = problem_parsed(OF_VM);
    assert_int_equal(attune_plan_create(context, &problem, &options, &plan), ATTUNE_OK);
    assert_int_equal(tier0_found, 1);
    assert_true(pl_begin(plan)); /* so that nothing happens behind these calls */
    for (int i = 0; i < NUM_SIZES; i++) assert_has_bits(plan, OF_VM, sizes[i]);
    pl_end(plan);
    assert_int_equal(tier0_found, 1);
    assert_int_equal(info_of(plan).stopgap_calls, NUM_SIZES);
    assert_int_equal(info_of(plan).many_calls, NUM_SIZES);
    for (int i = 0; i < NUM_SIZES; i++) {
        assert_has_bits(plan, OF_VM, sizes[i]);
        at_background_wait(&context->background);
    }
    const attune_plan_info before = info_of(plan);
    for (int i = 0; i < NUM_SIZES; i++) assert_has_bits(plan, OF_VM, sizes[i]);
    assert_int_equal(info_of(plan).stopgap_calls, 3 * NUM_SIZES);
    assert_int_equal(info_of(plan).many_calls, before.many_calls + 1);
    assert_int_equal(info_of(plan).few_calls, before.few_calls + NUM_SIZES - 1);
    attune_plan_destroy(plan);
    attune_context_destroy(context);
}

/* 200 calls of five shapes, with swaps among them, have the bits of the interpreter. */
static void no_bit_changes_across_swaps(void **state) {
    (void)state;
    static const char *const sizes[] = {"seq_q=30,seq_kv=50", "seq_q=1,seq_kv=50", "seq_q=5,seq_kv=9",
                                        "seq_q=30,seq_kv=30", "seq_q=64,seq_kv=64"};
    enum { NUM_SHAPES = sizeof sizes / sizeof *sizes, CALLS = 200 };
    attune_plan_options options = DEADLINE;
    options.least_gain = 1;
    attune_plan *plan = plan_of(ANY SAME, &options);
    sample_call expected[NUM_SHAPES];
    sample froms[NUM_SHAPES];
    for (int i = 0; i < NUM_SHAPES; i++) {
        froms[i] = sized(ANY SAME, sizes[i]);
        sample_call_open(&expected[i], &froms[i], ON_THE_HEAP);
        assert_int_equal(attune_run_interpreted(sample_context, &expected[i].problem, NULL, &expected[i].arguments),
                         ATTUNE_OK);
    }
    for (int n = 0; n < CALLS; n++) {
        const int i = n / 4 % NUM_SHAPES;
        sample_call call;
        sample_call_open(&call, &froms[i], ON_THE_HEAP);
        run(plan, &call);
        if (!sample_calls_agree(&call, &expected[i])) fail_msg("call %d with %s has other bits", n, sizes[i]);
        sample_call_close(&call);
        if (n % 7 == 6) wait_for_background();
    }
    const attune_plan_info info = info_of(plan);
    assert_true(info.stopgap_calls > 0);
    assert_true(info.few_calls + info.many_calls > info.stopgap_calls);
    assert_true(info.specialised_calls > 0);
    assert_true(swapped >= 4);
    assert_int_equal(compiled_by_caller, 0);
    for (int i = 0; i < NUM_SHAPES; i++) sample_call_close(&expected[i]);
    attune_plan_destroy(plan);
}

/* Random lengths: nothing waits, and no more than eight kernels for lengths come of it. */
static void no_call_waits(void **state) {
    (void)state;
    attune_plan_options options = DEADLINE;
    options.repeats = 1;
    attune_plan *plan = plan_of(ANY, &options);
    srand(1);
    for (int i = 0; i < 200; i++) {
        char text[64];
        snprintf(text, sizeof text, "seq_q=%d,seq_kv=%d", 1 + rand() % 40, 1 + rand() % 40);
        run_sized(plan, ANY, text);
    }
    wait_for_background();
    assert_int_equal(compiled_by_caller, 0);
    assert_true(info_of(plan).specialised_kernels <= 8);
    attune_plan_destroy(plan);
}

static void a_call_may_wait_a_while(void **state) {
    (void)state;
    attune_plan_options options = DEADLINE;
    options.deadline_us = 60000000;
    attune_plan *plan = plan_of(ANY, &options);
    const sample from = sized(ANY, "seq_q=30,seq_kv=50");
    sample_call call;
    sample_call_open(&call, &from, ON_THE_HEAP);
    run(plan, &call);
    assert_int_equal(info_of(plan).stopgap_calls, 0);
    assert_int_equal(compiled_by_caller, 0);
    assert_int_equal(compiled_behind, 1);
    sample_call_close(&call);
    attune_plan_destroy(plan);
}

/* The next job, too, if the one before made way for it. */
static void make_kernels(attune_plan *plan, sample_call *call) {
    for (int i = 0; i < 3; i++) {
        run(plan, call);
        wait_for_background();
    }
}

/* As if the kernels that have come since needed more memory than what ran before them. */
static void need_more(attune_plan *plan) {
    int came = 0;
    for (int kind = 0; kind < PL_NUM_KINDS; kind++) {
        attune_kernel *const kernel = plan->kernels[kind];
        if (!kernel) continue;
        kernel->max_scratch += 1 << 20;
        came++;
    }
    assert_true(came > 0);
}

/* The workspace was measured for what stood in: tier 0 or, for a ragged batch, the virtual machine. */
static void check_workspace(const sample *from) {
    attune_plan_options options = DEADLINE;
    options.max_specialised = 0;
    attune_plan *plan = plan_of(from->problem, &options);
    sample_call call;
    size_t bytes;
    sample_call_open(&call, from, ON_THE_HEAP);
    assert_int_equal(attune_plan_workspace_size(plan, &call.arguments, NULL, &bytes), ATTUNE_OK);
    call.arguments.workspace = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    call.arguments.workspace_bytes = bytes;
    make_kernels(plan, &call);
    need_more(plan);
    const uint64_t before = info_of(plan).stopgap_calls;
    run(plan, &call);
    assert_true(info_of(plan).stopgap_calls > before);
    free(call.arguments.workspace);
    sample_call_close(&call);
    attune_plan_destroy(plan);
}

static void a_workspace_stays_large_enough(void **state) {
    (void)state;
    const sample dense = sized(ANY, "seq_q=30,seq_kv=50");
    const sample ragged = {
        "batch=4,num_heads=2,head_dim=16,is_ragged=1", "total_q=52,total_kv=140", {1, 1, 20, 30}, {35, 35, 35, 35}};
    check_workspace(&dense);
    check_workspace(&ragged);
}

/* ---- The plan's one job ---- */

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate_opens = PTHREAD_COND_INITIALIZER;
static bool is_open, was_waited_for;

static void open_gate(void) {
    pthread_mutex_lock(&gate);
    is_open = true;
    pthread_cond_broadcast(&gate_opens);
    pthread_mutex_unlock(&gate);
}

/* Ends when the call has come back; or, since calls that wait for it would never, after a while. */
static void work_behind_the_gate(void *user) {
    enum { SECONDS = 30 };
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += SECONDS;
    pthread_mutex_lock(&gate);
    while (!is_open && !was_waited_for) was_waited_for = pthread_cond_timedwait(&gate_opens, &gate, &until) != 0;
    pthread_mutex_unlock(&gate);
    pl_end(user);
}

/* A call with a deadline waits for its own kernel, not for one that it does not need. */
static void a_call_waits_for_its_own_kernel_only(void **state) {
    (void)state;
    attune_plan_options options = DEADLINE;
    options.deadline_us = 60000000;
    attune_plan *plan = plan_of(ANY, &options);
    const sample from = sized(ANY, "seq_q=30,seq_kv=50");
    sample_call call;
    sample_call_open(&call, &from, ON_THE_HEAP);
    is_open = was_waited_for = false;
    assert_true(pl_begin(plan));
    plan->job_is_special = true;
    plan->job = (at_background_job){.run = work_behind_the_gate, .user = plan};
    assert_true(at_background_submit(&sample_context->background, &plan->job));
    run(plan, &call);
    open_gate();
    wait_for_background();
    assert_false(was_waited_for);
    assert_int_equal(info_of(plan).stopgap_calls, 1);
    run(plan, &call);
    assert_int_equal(info_of(plan).stopgap_calls, 1);
    sample_call_close(&call);
    attune_plan_destroy(plan);
}

/* ---- Compiles that fail ---- */

static attune_status bad_compiler(void *user, const at_codegen_request *request, const attune_allocator *allocator,
                                  void **data, size_t *bytes, at_error *err) {
    (void)user, (void)request, (void)allocator, (void)data, (void)bytes;
    return at_fail(err, ATTUNE_CODEGEN_FAILED, "this compiler always fails");
}

/* Tier 0 goes on, an event tells, and no call tries again. */
static void a_failure_is_told_once(void **state) {
    (void)state;
    const attune_context_options with = {
        .struct_size = sizeof with, .cache_dir = "", .max_workers = 1, .event = count_event};
    const at_context_hooks hooks = {.compile = bad_compiler};
    const attune_plan_options options = DEADLINE;
    attune_context *context;
    attune_plan *plan;
    assert_int_equal(at_context_create(&with, &hooks, &context), ATTUNE_OK);
    const attune_problem problem = problem_parsed(ANY);
    assert_int_equal(attune_plan_create(context, &problem, &options, &plan), ATTUNE_OK);
    const sample from = sized(ANY, "seq_q=30,seq_kv=50");
    sample_call call;
    sample_call_open(&call, &from, ON_THE_HEAP);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(attune_plan_run(plan, &call.arguments, NULL), ATTUNE_OK);
        at_background_wait(&context->background);
    }
    assert_true(compiles_failed >= 1 && compiles_failed <= 2); /* the kernel of all lengths, and one for these */
    assert_int_equal(compiled_behind, compiles_failed);
    assert_int_equal(compiled_by_caller, 0);
    assert_int_equal(info_of(plan).stopgap_calls, 10);
    sample_call_close(&call);
    attune_plan_destroy(plan);
    attune_context_destroy(context);
}

/* ---- Options ---- */

static void bad_deadlines_are_refused(void **state) {
    (void)state;
    attune_plan *plan;
    const attune_problem problem = problem_parsed(ANY);
    attune_plan_options options = DEADLINE;
    options.deadline_us = -2;
    assert_int_equal(attune_plan_create(sample_context, &problem, &options, &plan), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(), "deadline_us is -2; it must be from -1 (none) to 60000000");
    options.deadline_us = 60000001;
    assert_int_equal(attune_plan_create(sample_context, &problem, &options, &plan), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(), "deadline_us is 60000001; it must be from -1 (none) to 60000000");
}

static void the_environment_has_a_deadline(void **state) {
    (void)state;
    const attune_context_options with = {.struct_size = sizeof with, .cache_dir = ""};
    attune_context *context;
    setenv("ATTUNE_DEADLINE_US", "soon", 1);
    assert_int_equal(attune_context_create(&with, &context), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(),
                        "ATTUNE_DEADLINE_US is \"soon\"; it must be microseconds, from 0 to 60000000");
    setenv("ATTUNE_DEADLINE_US", "250", 1);
    assert_int_equal(attune_context_create(&with, &context), ATTUNE_OK);
    unsetenv("ATTUNE_DEADLINE_US");
    attune_plan *plan;
    const attune_problem problem = problem_parsed(ANY);
    assert_int_equal(attune_plan_create(context, &problem, NULL, &plan), ATTUNE_OK);
    assert_int_equal(plan->deadline_us, 250);
    attune_plan_destroy(plan);
    const attune_plan_options never = DEADLINE;
    assert_int_equal(attune_plan_create(context, &problem, &never, &plan), ATTUNE_OK);
    assert_int_equal(plan->deadline_us, 0);
    attune_plan_destroy(plan);
    attune_context_destroy(context);
}

static int open_all(void **state) { return tier0_setup(state) || sample_context_open(state); }

int main(void) {
    const struct CMUnitTest tests[] = {
        WATCHED(first_calls_are_answered_at_once),
        WATCHED(a_plan_says_whether_it_needs_a_compiler),
        WATCHED(the_virtual_machine_is_prepared_before_the_first_call),
        WATCHED(no_bit_changes_across_swaps),
        WATCHED(no_call_waits),
        WATCHED(a_call_may_wait_a_while),
        WATCHED(a_workspace_stays_large_enough),
        WATCHED(a_call_waits_for_its_own_kernel_only),
        WATCHED(a_failure_is_told_once),
        cmocka_unit_test(bad_deadlines_are_refused),
        cmocka_unit_test(the_environment_has_a_deadline),
    };
    return cmocka_run_group_tests(tests, open_all, sample_context_close);
}
