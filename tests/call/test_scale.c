/* A scale of the scores that each call has. */
#include "support/calls.h"
#include "support/problems.h"
#include "support/statuses.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Two calls of one problem: `left` leaves the scale to the call, `fixed` has it compiled in. */
typedef struct pair {
    char text[2][256];
    sample_call left, fixed;
    attune_kernel *left_kernel, *fixed_kernel;
} pair;

static void open_pair(pair *p, const char *problem, double scale) {
    snprintf(p->text[0], sizeof p->text[0], "%s,softmax_scale=dynamic", problem);
    snprintf(p->text[1], sizeof p->text[1], "%s,softmax_scale=%.17g", problem, scale);
    const sample left = {.problem = p->text[0]}, fixed = {.problem = p->text[1]};
    sample_call_open(&p->left, &left, ON_THE_HEAP);
    sample_call_open(&p->fixed, &fixed, ON_THE_HEAP);
    assert_ok(attune_compile(sample_context, &p->left.problem, NULL, &p->left_kernel));
    assert_ok(attune_compile(sample_context, &p->fixed.problem, NULL, &p->fixed_kernel));
}

static void close_pair(pair *p) {
    attune_kernel_release(p->left_kernel);
    attune_kernel_release(p->fixed_kernel);
    sample_call_close(&p->left);
    sample_call_close(&p->fixed);
}

/* Each strategy, precision and operation that scales, with something added to the scores and without. */
static const char *const problems[] = {
    "num_heads=2,seq_q=20,seq_kv=70,head_dim=16,has_lse=1",
    "num_heads=2,seq_q=1,seq_kv=1100,head_dim=16,has_lse=1",
    "num_heads=2,seq_q=5,seq_kv=30,head_dim=16,reproducible=1,has_lse=1",
    "num_heads=2,seq_q=20,seq_kv=30,head_dim=16,has_alibi_slopes=1",
    "num_heads=2,seq_q=3,seq_kv=30,head_dim=16,has_sinks=1,logits_soft_cap=3",
    "num_heads=2,seq_q=20,seq_kv=30,head_dim=16,dtype=f64,has_lse=1",
    "num_heads=2,seq_q=20,seq_kv=30,head_dim=16,dtype=bf16,weights_mode=softmax",
    "num_heads=2,seq_q=9,seq_kv=9,head_dim=16,kv_dtype=i8",
    "op=weights,num_heads=2,seq_q=9,seq_kv=11,head_dim=16",
    "batch=2,embed_dim=32,num_heads=2,seq_q=9",
};

static void bits_are_those_of_a_compiled_scale(void **state) {
    (void)state;
    static const double scales[] = {0.3, -1.7, 0, -0.0};
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        for (size_t s = 0; s < sizeof scales / sizeof *scales; s++) {
            pair p;
            open_pair(&p, problems[i], scales[s]);
            p.left.arguments.softmax_scale = scales[s];
            assert_ok(attune_run(sample_context, p.left_kernel, &p.left.arguments));
            assert_ok(attune_run(sample_context, p.fixed_kernel, &p.fixed.arguments));
            if (!sample_calls_agree(&p.left, &p.fixed)) fail_msg("%s with %g", problems[i], scales[s]);
            assert_ok(attune_run_interpreted(sample_context, &p.left.problem, NULL, &p.left.arguments));
            if (!sample_calls_agree(&p.left, &p.fixed)) fail_msg("interpreted: %s with %g", problems[i], scales[s]);
            close_pair(&p);
        }
}

static void one_kernel_for_all_scales(void **state) {
    (void)state;
    pair p;
    open_pair(&p, problems[0], 0.25); /* the default of head_dim = 16 */
    assert_true(isnan(p.left.arguments.softmax_scale));
    assert_ok(attune_run(sample_context, p.left_kernel, &p.left.arguments));
    assert_ok(attune_run(sample_context, p.fixed_kernel, &p.fixed.arguments));
    assert_true(sample_calls_agree(&p.left, &p.fixed));
    p.left.arguments.softmax_scale = 0.26;
    assert_ok(attune_run(sample_context, p.left_kernel, &p.left.arguments));
    assert_false(sample_calls_agree(&p.left, &p.fixed));
    close_pair(&p);
}

static void bad_scales_are_refused(void **state) {
    (void)state;
    const sample from = {.problem = "num_heads=2,seq_q=3,seq_kv=5,head_dim=4,softmax_scale=dynamic"};
    sample_call call;
    sample_call_open(&call, &from, ON_THE_HEAP);
    attune_arguments bad = call.arguments;
    bad.softmax_scale = INFINITY;
    sample_call_assert_refused(sample_context, &call, &bad, "softmax_scale is inf; it must be from -1e+38 to 1e+38");
    bad.softmax_scale = -2e38;
    sample_call_assert_refused(sample_context, &call, &bad, "softmax_scale is -2e+38");
    attune_problem both = problem_parsed(from.problem);
    both.softmax_scale = 0.3;
    assert_int_equal(attune_problem_check(&both), ATTUNE_INVALID_PROBLEM);
    assert_string_equal(attune_last_message(), "softmax_scale is 0.3, but has_softmax_scale leaves it to the calls");
    sample_call_close(&call);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_those_of_a_compiled_scale),
        cmocka_unit_test(one_kernel_for_all_scales),
        cmocka_unit_test(bad_scales_are_refused),
    };
    return cmocka_run_group_tests(tests, sample_context_open, sample_context_close);
}
