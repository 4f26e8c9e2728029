/* Structs of other sizes than this version's: those of older programs are completed from version 0.2 on, those of newer
 * ones accepted while nothing unknown is set, and not a byte beyond a struct is read or written. */
#include "support/calls.h"
#include "support/guarded.h"
#include "support/problems.h"
#include "support/statuses.h"

#include "base/struct.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- Structs of other versions ---- */

/* The first `bytes` of a struct, or the whole struct and zeros, as a program of another version has it. */
static guarded as_of(const void *object, size_t object_bytes, size_t bytes) {
    guarded g = guard(bytes);
    memcpy(g.data, object, bytes < object_bytes ? bytes : object_bytes);
    memcpy(g.data, &bytes, sizeof bytes);
    return g;
}

enum { MORE = 64 }; /* bytes of a newer version's struct beyond this one's */

/* ---- Problems ---- */

static void same_key(const attune_problem *a, const attune_problem *b) {
    attune_kernel_info info = {.struct_size = sizeof info};
    char key[33];
    attune_kernel *kernel = kernel_of(sample_context, a);
    assert_ok(attune_kernel_get_info(kernel, &info));
    memcpy(key, info.key, sizeof key);
    attune_kernel_release(kernel);
    kernel = kernel_of(sample_context, b);
    assert_ok(attune_kernel_get_info(kernel, &info));
    assert_string_equal(info.key, key);
    attune_kernel_release(kernel);
}

static void problems_of_other_sizes(void **state) {
    (void)state;
    const attune_problem whole = problem_parsed("num_heads=2,seq_q=3,seq_kv=5,head_dim=4,window_left=2,has_lse=1");
    char expected[512], text[512];
    attune_problem_print(&whole, expected, sizeof expected);
    for (size_t bytes = sizeof whole; bytes <= sizeof whole + MORE; bytes += sizeof(size_t)) {
        guarded g = as_of(&whole, sizeof whole, bytes);
        attune_problem *const p = (attune_problem *)(void *)g.data;
        attune_tensor tensors[SAMPLE_TENSORS];
        size_t count;
        assert_ok(attune_problem_check(p));
        assert_true(attune_problem_print(p, text, sizeof text) > 0);
        assert_string_equal(text, expected);
        assert_true(attune_problem_flops(p) == attune_problem_flops(&whole));
        assert_ok(attune_tensors(p, NULL, tensors, SAMPLE_TENSORS, &count));
        assert_int_equal(count, 5);
        same_key(&whole, p);
        assert_ok(attune_problem_parse(p, "seq_q=7,softmax_scale=2"));
        assert_int_equal(p->seq_q, 7);
        assert_int_equal(p->struct_size, bytes);
        unguard(&g);
    }
}

static void what_is_unknown_of_a_problem(void **state) {
    (void)state;
    const attune_problem whole = problem_parsed("num_heads=2,seq_q=3,head_dim=4");
    guarded g = as_of(&whole, sizeof whole, sizeof whole + MORE);
    attune_problem *const p = (attune_problem *)(void *)g.data;
    for (size_t at = sizeof whole; at < sizeof whole + MORE; at += MORE - 1) {
        attune_kernel *kernel;
        g.data[at] = 1;
        assert_fails(attune_problem_check(p), ATTUNE_UNSUPPORTED, "a member is set beyond the");
        assert_fails(attune_compile(sample_context, p, NULL, &kernel), ATTUNE_UNSUPPORTED, ATTUNE_VERSION_STRING);
        assert_null(kernel);
        g.data[at] = 0;
        assert_ok(attune_problem_check(p));
    }
    unguard(&g);
}

/* Zeros are no problem: they would mean the scale 0 and the window 0. */
static void zeros_are_refused(void **state) {
    (void)state;
    attune_problem problem;
    attune_kernel *kernel;
    memset(&problem, 0, sizeof problem);
    problem.batch = problem.num_heads = 1;
    problem.seq_q = problem.head_dim = 4;
    assert_fails(attune_problem_check(&problem), ATTUNE_INVALID_ARGUMENT, "ATTUNE_PROBLEM_INIT");
    assert_fails(attune_compile(sample_context, &problem, NULL, &kernel), ATTUNE_INVALID_ARGUMENT, "struct_size is 0");
}

/* ---- Init functions ---- */

typedef attune_status init_fn(void *object, size_t struct_size);
static attune_status init_problem(void *o, size_t n) { return attune_problem_init(o, n); }
static attune_status init_options(void *o, size_t n) { return attune_context_options_init(o, n); }
static attune_status init_runner(void *o, size_t n) { return attune_runner_init(o, n); }
static attune_status init_run(void *o, size_t n) { return attune_run_options_init(o, n); }
static attune_status init_operator(void *o, size_t n) { return attune_operator_options_init(o, n); }
static attune_status init_desc(void *o, size_t n) { return attune_attention_desc_init(o, n); }
static attune_status init_step(void *o, size_t n) { return attune_step_init(o, n); }
static attune_status init_tune(void *o, size_t n) { return attune_tune_options_init(o, n); }
static attune_status init_arguments(void *o, size_t n) {
    const attune_problem p = problem_parsed("num_heads=2,seq_q=3,seq_kv=5,head_dim=4");
    return attune_arguments_init_sized(o, n, &p);
}
static attune_status init_weights(void *o, size_t n) {
    const attune_problem p = problem_parsed("num_heads=2,seq_q=3,embed_dim=8");
    return attune_mha_weights_init_sized(o, n, &p, ATTUNE_IN_OUT);
}

static void check_init(init_fn *init, const void *macro, size_t full) {
    for (size_t bytes = full; bytes <= full + MORE; bytes += sizeof(size_t)) {
        guarded g = guard(bytes);
        memset(g.data, 0x5a, bytes);
        assert_ok(init(g.data, bytes));
        size_t size;
        memcpy(&size, g.data, sizeof size);
        assert_int_equal(size, bytes);
        assert_memory_equal(g.data + sizeof size, (const char *)macro + sizeof size, full - sizeof size);
        for (size_t i = full; i < bytes; i++) assert_int_equal(g.data[i], 0);
        unguard(&g);
    }
    guarded g = guard(0);
    const size_t bad[] = {0, sizeof(size_t), 2 * sizeof(size_t), full + 1, full - 1, (size_t)1 << 30, SIZE_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(init(g.data, bad[i]), ATTUNE_INVALID_ARGUMENT, "struct_size is");
    unguard(&g);
}

static void defaults_of_any_size(void **state) {
    (void)state;
    static const attune_problem problem = ATTUNE_PROBLEM_INIT;
    static const attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    static const attune_runner runner = ATTUNE_RUNNER_INIT;
    static const attune_run_options run = ATTUNE_RUN_OPTIONS_INIT;
    static const attune_tune_options tune = ATTUNE_TUNE_OPTIONS_INIT;
    static const attune_attention_desc desc = ATTUNE_ATTENTION_DESC_INIT;
    static const attune_step step = ATTUNE_STEP_INIT;
    static const attune_operator_options op = ATTUNE_OPERATOR_OPTIONS_INIT;
    attune_arguments arguments;
    attune_mha_weights weights;
    assert_ok(init_arguments(&arguments, sizeof arguments));
    assert_ok(init_weights(&weights, sizeof weights));
    check_init(init_problem, &problem, sizeof problem);
    check_init(init_options, &options, sizeof options);
    check_init(init_runner, &runner, sizeof runner);
    check_init(init_run, &run, sizeof run);
    check_init(init_tune, &tune, sizeof tune);
    check_init(init_operator, &op, sizeof op);
    check_init(init_desc, &desc, sizeof desc);
    check_init(init_step, &step, sizeof step);
    check_init(init_arguments, &arguments, sizeof arguments);
    check_init(init_weights, &weights, sizeof weights);
    assert_fails(attune_problem_init(NULL, sizeof problem), ATTUNE_INVALID_ARGUMENT, "NULL");
}

/* ---- Arguments ---- */

static void run_of_size(const sample *from, size_t bytes, bool with_workspace) {
    sample_call whole, other;
    size_t needed, needed_by_other;
    sample_call_open(&whole, from, ON_THE_HEAP);
    sample_call_open(&other, from, ON_THE_HEAP);
    attune_kernel *kernel = kernel_of(sample_context, &whole.problem);
    assert_ok(attune_run(sample_context, kernel, &whole.arguments));
    assert_ok(attune_workspace_size(sample_context, kernel, &whole.arguments, &needed));
    if (with_workspace) {
        other.arguments.workspace = aligned_alloc(64, needed + 64 - needed % 64);
        other.arguments.workspace_bytes = needed;
    }
    guarded g = as_of(&other.arguments, sizeof other.arguments, bytes);
    const attune_arguments *const a = (const attune_arguments *)(const void *)g.data;
    attune_call *call;
    assert_ok(attune_workspace_size(sample_context, kernel, a, &needed_by_other));
    assert_int_equal(needed, needed_by_other);
    assert_ok(attune_run(sample_context, kernel, a));
    assert_true(sample_calls_agree(&whole, &other));
    assert_ok(attune_run_interpreted(sample_context, &whole.problem, NULL, a));
    assert_true(sample_calls_agree(&whole, &other));
    assert_ok(attune_call_begin(sample_context, kernel, a, 1, &call));
    for (uint32_t p = 0; p < attune_call_num_phases(call); p++)
        assert_ok(attune_call_execute(call, p, 0, attune_call_num_tasks(call, p), 0));
    assert_ok(attune_call_end(call));
    assert_true(sample_calls_agree(&whole, &other));
    attune_tensor tensors[SAMPLE_TENSORS];
    size_t count;
    assert_ok(attune_tensors(&whole.problem, a, tensors, SAMPLE_TENSORS, &count));
    assert_int_equal(count, whole.count);
    unguard(&g);
    free(other.arguments.workspace);
    attune_kernel_release(kernel);
    sample_call_close(&whole);
    sample_call_close(&other);
}

static void arguments_of_other_sizes(void **state) {
    (void)state;
    for (int i = 0; i < NUM_SAMPLES; i += 3) run_of_size(&samples[i], sizeof(attune_arguments) + MORE, true);
}

static void what_is_unknown_of_arguments(void **state) {
    (void)state;
    sample_call c;
    sample_call_open(&c, &samples[DYNAMIC], ON_THE_HEAP);
    attune_kernel *kernel = kernel_of(sample_context, &c.problem);
    guarded g = as_of(&c.arguments, sizeof c.arguments, sizeof c.arguments + MORE);
    g.data[sizeof c.arguments + MORE - 1] = 1;
    attune_tensor tensors[SAMPLE_TENSORS];
    size_t count;
    assert_fails(attune_run(sample_context, kernel, (void *)g.data), ATTUNE_UNSUPPORTED, "attune_arguments");
    assert_fails(attune_tensors(&c.problem, (void *)g.data, tensors, SAMPLE_TENSORS, &count), ATTUNE_UNSUPPORTED,
                 "attune_arguments");
    unguard(&g);
    attune_kernel_release(kernel);
    sample_call_close(&c);
}

/* ---- Blocks ---- */

static void blocks_of_other_sizes(void **state) {
    (void)state;
    enum { QUERIES = 3, DIM = 8 };
    const attune_problem p = problem_parsed("num_heads=2,seq_q=3,embed_dim=8,w_dtype=f32");
    attune_mha_weights weights;
    float numbers[DIM * DIM], x[QUERIES][DIM], out[QUERIES][DIM], again[QUERIES][DIM];
    for (int i = 0; i < DIM * DIM; i++) numbers[i] = (float)(i % 7) / 8;
    for (int i = 0; i < QUERIES * DIM; i++) x[i / DIM][i % DIM] = (float)(i % 5) / 4;
    assert_ok(attune_mha_weights_init(&weights, &p, ATTUNE_OUT_IN));
    for (int i = ATTUNE_Q_WEIGHT; i <= ATTUNE_OUT_BIAS; i++) weights.tensor[i].data = numbers;
    attune_mha *mha, *other;
    assert_ok(attune_mha_create(sample_context, &p, NULL, &weights, &mha));
    guarded g = as_of(&weights, sizeof weights, sizeof weights + MORE);
    assert_ok(attune_mha_create(sample_context, &p, NULL, (void *)g.data, &other));
    unguard(&g);
    g = as_of(&weights, sizeof weights, sizeof weights + MORE);
    size_t bytes;
    assert_ok(attune_packed_weights_size(&p, &bytes));
    void *packed = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_ok(attune_pack_weights(&p, (void *)g.data, packed, bytes));
    assert_memory_equal(packed, attune_mha_packed_weights(other, NULL), bytes);
    memset(g.data + sizeof weights, 1, MORE);
    assert_fails(attune_pack_weights(&p, (void *)g.data, packed, bytes), ATTUNE_UNSUPPORTED, "attune_mha_weights");
    unguard(&g);
    free(packed);
    attune_arguments a;
    assert_ok(attune_arguments_init(&a, &p));
    a.x.data = x;
    a.out.data = out;
    assert_ok(attune_mha_run(mha, &a, NULL));
    a.out.data = again;
    g = as_of(&a, sizeof a, sizeof a + MORE);
    assert_ok(attune_mha_run(other, (void *)g.data, NULL));
    assert_memory_equal(out, again, sizeof out);
    unguard(&g);
    attune_mha_destroy(other);
    attune_mha_destroy(mha);
}

/* ---- Schedules ---- */

/* Fields that are not named are attune's own, and the whole text is the same schedule. */
static void schedules_are_text(void **state) {
    (void)state;
    const attune_problem p = problem_parsed("num_heads=2,seq_q=30,seq_kv=50,head_dim=16");
    char all[ATTUNE_SCHEDULE_BYTES], again[ATTUNE_SCHEDULE_BYTES], small[4] = "abc", field[40];
    attune_kernel *kernel, *same;
    assert_ok(attune_schedule_choose(sample_context, &p, NULL, all, sizeof all));
    const mha_schedule chosen = schedule_read(all);
    const char *const texts[] = {"", all, field};
    snprintf(field, sizeof field, "score_keys=%d", (int)chosen.score_keys);
    assert_ok(attune_compile(sample_context, &p, "", &kernel));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        attune_prediction prediction = {.struct_size = sizeof prediction};
        void *data;
        assert_ok(attune_schedule_choose(sample_context, &p, texts[i], again, sizeof again));
        assert_string_equal(again, all);
        assert_ok(attune_compile(sample_context, &p, texts[i], &same));
        assert_ptr_equal(kernel, same);
        attune_kernel_release(same);
        assert_ok(attune_schedule_predict(sample_context, &p, texts[i], &prediction));
        assert_string_equal(prediction.schedule, all);
        assert_ok(attune_emit(sample_context, &p, texts[i], ATTUNE_STAGE_IR, &data, &(size_t){0}));
        attune_free(sample_context, data);
    }
    attune_kernel_release(kernel);
    assert_fails(attune_schedule_choose(sample_context, &p, NULL, small, sizeof small), ATTUNE_INVALID_ARGUMENT,
                 "but capacity is 4");
    assert_string_equal(small, "abc");
    assert_fails(attune_schedule_choose(sample_context, &p, "score_key=4", NULL, 0), ATTUNE_INVALID_SCHEDULE,
                 "did you mean score_keys?");
    assert_fails(attune_schedule_choose(sample_context, &p, "lanes=3", NULL, 0), ATTUNE_INVALID_SCHEDULE, "lanes");
}

/* ---- Options ---- */

static void backwards(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    *(int *)user += 1;
    while (n--) fn(argument, n, n + 1, 0);
}

static void options_of_other_sizes(void **state) {
    (void)state;
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *context;
    int calls = 0;
    const attune_runner runner = {
        .struct_size = sizeof runner, .parallel_for = backwards, .user = &calls, .max_workers = 2};
    guarded r = as_of(&runner, sizeof runner, sizeof runner + MORE);
    options.cache_dir = "";
    options.runner = (void *)r.data;
    for (size_t more = 0; more <= MORE; more += MORE) {
        guarded g = as_of(&options, sizeof options, sizeof options + more);
        assert_ok(attune_context_create((void *)g.data, &context));
        unguard(&g);
        attune_context_destroy(context);
    }
    guarded g = as_of(&options, sizeof options, sizeof options + MORE);
    g.data[sizeof options + 8] = 1;
    assert_fails(attune_context_create((void *)g.data, &context), ATTUNE_UNSUPPORTED, "attune_context_options");
    assert_null(context);
    unguard(&g);
    r.data[sizeof runner + 8] = 1;
    assert_fails(attune_context_create(&options, &context), ATTUNE_UNSUPPORTED, "attune_runner");
    unguard(&r);
}

static void run_options_of_other_sizes(void **state) {
    (void)state;
    sample_call c;
    int calls = 0;
    const attune_runner runner = {
        .struct_size = sizeof runner, .parallel_for = backwards, .user = &calls, .max_workers = 2};
    const attune_run_options options = {.struct_size = sizeof options, .runner = &runner};
    sample_call_open(&c, &samples[PLAIN], ON_THE_HEAP);
    attune_kernel *kernel = kernel_of(sample_context, &c.problem);
    for (int round = 0; round < 2; round++) {
        guarded g = as_of(&options, sizeof options, sizeof options + (round ? MORE : 0));
        assert_ok(attune_run_with(sample_context, kernel, &c.arguments, (void *)g.data));
        if (round) g.data[sizeof options] = 1;
        if (round)
            assert_fails(attune_run_with(sample_context, kernel, &c.arguments, (void *)g.data), ATTUNE_UNSUPPORTED,
                         "attune_run_options");
        unguard(&g);
    }
    attune_kernel_release(kernel);
    sample_call_close(&c);
}

static int stop_search(void *user, const attune_tune_progress *progress) {
    (void)user;
    assert_int_equal(progress->struct_size, sizeof *progress);
    return 1;
}

static void tuning_of_other_sizes(void **state) {
    (void)state;
    sample_call c;
    sample_call_open(&c, &samples[PLAIN], ON_THE_HEAP);
    const attune_tune_options options = {
        .struct_size = sizeof options, .budget_seconds = 0.05, .progress = stop_search};
    attune_tune_result result = {.struct_size = offsetof(attune_tune_result, ratio)};
    guarded g = as_of(&options, sizeof options, sizeof options + MORE);
    guarded r = as_of(&result, sizeof result, offsetof(attune_tune_result, ratio));
    guarded a = as_of(&c.arguments, sizeof c.arguments, sizeof c.arguments + MORE);
    assert_ok(attune_tune(sample_context, &c.problem, (void *)a.data, (void *)g.data, (void *)r.data));
    unguard(&a);
    unguard(&g);
    unguard(&r);
    g = as_of(&options, sizeof options, sizeof options + MORE);
    result.struct_size = sizeof result;
    assert_ok(attune_tune(sample_context, &c.problem, &c.arguments, (void *)g.data, &result));
    g.data[sizeof options] = 1;
    assert_fails(attune_tune(sample_context, &c.problem, &c.arguments, (void *)g.data, &result), ATTUNE_UNSUPPORTED,
                 "attune_tune_options");
    unguard(&g);
    sample_call_close(&c);
}

/* ---- Older than 0.2 ---- */

/* The sizes of 0.2, which no later version changes: smaller structs were laid out otherwise. */
static void what_is_older_is_refused(void **state) {
    (void)state;
    static const char older[] = "compile the program again with the installed header";
    const attune_problem p = problem_parsed("num_heads=2,seq_q=3,head_dim=4"),
                         block = problem_parsed("num_heads=2,seq_q=3,embed_dim=8");
    const attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    const attune_tune_options tune = ATTUNE_TUNE_OPTIONS_INIT;
    attune_arguments arguments;
    attune_mha_weights weights;
    attune_kernel *kernel;
    attune_context *context;
    attune_mha *mha;
    attune_tune_result result = {.struct_size = sizeof result};
    assert_ok(attune_arguments_init(&arguments, &p));
    assert_ok(attune_mha_weights_init(&weights, &block, ATTUNE_IN_OUT));
    guarded g = as_of(&p, sizeof p, 816);
    assert_fails(attune_compile(sample_context, (void *)g.data, NULL, &kernel), ATTUNE_INVALID_ARGUMENT, older);
    assert_fails(attune_problem_parse((void *)g.data, "seq_q=9"), ATTUNE_INVALID_ARGUMENT, older);
    unguard(&g);
    g = as_of(&options, sizeof options, 112);
    assert_fails(attune_context_create((void *)g.data, &context), ATTUNE_INVALID_ARGUMENT, older);
    unguard(&g);
    g = as_of(&weights, sizeof weights, 488);
    assert_fails(attune_mha_create(sample_context, &block, NULL, (void *)g.data, &mha), ATTUNE_INVALID_ARGUMENT, older);
    unguard(&g);
    g = as_of(&tune, sizeof tune, 24);
    assert_fails(attune_tune(sample_context, &p, &arguments, (void *)g.data, &result), ATTUNE_INVALID_ARGUMENT, older);
    unguard(&g);
    g = as_of(&arguments, sizeof arguments, 816);
    kernel = kernel_of(sample_context, &p);
    assert_fails(attune_run(sample_context, kernel, (void *)g.data), ATTUNE_INVALID_ARGUMENT, older);
    attune_kernel_release(kernel);
    unguard(&g);
    assert_fails(attune_runner_init(&(attune_runner){0}, 32), ATTUNE_INVALID_ARGUMENT, older);
    assert_fails(attune_run_options_init(&(attune_run_options){0}, 24), ATTUNE_INVALID_ARGUMENT, older);
}

/* A struct that has grown since then. */
typedef struct grown {
    size_t struct_size;
    int64_t first, second, added, last;
} grown;

static void a_struct_that_grew(void **state) {
    (void)state;
    static const grown defaults = {sizeof defaults, 1, 2, 3, 4};
    static const at_struct kind = {"grown", "start from defaults", sizeof(grown), &defaults, offsetof(grown, added)};
    at_error err = {0};
    const grown given = {0, 10, 20, 30, 40};
    for (size_t bytes = offsetof(grown, added); bytes <= sizeof given + MORE; bytes += sizeof bytes) {
        guarded g = as_of(&given, sizeof given, bytes);
        grown whole;
        assert_ok(at_copy_in(&kind, g.data, &whole, &err));
        assert_int_equal(whole.struct_size, sizeof whole);
        assert_int_equal(whole.second, 20);
        assert_int_equal(whole.added, bytes > offsetof(grown, added) ? 30 : 3);
        assert_int_equal(whole.last, bytes > offsetof(grown, last) ? 40 : 4);
        whole.first = 11;
        assert_ok(at_copy_back(&kind, &whole, g.data, &err));
        assert_int_equal(((grown *)(void *)g.data)->first, 11);
        whole.first = 12;
        whole.last = 41;
        if (bytes < sizeof whole) {
            assert_int_equal(at_copy_back(&kind, &whole, g.data, &err), ATTUNE_INVALID_ARGUMENT);
            assert_non_null(strstr(err.message, "compile the program again"));
            assert_int_equal(((grown *)(void *)g.data)->first, 11);
            at_error_clear(&err);
        }
        assert_ok(at_struct_init(&kind, g.data, bytes, &err));
        assert_int_equal(((grown *)(void *)g.data)->second, 2);
        unguard(&g);
    }
    guarded g = as_of(&given, sizeof given, offsetof(grown, second));
    grown whole = given;
    assert_int_equal(at_copy_in(&kind, g.data, &whole, &err), ATTUNE_INVALID_ARGUMENT);
    assert_memory_equal(&whole, &given, sizeof whole);
    assert_string_equal(err.message,
                        "grown.struct_size is 16, but the oldest supported header has 24: compile the program again "
                        "with the installed header");
    unguard(&g);
}

/* ---- Results ---- */

typedef attune_status result_fn(void *result);
static attune_kernel *one_kernel;
static attune_status kernel_info(void *r) { return attune_kernel_get_info(one_kernel, r); }
static attune_status statistics(void *r) { return attune_get_statistics(sample_context, r); }
static attune_status machine_info(void *r) { return attune_get_machine_info(sample_context, r); }
static attune_status collected(void *r) { return attune_cache_gc(sample_context, UINT64_MAX, r); }
static attune_status prediction(void *r) {
    const attune_problem p = problem_parsed("seq_q=3,head_dim=4");
    return attune_schedule_predict(sample_context, &p, NULL, r);
}
static attune_status reason(void *r) {
    const attune_problem p = problem_parsed("seq_q=3,head_dim=4");
    return attune_schedule_reason(sample_context, &p, 0, r);
}

static void results_of_other_sizes(void **state) {
    (void)state;
    static const struct {
        result_fn *get;
        size_t bytes;
    } all[] = {{kernel_info, sizeof(attune_kernel_info)},   {statistics, sizeof(attune_statistics)},
               {machine_info, sizeof(attune_machine_info)}, {collected, sizeof(attune_cache_collected)},
               {prediction, sizeof(attune_prediction)},     {reason, sizeof(attune_reason)}};
    const attune_problem p = problem_parsed("seq_q=3,head_dim=4");
    one_kernel = kernel_of(sample_context, &p);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (size_t bytes = 0; bytes <= all[i].bytes + MORE; bytes += sizeof(size_t)) {
            guarded g = guard(bytes + sizeof(size_t));
            memset(g.data, 0x5a, bytes + sizeof bytes);
            memcpy(g.data, &bytes, sizeof bytes);
            const attune_status status = all[i].get(g.data);
            if (bytes <= sizeof bytes)
                assert_fails(status, ATTUNE_INVALID_ARGUMENT, "set it to sizeof");
            else
                assert_ok(status);
            for (size_t n = all[i].bytes; n < bytes; n++) assert_int_equal(g.data[n], 0);
            size_t after;
            memcpy(&after, g.data, sizeof after);
            assert_int_equal(after, bytes);
            for (size_t n = bytes < sizeof n ? sizeof n : bytes; n < bytes + sizeof bytes; n++)
                assert_int_equal(g.data[n], 0x5a);
            unguard(&g);
        }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const size_t bad[] = {all[i].bytes - 1, all[i].bytes + 1, (size_t)1 << 30, SIZE_MAX};
        for (size_t n = 0; n < sizeof bad / sizeof *bad; n++) {
            guarded g = guard(all[i].bytes);
            memcpy(g.data, &bad[n], sizeof bad[n]);
            assert_fails(all[i].get(g.data), ATTUNE_INVALID_ARGUMENT, "set it to sizeof");
            for (size_t at = sizeof(size_t); at < all[i].bytes; at++) assert_int_equal(g.data[at], 0);
            unguard(&g);
        }
    }
    attune_kernel_release(one_kernel);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(problems_of_other_sizes),  cmocka_unit_test(what_is_unknown_of_a_problem),
        cmocka_unit_test(zeros_are_refused),        cmocka_unit_test(defaults_of_any_size),
        cmocka_unit_test(arguments_of_other_sizes), cmocka_unit_test(what_is_unknown_of_arguments),
        cmocka_unit_test(blocks_of_other_sizes),    cmocka_unit_test(schedules_are_text),
        cmocka_unit_test(options_of_other_sizes),   cmocka_unit_test(run_options_of_other_sizes),
        cmocka_unit_test(what_is_older_is_refused), cmocka_unit_test(a_struct_that_grew),
        cmocka_unit_test(tuning_of_other_sizes),    cmocka_unit_test(results_of_other_sizes),
    };
    return cmocka_run_group_tests(tests, sample_context_open, sample_context_close);
}
