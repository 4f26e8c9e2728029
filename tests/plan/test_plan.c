/* Plans: calls of few and of many queries, ragged batches, arguments. test_plan_special.c: lengths that come back. */
#include "support/engine/contexts.h"
#include "support/plans.h"
#include "support/problems.h"
#include "support/temp_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- Few and many ---- */

static void few_and_many_queries_have_their_kernels(void **state) {
    (void)state;
    char few_text[64], many_text[64], bounded[128];
    attune_plan *plan = plan_of(OPEN, NULL);
    assert_history(plan, "kernels 0 0 0, calls 0 0 0");
    const int rows = few_rows_of(plan);
    snprintf(few_text, sizeof few_text, "seq_q=%d,seq_kv=50", rows);
    snprintf(many_text, sizeof many_text, "seq_q=%d,seq_kv=50", rows + 1);
    snprintf(bounded, sizeof bounded, OPEN ",max_seq_q=%d", rows);
    const sample one = sized(OPEN, "seq_q=1,seq_kv=50"), few = sized(OPEN, few_text), many = sized(OPEN, many_text);
    assert_runs_as(plan, &one, HEADS ",seq_q=1,seq_kv=dynamic");
    assert_history(plan, "kernels 1 0 0, calls 1 0 0");
    assert_runs_as(plan, &few, bounded);
    assert_history(plan, "kernels 2 0 0, calls 2 0 0");
    assert_runs_as(plan, &many, OPEN);
    assert_history(plan, "kernels 2 1 0, calls 2 1 0");
    attune_plan_destroy(plan);
}

#define GROUPS_ONE "num_heads=8,num_kv_heads=2,head_dim=16,seq_q=%d,seq_kv=dynamic"

/* With a group of four a single query fills a tile: it needs no kernel of its own. */
static void rows_are_those_of_a_group(void **state) {
    (void)state;
    char sizes[64], bounded[128];
    attune_plan *plan = plan_of(GROUPS, NULL), *alone = plan_of(OPEN, NULL);
    const int rows = (int)info_of(plan).few_rows;
    assert_in_range(rows, 1, few_rows_of(alone) - 1);
    snprintf(sizes, sizeof sizes, "seq_q=%d,seq_kv=50", rows);
    snprintf(bounded, sizeof bounded, rows > 1 ? GROUPS ",max_seq_q=%d" : GROUPS_ONE, rows);
    const sample one = sized(GROUPS, "seq_q=1,seq_kv=50"), few = sized(GROUPS, sizes);
    assert_runs_as(plan, &one, bounded);
    assert_runs_as(plan, &few, bounded);
    assert_history(plan, "kernels 1 0 0, calls 2 0 0");
    attune_plan_destroy(alone);
    attune_plan_destroy(plan);
}

/* The kernel of at most one query has exactly one. */
static void calls_without_queries(void **state) {
    (void)state;
    static const char *const problems[] = {OPEN ",reproducible=1,max_seq_q=1",
                                           OPEN ",reproducible=1,max_seq_q=1,has_kv_lens=1",
                                           OPEN ",reproducible=1,max_seq_q=3", OPEN ",reproducible=1"};
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        attune_plan *plan = plan_of(problems[i], NULL);
        const sample none = {problems[i], "seq_q=0,seq_kv=50", {0}, {50}},
                     one = {problems[i], "seq_q=1,seq_kv=50", {0}, {50}};
        assert_runs_as(plan, &none, problems[i]);
        assert_runs_as(plan, &one, problems[i]);
        attune_plan_destroy(plan);
    }
}

/* ---- Ragged batches ---- */

#define RAGGED_TEXT                                                                                                    \
    "batch=4,num_heads=2,head_dim=16,is_ragged=1,reproducible=1,has_lse=1,is_causal=1,causal_align=bottom_right"

static void ragged_batches_are_cut(void **state) {
    (void)state;
    static const struct {
        int q[SAMPLE_ENTRIES];
        const char *sizes, *history;
        unsigned cut;
    } cases[] = {
        {{1, 1, 20, 30}, "total_q=52,total_kv=140", "kernels 1 1 0, calls 1 1 0", 1},
        {{20, 1, 5, 30}, "total_q=56,total_kv=140", "kernels 2 1 0, calls 2 1 0", 1},
        {{1, 0, 1, 1}, "total_q=3,total_kv=140", "kernels 1 0 0, calls 1 0 0", 0},
        {{20, 0, 20, 30}, "total_q=70,total_kv=140", "kernels 0 1 0, calls 0 1 0", 0},
        {{1, 20, 1, 20}, "total_q=42,total_kv=140", "kernels 1 1 0, calls 1 1 0", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attune_plan *plan = plan_of(RAGGED_TEXT, NULL);
        sample call = {RAGGED_TEXT, cases[i].sizes, {0}, {35, 35, 35, 35}};
        memcpy(call.q, cases[i].q, sizeof call.q);
        assert_runs_as(plan, &call, RAGGED_TEXT);
        assert_history(plan, cases[i].history);
        assert_int_equal(info_of(plan).cut_calls, cases[i].cut);
        attune_plan_destroy(plan);
    }
}

/* Tables, masks and angles of the entries move on with them. */
static void all_of_an_entry_moves(void **state) {
    (void)state;
    static const char served[] = "batch=4,num_heads=2,head_dim=16,is_ragged=1,page_size=4,has_kv_lens=1,"
                                 "seq_new=dynamic,rotary_dim=8,reproducible=1";
    static const char masked[] = "batch=4,num_heads=2,head_dim=16,is_ragged=1,attn_mask_dims=bhqk,reproducible=1";
    const sample calls[] = {
        {served,
         "total_q=39,num_pages=40,max_pages=6,rotary_positions=40,rotary_batch_stride=160",
         {1, 17, 1, 20},
         {9, 20, 3, 24}},
        {masked, "seq_q=20,seq_kv=24,total_q=39,total_kv=60", {1, 17, 1, 20}, {9, 20, 3, 24}},
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        attune_plan *plan = plan_of(calls[i].problem, NULL);
        assert_runs_as(plan, &calls[i], calls[i].problem);
        assert_history(plan, "kernels 1 1 0, calls 1 1 0");
        attune_plan_destroy(plan);
    }
}

/* A short chunk has a kernel whose tiles are lower than those for many; the plan is for 8 heads on 2. */
static void short_chunks_have_lower_tiles(void **state) {
    (void)state;
    static const char text[] = "batch=4,num_heads=8,num_kv_heads=2,head_dim=64,is_ragged=1,reproducible=1";
    attune_plan *plan = plan_of(text, NULL);
    const int few = (int)info_of(plan).few_rows;
    assert_in_range(few, 1, 14);
    sample call = {text, "total_q=80,total_kv=140", {few + 1, 40, 0, 1}, {35, 40, 35, 30}};
    assert_runs_as(plan, &call, text);
    assert_int_equal(info_of(plan).few_kernels, 1);
    assert_in_range(info_of(plan).many_kernels, 1, 2);
    attune_plan_destroy(plan);
}

/* ---- Everything else ---- */

/* Whichever kernel runs: one query, few, many, and the same lengths again. */
static void reproducible_bits_do_not_depend_on_the_kernel(void **state) {
    (void)state;
    static const char text[] = OPEN ",reproducible=1,has_lse=1";
    attune_plan *plan = plan_of(text, NULL);
    const int rows[] = {1, few_rows_of(plan), few_rows_of(plan) + 1};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char sizes[64];
        snprintf(sizes, sizeof sizes, "seq_q=%d,seq_kv=700", rows[i]);
        const sample call = sized(text, sizes);
        for (int again = 0; again < 4; again++) assert_runs_as(plan, &call, text);
    }
    assert_history(plan, "kernels 2 1 1, calls 8 3 1");
    attune_plan_destroy(plan);
}

/* A plan of each sort of problem has the bits of a kernel, once and again. */
static void every_sort_of_problem(void **state) {
    (void)state;
    const attune_plan_options at_once = {
        .struct_size = sizeof at_once, .max_specialised = 8, .repeats = 1, .deadline_us = -1};
    for (int i = 0; i < NUM_SAMPLES; i++) {
        char text[512];
        snprintf(text, sizeof text, "%s%s", samples[i].problem,
                 strstr(samples[i].problem, "reproducible") ? "" : ",reproducible=1");
        sample from = samples[i];
        from.problem = text;
        attune_plan *plan = plan_of(text, &at_once);
        for (int again = 0; again < 3; again++) assert_runs_as(plan, &from, text);
        attune_plan_destroy(plan);
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
        assert_ok(attune_plan_workspace_size(plan, &call.arguments, NULL, &bytes));
        call.arguments.workspace_bytes = bytes;
        call.arguments.workspace = aligned_alloc(64, bytes + 64 - bytes % 64);
        for (int again = 0; again < 5; again++) assert_ok(attune_plan_run(plan, &call.arguments, NULL));
        call.arguments.workspace_bytes = 0;
        assert_fails(attune_plan_run(plan, &call.arguments, NULL), ATTUNE_WORKSPACE_TOO_SMALL,
                     "the workspace has 0 bytes");
        free(call.arguments.workspace);
        sample_call_close(&call);
        attune_plan_destroy(plan);
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
    assert_ptr_equal(a.v.data, data[2]);
    assert_memory_equal(&a.k.strides[1], &strides[1][1], 3 * sizeof strides[1][1]);
    assert_ok(attune_plan_run(plan, &a, NULL));

    a.out.data = expected;
    char few[128];
    const int rows = few_rows_of(plan);
    snprintf(few, sizeof few, OPEN ",max_seq_q=%d", rows);
    const attune_problem problem = problem_parsed(a.seq_q > rows ? OPEN : few);
    assert_ok(attune_run_interpreted(sample_context, &problem, NULL, &a));
    assert_memory_equal(data[3], expected, 5 * 32 * sizeof(float));

    assert_fails(attune_plan_bind(plan, &a, "lse", &tensors[0]), ATTUNE_INVALID_ARGUMENT, "lse");
    tensors[2].shape[2] = 8;
    assert_fails(attune_plan_bind(plan, &a, "v", &tensors[2]), ATTUNE_INVALID_ARGUMENT, "9");
    assert_fails(attune_plan_bind(plan, &a, "v", NULL), ATTUNE_INVALID_ARGUMENT, "NULL");
    attune_plan_destroy(plan);
}

/* ---- Strict mode, bad input ---- */

static attune_context *context_of(const char *cache_dir) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.cache_dir = cache_dir;
    return test_context(&options, NULL);
}

/* The cache has the kernel for many queries; that for the lengths that come back may not be compiled. */
static void strict_mode_costs_only_speed(void **state) {
    (void)state;
    char dir[TEMP_DIR_CHARS];
    temp_dir_make(dir);
    const sample from = sized(OPEN, "seq_q=30,seq_kv=50");
    sample_call call;
    sample_call_open(&call, &from, ON_THE_HEAP);
    for (int strict = 0; strict < 2; strict++) {
        if (strict) setenv("ATTUNE_STRICT", "1", 1);
        attune_context *context = context_of(dir);
        attune_plan *plan;
        assert_ok(attune_plan_create(context, &call.problem, NULL, &plan));
        for (int i = 0; i < (strict ? 5 : 1); i++) assert_ok(attune_plan_run(plan, &call.arguments, NULL));
        assert_history(plan, strict ? "kernels 0 1 0, calls 0 5 0" : "kernels 0 1 0, calls 0 1 0");
        call.arguments.seq_q = 1;
        if (strict) assert_fails(attune_plan_run(plan, &call.arguments, NULL), ATTUNE_NOT_CACHED, "seq_q=1");
        attune_plan_destroy(plan);
        attune_context_destroy(context);
        call.arguments.seq_q = 30;
    }
    unsetenv("ATTUNE_STRICT");
    sample_call_close(&call);
    temp_dir_remove_all(dir);
}

static void bad_input_is_refused(void **state) {
    (void)state;
    attune_plan_options options = ATTUNE_PLAN_OPTIONS_INIT;
    attune_plan *plan;
    const attune_problem problem = problem_parsed(OPEN);
    options.max_specialised = 9;
    assert_fails(attune_plan_create(sample_context, &problem, &options, &plan), ATTUNE_INVALID_ARGUMENT,
                 "max_specialised is 9; it must be from 0 to 8");
    assert_null(plan);
    options = (attune_plan_options)ATTUNE_PLAN_OPTIONS_INIT;
    options.repeats = 0;
    assert_fails(attune_plan_create(sample_context, &problem, &options, &plan), ATTUNE_INVALID_ARGUMENT,
                 "repeats is 0; it must be from 1 to 1000");
    plan = plan_of(OPEN, NULL);
    attune_arguments a;
    assert_ok(attune_plan_arguments_init(plan, &a));
    assert_fails(attune_plan_run(plan, &a, NULL), ATTUNE_INVALID_ARGUMENT, "seq_q is not set");
    assert_ok(attune_plan_set_size(plan, &a, "seq_q", 1));
    assert_fails(attune_plan_run(plan, &a, NULL), ATTUNE_INVALID_ARGUMENT, "seq_kv is not set");
    assert_fails(attune_plan_set_size(plan, &a, "seq", 1), ATTUNE_INVALID_ARGUMENT, "no size named seq");
    assert_fails(attune_plan_set_number(plan, &a, "softmax_scale", 1), ATTUNE_INVALID_ARGUMENT,
                 "the problem fixes softmax_scale");
    assert_fails(attune_plan_run(NULL, &a, NULL), ATTUNE_INVALID_ARGUMENT, "no plan");
    attune_plan_destroy(plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_and_many_queries_have_their_kernels),
        cmocka_unit_test(rows_are_those_of_a_group),
        cmocka_unit_test(calls_without_queries),
        cmocka_unit_test(ragged_batches_are_cut),
        cmocka_unit_test(all_of_an_entry_moves),
        cmocka_unit_test(short_chunks_have_lower_tiles),
        cmocka_unit_test(reproducible_bits_do_not_depend_on_the_kernel),
        cmocka_unit_test(every_sort_of_problem),
        cmocka_unit_test(a_workspace_is_enough),
        cmocka_unit_test(tensors_are_bound_by_name),
        cmocka_unit_test(strict_mode_costs_only_speed),
        cmocka_unit_test(bad_input_is_refused),
    };
    return cmocka_run_group_tests(tests, sample_context_open, sample_context_close);
}
