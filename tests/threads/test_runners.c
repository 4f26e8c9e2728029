/* The ways a call gets onto threads: the pool, a runner with parallel_for or submit, of the context or of the call, and
 * in parts. All give the same bits, and a runner's errors are reported. */
#define _GNU_SOURCE
#include <attune.h>

#include "support/problems.h"
#include "support/engine/contexts.h"
#include "support/statuses.h"
#include "support/temp_dir.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char cache_dir[TEMP_DIR_CHARS];

/* ---- A call with several phases: split keys are merged, and there are enough tasks for all ---- */

#define DECODE  "batch=3,num_heads=8,num_kv_heads=2,seq_q=1,seq_kv=700,head_dim=64,has_lse=1"
#define PREFILL "batch=2,num_heads=3,seq_q=150,head_dim=32,is_causal=1,has_lse=1"

typedef struct call {
    attune_problem problem;
    attune_arguments arguments;
    attune_context *context;
    attune_kernel *kernel;
    float *memory, *out, *expected;
    size_t outputs; /* floats of out and lse */
} call;

static attune_context *open_context(const attune_runner *runner, uint32_t workers) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.cache_dir = cache_dir;
    options.runner = runner;
    options.max_workers = workers;
    return test_context(&options, NULL);
}

static void fill(float *at, size_t count) {
    unsigned seed = 1;
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1103515245u + 12345u;
        at[i] = (float)(seed >> 16 & 0x7fff) / 16384.0f - 1.0f;
    }
}

/* Splits the keys of DECODE on every CPU. */
static const mha_schedule split = {.strategy = MHA_D_LANES,
                                   .lanes = 4,
                                   .score_rows = 2,
                                   .score_keys = 4,
                                   .score_column_vectors = 1,
                                   .value_rows = 2,
                                   .value_column_vectors = 1,
                                   .value_keys = 4,
                                   .kv_tile = 16,
                                   .kv_chunk = 64};

static const mha_schedule *schedule_of(const char *text) { return strcmp(text, DECODE) ? NULL : &split; }

static call open_unchecked(const char *text, const attune_runner *runner) {
    call c = {.problem = problem_parsed(text), .context = open_context(runner, 4)};
    assert_ok(attune_compile(c.context, &c.problem, TEXT_OF(schedule_of(text)), &c.kernel));
    assert_ok(attune_arguments_init(&c.arguments, &c.problem));
    const attune_problem *p = &c.problem;
    const size_t rows = (size_t)(p->batch * p->num_heads * p->seq_q), dim = (size_t)p->head_dim;
    const size_t kv_heads = (size_t)(p->num_kv_heads ? p->num_kv_heads : p->num_heads);
    const size_t keys = (size_t)p->batch * kv_heads * (size_t)(p->seq_kv ? p->seq_kv : p->seq_q);
    const size_t inputs = rows * dim + 2 * keys * dim;
    c.outputs = rows * dim + rows;
    c.memory = malloc((inputs + 2 * c.outputs) * sizeof(float));
    assert_non_null(c.memory);
    fill(c.memory, inputs);
    c.out = c.memory + inputs;
    c.expected = c.out + c.outputs;
    c.arguments.q.data = c.memory;
    c.arguments.k.data = c.memory + rows * dim;
    c.arguments.v.data = c.memory + rows * dim + keys * dim;
    c.arguments.out.data = c.out;
    c.arguments.lse.data = c.out + rows * dim;
    return c;
}

/* The same with the expected result, by the interpreter. */
static call open_call(const char *text, const attune_runner *runner) {
    call c = open_unchecked(text, runner);
    assert_ok(attune_run_interpreted(c.context, &c.problem, TEXT_OF(schedule_of(text)), &c.arguments));
    memcpy(c.expected, c.out, c.outputs * sizeof(float));
    return c;
}

static void close_call(call *c) {
    free(c->memory);
    attune_kernel_release(c->kernel);
    attune_context_destroy(c->context);
}

static void forget_result(call *c) {
    for (size_t i = 0; i < c->outputs; i++) c->out[i] = NAN;
}

static void assert_right(call *c) {
    assert_memory_equal(c->out, c->expected, c->outputs * sizeof(float));
    forget_result(c);
}

/* ---- Runners ---- */

/* Hands out single tasks backwards, as worker 2, 1, 0, 2, …. */
static void backwards(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    ++*(int *)user;
    for (int64_t i = n - 1; i >= 0; i--) fn(argument, i, i + 1, (uint32_t)(i % 3));
}

/* A pool that runs each task in a thread of its own, or at once, or after the call. */
typedef struct submit_pool {
    atomic_int asked;
    pthread_t threads[64];
    attune_task_fn *tasks[64];
    void *arguments[64];
    int started, kept;
} submit_pool;

typedef struct thread_task {
    attune_task_fn *task;
    void *argument;
} thread_task;

static void *run_task(void *argument) {
    thread_task t = *(thread_task *)argument;
    free(argument);
    t.task(t.argument);
    return NULL;
}

static int in_threads(void *user, attune_task_fn *task, void *argument) {
    submit_pool *pool = user;
    thread_task *t = malloc(sizeof *t);
    if (pool->started == 64 || !t) {
        free(t);
        return 1;
    }
    *t = (thread_task){task, argument};
    if (pthread_create(&pool->threads[pool->started], NULL, run_task, t)) {
        free(t);
        return 1;
    }
    pool->started++;
    atomic_fetch_add(&pool->asked, 1);
    return 0;
}

static int at_once(void *user, attune_task_fn *task, void *argument) {
    atomic_fetch_add(&((submit_pool *)user)->asked, 1);
    task(argument);
    return 0;
}

static int afterwards(void *user, attune_task_fn *task, void *argument) {
    submit_pool *pool = user;
    if (pool->kept == 64) return 1;
    atomic_fetch_add(&pool->asked, 1);
    pool->tasks[pool->kept] = task;
    pool->arguments[pool->kept++] = argument;
    return 0;
}

static int never(void *user, attune_task_fn *task, void *argument) {
    (void)task, (void)argument;
    atomic_fetch_add(&((submit_pool *)user)->asked, 1);
    return 1;
}

static void run_all(submit_pool *pool) {
    for (int i = 0; i < pool->started; i++) pthread_join(pool->threads[i], NULL);
    for (int i = 0; i < pool->kept; i++) pool->tasks[i](pool->arguments[i]);
    *pool = (submit_pool){0};
}

static attune_runner with_submit(int (*submit)(void *, attune_task_fn *, void *), submit_pool *pool, uint32_t workers) {
    return (attune_runner){
        .struct_size = sizeof(attune_runner), .submit = submit, .user = pool, .max_workers = workers};
}

static void runs_with(call *c, const attune_runner *runner) {
    attune_run_options options = ATTUNE_RUN_OPTIONS_INIT;
    options.runner = runner;
    assert_ok(attune_run_with(c->context, c->kernel, &c->arguments, &options));
    assert_right(c);
}

static void same_bits(const char *text) {
    call c = open_call(text, NULL);
    int calls = 0;
    submit_pool pool = {0};
    const attune_runner loop = {
        .struct_size = sizeof loop, .parallel_for = backwards, .user = &calls, .max_workers = 3};
    forget_result(&c);
    for (int i = 0; i < 20; i++) {
        assert_ok(attune_run(c.context, c.kernel, &c.arguments));
        assert_right(&c);
    }
    runs_with(&c, &loop);
    assert_true(calls > 0);
    const attune_runner threads = with_submit(in_threads, &pool, 5), now = with_submit(at_once, &pool, 5);
    const attune_runner later = with_submit(afterwards, &pool, 5), refusing = with_submit(never, &pool, 5);
    runs_with(&c, &threads);
    assert_true(pool.asked > 0);
    run_all(&pool);
    runs_with(&c, &now);
    assert_true(pool.asked > 0);
    runs_with(&c, &refusing);
    runs_with(&c, &later);
    assert_true(pool.kept > 0);
    forget_result(&c);
    run_all(&pool); /* finds nothing to do */
    assert_true(isnan(c.out[0]) && isnan(c.out[c.outputs - 1]));
    close_call(&c);
}

static void every_runner_gives_the_same_bits(void **state) {
    (void)state;
    same_bits(DECODE);
    same_bits(PREFILL);
}

static void a_late_task_outlives_the_context(void **state) {
    (void)state;
    submit_pool pool = {0};
    const attune_runner later = with_submit(afterwards, &pool, 8);
    call c = open_call(PREFILL, &later);
    forget_result(&c);
    assert_ok(attune_run(c.context, c.kernel, &c.arguments));
    assert_right(&c);
    close_call(&c);
    assert_true(pool.kept > 0);
    run_all(&pool);
}

/* ---- Bad runners ---- */

static void lazy(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    (void)user;
    fn(argument, 0, n - 1, 0);
}

static void twice(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    (void)user;
    fn(argument, 0, n, 0);
    fn(argument, n - 1, n, 1);
}

static void idle(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    (void)user, (void)fn, (void)argument, (void)n;
}

static void too_many(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    (void)user;
    fn(argument, 0, n, 3);
}

static void beyond(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    (void)user;
    fn(argument, 1, n + 1, 0);
}

static void below(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    (void)user;
    fn(argument, -1, n - 1, 0);
}

static void inverted(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    (void)user;
    fn(argument, n, 0, 0);
}

static void bad_runners_are_told(void **state) {
    (void)state;
    call c = open_call(PREFILL, NULL);
    static const struct {
        void (*parallel_for)(void *, attune_range_fn *, void *, int64_t);
        const char *says;
    } bad[] = {{lazy, "the runner ran"},
               {twice, "the runner ran"},
               {idle, "the runner ran 0 of"},
               {too_many, "the runner passed worker 3; max_workers is 3"},
               {beyond, "the runner passed a range that is not within"},
               {below, "the runner passed a range that is not within"},
               {inverted, "the runner passed a range that is not within"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const attune_runner runner = {
            .struct_size = sizeof runner, .parallel_for = bad[i].parallel_for, .max_workers = 3};
        attune_run_options options = ATTUNE_RUN_OPTIONS_INIT;
        options.runner = &runner;
        assert_fails(attune_run_with(c.context, c.kernel, &c.arguments, &options), ATTUNE_INVALID_ARGUMENT,
                     bad[i].says);
    }
    close_call(&c);
}

static void nonsense_is_refused(void **state) {
    (void)state;
    call c = open_call(PREFILL, NULL);
    int calls = 0;
    submit_pool pool = {0};
    const attune_runner good = {
        .struct_size = sizeof good, .parallel_for = backwards, .user = &calls, .max_workers = 3};
    attune_runner runner = good;
    attune_run_options options = ATTUNE_RUN_OPTIONS_INIT;
    options.runner = &runner;
#define REFUSED(part)                                                                                                  \
    assert_fails(attune_run_with(c.context, c.kernel, &c.arguments, &options), ATTUNE_INVALID_ARGUMENT, part)
    runner.parallel_for = NULL;
    REFUSED("neither parallel_for nor submit");
    runner = good;
    runner.submit = at_once;
    REFUSED("both parallel_for and submit");
    runner = good;
    runner.max_workers = 0;
    REFUSED("the runner's max_workers is 0; it must be from 1 to 65536");
    runner.max_workers = 65537;
    REFUSED("the runner's max_workers is 65537");
    runner = good;
    runner.struct_size = 3;
    REFUSED("attune_runner.struct_size is 3");
    runner = good;
    options.max_threads = 2;
    REFUSED("max_threads is 2");
    options.struct_size = 0;
    REFUSED("attune_run_options.struct_size is 0");
#undef REFUSED
    assert_int_equal(calls, 0);
    runner = with_submit(at_once, &pool, 0);
    attune_context_options wrong = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *context;
    wrong.runner = &runner;
    assert_fails(attune_context_create(&wrong, &context), ATTUNE_INVALID_ARGUMENT, "the runner's max_workers is 0");
    assert_null(context);
    close_call(&c);
}

/* ---- How many threads ---- */

/* As many tasks are submitted as there may be helpers. */
static void no_more_threads_than_wanted(void **state) {
    (void)state;
    call c = open_call(PREFILL, NULL);
    submit_pool pool = {0};
    const attune_runner late = with_submit(afterwards, &pool, 16);
    attune_run_options options = ATTUNE_RUN_OPTIONS_INIT;
    options.runner = &late;
    options.max_threads = 3;
    forget_result(&c);
    assert_ok(attune_run_with(c.context, c.kernel, &c.arguments, &options));
    assert_right(&c);
    assert_int_equal(pool.asked, 2 * 1); /* the caller and two more, in the one phase that there is */
    run_all(&pool);
    options.max_threads = 1;
    assert_ok(attune_run_with(c.context, c.kernel, &c.arguments, &options));
    assert_right(&c);
    assert_int_equal(pool.asked, 0);
    close_call(&c);
}

static void fewer_threads_need_less_workspace(void **state) {
    (void)state;
    call c = open_call(PREFILL, NULL);
    attune_run_options options = ATTUNE_RUN_OPTIONS_INIT;
    size_t all, one, wide;
    assert_ok(attune_workspace_size(c.context, c.kernel, &c.arguments, &all));
    options.max_threads = 1;
    assert_ok(attune_workspace_size_with(c.context, c.kernel, &c.arguments, &options, &one));
    assert_int_equal(all, 4 * one);
    submit_pool pool = {0};
    const attune_runner runner = with_submit(at_once, &pool, 16);
    options = (attune_run_options){.struct_size = sizeof options, .runner = &runner};
    assert_ok(attune_workspace_size_with(c.context, c.kernel, &c.arguments, &options, &wide));
    assert_int_equal(wide, 16 * one);
    options.max_threads = 2;
    assert_ok(attune_workspace_size_with(c.context, c.kernel, &c.arguments, &options, &wide));
    assert_int_equal(wide, 2 * one);

    void *workspace = aligned_alloc(64, one);
    c.arguments.workspace = workspace;
    c.arguments.workspace_bytes = one;
    assert_fails(attune_run(c.context, c.kernel, &c.arguments), ATTUNE_WORKSPACE_TOO_SMALL, "this call needs");
    options = (attune_run_options){.struct_size = sizeof options, .max_threads = 1};
    forget_result(&c);
    assert_ok(attune_run_with(c.context, c.kernel, &c.arguments, &options));
    assert_right(&c);
    options.max_threads = 1000; /* as many as there are */
    c.arguments.workspace = NULL;
    assert_ok(attune_run_with(c.context, c.kernel, &c.arguments, &options));
    assert_right(&c);
    free(workspace);
    close_call(&c);
}

/* ---- Cancelling ---- */

/* Cancels in the middle of the first phase. */
typedef struct canceller {
    int flag;
    int64_t ranges;
} canceller;

static void cancel_after_three(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    canceller *c = user;
    for (int64_t i = 0; i < n; i++, c->ranges++) {
        if (i == 3) __atomic_store_n(&c->flag, 1, __ATOMIC_RELAXED);
        fn(argument, i, i + 1, 0);
    }
}

static void a_flag_ends_the_call(void **state) {
    (void)state;
    call c = open_call(PREFILL, NULL);
    canceller user = {0};
    const attune_runner runner = {
        .struct_size = sizeof runner, .parallel_for = cancel_after_three, .user = &user, .max_workers = 2};
    attune_run_options options = ATTUNE_RUN_OPTIONS_INIT;
    options.runner = &runner;
    options.cancel = &user.flag;
    assert_fails(attune_run_with(c.context, c.kernel, &c.arguments, &options), ATTUNE_CANCELLED, "after 3 of the");
    assert_true(user.ranges > 4);
    assert_string_equal(attune_status_name(ATTUNE_CANCELLED), "cancelled");

    const int set = 1, unset = 0; /* by the pool */
    options.runner = NULL;
    options.cancel = &set;
    forget_result(&c);
    assert_fails(attune_run_with(c.context, c.kernel, &c.arguments, &options), ATTUNE_CANCELLED, "after 0 of the");
    assert_true(isnan(c.out[0]));
    options.cancel = &unset;
    assert_ok(attune_run_with(c.context, c.kernel, &c.arguments, &options));
    assert_right(&c);
    close_call(&c);
}

/* The flag is set from outside while two threads work: the call ends long before it would have. */
static void *set_soon(void *flag) {
    usleep(3000);
    __atomic_store_n((int *)flag, 1, __ATOMIC_RELAXED);
    return NULL;
}

static void another_thread_cancels(void **state) {
    (void)state;
    call c = open_unchecked("batch=40,num_heads=8,seq_q=300,head_dim=64,has_lse=1", NULL);
    attune_run_options options = ATTUNE_RUN_OPTIONS_INIT;
    attune_status status = ATTUNE_OK;
    options.max_threads = 2;                  /* on many CPUs the call would be over before */
    for (int i = 0; i < 20 && !status; i++) { /* under a sanitizer the thread may come late */
        int flag = 0;
        pthread_t thread;
        options.cancel = &flag;
        assert_int_equal(pthread_create(&thread, NULL, set_soon, &flag), 0);
        status = attune_run_with(c.context, c.kernel, &c.arguments, &options);
        pthread_join(thread, NULL);
    }
    assert_fails(status, ATTUNE_CANCELLED, "the call was cancelled");
    close_call(&c);
}

/* ---- In parts ---- */

enum { TEAM = 3 };

typedef struct program {
    attune_call *parts;
    pthread_barrier_t barrier;
    atomic_int failures;
} program;

typedef struct member {
    program *program;
    uint32_t number;
} member;

/* All threads execute the same program: each its share of each phase. */
static void *take_part(void *argument) {
    const member *m = argument;
    program *p = m->program;
    for (uint32_t phase = 0; phase < attune_call_num_phases(p->parts); phase++) {
        const int64_t tasks = attune_call_num_tasks(p->parts, phase), n = m->number;
        if (attune_call_execute(p->parts, phase, tasks * n / TEAM, tasks * (n + 1) / TEAM, m->number)) p->failures++;
        pthread_barrier_wait(&p->barrier);
    }
    return NULL;
}

static void run_in_parts(call *c) {
    program p = {0};
    member members[TEAM];
    pthread_t threads[TEAM];
    forget_result(c);
    attune_arguments arguments = c->arguments;
    assert_ok(attune_call_begin(c->context, c->kernel, &arguments, TEAM, &p.parts));
    memset(&arguments, 0xff, sizeof arguments); /* needed no more */
    pthread_barrier_init(&p.barrier, NULL, TEAM);
    for (uint32_t i = 0; i < TEAM; i++) {
        members[i] = (member){&p, i};
        assert_int_equal(pthread_create(&threads[i], NULL, take_part, &members[i]), 0);
    }
    for (int i = 0; i < TEAM; i++) pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&p.barrier);
    assert_int_equal(p.failures, 0);
    assert_ok(attune_call_end(p.parts));
    assert_right(c);
}

static void threads_that_run_already(void **state) {
    (void)state;
    static const char *const texts[] = {DECODE, PREFILL};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        call c = open_call(texts[i], NULL);
        run_in_parts(&c);
        size_t bytes;
        submit_pool pool = {0};
        const attune_runner as_many = with_submit(at_once, &pool, TEAM);
        const attune_run_options options = {.struct_size = sizeof options, .runner = &as_many};
        assert_ok(attune_workspace_size_with(c.context, c.kernel, &c.arguments, &options, &bytes));
        void *workspace = aligned_alloc(64, bytes);
        c.arguments.workspace = workspace;
        c.arguments.workspace_bytes = bytes;
        run_in_parts(&c);
        c.arguments.workspace_bytes--;
        attune_call *parts;
        assert_fails(attune_call_begin(c.context, c.kernel, &c.arguments, TEAM, &parts), ATTUNE_WORKSPACE_TOO_SMALL,
                     "this call needs");
        assert_null(parts);
        free(workspace);
        close_call(&c);
    }
}

static void parts_out_of_order_are_refused(void **state) {
    (void)state;
    call c = open_call(DECODE, NULL);
    attune_call *parts;
    assert_fails(attune_call_begin(c.context, c.kernel, &c.arguments, 0, &parts), ATTUNE_INVALID_ARGUMENT,
                 "max_workers is 0");
    assert_fails(attune_call_begin(c.context, NULL, &c.arguments, 1, &parts), ATTUNE_INVALID_ARGUMENT, "no kernel");
    assert_fails(attune_call_begin(c.context, c.kernel, &c.arguments, 1, NULL), ATTUNE_INVALID_ARGUMENT, "no pointer");
    assert_fails(attune_call_execute(NULL, 0, 0, 0, 0), ATTUNE_INVALID_ARGUMENT, "given NULL");
    assert_ok(attune_call_end(NULL));
    assert_ok(attune_call_begin(c.context, c.kernel, &c.arguments, 2, &parts));
    const uint32_t phases = attune_call_num_phases(parts);
    assert_true(phases >= 2);
    const int64_t tasks = attune_call_num_tasks(parts, 0);
    assert_true(tasks >= 2);
    assert_int_equal(attune_call_num_tasks(parts, phases), 0);
#define REFUSED(phase, begin, end, worker, part)                                                                       \
    assert_fails(attune_call_execute(parts, phase, begin, end, worker), ATTUNE_INVALID_ARGUMENT, part)
    REFUSED(phases, 0, 0, 0, "this call has");
    REFUSED(0, 0, tasks + 1, 0, "is not within the");
    REFUSED(0, -1, 1, 0, "is not within the");
    REFUSED(0, 2, 1, 0, "is not within the");
    REFUSED(0, 0, 1, 2, "worker is 2; max_workers is 2");
    REFUSED(1, 0, 1, 0, "phase 1 cannot begin yet: 0 of");
    assert_ok(attune_call_execute(parts, 0, 0, tasks - 1, 0));
    REFUSED(1, 0, 1, 0, "tasks of phase 0 are done");
#undef REFUSED
    assert_fails(attune_call_end(parts), ATTUNE_INVALID_ARGUMENT, "tasks of phase 0 were executed; it has");
    close_call(&c);
}

static void an_empty_call_has_no_parts(void **state) {
    (void)state;
    attune_context *context = open_context(NULL, 1);
    attune_arguments arguments;
    attune_call *parts;
    float number = 0;
    const attune_problem problem = problem_parsed("seq_q=dynamic,seq_kv=8,head_dim=8");
    attune_kernel *kernel = kernel_of(context, &problem);
    assert_ok(attune_arguments_init(&arguments, &problem));
    float keys[64] = {0}, values[64] = {0}, out[8];
    arguments.k.data = keys, arguments.v.data = values, arguments.out.data = out, arguments.q.data = &number;
    arguments.seq_q = 0;
    assert_ok(attune_call_begin(context, kernel, &arguments, 1, &parts));
    assert_int_equal(attune_call_num_phases(parts), 0);
    assert_ok(attune_call_end(parts));
    attune_kernel_release(kernel);
    attune_context_destroy(context);
}

/* Where no machine code is to be had, the interpreter is one task. */
static void parts_of_the_interpreter(void **state) {
    (void)state;
    setenv("ATTUNE_CODEGEN", "/nowhere/libattune-codegen.so", 1);
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.cache_dir = "";
    options.allow_interpreter = 1;
    call c = open_call(DECODE, NULL);
    attune_kernel_release(c.kernel);
    attune_context_destroy(c.context);
    assert_ok(attune_context_create(&options, &c.context));
    assert_ok(attune_compile(c.context, &c.problem, mha_schedule_text(&split).text, &c.kernel));
    run_in_parts(&c);
    const int set = 1;
    const attune_run_options cancelled = {.struct_size = sizeof cancelled, .cancel = &set};
    assert_fails(attune_run_with(c.context, c.kernel, &c.arguments, &cancelled), ATTUNE_CANCELLED, "interpreter");
    close_call(&c);
    unsetenv("ATTUNE_CODEGEN");
}

/* Two phases, with memory between them; the caller's arrays of pointers and scalars are needed no more. */
static void parts_of_a_kernel_in_loop_ir(void **state) {
    (void)state;
    enum { N = 37, HALF = N / 2 };
    static const char text[] = "kernel @turned (n: idx, x: f32[n] in, y: f32[n] out) {\n"
                               "alloc twice: f32[n] shared\n"
                               "parallel for i in 0..n { twice[i] = x[i] + x[i] }\n"
                               "parallel for j in 0..n { y[j] = twice[n - 1 - j] }\n}\n";
    attune_context *context = open_context(NULL, 1);
    attune_kernel *kernel;
    attune_call *parts;
    float x[N], y[N] = {0};
    for (int i = 0; i < N; i++) x[i] = (float)i;
    void *buffers[] = {x, y};
    int64_t scalars[] = {N};
    assert_ok(attune_ir_compile(context, text, &kernel));
    assert_ok(attune_ir_call_begin(context, kernel, buffers, scalars, 2, &parts));
    buffers[0] = buffers[1] = NULL;
    scalars[0] = -1;
    assert_int_equal(attune_call_num_phases(parts), 2);
    for (uint32_t phase = 0; phase < 2; phase++) {
        assert_int_equal(attune_call_num_tasks(parts, phase), N);
        assert_ok(attune_call_execute(parts, phase, 0, HALF, 0));
        assert_ok(attune_call_execute(parts, phase, HALF, N, 1));
    }
    assert_ok(attune_call_end(parts));
    for (int i = 0; i < N; i++) assert_float_equal(y[i], 2 * x[N - 1 - i], 0);
    attune_kernel_release(kernel);
    attune_context_destroy(context);
}

static void parts_of_loop_ir_are_checked(void **state) {
    (void)state;
    call c = open_call(DECODE, NULL);
    attune_kernel *kernel;
    attune_call *parts;
    float x[4] = {0};
    void *const buffers[] = {x}, *const none[] = {NULL};
    const int64_t scalars[] = {4}, negative[] = {-4};
    assert_ok(attune_ir_compile(
        c.context, "kernel @zero (n: idx, y: f32[n] out) {\nparallel for i in 0..n { y[i] = 0.0 }\n}\n", &kernel));
#define REFUSED(kernel, buffers, scalars, workers, out, part)                                                          \
    assert_fails(attune_ir_call_begin(c.context, kernel, buffers, scalars, workers, out), ATTUNE_INVALID_ARGUMENT, part)
    REFUSED(c.kernel, buffers, scalars, 1, &parts, "not one of attune_ir_compile");
    REFUSED(NULL, buffers, scalars, 1, &parts, "the kernel is NULL");
    REFUSED(kernel, none, scalars, 1, &parts, "the pointer to y is NULL");
    REFUSED(kernel, buffers, NULL, 1, &parts, "takes scalars");
    REFUSED(kernel, buffers, negative, 1, &parts, "is -4");
    REFUSED(kernel, buffers, scalars, 0, &parts, "max_workers is 0");
    REFUSED(kernel, buffers, scalars, 1, NULL, "no pointer to the call");
#undef REFUSED
    assert_null(parts);
    assert_fails(attune_ir_call_begin(NULL, kernel, buffers, scalars, 1, &parts), ATTUNE_INVALID_ARGUMENT,
                 "no context");
    attune_kernel_release(kernel);
    close_call(&c);
}

static int set_up(void **state) {
    (void)state;
    temp_dir_make(cache_dir);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    temp_dir_remove(cache_dir);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_runner_gives_the_same_bits),
        cmocka_unit_test(a_late_task_outlives_the_context),
        cmocka_unit_test(bad_runners_are_told),
        cmocka_unit_test(nonsense_is_refused),
        cmocka_unit_test(no_more_threads_than_wanted),
        cmocka_unit_test(fewer_threads_need_less_workspace),
        cmocka_unit_test(a_flag_ends_the_call),
        cmocka_unit_test(another_thread_cancels),
        cmocka_unit_test(threads_that_run_already),
        cmocka_unit_test(parts_out_of_order_are_refused),
        cmocka_unit_test(an_empty_call_has_no_parts),
        cmocka_unit_test(parts_of_the_interpreter),
        cmocka_unit_test(parts_of_a_kernel_in_loop_ir),
        cmocka_unit_test(parts_of_loop_ir_are_checked),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
