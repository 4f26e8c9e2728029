/* Plans: kernels for lengths that come back. */
#include "plan/plan.h"
#include "support/plans.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define BLOCK_OPEN "embed_dim=32,num_heads=2,seq_q=dynamic,reproducible=1"

/* ---- Lengths that come back ---- */

static void lengths_that_come_back_get_a_kernel(void **state) {
    (void)state;
    attune_plan *plan = plan_of(OPEN, NULL);
    const sample many = sized(OPEN, "seq_q=30,seq_kv=50"), other = sized(OPEN, "seq_q=30,seq_kv=51");
    const char *const kernels[] = {OPEN, HEADS ",seq_q=30,seq_kv=50"};
    assert_runs_as(plan, &many, kernels[0]);
    assert_runs_as(plan, &many, kernels[0]);
    assert_runs_as(plan, &other, kernels[0]); /* not in a row */
    assert_runs_as(plan, &many, kernels[0]);
    assert_runs_as(plan, &many, kernels[0]);
    assert_history(plan, "kernels 0 1 0, calls 0 5 0");
    assert_runs_as(plan, &many, kernels[0]);
    assert_history(plan, "kernels 0 1 1, calls 0 6 0");
    assert_runs_as(plan, &many, kernels[1]);
    assert_runs_as(plan, &other, kernels[0]);
    assert_history(plan, "kernels 0 1 1, calls 0 7 1");
    attune_plan_destroy(plan);
}

/* At every step of decoding there is one more key, and each layer repeats its lengths. */
static void decoding_is_not_specialised(void **state) {
    (void)state;
    char sizes[64], bounded[128], own[128];
    attune_plan *plan = plan_of(OPEN, NULL);
    const int rows = few_rows_of(plan);
    snprintf(sizes, sizeof sizes, "seq_q=%d,seq_kv=%d", rows, rows);
    snprintf(bounded, sizeof bounded, OPEN ",max_seq_q=%d", rows);
    snprintf(own, sizeof own, HEADS ",%s", sizes);
    const sample one = sized(OPEN, "seq_q=1,seq_kv=50"), self = sized(OPEN, sizes);
    for (int i = 0; i < 5; i++) assert_runs_as(plan, &one, HEADS ",seq_q=1,seq_kv=dynamic");
    assert_history(plan, "kernels 1 0 0, calls 5 0 0");
    for (int i = 0; i < 3; i++) assert_runs_as(plan, &self, bounded);
    assert_runs_as(plan, &self, own);
    assert_history(plan, "kernels 2 0 1, calls 8 0 1");
    attune_plan_destroy(plan);
}

static void kernels_for_lengths_are_limited(void **state) {
    (void)state;
    const attune_plan_options two = {.struct_size = sizeof two, .max_specialised = 2, .repeats = 1, .deadline_us = -1},
                              none = {
                                  .struct_size = sizeof none, .max_specialised = 0, .repeats = 1, .deadline_us = -1};
    attune_plan *plan = plan_of(OPEN, &two), *without = plan_of(OPEN, &none);
    const char *const sizes[] = {"seq_q=20,seq_kv=9", "seq_q=21,seq_kv=9", "seq_q=22,seq_kv=9"};
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < 3; i++) {
            const sample call = sized(OPEN, sizes[i]);
            const char *const own[] = {HEADS ",seq_q=20,seq_kv=9", HEADS ",seq_q=21,seq_kv=9"};
            assert_runs_as(plan, &call, turn && i < 2 ? own[i] : OPEN);
            assert_runs_as(without, &call, OPEN);
        }
    assert_history(plan, "kernels 0 1 2, calls 0 4 2");
    assert_history(without, "kernels 0 1 0, calls 0 6 0");
    attune_plan_destroy(plan);
    attune_plan_destroy(without);
}

/* Other batches and heads of the same lengths share a kernel; a mask has as many entries as the call. */
static void batches_share_a_kernel(void **state) {
    (void)state;
    const attune_plan_options at_once = {
        .struct_size = sizeof at_once, .max_specialised = 8, .repeats = 1, .deadline_us = -1};
    static const char masked[] = "batch=2,num_heads=2,seq_q=dynamic,seq_kv=dynamic,head_dim=16,attn_mask_dims=bqk";
    attune_plan *plan =
        plan_of("batch=3,num_heads=4,seq_q=dynamic,seq_kv=dynamic,head_dim=16,attn_mask_dims=bqk", &at_once);
    const sample call = sized(masked, "seq_q=20,seq_kv=33");
    assert_runs_as(plan, &call, masked);
    assert_runs_as(plan, &call, "batch=2,num_heads=2,seq_q=20,seq_kv=33,head_dim=16,attn_mask_dims=bqk");
    assert_history(plan, "kernels 0 1 1, calls 0 1 1");
    attune_plan_destroy(plan);
}

/* The kernel that a call of one entry and one head brought serves calls of more, which have a mask each. */
static void one_entry_is_not_all(void **state) {
    (void)state;
    static const char *const fields[] = {"attn_mask_dims", "attn_bias_dims"};
    const attune_plan_options at_once = {
        .struct_size = sizeof at_once, .max_specialised = 8, .repeats = 1, .deadline_us = -1};
    for (int i = 0; i < 2; i++) {
        char plans[128], ones[128], twos[128], kernel[128];
        const char *const rest = "seq_q=dynamic,seq_kv=dynamic,head_dim=16";
        snprintf(plans, sizeof plans, "batch=3,num_heads=4,%s,%s=bhqk", rest, fields[i]);
        snprintf(ones, sizeof ones, "batch=1,num_heads=1,%s,%s=bhqk", rest, fields[i]);
        snprintf(twos, sizeof twos, "batch=2,num_heads=2,%s,%s=bhqk", rest, fields[i]);
        attune_plan *plan = plan_of(plans, &at_once);
        snprintf(kernel, sizeof kernel, "batch=2,num_heads=2,seq_q=20,seq_kv=33,head_dim=16,%s=bhqk", fields[i]);
        const sample one = sized(ones, "seq_q=20,seq_kv=33"), two = sized(twos, "seq_q=20,seq_kv=33");
        assert_runs_as(plan, &one, ones);
        assert_runs_as(plan, &two, kernel);
        assert_history(plan, "kernels 0 1 1, calls 0 1 1");
        attune_plan_destroy(plan);
    }
}

/* The kernel of a block is for its number of tokens if these are few. Blocks of many tokens share one. */
static void blocks_of_other_batches(void **state) {
    (void)state;
    static const struct {
        int batch, rows; /* 0: few */
        const char *history;
    } calls[] = {
        {1, 0, "kernels 1 0 1, calls 1 0 1"},  {2, 0, "kernels 1 0 2, calls 2 0 2"},
        {3, 0, "kernels 1 0 3, calls 3 0 3"},  {1, 20, "kernels 1 1 4, calls 3 1 4"},
        {2, 20, "kernels 1 1 5, calls 3 2 5"}, {3, 20, "kernels 1 1 5, calls 3 2 7"},
    };
    const attune_plan_options at_once = {
        .struct_size = sizeof at_once, .max_specialised = 8, .repeats = 1, .deadline_us = -1};
    attune_plan *plan = plan_of(BLOCK_OPEN, &at_once);
    const int few = few_rows_of(plan);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        char problem[128], sizes[32];
        snprintf(problem, sizeof problem, "batch=%d,%s", calls[i].batch, BLOCK_OPEN);
        snprintf(sizes, sizeof sizes, "seq_q=%d", calls[i].rows ? calls[i].rows : few);
        const sample call = sized(problem, sizes);
        assert_runs_as(plan, &call, problem);
        assert_runs_as(plan, &call, problem);
        assert_history(plan, calls[i].history);
    }
    attune_plan_destroy(plan);
}

/* The same with a mask of each entry: one that a batch of one brought is not the same for all. */
static void masks_of_blocks(void **state) {
    (void)state;
    const attune_plan_options at_once = {
        .struct_size = sizeof at_once, .max_specialised = 8, .repeats = 1, .deadline_us = -1};
    attune_plan *plan = plan_of("batch=5,attn_mask_dims=bqk," BLOCK_OPEN, &at_once);
    const int few = few_rows_of(plan) < 6 ? few_rows_of(plan) : 6;
    for (int i = 0; i < 6; i++) {
        char problem[128], sizes[32];
        snprintf(sizes, sizeof sizes, "seq_q=%d", i < 3 ? few : 40);
        snprintf(problem, sizeof problem, "batch=%d,attn_mask_dims=bqk,%s", 1 + i % 3, BLOCK_OPEN);
        const sample call = sized(problem, sizes);
        for (int again = 0; again < 2; again++) assert_runs_as(plan, &call, problem);
    }
    /* One entry of few tokens runs in the kernel for two; 40 tokens have one kernel. */
    assert_history(plan, "kernels 1 1 3, calls 2 1 9");
    attune_plan_destroy(plan);
}

/* ---- Calls of the same lengths ---- */

#define MASKED_REST "head_dim=16,attn_mask_dims=bqk,has_lse=1,reproducible=1"

/* A kernel remembers the sizes and strides of the call that brought it. Calls with others are not taken for that one,
 * and the one that brought it comes back between them. */
static void lengths_alike_and_nothing_else(void **state) {
    (void)state;
    static const char *const calls[] = {
        "batch=2,num_heads=4,seq_q=dynamic,seq_kv=dynamic," MASKED_REST,
        "batch=1,num_heads=4,seq_q=dynamic,seq_kv=dynamic," MASKED_REST,
        "batch=3,num_heads=2,seq_q=dynamic,seq_kv=dynamic," MASKED_REST,
        "batch=2,num_heads=4,seq_q=20,seq_kv=33," MASKED_REST,
        "batch=2,num_heads=4,seq_q=20,seq_kv=33,q_strides=1280:16:64:1," MASKED_REST,
        "batch=2,num_heads=4,seq_q=20,seq_kv=33,v_strides=9000:2000:17:1," MASKED_REST,
        "batch=2,num_heads=4,seq_q=20,seq_kv=33,out_strides=9000:2000:17:1," MASKED_REST,
        "batch=2,num_heads=4,seq_q=20,seq_kv=33,lse_strides=90:21:1," MASKED_REST,
        "batch=2,num_heads=4,seq_q=20,seq_kv=33,attn_mask_strides=700:0:35:1," MASKED_REST,
    };
    enum { CALLS = sizeof calls / sizeof *calls };
    const attune_plan_options at_once = {
        .struct_size = sizeof at_once, .max_specialised = 8, .repeats = 1, .deadline_us = -1};
    for (int first = 0; first < CALLS; first++) {
        attune_plan *plan = plan_of("batch=3,num_heads=4,seq_q=dynamic,seq_kv=dynamic," MASKED_REST, &at_once);
        const sample one = sized(calls[first], "seq_q=20,seq_kv=33");
        assert_runs_as(plan, &one, calls[first]);
        for (int i = 0; i < CALLS; i++) {
            const sample other = sized(calls[i], "seq_q=20,seq_kv=33");
            assert_runs_as(plan, &other, calls[i]);
            assert_runs_as(plan, &one, calls[first]);
        }
        assert_history(plan, "kernels 0 1 1, calls 0 1 18");
        attune_plan_destroy(plan);
    }
}

/* Nothing is settled again for a call that repeats the one that brought the kernel; for any other call everything is.
 * Strides of 0, which the plan's arguments have, are not those of the compiled problem. */
static void the_call_that_brought_a_kernel_is_remembered(void **state) {
    (void)state;
    const attune_plan_options at_once = {
        .struct_size = sizeof at_once, .max_specialised = 8, .repeats = 1, .deadline_us = -1};
    attune_plan *plan = plan_of(OPEN, &at_once);
    const sample from = sized(OPEN, "seq_q=20,seq_kv=33");
    assert_runs_as(plan, &from, OPEN);
    const pl_special *special = plan->special[0];
    const at_signature *signature = &special->kernel->signature;
    sample_call c;
    at_call call;
    sample_call_open(&c, &from, ON_THE_HEAP);
    assert_int_equal(at_call_make(signature, &special->layout, &c.arguments, &call, NULL), ATTUNE_OK);
    assert_ptr_equal(call.settled, &special->layout.settled);
    assert_int_equal(at_call_make(signature, NULL, &c.arguments, &call, NULL), ATTUNE_OK);
    assert_ptr_equal(call.settled, &call.own);
    memcpy(c.arguments.q.strides, (int64_t[]){640, 16, 32, 1}, sizeof c.arguments.q.strides);
    assert_int_equal(at_call_make(signature, &special->layout, &c.arguments, &call, NULL), ATTUNE_OK);
    assert_ptr_equal(call.settled, &call.own);
    sample_call_close(&c);
    attune_plan_destroy(plan);
}

/* Innermost strides are the plan's. The other strides of the plan fit no length: two elements of out would coincide. */
static void strides_of_the_plan_are_examples(void **state) {
    (void)state;
    static const char rest[] = "num_heads=2,head_dim=8,reproducible=1";
    char text[256], call[256];
    const attune_plan_options at_once = {
        .struct_size = sizeof at_once, .max_specialised = 8, .repeats = 1, .deadline_us = -1};
    snprintf(text, sizeof text, "%s,seq_q=dynamic,seq_kv=dynamic,%s", rest,
             "q_strides=1:1:1:2,k_strides=1:1:1:3,out_strides=1:1:1:2");
    snprintf(call, sizeof call, "%s,seq_q=20,seq_kv=33,%s", rest,
             "q_strides=640:320:16:2,k_strides=2000:800:24:3,out_strides=1:320:16:2");
    attune_plan *plan = plan_of(text, &at_once);
    const sample from = sized(call, "");
    for (int again = 0; again < 3; again++) assert_runs_as(plan, &from, call);
    assert_history(plan, "kernels 0 1 1, calls 0 1 2");
    attune_plan_destroy(plan);
}

/* Reasons to refuse a call of the same lengths. */
typedef void breaker(sample_call *call);

static void without_q(sample_call *c) { c->arguments.q.data = NULL; }
static void without_mask(sample_call *c) { c->arguments.attn_mask.data = NULL; }
static void without_lengths(sample_call *c) { c->arguments.kv_lens = NULL; }
static void odd_pointer(sample_call *c) { c->arguments.k.data = (char *)c->arguments.k.data + 1; }
static void over_its_input(sample_call *c) { c->arguments.out.data = (void *)(uintptr_t)c->arguments.q.data; }
static void no_batch(sample_call *c) { c->arguments.batch = 0; }
static void half_a_group(sample_call *c) { c->arguments.num_heads = 3; }
static void wide_columns(sample_call *c) {
    memcpy(c->arguments.v.strides, (int64_t[]){1, 1, 1, 2}, 4 * sizeof(int64_t));
}
static void rows_that_coincide(sample_call *c) { c->arguments.out.strides[2] = 1, c->arguments.out.strides[3] = 1; }
static void few_angles(sample_call *c) { c->arguments.rotary_positions = 5; }
static void too_many_keys(sample_call *c) { ((int32_t *)(uintptr_t)c->arguments.kv_lens)[1] = 34; }
static void no_scale(sample_call *c) { c->arguments.softmax_scale = 1e300; }
static void columns_of_the_mask(sample_call *c) { c->arguments.mask_seq_kv = 7; }
static void a_small_workspace(sample_call *c) {
    static char memory[64] __attribute__((aligned(64)));
    c->arguments.workspace = memory, c->arguments.workspace_bytes = 0;
}
static void an_odd_workspace(sample_call *c) {
    c->arguments.workspace = (char *)c->arguments.q.data + 1, c->arguments.workspace_bytes = 1 << 20;
}

/* A plan with such a kernel refuses them with the sentence of a plan without it. */
static void refusals_stay_the_same(void **state) {
    (void)state;
    static const char text[] =
        "batch=2,num_heads=4,num_kv_heads=2,head_dim=16,seq_q=dynamic,seq_kv=dynamic,has_kv_lens=1,"
        "attn_mask_dims=bqk,rotary_dim=8,is_causal=1,softmax_scale=dynamic";
    static const char fixed[] = "batch=2,num_heads=4,num_kv_heads=2,head_dim=16,seq_q=20,seq_kv=33,has_kv_lens=1,"
                                "attn_mask_dims=bqk,rotary_dim=8,is_causal=1,softmax_scale=dynamic";
    static const struct {
        breaker *breaks;
        const char *part;
    } cases[] = {
        {without_q, "the pointer to q is NULL"},
        {without_mask, "the pointer to attn_mask is NULL"},
        {without_lengths, "the pointer to kv_lens is NULL"},
        {odd_pointer, "is not aligned to 4 bytes"},
        {over_its_input, "the output out overlaps q"},
        {no_batch, "batch is 0"},
        {half_a_group, "num_heads is 3"},
        {wide_columns, "the innermost stride of v is 2"},
        {rows_that_coincide, "out_strides make two elements of the output coincide"},
        {few_angles, "rotary_positions is 5"},
        {too_many_keys, "kv_lens[1] is 34"},
        {no_scale, "softmax_scale is 1e+300"},
        {columns_of_the_mask, "mask_seq_kv is 7"},
        {a_small_workspace, "the workspace has 0 bytes"},
        {an_odd_workspace, "is not aligned to 64 bytes"},
    };
    const sample from = {text, "seq_q=20,seq_kv=33,rotary_positions=40", {0}, {33, 20}};
    const attune_plan_options at_once = {.struct_size = sizeof at_once,
                                         .max_specialised = 8,
                                         .repeats = 1,
                                         .deadline_us = -1},
                              never = {
                                  .struct_size = sizeof never, .max_specialised = 0, .repeats = 1, .deadline_us = -1};
    attune_plan *special = plan_of(text, &at_once), *plain = plan_of(text, &never);
    for (int again = 0; again < 2; again++) assert_runs_as(special, &from, again ? fixed : text);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char sentence[ATTUNE_MESSAGE_BYTES];
        sample_call call;
        sample_call_open(&call, &from, ON_THE_HEAP);
        cases[i].breaks(&call);
        const attune_status status = attune_plan_run(plain, &call.arguments, NULL);
        assert_int_not_equal(status, ATTUNE_OK);
        snprintf(sentence, sizeof sentence, "%s", attune_last_message());
        if (!strstr(sentence, cases[i].part)) fail_msg("'%s' is not in: %s", cases[i].part, sentence);
        assert_fails(attune_plan_run(special, &call.arguments, NULL), status, sentence);
        sample_call_close(&call);
    }
    assert_history(special, "kernels 0 1 1, calls 0 1 1");
    attune_plan_destroy(special);
    attune_plan_destroy(plain);
}

/* ---- Threads ---- */

/* All threads make the first calls of a plan together, and go on beyond the promotion. */
static void *run_often(void *argument) {
    attune_plan *plan = argument;
    char few[64];
    snprintf(few, sizeof few, "seq_q=%d,seq_kv=50", few_rows_of(plan));
    const sample calls[] = {sized(OPEN, "seq_q=30,seq_kv=50"), sized(OPEN, few)};
    for (int i = 0; i < 40; i++) {
        sample_call call;
        sample_call_open(&call, &calls[i / 5 % 2], ON_THE_HEAP);
        const attune_status status = attune_plan_run(plan, &call.arguments, NULL);
        sample_call_close(&call);
        if (status) return plan;
    }
    return NULL;
}

static void threads_share_a_plan(void **state) {
    (void)state;
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    attune_plan *plan = plan_of(OPEN, NULL);
    void *failed;
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, run_often, plan), 0);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    const attune_plan_info info = info_of(plan);
    assert_int_equal(info.few_calls, 20 * THREADS);
    assert_int_equal(info.many_calls + info.specialised_calls, 20 * THREADS);
    assert_true(info.few_kernels == 1 && info.many_kernels == 1 && info.specialised_kernels <= 1);
    attune_plan_destroy(plan);
}

/* ---- fork ---- */

static void *promote(void *plan) {
    const sample from = sized(OPEN, "seq_q=40,seq_kv=40");
    sample_call call;
    sample_call_open(&call, &from, ON_THE_HEAP);
    attune_status status = ATTUNE_OK;
    for (int i = 0; i < 3 && !status; i++) status = attune_plan_run(plan, &call.arguments, NULL);
    sample_call_close(&call);
    return (void *)(uintptr_t)status;
}

/* In the child: whether lengths of its own get a kernel. */
static int promotes_here(attune_plan *plan) {
    const sample from = sized(OPEN, "seq_q=30,seq_kv=30");
    const uint32_t before = info_of(plan).specialised_kernels;
    sample_call call;
    sample_call_open(&call, &from, ON_THE_HEAP);
    for (int i = 0; i < 4; i++)
        if (attune_plan_run(plan, &call.arguments, NULL)) return 1;
    return info_of(plan).specialised_kernels == before + 1 && info_of(plan).specialised_calls ? 0 : 2;
}

/* The thread that promotes does not exist in the child. */
static void a_child_promotes_too(void **state) {
    (void)state;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    skip(); /* they do not survive a fork beside threads; see test_fork.c */
#endif
    enum { FORKS = 6, STEP_US = 15000, SECONDS = 60 };
    for (int i = 0; i < FORKS; i++) {
        attune_plan *plan = plan_of(OPEN, NULL);
        pthread_t thread;
        void *failed;
        int status;
        attune_drop_memory_cache(sample_context);
        assert_int_equal(pthread_create(&thread, NULL, promote, plan), 0);
        usleep((useconds_t)i * STEP_US);
        const pid_t child = fork();
        if (!child) {
            alarm(SECONDS);
            _exit(promotes_here(plan));
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        assert_int_equal(pthread_join(thread, &failed), 0);
        assert_null(failed);
        assert_int_equal(info_of(plan).specialised_kernels, 1);
        attune_plan_destroy(plan);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths_that_come_back_get_a_kernel),
        cmocka_unit_test(decoding_is_not_specialised),
        cmocka_unit_test(kernels_for_lengths_are_limited),
        cmocka_unit_test(batches_share_a_kernel),
        cmocka_unit_test(one_entry_is_not_all),
        cmocka_unit_test(blocks_of_other_batches),
        cmocka_unit_test(masks_of_blocks),
        cmocka_unit_test(lengths_alike_and_nothing_else),
        cmocka_unit_test(the_call_that_brought_a_kernel_is_remembered),
        cmocka_unit_test(strides_of_the_plan_are_examples),
        cmocka_unit_test(refusals_stay_the_same),
        cmocka_unit_test(threads_share_a_plan),
        cmocka_unit_test(a_child_promotes_too),
    };
    return cmocka_run_group_tests(tests, sample_context_open, sample_context_close);
}
