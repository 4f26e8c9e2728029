/* Plans: calls of few and of many queries, and lengths that come back. */
#include "support/calls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void assert_ok(attune_status status) {
    if (status) fail_msg("%s: %s", attune_status_name(status), attune_last_message());
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_and_many_queries_have_their_kernels),
        cmocka_unit_test(rows_are_those_of_a_group),
    };
    return cmocka_run_group_tests(tests, sample_context_open, sample_context_close);
}
