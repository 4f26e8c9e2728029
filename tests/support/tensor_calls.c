#include "support/problems.h"
#include "operator/build.h"
#include "support/engine/contexts.h"
#include "support/tensor_calls.h"

#include "check/check_case.h"
#include "ir/interp.h"
#include "ir/passes.h"
#include "problem/signature.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void tensors_open_call(tensors *t, const char *problem, const char *sizes_text, input_kind kind, uint64_t seed) {
    attune_problem p;
    call_sizes sizes = CALL_SIZES_NONE;
    assert_true(problem_from_text(problem, &p));
    assert_true(sizes_parse(sizes_text, &sizes));
    assert_true(tensors_create_sized(t, &p, &sizes));
    assert_true(tensors_fill(t, kind, seed));
    tensors_clear_outputs(t);
}

void tensors_open_sample(tensors *t, const sample *from, input_kind kind, uint64_t seed) {
    tensors_open_call(t, from->problem, from->sizes ? from->sizes : "", kind, seed);
}

static attune_context *open_context(attune_context_options options) {
    options.cache_dir = "";
    return test_context(&options, NULL);
}

attune_context *tensors_context(const char *isa, uint32_t workers) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.isa = isa;
    options.max_workers = workers;
    return open_context(options);
}

attune_context *tensors_context_for(const at_target *target) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.target = target->name;
    options.machine = "generic";
    options.max_workers = 1;
    return open_context(options);
}

void tensors_run_chosen(attune_context *context, const tensors *t, const mha_schedule *schedule) {
    attune_kernel *kernel = NULL;
    if (attune_compile(context, &t->problem, TEXT_OF(schedule), &kernel)) fail_msg("%s", attune_last_message());
    if (tensors_run(t, context, kernel, NULL, ATTUNE_ENGINE_JIT)) fail_msg("%s", attune_last_message());
    attune_kernel_release(kernel);
}

void tensors_interpret(attune_context *context, const tensors *t, const mha_schedule *schedule) {
    if (tensors_run(t, context, NULL, TEXT_OF(schedule), ATTUNE_ENGINE_INTERPRETER))
        fail_msg("%s", attune_last_message());
}

void tensors_assert_same(const tensors *a, const tensors *b, const char *what) {
    char difference[DIFFERENCE_TEXT];
    if (!tensors_same_outputs(a, b, difference)) fail_msg("%s: %s", what, difference);
}

void tensors_assert_right(const tensors *t, input_kind kind, const char *what) {
    attune_tensor list[REF_MAX_TENSORS];
    const ref_call call = tensors_call(t, list);
    ref_result wanted, plain;
    char reason[ATTUNE_MESSAGE_BYTES];
    assert_true(ref_compute(&call, &wanted) && ref_compute_plain(&call, &plain));
    if (!check_reference(t, &wanted, &plain, kind, NULL, reason)) fail_msg("%s: %s", what, reason);
    ref_result_free(&wanted);
    ref_result_free(&plain);
}

float *tensors_floats(const tensors *t, const char *name) {
    const tensor *found = tensors_find(t, name);
    assert_non_null(found);
    assert_int_equal(found->info.dtype, ATTUNE_F32);
    return found->data;
}

void tensors_interpret_for(const tensors *t, const at_target *target, const mha_schedule *schedule) {
    attune_problem p;
    at_error err = {0};
    mha_tensor list[MHA_NUM_TENSORS];
    mha_sizes sizes;
    int64_t strides[MHA_NUM_TENSORS][4], scalars[MHA_MAX_SCALARS];
    void *buffers[MHA_NUM_TENSORS];
    assert_int_equal(mha_canonicalize(&t->problem, &p, &err), ATTUNE_OK);
    const size_t count = mha_tensors(&p, list);
    assert_int_equal(count, t->count);
    mha_compiled_sizes(&p, &sizes);
    sizes.of[MHA_BATCH] = p.batch;
    sizes.of[MHA_KV_HEADS] = p.num_kv_heads;
    for (size_t i = 0; i < count; i++) {
        for (int d = 0; d < list[i].rank; d++)
            if (sizes.of[list[i].dims[d]] < 0) sizes.of[list[i].dims[d]] = t->list[i].info.dims[d];
        memcpy(strides[i], t->list[i].info.strides, sizeof strides[i]);
        buffers[i] = t->list[i].data;
    }
    const mha_parameters taken = mha_parameters_of(&p);
    mha_scalars(&p, &taken, &sizes, list, count, (const int64_t(*)[4])strides, scalars);
    at_arena arena;
    at_arena_init(&arena, NULL);
    const ir_kernel *kernel = mha_build(&arena, &p, schedule, target, &err);
    if (kernel) kernel = ir_lower(kernel, target, NULL, NULL, &err);
    const ir_interp_options options = {.shuffle_seed = 5};
    if (!kernel || ir_interpret(kernel, buffers, scalars, &options, &err))
        fail_msg("%s: %s", target->name, err.message);
    at_arena_free(&arena);
}
