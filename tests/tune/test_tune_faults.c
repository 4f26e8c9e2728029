/* Searches whose kernels are wrong, or cannot be made. */
#define _GNU_SOURCE
#include "codegen/exports.h"
#include "engine/kernel.h"
#include "schedule/schedule.h"
#include "support/engine/contexts.h"
#include "support/problems.h"
#include "support/temp_dir.h"
#include "tune/database.h"
#include "tune/search.h"
#include "tune/sqlite.h"
#include "tune/tuning.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char small_problem[] = "num_heads=2,seq_q=64,head_dim=64";
static char dir[TEMP_DIR_CHARS], path[TEMP_DIR_CHARS + 16];

static int set_up(void **state) {
    (void)state;
    temp_dir_make(dir);
    snprintf(path, sizeof path, "%s/tuning.db", dir);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    temp_dir_remove(dir);
    return 0;
}

/* A code generator that gets e to the power of x wrong in kernels first_wrong to last_wrong, counted from 0, and is not
 * there from kernel `missing` on. */
typedef struct bad_codegen {
    atomic_int count;
    int first_wrong, last_wrong, missing;
} bad_codegen;

static attune_status compile_badly(void *user, const at_codegen_request *request, const attune_allocator *allocator,
                                   void **data, size_t *bytes, at_error *err) {
    static const char right[] = "0x1.62e43p-1";
    bad_codegen *const bad = user;
    const int number = atomic_fetch_add(&bad->count, 1);
    const at_codegen_exports *codegen = attune_codegen_exports();
    at_codegen_request altered = *request;
    at_codegen_reply reply = {0};
    if (number >= bad->missing) return at_fail(err, ATTUNE_CODEGEN_MISSING, "it is gone");
    char *text = malloc(request->ir_bytes + 1);
    assert_non_null(text);
    memcpy(text, request->ir, request->ir_bytes);
    text[request->ir_bytes] = '\0';
    char *const constant = strstr(text, right);
    assert_non_null(constant);
    if (number >= bad->first_wrong && number <= bad->last_wrong) constant[4] = '7';
    altered.ir = text;
    codegen->compile(&altered, &reply);
    free(text);
    attune_status status = reply.status;
    if (status) at_fail(err, status, "%s", reply.message);
    if (!status) status = at_codegen_copy(allocator, reply.data, reply.bytes, data, err);
    *bytes = reply.bytes;
    codegen->release(&reply);
    return status;
}

/* The search begins with a schedule that nearly all are faster than. */
static void begin_slowly(attune_context *context, const attune_problem *canonical, mha_schedule *slow) {
    char text[512], problem_text[2048];
    at_error err = {0};
    tune_place place;
    tune_database *d;
    mha_choose(mha_read(canonical), context->target, &context->machine_class.description, slow);
    if (mha_schedule_parse("score_keys=1,score_row_vectors=1,task_row_vectors=1,value_columns=1,value_row_vectors=1",
                           slow, &err))
        fail_msg("%s", err.message);
    mha_schedule_print(slow, text, sizeof text);
    at_tuning_place(context, at_attention_of(canonical), problem_text, sizeof problem_text, &place);
    if (tune_database_open(path, TUNE_CREATE, at_default_allocator(), &d, &err)) fail_msg("%s", err.message);
    const tune_timing timing = {text, 1e-3, 0.5, 9};
    if (tune_database_add(d, &place, "v1", &timing, 1, 0, &err)) fail_msg("%s", err.message);
    tune_database_close(d);
}

static attune_status search(const char *text, bad_codegen *bad, double budget, mha_schedule *slow,
                            attune_tune_result *result) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    const at_context_hooks hooks = {.compile = compile_badly, .compile_user = bad};
    attune_context *context;
    const attune_problem problem = problem_canonical(text);
    attune_arguments arguments = {.struct_size = sizeof arguments};
    const size_t elements = (size_t)(problem.num_heads * problem.seq_q * problem.head_dim);
    float *const memory = malloc(4 * elements * sizeof *memory);
    assert_non_null(memory);
    for (size_t n = 0; n < 4 * elements; n++) memory[n] = (float)(n * 7919 % 2001) / 1000 - 1;
    options.cache_dir = dir;
    options.max_workers = 1;
    context = test_context(&options, &hooks);
    if (slow) begin_slowly(context, &problem, slow);
    assert_int_equal(attune_arguments_init(&arguments, &problem), ATTUNE_OK);
    arguments.q.data = memory;
    arguments.k.data = memory + elements;
    arguments.v.data = memory + 2 * elements;
    arguments.out.data = memory + 3 * elements;
    attune_tune_options how = ATTUNE_TUNE_OPTIONS_INIT;
    how.budget_seconds = budget;
    *result = (attune_tune_result){.struct_size = sizeof *result};
    const attune_status status = attune_tune(context, &problem, &arguments, &how, result);
    free(memory);
    attune_context_destroy(context);
    return status;
}

/* Whether candidates are checked before they are timed, or, tasks being long and the time short, the winner at the end:
 * a wrong schedule is not adopted, however fast. On a busy machine two seconds may pass without a winner. */
static void wrong_kernels_are_not_adopted(void **state) {
    (void)state;
    static const char *const problems[] = {small_problem, "num_heads=2,seq_q=2048,head_dim=64"};
    for (int i = 0; i < 2; i++) {
        attune_tune_result result = {0};
        for (double budget = 2; budget < 60 && !result.wrong; budget *= 2) {
            bad_codegen bad = {.first_wrong = 1, .last_wrong = INT_MAX, .missing = INT_MAX};
            mha_schedule slow;
            if (search(problems[i], &bad, budget, &slow, &result)) fail_msg("%s", attune_last_message());
            assert_false(result.is_faster);
            assert_int_equal(schedule_read(result.schedule).task_row_vectors, slow.task_row_vectors);
            unlink(path);
        }
        assert_true(result.wrong > 0 && *result.wrong_schedule);
    }
}

/* The previous best is found out to be wrong, and the search begins with attune's own choice. */
static void a_wrong_winner_of_before_is_dropped(void **state) {
    (void)state;
    bad_codegen bad = {.first_wrong = 0, .last_wrong = 0, .missing = INT_MAX};
    mha_schedule slow;
    attune_tune_result result;
    if (search(small_problem, &bad, 1, &slow, &result)) fail_msg("%s", attune_last_message());
    assert_int_equal(result.wrong, 1);
    assert_string_not_equal(result.schedule, mha_schedule_text(&slow).text);
}

static void a_wrong_choice_is_refused(void **state) {
    (void)state;
    bad_codegen bad = {.first_wrong = 0, .last_wrong = INT_MAX, .missing = INT_MAX};
    attune_tune_result result;
    assert_int_equal(search(small_problem, &bad, 1, NULL, &result), ATTUNE_CHECK_FAILED);
    assert_non_null(strstr(attune_last_message(), "machine code and interpreter differ: strategy="));
    assert_int_equal(temp_dir_count(dir, "", ".attune"), 0);
}

/* The search uses samples; whole calls confirm its result. */
static void a_winner_is_confirmed_by_whole_calls(void **state) {
    (void)state;
    const attune_problem problem = problem_canonical("num_heads=8,seq_q=320,head_dim=64");
    const size_t elements = 8 * 320 * 64;
    attune_context *context;
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_arguments arguments = {.struct_size = sizeof arguments};
    attune_tune_options how = ATTUNE_TUNE_OPTIONS_INIT;
    attune_tune_result result = {.struct_size = sizeof result};
    mha_schedule slow;
    tune_search search;
    at_error err = {0};
    float *const memory = calloc(4 * elements, sizeof *memory);
    assert_non_null(memory);
    options.cache_dir = dir;
    options.max_workers = 1;
    context = test_context(&options, NULL);
    begin_slowly(context, &problem, &slow);
    assert_int_equal(attune_arguments_init(&arguments, &problem), ATTUNE_OK);
    arguments.q.data = memory;
    arguments.k.data = memory + elements;
    arguments.v.data = memory + 2 * elements;
    arguments.out.data = memory + 3 * elements;
    if (tune_search_run(&search, context, &(tune_task){at_attention_of(&problem), .arguments = &arguments}, &slow, &how,
                        &result, &err))
        fail_msg("%s", err.message);
    assert_true(search.runner.whole > 1e-3);
    /* Not where other programs interrupt many samples. */
    if (18 * search.runner.whole < 0.5 && result.interrupted <= 0.02)
        assert_true(search.runner.share == 1 && search.runner.samples == 1);
    tune_search_free(&search);
    attune_context_destroy(context);
    free(memory);
}

static int64_t count_timings(void) {
    const tune_sqlite *const lib = tune_sqlite_load(NULL);
    sqlite3 *handle = NULL;
    sqlite3_stmt *statement = NULL;
    assert_int_equal(lib->open(path, &handle, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    assert_int_equal(lib->prepare(handle, "SELECT count(*) FROM timing", -1, &statement, NULL), SQLITE_OK);
    assert_int_equal(lib->step(statement), SQLITE_ROW);
    const int64_t count = lib->column_int64(statement, 0);
    lib->finalize(statement);
    lib->close(handle);
    return count;
}

static void timings_outlive_a_failure(void **state) {
    (void)state;
    bad_codegen bad = {.first_wrong = -1, .last_wrong = -1, .missing = 12};
    attune_tune_result result;
    assert_int_equal(search(small_problem, &bad, 20, NULL, &result), ATTUNE_CODEGEN_MISSING);
    assert_non_null(strstr(attune_last_message(), "it is gone"));
    assert_true(count_timings() >= 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(wrong_kernels_are_not_adopted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_wrong_winner_of_before_is_dropped, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_wrong_choice_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_winner_is_confirmed_by_whole_calls, set_up, tear_down),
        cmocka_unit_test_setup_teardown(timings_outlive_a_failure, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
