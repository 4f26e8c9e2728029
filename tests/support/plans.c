#include "support/plans.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

attune_plan *plan_of(const char *text, const attune_plan_options *options) {
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    attune_plan *plan;
    assert_ok(attune_problem_parse(&problem, text));
    assert_ok(attune_plan_create(sample_context, &problem, options, &plan));
    return plan;
}

attune_plan_info info_of(const attune_plan *plan) {
    attune_plan_info info = {.struct_size = sizeof info};
    assert_ok(attune_plan_get_info(plan, &info));
    return info;
}

int few_rows_of(const attune_plan *plan) {
    const int few = (int)info_of(plan).few_rows;
    assert_in_range(few, 2, 19);
    return few;
}

void assert_history(const attune_plan *plan, const char *expected) {
    const attune_plan_info i = info_of(plan);
    char text[128];
    snprintf(text, sizeof text, "kernels %u %u %u, calls %llu %llu %llu", i.few_kernels, i.many_kernels,
             i.specialised_kernels, (unsigned long long)i.few_calls, (unsigned long long)i.many_calls,
             (unsigned long long)i.specialised_calls);
    assert_string_equal(text, expected);
}

void assert_runs_as(attune_plan *plan, const sample *from, const char *kernel) {
    sample_call here, there;
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    sample_call_open(&here, from, ON_THE_HEAP);
    sample_call_open(&there, from, ON_THE_HEAP);
    assert_ok(attune_plan_run(plan, &here.arguments, NULL));
    assert_ok(attune_problem_parse(&problem, kernel));
    assert_ok(attune_run_interpreted(sample_context, &problem, NULL, &there.arguments));
    if (!sample_calls_agree(&here, &there))
        fail_msg("%s with %s: not the bits of %s", from->problem, from->sizes, kernel);
    sample_call_close(&here);
    sample_call_close(&there);
}

sample sized(const char *problem, const char *sizes) { return (sample){.problem = problem, .sizes = sizes}; }

void run_sized(attune_plan *plan, const char *problem, const char *sizes) {
    const sample from = sized(problem, sizes);
    sample_call call;
    sample_call_open(&call, &from, ON_THE_HEAP);
    assert_ok(attune_plan_run(plan, &call.arguments, NULL));
    sample_call_close(&call);
}
