/* integer=all: the same bits on every instruction set, by any schedule and engine. */
#include "support/attend/integer_bits.h"
#include "schedule/choose.h"
#include "support/problems.h"
#include "support/tensor_calls.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void test_random_problems_have_the_same_bits(void **state) {
    (void)state;
    enum { PROBLEMS = 24, EVERY = 12 };
    tool_random random = {20};
    integer_bits bits;
    assert_true(integer_bits_open(&bits));
    for (int i = 0; i < PROBLEMS; i++) assert_true(integer_bits_check(&bits, &random, i % EVERY == 0));
    integer_bits_close(&bits);
}

/* As lowered for all targets, those that this CPU cannot run included. */
static void test_targets_have_the_same_bits(void **state) {
    (void)state;
    static const char *const problems[] = {
        "num_heads=4,num_kv_heads=1,seq_q=1,seq_kv=530,head_dim=40,kv_dtype=i8,has_lse=1,integer=all",
        "num_heads=3,num_kv_heads=1,seq_q=3,seq_kv=37,head_dim=17,head_dim_v=21,kv_dtype=i8,v_scales=token,is_causal=1,"
        "causal_align=bottom_right,logits_soft_cap=4,has_sinks=1,has_lse=1,integer=all,q_planes=1",
    };
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        const attune_problem p = problem_canonical(problems[i]);
        tensors first, other;
        tensors_open_call(&first, problems[i], "", INPUT_ORDINARY, 9);
        for (const at_target *target = at_targets(); target->name; target++) {
            mha_schedule schedule;
            mha_choose(mha_read(&p), target, usual_machine(target), &schedule);
            if (target == at_targets()) tensors_interpret_for(&first, target, &schedule);
            assert_true(tensors_share(&other, &first));
            tensors_interpret_for(&other, target, &schedule);
            tensors_assert_same(&first, &other, target->name);
            tensors_free(&other);
        }
        tensors_free(&first);
    }
}

/* ---- Scales that are no usual numbers ---- */

enum { KEYS = 6, DIM = 8 };

/* Runs a row over keys whose values are all 64 and whose scales of v are these; returns out[0]. */
static float out_of(const char *scales, const float *v_scale, int count) {
    char text[200];
    snprintf(text, sizeof text, "num_heads=1,seq_q=1,seq_kv=6,head_dim=8,kv_dtype=i8,v_scales=%s,integer=all", scales);
    attune_context *context = tensors_context(NULL, 1);
    tensors t;
    tensors_open_call(&t, text, "", INPUT_CONSTANT, 3);
    memset(tensors_find(&t, "v")->data, 64, (size_t)KEYS * DIM);
    for (int d = 0; d < DIM; d++) tensors_floats(&t, "q")[d] = 0;
    tensors_floats(&t, "k_scale")[0] = 1;
    memcpy(tensors_floats(&t, "v_scale"), v_scale, (size_t)count * sizeof *v_scale);
    tensors_run_chosen(context, &t, NULL);
    const float out = tensors_floats(&t, "out")[0];
    tensors_free(&t);
    attune_context_destroy(context);
    return out;
}

static void test_odd_scales(void **state) {
    (void)state;
    static const float negative = -0.5f, none = 0, nan = NAN, denormal = 0x1p-140f;
    assert_true(out_of("head", &negative, 1) == -32);
    assert_true(out_of("head", &none, 1) == 0);
    assert_true(isnan(out_of("head", &nan, 1)));
    assert_true(out_of("head", &denormal, 1) == 0); /* 2^-140 / 65535 is 0 */
    static const float ones[KEYS] = {1, 1, 1, 1, 1, 1}, one_zero[KEYS] = {0, 1, 1, 1, 1, 1};
    static const float one_negative[KEYS] = {1, -1, 1, 1, 1, 1}, one_nan[KEYS] = {1, 1, 1, 1, 1, NAN};
    static const float zeros[KEYS] = {0}, denormals[KEYS] = {0x1p-140f, 0x1p-140f, 0x1p-140f, 0x1p-140f, 0x1p-140f};
    assert_true(fabsf(out_of("token", ones, KEYS) - 64) < 1e-4f);
    assert_true(fabsf(out_of("token", one_zero, KEYS) - 64 * 5 / 6.0f) < 1e-4f);
    assert_true(isnan(out_of("token", one_negative, KEYS)));
    assert_true(isnan(out_of("token", one_nan, KEYS)));
    assert_true(out_of("token", zeros, KEYS) == 0);
    assert_true(out_of("token", denormals, KEYS) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_problems_have_the_same_bits),
        cmocka_unit_test(test_targets_have_the_same_bits),
        cmocka_unit_test(test_odd_scales),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
