/* Calls on the tools' tensors, in tests: whatever goes wrong fails the test. */
#ifndef ATTUNE_TESTS_TENSOR_CALLS_H
#define ATTUNE_TESTS_TENSOR_CALLS_H

#include "schedule/schedule_fields.h"
#include "common/tensors.h"
#include "support/sample.h"
#include "target/target.h"

/* A call of this problem with these run-time sizes, its inputs filled, its outputs rubbish. */
void tensors_open_call(tensors *t, const char *problem, const char *sizes_text, input_kind kind, uint64_t seed);

void tensors_open_sample(tensors *t, const sample *from, input_kind kind, uint64_t seed);

/* Without a disk cache. isa NULL: the best. */
attune_context *tensors_context(const char *isa, uint32_t workers);

/* As for a CPU with this target and of the generic tuning class, whatever this CPU is. It checks and chooses
 * schedules, and its runs are by the interpreter (tensors_interpret). */
attune_context *tensors_context_for(const at_target *target);

/* Compiles and runs; schedule NULL: the chosen one. */
void tensors_run_chosen(attune_context *context, const tensors *t, const mha_schedule *schedule);

void tensors_interpret(attune_context *context, const tensors *t, const mha_schedule *schedule);

void tensors_assert_same(const tensors *a, const tensors *b, const char *what);

/* The outputs against the reference. No block. */
void tensors_assert_right(const tensors *t, input_kind kind, const char *what);

/* The memory of a tensor of f32. */
float *tensors_floats(const tensors *t, const char *name);

/* By the interpreter, as lowered for a target that need not be this CPU's. Sizes that the
 * problem leaves open are those of the tensors. No appended keys. */
void tensors_interpret_for(const tensors *t, const at_target *target, const mha_schedule *schedule);

#endif
