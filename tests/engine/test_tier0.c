/* Kernels that were compiled when attune was built (engine/tier0.h), and who gets them. */
#include "engine/create.h"
#include "engine/kernel.h"
#include "support/engine/tier0.h"
#include "support/problems.h"
#include "support/statuses.h"

#include <attune/linear.h>

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* ---- Contexts ---- */

static attune_context *open_compiling(const char *isa) {
    const attune_context_options options = {
        .struct_size = sizeof options, .cache_dir = "", .isa = isa, .max_workers = 1};
    attune_context *context;
    assert_int_equal(attune_context_create(&options, &context), ATTUNE_OK);
    return context;
}

static attune_origin origin_of(const attune_kernel *kernel) {
    const attune_kernel_info info = kernel_info_of(kernel);
    return info.origin;
}

/* ---- Problems ---- */

static const struct {
    const char *problem, *kernel; /* a part of the name of the kernel that runs it */
} cases[] = {
    {"num_heads=4,seq_q=30,seq_kv=50,head_dim=64", "f32_64_many_all"},
    {"batch=3,num_heads=2,seq_q=17,seq_kv=17,head_dim=96,is_causal=1", "f32_96_many_causal"},
    {"num_heads=2,seq_q=9,seq_kv=40,head_dim=32,is_causal=1,causal_align=bottom_right", "f32_32_many_right"},
    {"num_heads=2,seq_q=9,seq_kv=9,head_dim=64,dtype=f16,is_causal=1,causal_align=bottom_right", "f16_64_many_causal"},
    {"num_heads=2,seq_q=7,seq_kv=40,head_dim=80,dtype=bf16,softmax_scale=0.3", "bf16_80_few"},
    {"batch=2,num_heads=8,num_kv_heads=2,seq_q=1,seq_kv=70,head_dim=128", "f32_128_few"},
    {"batch=2,num_heads=8,num_kv_heads=2,seq_q=1,seq_kv=70,head_dim=128,dtype=bf16,is_causal=1,"
     "causal_align=bottom_right",
     "bf16_128_few"},
    {"num_heads=40,num_kv_heads=2,seq_q=1,seq_kv=33,head_dim=64", "f32_64_many_all"},
    {"num_heads=3,seq_q=1,seq_kv=70,head_dim=256", "f32_256_one_fast"},
    {"num_heads=3,seq_q=1,seq_kv=70,head_dim=64,softmax_scale=0", "f32_64_one_fast"},
    {"num_heads=2,seq_q=1,seq_kv=9,head_dim=64,is_causal=1", "f32_64_one_fast"},
    {"num_heads=2,seq_q=1,seq_kv=9,head_dim=64,is_causal=1,causal_align=top_left", "f32_64_many_causal"},
    {"batch=2,num_heads=2,seq_q=20,seq_kv=30,head_dim=64,q_strides=3840:64:192:1", "f32_64_many_all"},
    {"batch=2,num_heads=2,seq_q=20,seq_kv=30,head_dim=64,has_lse=1,is_causal=1,causal_align=top_left",
     "f32_64_many_causal"},
    {"batch=2,num_heads=3,seq_q=5,seq_kv=30,head_dim=64,dtype=bf16,has_lse=1,lse_strides=60:20:1", "bf16_64_few"},
    {"batch=2,num_heads=3,seq_q=1,seq_kv=30,head_dim=128,has_lse=1", "f32_128_one_fast"},
};
enum { NUM_CASES = sizeof cases / sizeof *cases };

/* Those of tier 0 have the bits that the interpreter gives their own loop IR. */
static void check_interpreted(attune_context *context, const sample *from, const sample_call *run) {
    sample_call expected;
    sample_call_open(&expected, from, ON_THE_HEAP);
    if (attune_run_interpreted(context, &expected.problem, NULL, &expected.arguments))
        fail_msg("%s", attune_last_message());
    assert_true(sample_calls_agree(run, &expected));
    sample_call_close(&expected);
}

static void check_case(const char *isa, const char *problem, const char *name) {
    const sample from = {.problem = problem};
    attune_context *context = tier0_context(isa);
    sample_call run;
    sample_call_open(&run, &from, BEFORE_A_GUARD);
    attune_kernel *kernel = kernel_of(context, &run.problem);
    assert_int_equal(origin_of(kernel), ATTUNE_FROM_TIER0);
    assert_int_equal(tier0_hits, 1);
    if (!strstr(last_hit, name)) fail_msg("%s: %s", problem, last_hit);
    if (attune_run(context, kernel, &run.arguments)) fail_msg("%s", attune_last_message());
    check_interpreted(context, &from, &run);
    const attune_statistics counts = statistics_of(context);
    assert_int_equal(counts.tier0_hits, 1);
    assert_int_equal(counts.compiles, 0);
    sample_call_close(&run);
    attune_kernel_release(kernel);
    attune_context_destroy(context);
}

static void computes_what_its_ir_says(void **state) {
    (void)state;
    for (int t = 0; t < TIER0_NUM_ISAS; t++)
        for (int i = 0; i < NUM_CASES && tier0_runs_here(tier0_isas[t]); i++)
            check_case(tier0_isas[t], cases[i].problem, cases[i].kernel);
}

static void what_may_round_is_served_unrounded(void **state) {
    (void)state;
    check_case(NULL, "num_heads=4,seq_q=30,seq_kv=50,head_dim=64,matmul_precision=bf16", "f32_64_many_all");
}

/* The promise of reproducible=1: no bit depends on the kernel. */
static void check_bits(const char *isa, int i) {
    char problem[256];
    snprintf(problem, sizeof problem, "%s,reproducible=1", cases[i].problem);
    const sample from = {.problem = problem};
    attune_context *bare = tier0_context(isa), *compiling = open_compiling(isa);
    sample_call a, b;
    sample_call_open(&a, &from, ON_THE_HEAP);
    sample_call_open(&b, &from, ON_THE_HEAP);
    attune_kernel *of_tier0 = kernel_of(bare, &a.problem), *own = kernel_of(compiling, &b.problem);
    assert_int_equal(origin_of(of_tier0), ATTUNE_FROM_TIER0);
    assert_null(strstr(last_hit, "fast"));
    assert_int_equal(origin_of(own), ATTUNE_FROM_COMPILER);
    assert_int_equal(attune_run(bare, of_tier0, &a.arguments), ATTUNE_OK);
    assert_int_equal(attune_run(compiling, own, &b.arguments), ATTUNE_OK);
    if (!sample_calls_agree(&a, &b)) fail_msg("other bits: %s, %s", isa, problem);
    sample_call_close(&a);
    sample_call_close(&b);
    attune_kernel_release(of_tier0);
    attune_kernel_release(own);
    attune_context_destroy(bare);
    attune_context_destroy(compiling);
}

static void reproducible_problems_have_the_same_bits(void **state) {
    (void)state;
    for (int t = 0; t < TIER0_NUM_ISAS; t++)
        for (int i = 0; i < NUM_CASES && tier0_runs_here(tier0_isas[t]); i++) check_bits(tier0_isas[t], i);
}

/* ---- A call by phases ---- */

static void threads_of_the_caller_run_it(void **state) {
    (void)state;
    const sample from = {.problem = cases[5].problem};
    tier0_assert_phases_agree(&from);
}

/* ---- Failures that pass ---- */

static atomic_int failing, tries;

/* As if the process had no file descriptor left. */
static int no_descriptors(int domain, int type, int protocol, int fds[2]) {
    tries++;
    if (!failing) return at_default_io()->socketpair(domain, type, protocol, fds);
    errno = EMFILE;
    return -1;
}

static attune_context *open_failing(at_io *io, bool has_tier0) {
    const attune_context_options options = {
        .struct_size = sizeof options, .cache_dir = "", .max_workers = 1, .compile_mode = ATTUNE_COMPILE_WORKER};
    const at_context_hooks hooks = {.io = io};
    attune_context *context;
    *io = *at_default_io();
    io->socketpair = no_descriptors;
    failing = 1;
    tries = 0;
    assert_int_equal(at_context_create(&options, &hooks, &context), ATTUNE_OK);
    context->has_tier0 = has_tier0;
    return context;
}

/* The next try comes after a second or, if the first calls took longer, after as long as these. */
static void wait_a_moment(int *moments) {
    enum { MOST = 6000 };
    const struct timespec moment = {.tv_nsec = 10000000};
    assert_in_range(++*moments, 1, MOST);
    nanosleep(&moment, NULL);
}

static void what_stands_in_is_made_again_later(void **state) {
    (void)state;
    enum { CALLS = 1000, FEW = 30 };
    for (int has_tier0 = 0; has_tier0 < 2; has_tier0++) {
        at_io io;
        attune_context *context = open_failing(&io, has_tier0);
        const attune_problem problem = problem_parsed(cases[0].problem);
        attune_origin origin = ATTUNE_FROM_COMPILER;
        for (int i = 0; i < CALLS; i++) {
            attune_kernel *kernel = kernel_of(context, &problem);
            origin = origin_of(kernel);
            attune_kernel_release(kernel);
            assert_int_equal(origin, has_tier0 ? ATTUNE_FROM_TIER0 : ATTUNE_FROM_VM);
        }
        assert_in_range(tries, 1, FEW);
        int moments = 0;
        for (failing = 0; origin != ATTUNE_FROM_COMPILER; wait_a_moment(&moments)) {
            attune_kernel *kernel = kernel_of(context, &problem);
            origin = origin_of(kernel);
            attune_kernel_release(kernel);
        }
        attune_context_destroy(context);
    }
}

/* Those that hold a kernel, too. */
static void plans_try_again(void **state) {
    (void)state;
    for (int has_deadline = 0; has_deadline < 2; has_deadline++) {
        const attune_plan_options options = {
            .struct_size = sizeof options, .repeats = 1, .deadline_us = has_deadline ? 0 : -1};
        const sample from = {.problem = cases[0].problem};
        at_io io;
        attune_plan *plan;
        attune_plan_info info = {.struct_size = sizeof info};
        attune_context *context = open_failing(&io, true);
        sample_call run;
        sample_call_open(&run, &from, ON_THE_HEAP);
        assert_int_equal(attune_plan_create(context, &run.problem, &options, &plan), ATTUNE_OK);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(attune_plan_run(plan, &run.arguments, NULL), ATTUNE_OK);
            at_background_wait(&context->background);
        }
        assert_int_equal(attune_plan_get_info(plan, &info), ATTUNE_OK);
        assert_int_equal(info.stopgap_calls, 3);
        assert_int_equal(info.many_kernels, 0);
        int moments = 0;
        for (failing = 0; !info.many_kernels; wait_a_moment(&moments)) {
            assert_int_equal(attune_plan_run(plan, &run.arguments, NULL), ATTUNE_OK);
            assert_int_equal(attune_plan_get_info(plan, &info), ATTUNE_OK);
        }
        sample_call_close(&run);
        attune_plan_destroy(plan);
        attune_context_destroy(context);
    }
}

/* And so do operators of attune's own, which keep their kernels. */
static void operators_try_again(void **state) {
    (void)state;
    float row[4] = {0}, out[4] = {0}, states[16] = {0};
    attune_linear_desc desc = ATTUNE_LINEAR_DESC_INIT;
    desc.num_heads = 1, desc.head_dim = 4;
    attune_linear_step step = ATTUNE_LINEAR_STEP_INIT;
    step.batch = step.seq = 1;
    step.q.data = step.k.data = step.v.data = row;
    step.out.data = out, step.state.data = states;
    at_io io;
    attune_context *const context = open_failing(&io, false);
    attune_linear *linear;
    assert_int_equal(attune_linear_create(context, &desc, &linear), ATTUNE_OK);
    for (int i = 0; i < 3; i++) assert_int_equal(attune_linear_run(linear, &step), ATTUNE_OK);
    assert_int_equal(atomic_load(&context->compiles), 0);
    int moments = 0;
    for (failing = 0; !atomic_load(&context->compiles); wait_a_moment(&moments))
        assert_int_equal(attune_linear_run(linear, &step), ATTUNE_OK);
    tries = 0;
    for (int i = 0; i < 3; i++) assert_int_equal(attune_linear_run(linear, &step), ATTUNE_OK);
    assert_int_equal(tries, 0);
    attune_linear_destroy(linear);
    attune_context_destroy(context);
}

/* Neither computes what strict mode misses. */
static void strict_mode_refuses_both(void **state) {
    (void)state;
    for (int has_tier0 = 0; has_tier0 < 2; has_tier0++) {
        setenv("ATTUNE_STRICT", "1", 1);
        attune_context *context = tier0_context(NULL);
        unsetenv("ATTUNE_STRICT");
        context->has_tier0 = has_tier0;
        attune_kernel *kernel = NULL;
        const attune_problem problem = problem_parsed(cases[0].problem);
        assert_int_equal(attune_compile(context, &problem, NULL, &kernel), ATTUNE_NOT_CACHED);
        attune_context_destroy(context);
    }
}

/* ---- Who gets none ---- */

static void others_get_none(void **state) {
    (void)state;
    static const char *const problems[] = {
        "num_heads=2,seq_q=9,seq_kv=9,head_dim=63",
        "num_heads=2,seq_q=9,seq_kv=9,head_dim=64,window_left=3",
        "num_heads=4,num_kv_heads=2,seq_q=9,seq_kv=9,head_dim=64",
        "num_heads=4,num_kv_heads=2,seq_q=1,seq_kv=9,head_dim=64,is_causal=1,causal_align=top_left",
        "num_heads=2,seq_q=9,seq_kv=9,head_dim=64,q_strides=2304:1152:128:2",
    };
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) tier0_assert_none(problems[i]);
}

/* An explicit schedule is another kernel. */
static void a_schedule_gets_none(void **state) {
    (void)state;
    attune_context *context = tier0_context(NULL);
    attune_kernel *kernel = NULL;
    const attune_problem problem = problem_parsed(cases[0].problem);
    (void)!attune_compile(context, &problem, "", &kernel);
    assert_int_equal(tier0_hits, 0);
    attune_kernel_release(kernel);
    attune_context_destroy(context);
}

static void a_variable_switches_it_off(void **state) {
    (void)state;
    const char *const file = getenv("ATTUNE_TIER0");
    char kept[4096];
    snprintf(kept, sizeof kept, "%s", file);
    setenv("ATTUNE_TIER0", "off", 1);
    attune_context *context = tier0_context(NULL);
    setenv("ATTUNE_TIER0", kept, 1);
    attune_kernel *kernel = NULL;
    const attune_problem problem = problem_parsed(cases[0].problem);
    (void)!attune_compile(context, &problem, NULL, &kernel);
    assert_int_equal(tier0_hits, 0);
    attune_kernel_release(kernel);
    attune_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(computes_what_its_ir_says),
        cmocka_unit_test(what_may_round_is_served_unrounded),
        cmocka_unit_test(reproducible_problems_have_the_same_bits),
        cmocka_unit_test(threads_of_the_caller_run_it),
        cmocka_unit_test(others_get_none),
        cmocka_unit_test(what_stands_in_is_made_again_later),
        cmocka_unit_test(plans_try_again),
        cmocka_unit_test(operators_try_again),
        cmocka_unit_test(strict_mode_refuses_both),
        cmocka_unit_test(a_schedule_gets_none),
        cmocka_unit_test(a_variable_switches_it_off),
    };
    return cmocka_run_group_tests(tests, tier0_setup, NULL);
}
