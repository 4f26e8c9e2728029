/* Plans in tests: their calls beside those of the interpreter, and what they have done. */
#ifndef ATTUNE_TESTS_PLANS_H
#define ATTUNE_TESTS_PLANS_H

#include "support/calls.h"
#include "support/statuses.h"

#include <stdatomic.h>

#define HEADS  "num_heads=2,head_dim=16"
#define OPEN   HEADS ",seq_q=dynamic,seq_kv=dynamic"
#define GROUPS "num_heads=8,num_kv_heads=2,head_dim=16,seq_q=dynamic,seq_kv=dynamic"

/* A plan of sample_context. */
attune_plan *plan_of(const char *text, const attune_plan_options *options);
attune_plan_info info_of(const attune_plan *plan);

/* Up to how many queries are few: that is for the cost of schedules to say, but more than one and less than 20. */
int few_rows_of(const attune_plan *plan);

/* "kernels few many specialised, calls few many specialised". */
void assert_history(const attune_plan *plan, const char *expected);

/* Runs a call of the plan. Its outputs must have the bits that the interpreter gives for the problem `kernel`, which is
 * that of the kernel that is expected to run. */
void assert_runs_as(attune_plan *plan, const sample *from, const char *kernel);

/* The events of sample_context in a test of its own: what the test's thread compiled, what others did, and so on. */
#define WATCHED(test) cmocka_unit_test_setup_teardown(test, watch, look_away)
int watch(void **state);
int look_away(void **state);
void count_event(void *user, const attune_event *event);
extern atomic_int compiled_by_caller, compiled_behind, compiles_failed, swapped, tier0_found;

/* Until sample_context has no work left in the background. */
void wait_for_background(void);

/* Runs a call of these sizes, whatever computes it. */
void run_sized(attune_plan *plan, const char *problem, const char *sizes);

/* A sample without tables. */
sample sized(const char *problem, const char *sizes);

#endif
