/* The tier for engines: every layout and kind of cache computes the same attention. */
#define _GNU_SOURCE
#include "support/attention_steps.h"
#include "support/temp_dir.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- All forms ---- */

static void every_form_computes_the_same(void **state) {
    (void)state;
    for (int i = 0; i < NUM_FORMS; i++) {
        tensors t = tensors_of(forms[i], lengths_of(&forms[i]));
        const attune_attention_desc desc = desc_of(&forms[i]);
        attune_attention *const attention = attention_of(&desc);
        const attune_step step = step_of(&t);
        if (attune_attention_run(attention, &step)) fail_msg("form %d: %s", i, attune_last_message());
        check_rows(&t, true, -1);
        attune_attention_destroy(attention);
        free_tensors(&t);
    }
}

/* ---- Step plans ---- */

static void spoil(tensors *t) {
    memset(t->starts_q, -1, sizeof t->starts_q), memset(t->starts_kv, -1, sizeof t->starts_kv);
    memset(t->lens, -1, sizeof t->lens), memset(t->table, -1, sizeof t->table);
}

/* A plan has copies of lengths and tables, and computes every layer's tensors as the step itself would. */
static void a_plan_computes_each_layer(void **state) {
    (void)state;
    for (int i = 0; i < NUM_FORMS; i++) {
        tensors t = tensors_of(forms[i], lengths_of(&forms[i])), layer = tensors_of(forms[i], lengths_of(&forms[i]));
        const attune_attention_desc desc = desc_of(&forms[i]);
        attune_attention *const attention = attention_of(&desc);
        attune_step step = step_of(&t);
        attune_step_plan *plan;
        attune_step lists = step;
        lists.q.data = lists.k.data = lists.v.data = NULL;
        lists.k_cache.data = lists.v_cache.data = lists.out.data = NULL;
        if (attune_step_plan_create(attention, &lists, &plan)) fail_msg("form %d: %s", i, attune_last_message());
        size_t bytes;
        assert_ok(attune_step_plan_workspace_size(plan, &lists, &bytes));
        void *const workspace = aligned_alloc(64, (bytes + 64) / 64 * 64);
        for (int n = 0; n < 2; n++) {
            tensors *const of = n ? &layer : &t;
            const tensors kept = *of;
            step = step_of(of);
            step.workspace = workspace, step.workspace_bytes = bytes;
            spoil(of);
            if (attune_step_plan_run(plan, &step)) fail_msg("form %d: %s", i, attune_last_message());
            check_rows(&kept, true, -1);
        }
        /* Other strides than before. */
        form other = forms[i];
        other.is_strided = !other.is_strided;
        tensors last = tensors_of(other, lengths_of(&other));
        step = step_of(&last);
        step.workspace = workspace, step.workspace_bytes = bytes;
        if (attune_step_plan_run(plan, &step)) fail_msg("form %d: %s", i, attune_last_message());
        check_rows(&last, true, -1);
        free(workspace);
        attune_step_plan_destroy(plan);
        attune_attention_destroy(attention);
        free_tensors(&t), free_tensors(&layer), free_tensors(&last);
    }
}

/* Angles are bound in each run, and with them their number. */
static void a_plan_of_rotated_rows(void **state) {
    (void)state;
    enum { HALF = DIM / 4, POSITIONS = MOST };
    const form f = {ATTUNE_THD, ATTUNE_KV_PAGED, 1, 0};
    tensors t = tensors_of(f, &mixed), again = tensors_of(f, &mixed);
    attune_attention_desc desc = desc_of(&f);
    float cos_of[1][POSITIONS][HALF], sin_of[1][POSITIONS][HALF];
    for (int i = 0; i < POSITIONS * HALF; i++) {
        cos_of[0][i / HALF][i % HALF] = cosf((float)i / 7);
        sin_of[0][i / HALF][i % HALF] = sinf((float)i / 7);
    }
    int64_t shape[3] = {1, POSITIONS, HALF};
    const attune_dltensor cosines = {.data = cos_of,
                                     .device_type = 1,
                                     .ndim = 3,
                                     .dtype_code = 2,
                                     .dtype_bits = 32,
                                     .dtype_lanes = 1,
                                     .shape = shape};
    attune_dltensor sines = cosines;
    sines.data = sin_of;
    const attune_binding bindings[] = {{"cos", &cosines}, {"sin", &sines}};
    desc.extra = "rotary_dim=8";
    attune_attention *const attention = attention_of(&desc);
    attune_step step = step_of(&t), lists = step;
    attune_step_plan *plan;
    step.bindings = bindings, step.num_bindings = 2;
    assert_ok(attune_attention_run(attention, &step));
    assert_ok(attune_step_plan_create(attention, &lists, &plan));
    shape[1] = 20; /* the longest sequence has 21 keys */
    step = step_of(&again);
    step.bindings = bindings, step.num_bindings = 2;
    assert_fails(attune_step_plan_run(plan, &step), ATTUNE_INVALID_ARGUMENT, "rotary_positions is 20");
    for (int n = 0; n < 2; n++) {
        shape[1] = POSITIONS;
        assert_ok(attune_step_plan_run(plan, &step));
        for (int i = 0; i < again.starts_q[BATCH] * HEADS * DIM_V; i++) assert_true(again.out[i] == t.out[i]);
        shape[1] = 20;
        assert_fails(attune_step_plan_run(plan, &step), ATTUNE_INVALID_ARGUMENT, "rotary_positions is 20");
    }
    attune_step_plan_destroy(plan);
    attune_attention_destroy(attention);
    free_tensors(&t), free_tensors(&again);
}

/* What was appended lies in the cache, where the next step finds it. */
static void appended_keys_stay(void **state) {
    (void)state;
    const form append = {ATTUNE_THD, ATTUNE_KV_PAGED, 1, 0};
    tensors t = tensors_of(append, &mixed);
    const attune_attention_desc desc = desc_of(&append);
    attune_attention *const attention = attention_of(&desc);
    const attune_step step = step_of(&t);
    assert_ok(attune_attention_run(attention, &step));
    for (int b = 0; b < BATCH; b++)
        for (int j = 0; j < t.n.kv[b]; j++)
            for (int h = 0; h < KV_HEADS; h++)
                for (int d = 0; d < DIM; d++)
                    assert_true(t.k_cache[cached(&t, b, j, h, DIM) + (size_t)d] == element(K, b, j, h, d));
    attune_attention_destroy(attention);
    free_tensors(&t);
}

/* The same bits in every layout, cache and batch. */
static void reproducible_rows_have_the_same_bits(void **state) {
    (void)state;
    static float first[BATCH][5][HEADS][DIM_V];
    for (int i = 0; i < NUM_FORMS; i++) {
        tensors t = tensors_of(forms[i], &equal);
        attune_attention_desc desc = desc_of(&forms[i]);
        desc.reproducible = 1;
        attune_attention *const attention = attention_of(&desc);
        const attune_step step = step_of(&t);
        assert_ok(attune_attention_run(attention, &step));
        for (int row = 0; row < BATCH * 5 * HEADS; row++) {
            const int b = row / (5 * HEADS), q = row / HEADS % 5, h = row % HEADS;
            const float *const got = t.out + place(&t, t.starts_q, b, q, 5, h, HEADS, DIM_V);
            if (!i) memcpy(first[b][q][h], got, sizeof first[b][q][h]);
            assert_memory_equal(got, first[b][q][h], sizeof first[b][q][h]);
        }
        attune_attention_destroy(attention);
        free_tensors(&t);
    }
}

static void masks_and_more(void **state) {
    (void)state;
    const form f = {ATTUNE_THD, ATTUNE_KV_PAGED, 0, 0};
    tensors t = tensors_of(f, &mixed);
    attune_attention_desc desc = desc_of(&f);
    desc.window_left = 6;
    desc.has_lse = 1;
    attune_attention *attention = attention_of(&desc);
    attune_step step = step_of(&t);
    assert_ok(attune_attention_run(attention, &step));
    check_rows(&t, true, 6);
    for (int i = 0; i < t.starts_q[BATCH] * HEADS; i++) assert_true(isfinite(t.lse[i]));
    attune_attention_destroy(attention);

    desc = desc_of(&f);
    desc.is_causal = 0;
    attention = attention_of(&desc);
    assert_ok(attune_attention_run(attention, &step));
    check_rows(&t, false, -1);
    attune_attention_destroy(attention);

    /* Sinks far below all scores add nothing. */
    desc = desc_of(&f);
    desc.extra = "has_sinks=1,logits_soft_cap=1000000";
    attention = attention_of(&desc);
    float sinks[HEADS];
    int64_t shape = HEADS;
    for (int h = 0; h < HEADS; h++) sinks[h] = -1e30f;
    const attune_dltensor tensor = {.data = sinks,
                                    .device_type = 1,
                                    .ndim = 1,
                                    .dtype_code = 2,
                                    .dtype_bits = 32,
                                    .dtype_lanes = 1,
                                    .shape = &shape};
    const attune_binding binding = {"sinks", &tensor};
    step.bindings = &binding, step.num_bindings = 1;
    assert_ok(attune_attention_run(attention, &step));
    check_rows(&t, true, -1);
    const attune_binding taken = {"q", &tensor};
    step.bindings = &taken;
    assert_fails(attune_attention_run(attention, &step), ATTUNE_INVALID_ARGUMENT,
                 "bindings[0] is q, which has a member");
    const attune_binding wrong = {"slopes", &tensor};
    step.bindings = &wrong;
    assert_fails(attune_attention_run(attention, &step), ATTUNE_INVALID_ARGUMENT, "bindings[0]");
    step.bindings = NULL;
    assert_fails(attune_attention_run(attention, &step), ATTUNE_INVALID_ARGUMENT, "num_bindings is 1");
    attune_attention_destroy(attention);
    free_tensors(&t);
}

/* ---- Caches ---- */

static void sizes_of_caches(void **state) {
    (void)state;
    const form f = {ATTUNE_THD, ATTUNE_KV_PAGED, 1, 0};
    attune_attention_desc desc = desc_of(&f);
    desc.page_size = 16, desc.head_dim = desc.head_dim_v = 64;
    const struct {
        attune_dtype dtype;
        attune_scales scales;
        const char *extra;
        size_t k_bytes, scale_bytes;
        int64_t row;
    } cases[] = {
        {ATTUNE_DTYPE_DEFAULT, ATTUNE_SCALES_DEFAULT, NULL, 10 * 2 * 16 * 64 * 4, 0, 64},
        {ATTUNE_BF16, ATTUNE_SCALES_DEFAULT, NULL, 10 * 2 * 16 * 64 * 2, 0, 64},
        {ATTUNE_I8, ATTUNE_SCALES_HEAD, NULL, 10 * 2 * 16 * 64, 2 * 4, 64},
        {ATTUNE_I8, ATTUNE_SCALES_TOKEN, NULL, 10 * 2 * 16 * 64, 10 * 2 * 16 * 4, 64},
        {ATTUNE_I8, ATTUNE_SCALES_INLINE, NULL, 10 * 2 * 16 * 68, 0, 68},
        {ATTUNE_I4, ATTUNE_SCALES_GROUP, NULL, 10 * 2 * 16 * 32, 10 * 2 * 16 * 2 * 4, 32},
        {ATTUNE_BF16, ATTUNE_SCALES_DEFAULT, "kv_layout=panels", 10 * 2 * 16 * 64 * 2, 0, 16 * 64},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attune_cache_size size = ATTUNE_CACHE_SIZE_INIT;
        desc.kv_dtype = cases[i].dtype, desc.kv_scales = cases[i].scales, desc.extra = cases[i].extra;
        attune_attention *const attention = attention_of(&desc);
        assert_ok(attune_attention_cache_size(attention, 10, 0, &size));
        assert_int_equal(size.k_bytes, cases[i].k_bytes);
        assert_int_equal(size.v_bytes, cases[i].k_bytes);
        assert_int_equal(size.k_scale_bytes, cases[i].scale_bytes);
        assert_int_equal(size.v_scale_bytes, cases[i].scale_bytes);
        assert_int_equal(size.k_row, cases[i].row);
        assert_fails(attune_attention_cache_size(attention, INT64_MAX / 2, 0, &size), ATTUNE_INVALID_ARGUMENT,
                     "not possible");
        attune_attention_destroy(attention);
    }
}

/* Nine views and tensors of `extra` after them: more once wrote beyond the attention. */
static void all_views_and_more(void **state) {
    (void)state;
    const form f = {ATTUNE_THD, ATTUNE_KV_PAGED, 1, 0};
    attune_attention_desc desc = desc_of(&f);
    attune_cache_size size = ATTUNE_CACHE_SIZE_INIT;
    desc.has_lse = 1, desc.kv_dtype = ATTUNE_I8, desc.kv_scales = ATTUNE_SCALES_TOKEN;
    desc.extra = "rotary_dim=16,has_sinks=1,qk_norm_eps=1e-6,has_position_ids=1";
    attune_attention *const attention = attention_of(&desc);
    assert_ok(attune_attention_cache_size(attention, 1, 0, &size));
    assert_int_equal(size.v_scale_bytes, PAGE * KV_HEADS * 4);
    attune_attention_destroy(attention);
}

/* A quantised cache that the steps themselves fill: first prompts, then one query of each sequence. */
static void a_quantised_cache_is_filled_and_read(void **state) {
    (void)state;
    static const lengths prompts = {{20, 13, 9}, {20, 13, 9}}, decoding = {{1, 1, 1}, {21, 14, 10}};
    for (int heads_first = 0; heads_first < 2; heads_first++) { /* in the pages of k */
        const form f = {ATTUNE_THD, ATTUNE_KV_PAGED, 1, 0};
        attune_attention_desc desc = desc_of(&f);
        desc.kv_dtype = ATTUNE_I8, desc.kv_scales = ATTUNE_SCALES_TOKEN;
        attune_attention *const attention = attention_of(&desc);
        float k_scale[BATCH * COLUMNS * PAGE * KV_HEADS], v_scale[BATCH * COLUMNS * PAGE * KV_HEADS];
        tensors first = tensors_of(f, &prompts), second = tensors_of(f, &decoding);
        attune_step steps[] = {step_of(&first), step_of(&second)};
        for (int i = 0; i < 2; i++) {
            steps[i].k_cache.data = first.k_cache, steps[i].v_cache.data = first.v_cache;
            steps[i].k_scale.data = k_scale, steps[i].v_scale.data = v_scale;
            if (heads_first) {
                steps[i].k_cache = (attune_mutable_view){
                    .data = first.k_cache, .batch = KV_HEADS * PAGE * DIM, .head = PAGE * DIM, .token = DIM};
            }
            assert_ok(attune_attention_run(attention, &steps[i]));
        }
        for (int b = 0; b < BATCH; b++)
            for (int h = 0; h < HEADS; h++) {
                double want[DIM_V];
                row_of(&decoding, b, 0, h, true, -1, want);
                for (int d = 0; d < DIM_V; d++) {
                    const float got = second.out[place(&second, second.starts_q, b, 0, 1, h, HEADS, DIM_V) + (size_t)d];
                    assert_true(fabs(got - want[d]) < 0.02);
                }
            }
        attune_attention_destroy(attention);
        free_tensors(&first), free_tensors(&second);
    }
}

/* ---- The rest ---- */

static void workspace_and_preparing(void **state) {
    (void)state;
    const form f = {ATTUNE_THD, ATTUNE_KV_PAGED, 1, 0};
    tensors t = tensors_of(f, &mixed);
    const attune_attention_desc desc = desc_of(&f);
    attune_attention *const attention = attention_of(&desc);
    attune_step step = step_of(&t);
    size_t bytes = 1;
    assert_ok(attune_attention_prepare(attention));
    attune_step unset = step;
    unset.q.data = unset.k.data = NULL, unset.k_cache.data = NULL, unset.out.data = NULL;
    assert_ok(attune_attention_workspace_size(attention, &unset, &bytes));
    step.workspace = aligned_alloc(64, (bytes + 64) / 64 * 64);
    step.workspace_bytes = bytes;
    assert_ok(attune_attention_run(attention, &step));
    check_rows(&t, true, -1);
    free(step.workspace);
    attune_attention_destroy(attention);
    free_tensors(&t);
}

/* An empty step writes nothing and needs no pointers; a sequence without queries is fine. */
static void empty_steps(void **state) {
    (void)state;
    const form f = {ATTUNE_THD, ATTUNE_KV_PAGED, 0, 0};
    const lengths some = {{0, 1, 0}, {3, 14, 0}};
    const attune_attention_desc desc = desc_of(&f);
    attune_attention *const attention = attention_of(&desc);
    attune_step step = ATTUNE_STEP_INIT;
    assert_ok(attune_attention_run(attention, &step));
    tensors t = tensors_of(f, &some);
    step = step_of(&t);
    assert_ok(attune_attention_run(attention, &step));
    check_rows(&t, true, -1);
    attune_attention_destroy(attention);
    free_tensors(&t);
}

static void the_problem_is_told(void **state) {
    (void)state;
    char text[512], longer[64];
    const form f = {ATTUNE_THD, ATTUNE_KV_PAGED, 1, 0};
    attune_attention_desc desc = desc_of(&f);
    desc.extra = "logits_soft_cap=30";
    attune_attention *const attention = attention_of(&desc);
    const size_t length = attune_attention_problem(attention, text, sizeof text);
    assert_int_equal(length, strlen(text));
    assert_non_null(strstr(text, "page_size=4"));
    assert_non_null(strstr(text, "logits_soft_cap=30"));
    assert_int_equal(attune_attention_problem(attention, longer, sizeof longer), length);
    assert_int_equal(strlen(longer), sizeof longer - 1);
    assert_int_equal(attune_attention_problem(attention, NULL, 5), length);
    attune_attention_destroy(attention);
}

/* Attentions without a context share one. */
static void a_context_is_shared(void **state) {
    (void)state;
    const form f = {ATTUNE_BSHD, ATTUNE_KV_TENSORS, 0, 0};
    const attune_attention_desc desc = desc_of(&f);
    for (int round = 0; round < 2; round++) {
        attune_attention *const one = attention_of(&desc), *const two = attention_of(&desc);
        tensors t = tensors_of(f, &equal);
        const attune_step step = step_of(&t);
        attune_attention_destroy(one);
        assert_ok(attune_attention_run(two, &step));
        check_rows(&t, true, -1);
        attune_attention_destroy(two);
        free_tensors(&t);
    }
    attune_attention_destroy(NULL);
}

static int setup(void **state) {
    const int failure = temp_dir_setup(state);
    setenv("ATTUNE_CACHE_DIR", *state, 1);
    return failure;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_computes_the_same),
        cmocka_unit_test(a_plan_computes_each_layer),
        cmocka_unit_test(a_plan_of_rotated_rows),
        cmocka_unit_test(appended_keys_stay),
        cmocka_unit_test(reproducible_rows_have_the_same_bits),
        cmocka_unit_test(masks_and_more),
        cmocka_unit_test(sizes_of_caches),
        cmocka_unit_test(all_views_and_more),
        cmocka_unit_test(a_quantised_cache_is_filled_and_read),
        cmocka_unit_test(workspace_and_preparing),
        cmocka_unit_test(empty_steps),
        cmocka_unit_test(the_problem_is_told),
        cmocka_unit_test(a_context_is_shared),
    };
    return cmocka_run_group_tests(tests, setup, temp_dir_teardown);
}
