/* Plans: calls of few and of many queries, and lengths that come back. */
#include "support/calls.h"
#include "support/temp_dir.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void assert_ok(attune_status status) {
    if (status) fail_msg("%s: %s", attune_status_name(status), attune_last_message());
}

static void assert_refused(attune_status status, attune_status expected, const char *part) {
    assert_int_equal(status, expected);
    if (!strstr(attune_last_message(), part)) fail_msg("'%s' is not in: %s", part, attune_last_message());
}

/* ---- A plan and what it has done ---- */

static attune_plan *plan_of(const char *text, const attune_plan_options *options) {
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    attune_plan *plan;
    assert_ok(attune_problem_parse(text, &problem));
    assert_ok(attune_plan_create(sample_context, &problem, options, &plan));
    return plan;
}

static attune_plan_info info_of(const attune_plan *plan) {
    attune_plan_info info = {.struct_size = sizeof info};
    assert_ok(attune_plan_get_info(plan, &info));
    return info;
}

/* "kernels few many specialised, calls few many specialised". */
static void assert_history(const attune_plan *plan, const char *expected) {
    const attune_plan_info i = info_of(plan);
    char text[128];
    snprintf(text, sizeof text, "kernels %u %u %u, calls %llu %llu %llu", i.few_kernels, i.many_kernels,
             i.specialised_kernels, (unsigned long long)i.few_calls, (unsigned long long)i.many_calls,
             (unsigned long long)i.specialised_calls);
    assert_string_equal(text, expected);
}

/* ---- A call, by a plan and without one ---- */

/* Runs a call of the plan. Its outputs must have the bits that the interpreter gives for the problem `kernel`, which is
 * that of the kernel that is expected to run. */
static void assert_runs_as(attune_plan *plan, const sample *from, const char *kernel) {
    sample_call here, there;
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    sample_call_open(&here, from, ON_THE_HEAP);
    sample_call_open(&there, from, ON_THE_HEAP);
    assert_ok(attune_plan_run(sample_context, plan, &here.arguments, NULL));
    assert_ok(attune_problem_parse(kernel, &problem));
    assert_ok(attune_run_interpreted(sample_context, &problem, NULL, &there.arguments));
    if (!sample_calls_agree(&here, &there))
        fail_msg("%s with %s: not the bits of %s", from->problem, from->sizes, kernel);
    sample_call_close(&here);
    sample_call_close(&there);
}

static sample sized(const char *problem, const char *sizes) { return (sample){.problem = problem, .sizes = sizes}; }

#define HEADS  "num_heads=2,head_dim=16"
#define OPEN   HEADS ",seq_q=dynamic,seq_kv=dynamic"
#define GROUPS "num_heads=8,num_kv_heads=2,head_dim=16,seq_q=dynamic,seq_kv=dynamic"

/* ---- Few and many ---- */

static void few_and_many_queries_have_their_kernels(void **state) {
    (void)state;
    attune_plan *plan = plan_of(OPEN, NULL);
    assert_history(plan, "kernels 0 0 0, calls 0 0 0");
    assert_int_equal(info_of(plan).few_rows, 12);
    const sample one = sized(OPEN, "seq_q=1,seq_kv=50"), few = sized(OPEN, "seq_q=12,seq_kv=50");
    const sample many = sized(OPEN, "seq_q=13,seq_kv=50");
    assert_runs_as(plan, &one, HEADS ",seq_q=1,seq_kv=dynamic");
    assert_history(plan, "kernels 1 0 0, calls 1 0 0");
    assert_runs_as(plan, &few, OPEN ",max_seq_q=12");
    assert_history(plan, "kernels 2 0 0, calls 2 0 0");
    assert_runs_as(plan, &many, OPEN);
    assert_history(plan, "kernels 2 1 0, calls 2 1 0");
    attune_plan_destroy(sample_context, plan);
}

/* With a group of four a single query fills a tile: it needs no kernel of its own. */
static void rows_are_those_of_a_group(void **state) {
    (void)state;
    attune_plan *plan = plan_of(GROUPS, NULL);
    assert_int_equal(info_of(plan).few_rows, 3);
    const sample one = sized(GROUPS, "seq_q=1,seq_kv=50"), few = sized(GROUPS, "seq_q=3,seq_kv=50");
    assert_runs_as(plan, &one, GROUPS ",max_seq_q=3");
    assert_runs_as(plan, &few, GROUPS ",max_seq_q=3");
    assert_history(plan, "kernels 1 0 0, calls 2 0 0");
    attune_plan_destroy(sample_context, plan);
}

/* ---- Lengths that come back ---- */

static void lengths_that_come_back_get_a_kernel(void **state) {
    (void)state;
    attune_plan *plan = plan_of(OPEN, NULL);
    const sample many = sized(OPEN, "seq_q=30,seq_kv=50"), other = sized(OPEN, "seq_q=30,seq_kv=51");
    const char *const kernels[] = {OPEN, HEADS ",seq_q=30,seq_kv=50"};
    assert_runs_as(plan, &many, kernels[0]);
    assert_runs_as(plan, &many, kernels[0]);
    assert_runs_as(plan, &other, kernels[0]); /* not in a row */
    assert_runs_as(plan, &many, kernels[0]);
    assert_runs_as(plan, &many, kernels[0]);
    assert_history(plan, "kernels 0 1 0, calls 0 5 0");
    assert_runs_as(plan, &many, kernels[0]);
    assert_history(plan, "kernels 0 1 1, calls 0 6 0");
    assert_runs_as(plan, &many, kernels[1]);
    assert_runs_as(plan, &other, kernels[0]);
    assert_history(plan, "kernels 0 1 1, calls 0 7 1");
    attune_plan_destroy(sample_context, plan);
}

/* At every step of decoding there is one more key, and each layer repeats its lengths. */
static void decoding_is_not_specialised(void **state) {
    (void)state;
    attune_plan *plan = plan_of(OPEN, NULL);
    const sample one = sized(OPEN, "seq_q=1,seq_kv=50"), self = sized(OPEN, "seq_q=9,seq_kv=9");
    for (int i = 0; i < 5; i++) assert_runs_as(plan, &one, HEADS ",seq_q=1,seq_kv=dynamic");
    assert_history(plan, "kernels 1 0 0, calls 5 0 0");
    for (int i = 0; i < 3; i++) assert_runs_as(plan, &self, OPEN ",max_seq_q=12");
    assert_runs_as(plan, &self, HEADS ",seq_q=9,seq_kv=9");
    assert_history(plan, "kernels 2 0 1, calls 8 0 1");
    attune_plan_destroy(sample_context, plan);
}

static void kernels_for_lengths_are_limited(void **state) {
    (void)state;
    const attune_plan_options two = {sizeof two, 2, 1}, none = {sizeof none, 0, 1};
    attune_plan *plan = plan_of(OPEN, &two), *without = plan_of(OPEN, &none);
    const char *const sizes[] = {"seq_q=20,seq_kv=9", "seq_q=21,seq_kv=9", "seq_q=22,seq_kv=9"};
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < 3; i++) {
            const sample call = sized(OPEN, sizes[i]);
            const char *const own[] = {HEADS ",seq_q=20,seq_kv=9", HEADS ",seq_q=21,seq_kv=9"};
            assert_runs_as(plan, &call, turn && i < 2 ? own[i] : OPEN);
            assert_runs_as(without, &call, OPEN);
        }
    assert_history(plan, "kernels 0 1 2, calls 0 4 2");
    assert_history(without, "kernels 0 1 0, calls 0 6 0");
    attune_plan_destroy(sample_context, plan);
    attune_plan_destroy(sample_context, without);
}

/* Other batches and heads of the same lengths share a kernel; a mask has as many entries as the call. */
static void batches_share_a_kernel(void **state) {
    (void)state;
    const attune_plan_options at_once = {sizeof at_once, 8, 1};
    static const char masked[] = "batch=2,num_heads=2,seq_q=dynamic,seq_kv=dynamic,head_dim=16,attn_mask=bqk";
    attune_plan *plan = plan_of("batch=3,num_heads=4,seq_q=dynamic,seq_kv=dynamic,head_dim=16,attn_mask=bqk", &at_once);
    const sample call = sized(masked, "seq_q=20,seq_kv=33");
    assert_runs_as(plan, &call, masked);
    assert_runs_as(plan, &call, "batch=2,num_heads=2,seq_q=20,seq_kv=33,head_dim=16,attn_mask=bqk");
    assert_history(plan, "kernels 0 1 1, calls 0 1 1");
    attune_plan_destroy(sample_context, plan);
}

/* The kernel that a call of one entry and one head brought serves calls of more, which have a mask each. */
static void one_entry_is_not_all(void **state) {
    (void)state;
    static const char *const fields[] = {"attn_mask", "attn_bias"};
    const attune_plan_options at_once = {sizeof at_once, 8, 1};
    for (int i = 0; i < 2; i++) {
        char plans[128], ones[128], twos[128], kernel[128];
        const char *const rest = "seq_q=dynamic,seq_kv=dynamic,head_dim=16";
        snprintf(plans, sizeof plans, "batch=3,num_heads=4,%s,%s=bhqk", rest, fields[i]);
        snprintf(ones, sizeof ones, "batch=1,num_heads=1,%s,%s=bhqk", rest, fields[i]);
        snprintf(twos, sizeof twos, "batch=2,num_heads=2,%s,%s=bhqk", rest, fields[i]);
        attune_plan *plan = plan_of(plans, &at_once);
        snprintf(kernel, sizeof kernel, "batch=2,num_heads=2,seq_q=20,seq_kv=33,head_dim=16,%s=bhqk", fields[i]);
        const sample one = sized(ones, "seq_q=20,seq_kv=33"), two = sized(twos, "seq_q=20,seq_kv=33");
        assert_runs_as(plan, &one, ones);
        assert_runs_as(plan, &two, kernel);
        assert_history(plan, "kernels 0 1 1, calls 0 1 1");
        attune_plan_destroy(sample_context, plan);
    }
}

/* A block of few tokens is compiled for its batch. */
static void blocks_of_other_batches(void **state) {
    (void)state;
    static const char text[] = "batch=%d,embed_dim=32,num_heads=2,seq_q=dynamic,reproducible=1";
    const attune_plan_options at_once = {sizeof at_once, 8, 1};
    attune_plan *plan = plan_of("embed_dim=32,num_heads=2,seq_q=dynamic,reproducible=1", &at_once);
    for (int batch = 1; batch <= 3; batch++) {
        char problem[128];
        snprintf(problem, sizeof problem, text, batch);
        const sample call = sized(problem, "seq_q=8");
        assert_runs_as(plan, &call, problem);
    }
    attune_plan_destroy(sample_context, plan);
}

/* ---- Ragged batches ---- */

#define RAGGED_TEXT                                                                                                    \
    "batch=4,num_heads=2,head_dim=16,ragged=1,reproducible=1,lse=1,is_causal=1,causal_align=bottom_right"

static void ragged_batches_are_cut(void **state) {
    (void)state;
    static const struct {
        int q[SAMPLE_ENTRIES];
        const char *sizes, *history;
        unsigned cut;
    } cases[] = {
        {{1, 1, 20, 30}, "total_q=52,total_kv=140", "kernels 1 1 0, calls 1 1 0", 1},
        {{20, 1, 5, 30}, "total_q=56,total_kv=140", "kernels 1 1 0, calls 1 2 0", 1},
        {{1, 0, 1, 1}, "total_q=3,total_kv=140", "kernels 1 0 0, calls 1 0 0", 0},
        {{20, 0, 20, 30}, "total_q=70,total_kv=140", "kernels 0 1 0, calls 0 1 0", 0},
        {{1, 20, 1, 20}, "total_q=42,total_kv=140", "kernels 1 1 0, calls 2 2 0", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attune_plan *plan = plan_of(RAGGED_TEXT, NULL);
        sample call = {RAGGED_TEXT, cases[i].sizes, {0}, {35, 35, 35, 35}};
        memcpy(call.q, cases[i].q, sizeof call.q);
        assert_runs_as(plan, &call, RAGGED_TEXT);
        assert_history(plan, cases[i].history);
        assert_int_equal(info_of(plan).cut_calls, cases[i].cut);
        attune_plan_destroy(sample_context, plan);
    }
}

/* Tables, masks and angles of the entries move on with them. */
static void all_of_an_entry_moves(void **state) {
    (void)state;
    static const char served[] =
        "batch=4,num_heads=2,head_dim=16,ragged=1,page_size=4,kv_lens=1,seq_new=dynamic,rotary_dim=8,reproducible=1";
    static const char masked[] = "batch=4,num_heads=2,head_dim=16,ragged=1,attn_mask=bhqk,reproducible=1";
    const sample calls[] = {
        {served,
         "total_q=35,num_pages=40,max_pages=6,rotary_positions=40,rotary_batch_stride=160",
         {1, 13, 1, 20},
         {9, 20, 3, 24}},
        {masked, "seq_q=20,seq_kv=24,total_q=35,total_kv=60", {1, 13, 1, 20}, {9, 20, 3, 24}},
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        attune_plan *plan = plan_of(calls[i].problem, NULL);
        assert_runs_as(plan, &calls[i], calls[i].problem);
        assert_history(plan, "kernels 1 1 0, calls 2 2 0");
        attune_plan_destroy(sample_context, plan);
    }
}

/* ---- Everything else ---- */

/* Whichever kernel runs: one query, few, many, and the same lengths again. */
static void reproducible_bits_do_not_depend_on_the_kernel(void **state) {
    (void)state;
    static const char text[] = OPEN ",reproducible=1,lse=1";
    static const char *const sizes[] = {"seq_q=1,seq_kv=700", "seq_q=12,seq_kv=700", "seq_q=13,seq_kv=700"};
    attune_plan *plan = plan_of(text, NULL);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const sample call = sized(text, sizes[i]);
        for (int again = 0; again < 4; again++) assert_runs_as(plan, &call, text);
    }
    assert_history(plan, "kernels 2 1 1, calls 8 3 1");
    attune_plan_destroy(sample_context, plan);
}

/* A plan of each sort of problem has the bits of a kernel, once and again. */
static void every_sort_of_problem(void **state) {
    (void)state;
    const attune_plan_options at_once = {sizeof at_once, 8, 1};
    for (int i = 0; i < NUM_SAMPLES; i++) {
        char text[512];
        snprintf(text, sizeof text, "%s%s", samples[i].problem,
                 strstr(samples[i].problem, "reproducible") ? "" : ",reproducible=1");
        sample from = samples[i];
        from.problem = text;
        attune_plan *plan = plan_of(text, &at_once);
        for (int again = 0; again < 3; again++) assert_runs_as(plan, &from, text);
        attune_plan_destroy(sample_context, plan);
    }
}

static void a_workspace_is_enough(void **state) {
    (void)state;
    const sample calls[] = {sized(OPEN, "seq_q=30,seq_kv=50"),
                            {RAGGED_TEXT, "total_q=52,total_kv=140", {1, 1, 20, 30}, {35, 35, 35, 35}}};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        attune_plan *plan = plan_of(calls[i].problem, NULL);
        sample_call call;
        size_t bytes;
        sample_call_open(&call, &calls[i], ON_THE_HEAP);
        assert_ok(attune_plan_workspace_size(sample_context, plan, &call.arguments, NULL, &bytes));
        call.arguments.workspace_bytes = bytes;
        call.arguments.workspace = aligned_alloc(64, bytes + 64 - bytes % 64);
        for (int again = 0; again < 5; again++) assert_ok(attune_plan_run(sample_context, plan, &call.arguments, NULL));
        call.arguments.workspace_bytes = 0;
        assert_refused(attune_plan_run(sample_context, plan, &call.arguments, NULL), ATTUNE_WORKSPACE_TOO_SMALL,
                       "the workspace has 0 bytes");
        free(call.arguments.workspace);
        sample_call_close(&call);
        attune_plan_destroy(sample_context, plan);
    }
}

/* All threads make the first calls of a plan together, and go on beyond the promotion. */
static void *run_often(void *argument) {
    attune_plan *plan = argument;
    const sample calls[] = {sized(OPEN, "seq_q=30,seq_kv=50"), sized(OPEN, "seq_q=5,seq_kv=50")};
    for (int i = 0; i < 40; i++) {
        sample_call call;
        sample_call_open(&call, &calls[i / 5 % 2], ON_THE_HEAP);
        const attune_status status = attune_plan_run(sample_context, plan, &call.arguments, NULL);
        sample_call_close(&call);
        if (status) return plan;
    }
    return NULL;
}

static void threads_share_a_plan(void **state) {
    (void)state;
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    attune_plan *plan = plan_of(OPEN, NULL);
    void *failed;
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, run_often, plan), 0);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    const attune_plan_info info = info_of(plan);
    assert_int_equal(info.few_calls, 20 * THREADS);
    assert_int_equal(info.many_calls + info.specialised_calls, 20 * THREADS);
    assert_true(info.few_kernels == 1 && info.many_kernels == 1 && info.specialised_kernels <= 1);
    attune_plan_destroy(sample_context, plan);
}

/* ---- fork ---- */

static void *promote(void *plan) {
    const sample from = sized(OPEN, "seq_q=40,seq_kv=40");
    sample_call call;
    sample_call_open(&call, &from, ON_THE_HEAP);
    attune_status status = ATTUNE_OK;
    for (int i = 0; i < 3 && !status; i++) status = attune_plan_run(sample_context, plan, &call.arguments, NULL);
    sample_call_close(&call);
    return (void *)(uintptr_t)status;
}

/* In the child: whether lengths of its own get a kernel. */
static int promotes_here(attune_plan *plan) {
    const sample from = sized(OPEN, "seq_q=30,seq_kv=30");
    const uint32_t before = info_of(plan).specialised_kernels;
    sample_call call;
    sample_call_open(&call, &from, ON_THE_HEAP);
    for (int i = 0; i < 4; i++)
        if (attune_plan_run(sample_context, plan, &call.arguments, NULL)) return 1;
    return info_of(plan).specialised_kernels == before + 1 && info_of(plan).specialised_calls ? 0 : 2;
}

/* The thread that promotes does not exist in the child. */
static void a_child_promotes_too(void **state) {
    (void)state;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    skip(); /* their own locks do not survive a fork beside threads; see test_fork.c */
#endif
    enum { FORKS = 6, STEP_US = 15000, SECONDS = 60 };
    for (int i = 0; i < FORKS; i++) {
        attune_plan *plan = plan_of(OPEN, NULL);
        pthread_t thread;
        void *failed;
        int status;
        attune_drop_memory_cache(sample_context);
        assert_int_equal(pthread_create(&thread, NULL, promote, plan), 0);
        usleep((useconds_t)i * STEP_US);
        const pid_t child = fork();
        if (!child) {
            alarm(SECONDS);
            _exit(promotes_here(plan));
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        assert_int_equal(pthread_join(thread, &failed), 0);
        assert_null(failed);
        assert_int_equal(info_of(plan).specialised_kernels, 1);
        attune_plan_destroy(sample_context, plan);
    }
}

/* ---- Arguments by name ---- */

/* Two heads of `length` rows, which lie one after the other, seen as [batch, heads, rows, columns]. */
static attune_dltensor rows_of(float *data, int64_t length, int64_t shape[4], int64_t strides[4]) {
    memcpy(shape, (int64_t[]){1, 2, length, 16}, 4 * sizeof *shape);
    memcpy(strides, (int64_t[]){length * 32, 16, 32, 1}, 4 * sizeof *strides);
    return (attune_dltensor){.data = data,
                             .device_type = 1,
                             .ndim = 4,
                             .dtype_code = 2,
                             .dtype_bits = 32,
                             .dtype_lanes = 1,
                             .shape = shape,
                             .strides = strides};
}

static void tensors_are_bound_by_name(void **state) {
    (void)state;
    attune_plan *plan = plan_of(OPEN, NULL);
    static float data[4][9 * 32], expected[9 * 32];
    static const char *const names[] = {"q", "k", "v", "out"};
    static const int64_t lengths[] = {5, 9, 9, 5};
    attune_dltensor tensors[4];
    int64_t shapes[4][4], strides[4][4];
    attune_arguments a;
    for (size_t t = 0; t < 4; t++) {
        for (int i = 0; i < 9 * 32; i++) data[t][i] = (float)((i * 7 + (int)t * 5) % 11 - 5) / 4;
        tensors[t] = rows_of(data[t], lengths[t], shapes[t], strides[t]);
    }
    assert_ok(attune_plan_arguments_init(plan, &a));
    for (size_t t = 0; t < 4; t++) assert_ok(attune_plan_bind(plan, &a, names[t], &tensors[t]));
    assert_int_equal(a.seq_q, 5);
    assert_int_equal(a.seq_kv, 9);
    assert_ptr_equal(a.v, data[2]);
    assert_memory_equal(&a.k_strides[1], &strides[1][1], 3 * sizeof strides[1][1]);
    assert_ok(attune_plan_run(sample_context, plan, &a, NULL));

    a.out = expected;
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    assert_ok(attune_problem_parse(OPEN ",max_seq_q=12", &problem));
    assert_ok(attune_run_interpreted(sample_context, &problem, NULL, &a));
    assert_memory_equal(data[3], expected, 5 * 32 * sizeof(float));

    assert_refused(attune_plan_bind(plan, &a, "lse", &tensors[0]), ATTUNE_INVALID_ARGUMENT, "lse");
    tensors[2].shape[2] = 8;
    assert_refused(attune_plan_bind(plan, &a, "v", &tensors[2]), ATTUNE_INVALID_ARGUMENT, "9");
    assert_refused(attune_plan_bind(plan, &a, "v", NULL), ATTUNE_INVALID_ARGUMENT, "NULL");
    attune_plan_destroy(sample_context, plan);
}

/* ---- Strict mode, bad input ---- */

static attune_context *context_of(const char *cache_dir) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *context;
    options.cache_dir = cache_dir;
    assert_ok(attune_context_create(&options, &context));
    return context;
}

/* The cache has the kernel for many queries; that for the lengths that come back may not be compiled. */
static void strict_mode_costs_only_speed(void **state) {
    (void)state;
    char dir[TEMP_DIR_CHARS], command[TEMP_DIR_CHARS + 16];
    temp_dir_make(dir);
    const sample from = sized(OPEN, "seq_q=30,seq_kv=50");
    sample_call call;
    sample_call_open(&call, &from, ON_THE_HEAP);
    for (int strict = 0; strict < 2; strict++) {
        if (strict) setenv("ATTUNE_STRICT", "1", 1);
        attune_context *context = context_of(dir);
        attune_plan *plan;
        assert_ok(attune_plan_create(context, &call.problem, NULL, &plan));
        for (int i = 0; i < (strict ? 5 : 1); i++) assert_ok(attune_plan_run(context, plan, &call.arguments, NULL));
        assert_history(plan, strict ? "kernels 0 1 0, calls 0 5 0" : "kernels 0 1 0, calls 0 1 0");
        call.arguments.seq_q = 1;
        if (strict) assert_refused(attune_plan_run(context, plan, &call.arguments, NULL), ATTUNE_NOT_CACHED, "seq_q=1");
        attune_plan_destroy(context, plan);
        attune_context_destroy(context);
        call.arguments.seq_q = 30;
    }
    unsetenv("ATTUNE_STRICT");
    sample_call_close(&call);
    snprintf(command, sizeof command, "rm -r '%s'", dir);
    assert_int_equal(system(command), 0);
}

static void bad_input_is_refused(void **state) {
    (void)state;
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    attune_plan_options options = ATTUNE_PLAN_OPTIONS_INIT;
    attune_plan *plan;
    assert_ok(attune_problem_parse(OPEN, &problem));
    options.max_specialised = 9;
    assert_refused(attune_plan_create(sample_context, &problem, &options, &plan), ATTUNE_INVALID_ARGUMENT,
                   "max_specialised is 9; it must be from 0 to 8");
    assert_null(plan);
    options = (attune_plan_options)ATTUNE_PLAN_OPTIONS_INIT;
    options.repeats = 0;
    assert_refused(attune_plan_create(sample_context, &problem, &options, &plan), ATTUNE_INVALID_ARGUMENT,
                   "repeats is 0; it must be from 1 to 1000");
    plan = plan_of(OPEN, NULL);
    attune_arguments a;
    assert_ok(attune_plan_arguments_init(plan, &a));
    assert_refused(attune_plan_run(sample_context, plan, &a, NULL), ATTUNE_INVALID_ARGUMENT, "seq_q is not set");
    assert_ok(attune_plan_set_size(plan, &a, "seq_q", 1));
    assert_refused(attune_plan_run(sample_context, plan, &a, NULL), ATTUNE_INVALID_ARGUMENT, "seq_kv is not set");
    assert_refused(attune_plan_set_size(plan, &a, "seq", 1), ATTUNE_INVALID_ARGUMENT, "no size named seq");
    assert_refused(attune_plan_set_number(plan, &a, "softmax_scale", 1), ATTUNE_INVALID_ARGUMENT,
                   "the problem fixes softmax_scale");
    assert_refused(attune_plan_run(sample_context, NULL, &a, NULL), ATTUNE_INVALID_ARGUMENT, "no plan");
    attune_context *other;
    assert_ok(attune_context_create(NULL, &other));
    assert_refused(attune_plan_run(other, plan, &a, NULL), ATTUNE_INVALID_ARGUMENT, "another context");
    attune_context_destroy(other);
    attune_plan_destroy(sample_context, plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_and_many_queries_have_their_kernels),
        cmocka_unit_test(rows_are_those_of_a_group),
        cmocka_unit_test(lengths_that_come_back_get_a_kernel),
        cmocka_unit_test(decoding_is_not_specialised),
        cmocka_unit_test(kernels_for_lengths_are_limited),
        cmocka_unit_test(batches_share_a_kernel),
        cmocka_unit_test(one_entry_is_not_all),
        cmocka_unit_test(blocks_of_other_batches),
        cmocka_unit_test(ragged_batches_are_cut),
        cmocka_unit_test(all_of_an_entry_moves),
        cmocka_unit_test(reproducible_bits_do_not_depend_on_the_kernel),
        cmocka_unit_test(every_sort_of_problem),
        cmocka_unit_test(a_workspace_is_enough),
        cmocka_unit_test(threads_share_a_plan),
        cmocka_unit_test(a_child_promotes_too),
        cmocka_unit_test(tensors_are_bound_by_name),
        cmocka_unit_test(strict_mode_costs_only_speed),
        cmocka_unit_test(bad_input_is_refused),
    };
    return cmocka_run_group_tests(tests, sample_context_open, sample_context_close);
}
