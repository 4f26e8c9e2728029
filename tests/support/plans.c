#include "support/plans.h"

#include "engine/context.h"
#include "support/problems.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

attune_plan *plan_of(const char *text, const attune_plan_options *options) {
    attune_plan *plan;
    const attune_problem problem = problem_parsed(text);
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
    sample_call_open(&here, from, ON_THE_HEAP);
    sample_call_open(&there, from, ON_THE_HEAP);
    assert_ok(attune_plan_run(plan, &here.arguments, NULL));
    const attune_problem problem = problem_parsed(kernel);
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

static pthread_t caller;
atomic_int compiled_by_caller, compiled_behind, compiles_failed, swapped, tier0_found; /* events come from any thread */

void count_event(void *user, const attune_event *event) {
    (void)user;
    const bool is_caller = pthread_equal(pthread_self(), caller);
    if (event->kind == ATTUNE_EVENT_COMPILE_BEGIN) ++*(is_caller ? &compiled_by_caller : &compiled_behind);
    if (event->kind == ATTUNE_EVENT_COMPILE_END && event->status) compiles_failed++;
    if (event->kind == ATTUNE_EVENT_TIER0_HIT) tier0_found++;
    if (event->kind != ATTUNE_EVENT_SWAPPED) return;
    assert_int_equal(strlen(event->key), 32);
    assert_non_null(strstr(event->problem, "head_dim="));
    swapped++;
}

int watch(void **state) {
    (void)state;
    caller = pthread_self();
    compiled_by_caller = compiled_behind = compiles_failed = swapped = tier0_found = 0;
    attune_drop_memory_cache(sample_context);
    sample_context->log.event = count_event;
    return 0;
}

int look_away(void **state) {
    (void)state;
    sample_context->log.event = NULL;
    return 0;
}

void wait_for_background(void) { at_background_wait(&sample_context->background); }
