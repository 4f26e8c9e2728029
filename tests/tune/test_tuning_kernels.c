/* What tuning does to cached kernels. */

#include "schedule/schedule.h"
#include "support/problems.h"
#include "support/engine/tuning_db.h"
#include "support/statuses.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static mha_schedule compiled(attune_context *context, const char *text) {
    const attune_problem problem = problem_parsed(text);
    attune_kernel *kernel = kernel_of(context, &problem);
    const attune_kernel_info info = kernel_info_of(kernel);
    attune_kernel_release(kernel);
    return schedule_read(info.schedule);
}

static void assert_compiled(attune_context *context, const mha_schedule *expected) {
    const mha_schedule schedule = compiled(context, THERE);
    assert_true(mha_schedule_same(&schedule, expected));
}

static uint64_t memory_kernels(const attune_context *context) {
    const attune_statistics s = statistics_of(context);
    return s.memory_kernels;
}

static void other_kernels_stay_in_memory(void **state) {
    (void)state;
    attune_context *context = open_context(own_dir, "", 1);
    const attune_problem canonical = problem_canonical(THERE);
    const mha_schedule s = unusual(context, 0);
    at_error err = {0};
    compiled(context, THERE);
    compiled(context, "num_heads=2,seq_q=9,head_dim=16");
    assert_int_equal(memory_kernels(context), 2);
    if (at_kernel_replace(context, at_attention_of(&canonical), &s, &err)) fail_msg("%s", err.message);
    assert_int_equal(memory_kernels(context), 1);
    assert_compiled(context, &s);
    attune_context_destroy(context);
}

/* Where the disk is full the old one stays, and nothing half beside it. */
static void a_kernel_that_cannot_be_replaced_stays(void **state) {
    (void)state;
    attune_context *context = open_context(own_dir, "", 1);
    const attune_problem canonical = problem_canonical(THERE);
    const mha_schedule s = unusual(context, 0), before = compiled(context, THERE);
    at_error err = {0};
    limit_files(1024);
    const attune_status status = at_kernel_replace(context, at_attention_of(&canonical), &s, &err);
    limit_files(RLIM_INFINITY);
    assert_int_equal(status, ATTUNE_OK);
    assert_non_null(strstr(last_message, "cannot be written: File too large"));
    attune_context_destroy(context);
    assert_int_equal(temp_dir_count(own_dir, "", ""), 1);
    context = open_context(own_dir, "", 1);
    assert_compiled(context, &before);
    assert_int_equal(attune_cache_clear(context, NULL), ATTUNE_OK);
    attune_context_destroy(context);
}

static void without_a_disk_cache_kernels_stay(void **state) {
    (void)state;
    attune_context *context = open_context("", "", 1);
    attune_tune_result result;
    compiled(context, THERE);
    if (tune_there(context, stop_at_once, &result)) fail_msg("%s", attune_last_message());
    assert_int_equal(memory_kernels(context), 1);
    attune_context_destroy(context);
}

/* There is one cached kernel for all numbers of threads: that of the last tuning, which says so. */
static void the_last_tuning_wins_and_says_so(void **state) {
    (void)state;
    attune_context *one = open_context(own_dir, "", 1), *two = open_context(own_dir, "", 2);
    const mha_schedule of_one = unusual(one, 0), of_two = unusual(one, 1);
    attune_tune_result result;
    plant(one, own_db, THERE, &of_one, 0.5);
    assert_compiled(one, &of_one);
    attune_context_destroy(one);

    plant(two, own_db, THERE, &of_two, 0.5);
    if (tune_there(two, stop_at_once, &result)) fail_msg("%s", attune_last_message());
    mha_schedule winner = schedule_read(result.schedule);
    assert_false(mha_schedule_same(&winner, &of_one));
    assert_int_equal(messages, 1);
    assert_non_null(strstr(last_message, "tuned with 1 thread, is replaced by one tuned with 2"));
    assert_compiled(two, &winner);
    attune_context_destroy(two);

    messages = 0; /* and one more time back: nothing faster is found, and the winner of before returns */
    one = open_context(own_dir, "", 1);
    if (tune_there(one, stop_at_once, &result)) fail_msg("%s", attune_last_message());
    winner = schedule_read(result.schedule);
    assert_compiled(one, &winner);
    attune_context_destroy(one);
}

/* Without a winner for as many threads as there are, that for another number is better than none. */
static void winners_of_other_numbers_of_threads_count(void **state) {
    (void)state;
    attune_context *one = open_context(own_dir, "", 1), *two = open_context(own_dir, "", 2);
    const mha_schedule of_one = unusual(one, 0), of_two = unusual(one, 1);
    plant(one, own_db, THERE, &of_one, 0.5);
    assert_finds(two, THERE, &of_one);
    plant(two, own_db, THERE, &of_two, 0.5);
    assert_finds(two, THERE, &of_two);
    assert_finds(one, THERE, &of_one);
    attune_context_destroy(one);
    attune_context_destroy(two);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(other_kernels_stay_in_memory),
        CASE(a_kernel_that_cannot_be_replaced_stays),
        CASE(without_a_disk_cache_kernels_stay),
        CASE(the_last_tuning_wins_and_says_so),
        CASE(winners_of_other_numbers_of_threads_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
