#include "support/tensor_calls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

void tensors_open_call(tensors *t, const char *problem, const char *sizes_text, input_kind kind, uint64_t seed) {
    attune_problem p;
    call_sizes sizes = {0};
    assert_true(problem_from_text(problem, &p));
    assert_true(sizes_parse(sizes_text, &sizes));
    assert_true(tensors_create_sized(t, &p, &sizes));
    assert_true(tensors_fill(t, kind, seed));
    tensors_clear_outputs(t);
}

attune_context *tensors_context(const char *isa, uint32_t workers) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *context = NULL;
    options.isa = isa;
    options.cache_dir = "";
    options.max_workers = workers;
    if (attune_context_create(&options, &context)) fail_msg("%s", attune_last_message());
    return context;
}

void tensors_run_chosen(attune_context *context, const tensors *t, const attune_schedule *schedule) {
    attune_kernel *kernel = NULL;
    if (attune_compile(context, &t->problem, schedule, &kernel)) fail_msg("%s", attune_last_message());
    if (tensors_run(t, context, kernel, NULL, ATTUNE_ENGINE_JIT)) fail_msg("%s", attune_last_message());
    attune_kernel_release(kernel);
}

void tensors_assert_same(const tensors *a, const tensors *b, const char *what) {
    char difference[DIFFERENCE_TEXT];
    if (!tensors_same_outputs(a, b, difference)) fail_msg("%s: %s", what, difference);
}

float *tensors_floats(const tensors *t, const char *name) {
    const tensor *found = tensors_find(t, name);
    assert_non_null(found);
    assert_int_equal(found->info.dtype, ATTUNE_F32);
    return found->data;
}
