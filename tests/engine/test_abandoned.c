/* Compiles that their plan, their context or the process does not wait for. The compiler of most of these tests waits
 * at a gate, as LLVM or a worker that hangs would: what comes back while the gate is closed has not waited. */
#include "host/foreign.h"
#include "plan/plan.h"
#include "support/engine/contexts.h"
#include "support/engine/stand_in.h"
#include "support/plans.h"
#include "support/problems.h"

#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define ANY "num_heads=2,head_dim=16,seq_q=dynamic,seq_kv=dynamic"

/* Ends a test that waits for what never comes. */
enum { SECONDS = 100 };

/* ---- The gate ---- */

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int entered, left; /* compiles */
    bool is_open;
} gate = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void set_gate(bool is_open) {
    pthread_mutex_lock(&gate.mutex);
    gate.is_open = is_open;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.mutex);
}

static void wait_until(const int *count, int least) {
    pthread_mutex_lock(&gate.mutex);
    while (*count < least) pthread_cond_wait(&gate.changed, &gate.mutex);
    pthread_mutex_unlock(&gate.mutex);
}

static int count_of(const int *count) {
    pthread_mutex_lock(&gate.mutex);
    const int now = *count;
    pthread_mutex_unlock(&gate.mutex);
    return now;
}

/* The first compile waits, and gives a result that must not be leaked; all fail. */
static attune_status wait_at_gate(void *user, const at_codegen_request *request, const attune_allocator *allocator,
                                  void **data, size_t *bytes, at_error *err) {
    (void)user, (void)bytes;
    pthread_mutex_lock(&gate.mutex);
    const bool is_first = !gate.entered++;
    pthread_cond_broadcast(&gate.changed);
    while (is_first && !gate.is_open) pthread_cond_wait(&gate.changed, &gate.mutex);
    pthread_mutex_unlock(&gate.mutex);
    *data = at_alloc(allocator, strlen(request->ir) + strlen(request->target)); /* they must still be there */
    pthread_mutex_lock(&gate.mutex);
    gate.left++;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.mutex);
    if (is_first) return ATTUNE_OK;
    at_free(allocator, *data);
    *data = NULL;
    return at_fail(err, ATTUNE_CODEGEN_FAILED, "this compiler fails");
}

/* ---- A context, its memory and its events ---- */

static atomic_int blocks, begun, abandoned, failed;

static void *counting_alloc(void *user, size_t bytes, size_t align) {
    void *const block = at_default_allocator()->alloc(user, bytes, align);
    if (block) blocks++;
    return block;
}

static void counting_free(void *user, void *block) {
    if (block) blocks--;
    at_default_allocator()->free(user, block);
}

static void count_compile(void *user, const attune_event *event) {
    (void)user;
    if (event->kind == ATTUNE_EVENT_COMPILE_BEGIN) begun++;
    if (event->kind != ATTUNE_EVENT_COMPILE_END) return;
    if (event->status == ATTUNE_CANCELLED) abandoned++;
    if (event->status == ATTUNE_CODEGEN_FAILED) failed++;
}

static attune_context *open_context(at_compile_fn *compile, attune_compile_mode mode) {
    static const attune_allocator counting = {counting_alloc, counting_free, NULL};
    const at_context_hooks hooks = {.compile = compile};
    const attune_context_options options = {.struct_size = sizeof options,
                                            .allocator = &counting,
                                            .cache_dir = "",
                                            .max_workers = 1,
                                            .event = count_compile,
                                            .compile_mode = mode,
                                            .compile_processes = 1,
                                            .compile_timeout_ms = SECONDS * 1000};
    return test_context(&options, &hooks);
}

static attune_plan *open_plan(attune_context *context, const char *text) {
    attune_plan_options options = ATTUNE_PLAN_OPTIONS_INIT;
    attune_plan *plan;
    options.deadline_us = 0;
    options.max_specialised = 0;
    const attune_problem problem = problem_parsed(text);
    if (attune_plan_create(context, &problem, &options, &plan)) fail_msg("%s", attune_last_message());
    return plan;
}

static void call(attune_plan *plan, const char *text) {
    const sample from = sized(text, "seq_q=30,seq_kv=50");
    sample_call one;
    sample_call_open(&one, &from, ON_THE_HEAP);
    if (attune_plan_run(plan, &one.arguments, NULL)) fail_msg("%s", attune_last_message());
    sample_call_close(&one);
}

/* A plan whose kernel is being compiled, behind the gate. */
static attune_plan *open_busy_plan(attune_context *context) {
    attune_plan *const plan = open_plan(context, ANY);
    call(plan, ANY);
    wait_until(&gate.entered, 1);
    return plan;
}

static int start(void **state) {
    (void)state;
    gate.entered = gate.left = 0;
    gate.is_open = false;
    blocks = begun = abandoned = failed = 0;
    alarm(SECONDS);
    return 0;
}

/* The thread that was left alone ends before the next test begins. */
static int finish(void **state) {
    (void)state;
    set_gate(true);
    wait_until(&gate.left, count_of(&gate.entered));
    alarm(0);
    return 0;
}

/* ---- In this process ---- */

static void a_plan_ends_without_its_compile(void **state) {
    (void)state;
    attune_context *const context = open_context(wait_at_gate, ATTUNE_COMPILE_DEFAULT);
    attune_plan_destroy(open_busy_plan(context));
    assert_int_equal(count_of(&gate.left), 0);
    assert_int_equal(abandoned, 1);
    const attune_statistics counts = statistics_of(context);
    assert_int_equal(counts.compile_failures, 0);
    attune_plan *const next = open_plan(context, ANY ",is_causal=1");
    call(next, ANY ",is_causal=1");
    at_background_wait(&context->background);
    assert_int_equal(count_of(&gate.left), 1); /* the second compile, while the first one still waits */
    assert_int_equal(failed, 1);
    attune_plan_destroy(next);
    attune_context_destroy(context);
}

/* Nothing is left in the host's memory, and the thread that goes on does not use it either. */
static void so_does_a_context(void **state) {
    (void)state;
    attune_context *const context = open_context(wait_at_gate, ATTUNE_COMPILE_DEFAULT);
    attune_plan_destroy(open_busy_plan(context));
    attune_context_destroy(context);
    assert_int_equal(count_of(&gate.left), 0);
    assert_int_equal(blocks, 0);
    set_gate(true);
    wait_until(&gate.left, 1);
    assert_int_equal(blocks, 0);
}

/* Who waits for the kernel of an abandoned job makes it. */
static void *compile_too(void *context) {
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    attune_kernel *kernel;
    if (attune_problem_parse(&problem, ANY)) return NULL;
    return attune_compile(context, &problem, NULL, &kernel) == ATTUNE_CODEGEN_FAILED ? context : NULL;
}

static void others_make_the_kernel_themselves(void **state) {
    (void)state;
    attune_context *const context = open_context(wait_at_gate, ATTUNE_COMPILE_DEFAULT);
    attune_plan *const plan = open_busy_plan(context);
    pthread_t other;
    void *result;
    assert_int_equal(pthread_create(&other, NULL, compile_too, context), 0);
    attune_plan_destroy(plan);
    assert_int_equal(pthread_join(other, &result), 0);
    assert_ptr_equal(result, context);
    assert_int_equal(count_of(&gate.entered), 2);
    attune_context_destroy(context);
}

static void *compile_first(void *context) {
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    attune_kernel *kernel = NULL;
    if (!attune_problem_parse(&problem, ANY)) (void)!attune_compile(context, &problem, NULL, &kernel);
    attune_kernel_release(kernel);
    return NULL;
}

static bool is_running(attune_context *context) {
    pthread_mutex_lock(&context->background.mutex);
    const bool is = context->background.running != NULL;
    pthread_mutex_unlock(&context->background.mutex);
    return is;
}

/* The job waits for the kernel that a call of another thread makes. */
static void a_job_that_waits_for_another_thread_is_abandoned(void **state) {
    (void)state;
    attune_context *const context = open_context(wait_at_gate, ATTUNE_COMPILE_DEFAULT);
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, compile_first, context), 0);
    wait_until(&gate.entered, 1);
    attune_plan *const plan = open_plan(context, ANY);
    call(plan, ANY);
    while (!is_running(context)) usleep(1000);
    attune_plan_destroy(plan);
    assert_int_equal(count_of(&gate.left), 0);
    set_gate(true);
    assert_int_equal(pthread_join(other, NULL), 0);
    attune_context_destroy(context);
}

/* LLVM itself: it goes on while the next context compiles with it, and when the process ends. */
static void llvm_goes_on_alone(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        attune_context *const context = open_context(NULL, ATTUNE_COMPILE_IN_PROCESS);
        attune_plan *const plan = open_plan(context, ANY);
        call(plan, ANY);
        usleep((useconds_t)i * 5000); /* anywhere in the compile */
        attune_plan_destroy(plan);
        attune_context_destroy(context);
        assert_int_equal(blocks, 0);
    }
}

static int count_compiling_threads(void) {
    DIR *const tasks = opendir("/proc/self/task");
    int count = 0;
    assert_non_null(tasks);
    for (const struct dirent *task; (task = readdir(tasks));) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
        FILE *const file = fopen(path, "r");
        if (!file) continue;
        if (fgets(name, sizeof name, file)) count += !strcmp(name, "attune-compile\n");
        fclose(file);
    }
    closedir(tasks);
    return count;
}

/* Each plan ends while its kernel is compiled, but the next one goes on with that compile. The thread of a compile that
 * is done may still be there when the next one starts. */
static void plans_that_live_shorter_than_a_compile_get_their_kernel(void **state) {
    (void)state;
    attune_context *const context = open_context(NULL, ATTUNE_COMPILE_IN_PROCESS);
    attune_statistics counts = {.struct_size = sizeof counts};
    while (!counts.compiles) {
        attune_plan *const plan = open_plan(context, ANY);
        call(plan, ANY);
        for (int i = 0; i < 1000 && !count_compiling_threads(); i++) usleep(1000);
        attune_plan_destroy(plan);
        assert_in_range(count_compiling_threads(), 0, 2);
        assert_int_equal(attune_get_statistics(context, &counts), ATTUNE_OK);
    }
    attune_context_destroy(context);
    assert_int_equal(blocks, 0);
}

/* ---- exit ---- */

static attune_status wait_in_foreign_code(void *user, const at_codegen_request *request,
                                          const attune_allocator *allocator, void **data, size_t *bytes,
                                          at_error *err) {
    if (at_foreign_enter(AT_FOREIGN_COMPILER, err)) return err->status;
    at_foreign_watch_exit(AT_LLVM_IS_LOADED, false);
    return wait_at_gate(user, request, allocator, data, bytes, err);
}

static void the_process_ends_without_it(void **state) {
    (void)state;
    int status;
    fflush(NULL);
    const pid_t child = fork();
    if (!child) {
        alarm(SECONDS);
        open_busy_plan(open_context(wait_in_foreign_code, ATTUNE_COMPILE_DEFAULT));
        exit(count_of(&gate.left));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* ---- Workers ---- */

static pid_t pid_of_worker(void) {
    char path[STAND_IN_CHARS];
    int pid = 0;
    snprintf(path, sizeof path, "%s/pid", stand_in_directory);
    while (!pid) {
        FILE *const file = fopen(path, "r");
        if (file && fscanf(file, "%d\n", &pid) != 1) pid = 0;
        if (file) fclose(file);
        usleep(1000);
    }
    unlink(path);
    return pid;
}

/* A worker that hangs: it says who it is first. */
static void hang(void) {
    stand_in("", READ_HEAD "cd \"${0%/*}\" && echo $$ >pid.new && mv pid.new pid && exec sleep 1000");
    setenv("ATTUNE_CODEGEN_WORKER", stand_in_path, 1);
}

static void a_worker_is_killed(void **state) {
    (void)state;
    hang();
    attune_context *const context = open_context(NULL, ATTUNE_COMPILE_WORKER);
    attune_plan *const plan = open_plan(context, ANY);
    call(plan, ANY);
    const pid_t worker = pid_of_worker();
    assert_int_equal(kill(worker, 0), 0);
    attune_plan_destroy(plan);
    assert_int_equal(kill(worker, 0), -1);
    assert_int_equal(abandoned, 1);
    attune_context_destroy(context);
    assert_int_equal(blocks, 0);
}

/* Neither does a job wait for a place that a call of another thread has taken. */
static void a_job_without_a_place_is_abandoned(void **state) {
    (void)state;
    hang();
    attune_context *const context = open_context(NULL, ATTUNE_COMPILE_WORKER);
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, compile_first, context), 0);
    const pid_t worker = pid_of_worker();
    attune_plan *const plan = open_plan(context, ANY ",is_causal=1");
    call(plan, ANY ",is_causal=1");
    while (begun < 2) usleep(1000);
    attune_plan_destroy(plan);
    assert_int_equal(kill(worker, 0), 0);
    stand_in("", "exit");
    kill(worker, SIGKILL);
    assert_int_equal(pthread_join(other, NULL), 0);
    attune_context_destroy(context);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, start, finish)
    const struct CMUnitTest tests[] = {
        TEST(the_process_ends_without_it), /* first: after it, this process has no other thread to fork beside */
        TEST(a_plan_ends_without_its_compile),
        TEST(so_does_a_context),
        TEST(others_make_the_kernel_themselves),
        TEST(a_job_that_waits_for_another_thread_is_abandoned),
        TEST(a_worker_is_killed),
        TEST(a_job_without_a_place_is_abandoned),
        TEST(plans_that_live_shorter_than_a_compile_get_their_kernel),
        TEST(llvm_goes_on_alone), /* last: the process ends beside it */
    };
    return cmocka_run_group_tests(tests, stand_in_setup, stand_in_teardown);
}
