/* What ran: an attention counts its kernels by the code that they have, and the shared context can be asked, too. */
#include "support/engine/tier0.h"
#include "support/statuses.h"

#include <attune/attention.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { BATCH = 2, HEADS = 6, KV_HEADS = 2, USUAL = 64, PAGE = 32, TOKENS = 8, MOST = TOKENS * HEADS * USUAL };

/* A step of two sequences on pages of zeros: a decoding query, and with `chunk` that many of a prompt. */
typedef struct sequences {
    attune_step step;
    int32_t starts[BATCH + 1], lens[BATCH], table[BATCH];
    float q[MOST], pages[BATCH * PAGE * KV_HEADS * USUAL], out[MOST];
} sequences;

static attune_step *step_of(sequences *s, int chunk) {
    *s = (sequences){.step = ATTUNE_STEP_INIT, .starts = {0, 1, 1 + chunk}, .lens = {14, 21}, .table = {1, 0}};
    attune_step *const step = &s->step;
    step->batch = BATCH, step->cu_seqlens_q = s->starts, step->kv_lens = s->lens;
    step->block_table = s->table, step->max_pages = 1, step->num_pages = BATCH;
    step->q.data = s->q, step->k_cache.data = step->v_cache.data = s->pages, step->out.data = s->out;
    return step;
}

static attune_attention_desc desc_of(int dim) {
    attune_attention_desc desc = ATTUNE_ATTENTION_DESC_INIT;
    desc.num_heads = HEADS, desc.num_kv_heads = KV_HEADS, desc.head_dim = dim, desc.is_causal = 1;
    desc.kv = ATTUNE_KV_PAGED, desc.page_size = PAGE;
    return desc;
}

static attune_context *context_of(attune_compile_mode mode) {
    const attune_context_options options = {.struct_size = sizeof options, .cache_dir = "", .compile_mode = mode};
    attune_context *context;
    assert_ok(attune_context_create(&options, &context));
    return context;
}

/* Runs a step as it is and by a plan. */
static void run_twice(attune_attention *attention, const attune_step *step) {
    attune_step_plan *plan;
    assert_ok(attune_attention_run(attention, step));
    assert_ok(attune_step_plan_create(attention, step, &plan));
    assert_ok(attune_step_plan_run(plan, step));
    attune_step_plan_destroy(plan);
}

static void assert_info(const attune_attention *attention, int compiled, int tier0, int vm, int is_ready) {
    attune_attention_info info = ATTUNE_ATTENTION_INFO_INIT;
    char text[128], expected[128];
    assert_ok(attune_attention_get_info(attention, &info));
    snprintf(text, sizeof text, "%d compiled, %d tier 0, %d vm; ready: %d", (int)info.compiled_calls,
             (int)info.tier0_calls, (int)info.vm_calls, info.is_ready);
    snprintf(expected, sizeof expected, "%d compiled, %d tier 0, %d vm; ready: %d", compiled, tier0, vm, is_ready);
    assert_string_equal(text, expected);
}

static void compiled_kernels_are_counted(void **state) {
    (void)state;
    attune_context *const context = context_of(ATTUNE_COMPILE_DEFAULT);
    const attune_attention_desc desc = desc_of(16);
    attune_attention *attention;
    sequences s;
    assert_ok(attune_attention_create(context, &desc, &attention));
    assert_info(attention, 0, 0, 0, 0);
    assert_ok(attune_attention_prepare(attention));
    assert_info(attention, 0, 0, 0, 1);
    run_twice(attention, step_of(&s, 0)); /* one kernel each */
    assert_info(attention, 2, 0, 0, 1);
    run_twice(attention, step_of(&s, 7)); /* two */
    assert_info(attention, 6, 0, 0, 1);
    s.lens[0] = -1;
    assert_fails(attune_attention_run(attention, &s.step), ATTUNE_INVALID_ARGUMENT, "kv_lens");
    assert_info(attention, 6, 0, 0, 1);
    attune_attention_destroy(attention);
    attune_context_destroy(context);
}

/* Lengths that come back get a kernel of their own, whose runs count as well. */
static void kernels_for_lengths_are_counted(void **state) {
    (void)state;
    enum { CALLS = 5 };
    static float rows[MOST], out[MOST];
    attune_context *const context = context_of(ATTUNE_COMPILE_DEFAULT);
    attune_attention_desc desc = ATTUNE_ATTENTION_DESC_INIT;
    desc.num_heads = 2, desc.head_dim = 16, desc.layout = ATTUNE_BSHD;
    attune_attention *attention;
    assert_ok(attune_attention_create(context, &desc, &attention));
    attune_step step = ATTUNE_STEP_INIT;
    step.batch = 1, step.seq_q = step.seq_kv = 30;
    step.q.data = step.k.data = step.v.data = rows, step.out.data = out;
    for (int i = 0; i < CALLS; i++) assert_ok(attune_attention_run(attention, &step));
    assert_true(statistics_of(context).compiles > 1);
    assert_info(attention, CALLS, 0, 0, 0);
    attune_attention_destroy(attention);
    attune_context_destroy(context);
}

/* Where nothing can be compiled, tier 0 has the usual widths of heads, and the virtual machine all others. */
static void fallbacks_are_counted(void **state) {
    (void)state;
    attune_context *const context = context_of(ATTUNE_COMPILE_NEVER);
    for (int dim = USUAL - 8; dim <= USUAL; dim += 8) {
        const int tier0 = dim == USUAL;
        const attune_attention_desc desc = desc_of(dim);
        attune_attention *attention;
        sequences s;
        assert_ok(attune_attention_create(context, &desc, &attention));
        run_twice(attention, step_of(&s, 0));
        assert_info(attention, 0, 2 * tier0, 2 * !tier0, 0); /* a prompt would have to look for its kernel */
        attune_attention_destroy(attention);
    }
    attune_context_destroy(context);
}

/* Objects that were created without a context share one, which tells what they did. */
static void the_shared_context_is_given(void **state) {
    (void)state;
    attune_attention_desc desc = desc_of(16);
    attune_attention *attention;
    attune_context *context, *again;
    sequences s;
    assert_ok(attune_shared_context(&context));
    assert_int_equal(statistics_of(context).compiles, 0);
    assert_ok(attune_attention_create(NULL, &desc, &attention));
    assert_ok(attune_attention_run(attention, step_of(&s, 0)));
    assert_int_equal(statistics_of(context).compiles, 1);
    assert_ok(attune_shared_context(&again));
    assert_ptr_equal(again, context);
    attune_attention_destroy(attention);
}

static void null_is_refused(void **state) {
    (void)state;
    attune_attention_info info = ATTUNE_ATTENTION_INFO_INIT;
    assert_fails(attune_attention_get_info(NULL, &info), ATTUNE_INVALID_ARGUMENT, "given no attention");
    assert_fails(attune_shared_context(NULL), ATTUNE_INVALID_ARGUMENT, "attune_shared_context was given NULL");
}

static int setup(void **state) { return tier0_setup(state) || setenv("ATTUNE_CACHE_DIR", "", 1); }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compiled_kernels_are_counted),
        cmocka_unit_test(kernels_for_lengths_are_counted),
        cmocka_unit_test(fallbacks_are_counted),
        cmocka_unit_test(the_shared_context_is_given),
        cmocka_unit_test(null_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
