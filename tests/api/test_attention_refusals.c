/* The tier for engines: a description, a step or a step plan that is wrong says so, and writes nothing. */
#define _GNU_SOURCE
#include "support/attention_steps.h"
#include "support/temp_dir.h"

#include <math.h>
#include <stdlib.h>

static void descriptions_that_are_wrong(void **state) {
    (void)state;
    const form f = {ATTUNE_THD, ATTUNE_KV_PAGED, 1, 0};
    const struct {
        size_t member;
        int value;
        const char *extra, *message;
    } cases[] = {
        {offsetof(attune_attention_desc, layout), 3, NULL, "layout is 3; it must be ATTUNE_THD"},
        {offsetof(attune_attention_desc, kv), 7, NULL, "kv is 7; it must be"},
        {offsetof(attune_attention_desc, kv), ATTUNE_KV_CACHE, NULL, "which needs layout ATTUNE_BSHD"},
        {offsetof(attune_attention_desc, kv), ATTUNE_KV_TENSORS, NULL, "there is no cache"},
        {offsetof(attune_attention_desc, page_size), 0, NULL, "page_size is 0; it must be at least 1"},
        {offsetof(attune_attention_desc, appends), 2, NULL, "appends is 2"},
        {offsetof(attune_attention_desc, num_heads), 5, NULL, "num_kv_heads is 2"},
        {offsetof(attune_attention_desc, head_dim), 0, NULL, "head_dim"},
        {offsetof(attune_attention_desc, is_causal), 2, NULL, "is_causal is 2"},
        {offsetof(attune_attention_desc, deadline_us), -5, NULL, "deadline_us is"},
        {offsetof(attune_attention_desc, is_causal), 1, "logits_cap=3", "extra: "},
        {offsetof(attune_attention_desc, is_causal), 1, "page_size=8", "extra has page_size"},
        {offsetof(attune_attention_desc, is_causal), 1, "embed_dim=64", "extra has embed_dim"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attune_attention_desc desc = desc_of(&f);
        attune_attention *attention = (attune_attention *)&desc;
        memcpy((char *)&desc + cases[i].member, &cases[i].value, sizeof cases[i].value);
        desc.extra = cases[i].extra;
        assert_int_not_equal(attune_attention_create(NULL, &desc, &attention), ATTUNE_OK);
        if (!strstr(attune_last_message(), cases[i].message)) fail_msg("case %zu: %s", i, attune_last_message());
        assert_null(attention);
    }
}

static void steps_that_are_wrong(void **state) {
    (void)state;
    const form f = {ATTUNE_THD, ATTUNE_KV_PAGED, 1, 0};
    tensors t = tensors_of(f, &mixed);
    const attune_attention_desc desc = desc_of(&f);
    attune_attention *const attention = attention_of(&desc);
    const struct {
        size_t member;
        const char *message;
    } pointers[] = {
        {offsetof(attune_step, q), "the step's q.data is NULL"},
        {offsetof(attune_step, k), "the step's k.data is NULL"},
        {offsetof(attune_step, v_cache), "the step's v_cache.data is NULL"},
        {offsetof(attune_step, out), "the step's out.data is NULL"},
        {offsetof(attune_step, cu_seqlens_q), "the step's cu_seqlens_q is NULL"},
        {offsetof(attune_step, kv_lens), "kv_lens"},
        {offsetof(attune_step, block_table), "block_table"},
    };
    for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++) {
        attune_step step = step_of(&t);
        const void *const nothing = NULL;
        memcpy((char *)&step + pointers[i].member, &nothing, sizeof nothing);
        assert_fails(attune_attention_run(attention, &step), ATTUNE_INVALID_ARGUMENT, pointers[i].message);
    }
    attune_step step = step_of(&t);
    step.batch = -1;
    assert_fails(attune_attention_run(attention, &step), ATTUNE_INVALID_ARGUMENT, "batch is -1; it must be from 0");
    step.batch = INT64_MAX / 8;
    assert_fails(attune_attention_run(attention, &step), ATTUNE_INVALID_ARGUMENT, "batch is 1152921504606846975");
    step = step_of(&t);
    step.k_cache.batch = -1; /* k, in the problem */
    assert_fails(attune_attention_run(attention, &step), ATTUNE_INVALID_ARGUMENT, "k_cache.batch is -1");
    step = step_of(&t);
    step.k.token = -1; /* k_new, in the problem */
    assert_fails(attune_attention_run(attention, &step), ATTUNE_INVALID_ARGUMENT, "k.token is -1");
    step = step_of(&t);
    step.q.column = 2;
    assert_fails(attune_attention_run(attention, &step), ATTUNE_INVALID_ARGUMENT, "the step's q.column is 2");
    t.table[1][0] = BATCH * COLUMNS;
    step = step_of(&t);
    assert_fails(attune_attention_run(attention, &step), ATTUNE_INVALID_ARGUMENT, "block_table");
    t.table[1][0] = 0;
    step = step_of(&t);
    step.max_pages = 0; /* as in a step whose caller forgot it */
    assert_fails(attune_attention_run(attention, &step), ATTUNE_INVALID_ARGUMENT,
                 "it must be from 0 to 0 (max_pages * page_size = 0 * ");
    step = step_of(&t);
    t.lens[2] = 3; /* nine of them are new */
    assert_fails(attune_attention_run(attention, &step), ATTUNE_INVALID_ARGUMENT,
                 "sequence 2 has 3 keys (kv_lens), fewer than the 9");
    assert_fails(attune_attention_run(NULL, &step), ATTUNE_INVALID_ARGUMENT, "given no attention");
    assert_fails(attune_attention_run(attention, NULL), ATTUNE_INVALID_ARGUMENT, "given no step");
    for (int i = 0; i < t.starts_q[BATCH] * HEADS * DIM_V; i++) assert_true(isnan(t.out[i])); /* nothing was written */
    attune_attention_destroy(attention);
    free_tensors(&t);
}

static void plans_that_are_wrong(void **state) {
    (void)state;
    const form f = {ATTUNE_THD, ATTUNE_KV_PAGED, 1, 0};
    tensors t = tensors_of(f, &mixed);
    const attune_attention_desc desc = desc_of(&f);
    attune_attention *const attention = attention_of(&desc);
    attune_step step = step_of(&t);
    attune_step_plan *plan = NULL;
    assert_fails(attune_step_plan_create(attention, &step, NULL), ATTUNE_INVALID_ARGUMENT, "no pointer to the plan");
    assert_fails(attune_step_plan_create(NULL, &step, &plan), ATTUNE_INVALID_ARGUMENT, "given no attention");
    assert_fails(attune_step_plan_create(attention, NULL, &plan), ATTUNE_INVALID_ARGUMENT, "given no step");
    assert_fails(attune_step_plan_run(NULL, &step), ATTUNE_INVALID_ARGUMENT, "given no plan");
    t.table[1][2] = BATCH * COLUMNS;
    assert_fails(attune_step_plan_create(attention, &step, &plan), ATTUNE_INVALID_ARGUMENT, "block_table[1, 2] is 18");
    assert_null(plan);
    t.table[1][2] = 0;
    step.kv_lens = NULL;
    assert_fails(attune_step_plan_create(attention, &step, &plan), ATTUNE_INVALID_ARGUMENT, "kv_lens");
    step = step_of(&t);
    assert_ok(attune_step_plan_create(attention, &step, &plan));
    step.q.data = NULL;
    assert_fails(attune_step_plan_run(plan, &step), ATTUNE_INVALID_ARGUMENT, "the step's q.data is NULL");
    attune_step_plan_destroy(plan);
    step = (attune_step)ATTUNE_STEP_INIT;
    assert_ok(attune_step_plan_create(attention, &step, &plan));
    assert_ok(attune_step_plan_run(plan, &step));
    attune_step_plan_destroy(plan);
    attune_step_plan_destroy(NULL);
    attune_attention_destroy(attention);
    free_tensors(&t);
}

static int setup(void **state) {
    const int failure = temp_dir_setup(state);
    setenv("ATTUNE_CACHE_DIR", *state, 1);
    return failure;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descriptions_that_are_wrong),
        cmocka_unit_test(steps_that_are_wrong),
        cmocka_unit_test(plans_that_are_wrong),
    };
    return cmocka_run_group_tests(tests, setup, temp_dir_teardown);
}
