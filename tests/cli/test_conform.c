/* `attune-lab conform` before and after a case is computed: the call, the refusals, the comparison. The
 * cases themselves are run by test_conform.sh. */
#include "conform/conform_call.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- Comparing ---- */

/* A case that expects this Y, and a computed one. */
static void make_outputs(conform_case *c, npy_array computed[CONFORM_MAX_OUTPUTS], const float *wanted,
                         const float *found, int64_t count) {
    char message[ATTUNE_MESSAGE_BYTES];
    const int64_t shape[2] = {1, count};
    *c = (conform_case){.op = CONFORM_ATTENTION, .rtol = 1e-3, .atol = 1e-7};
    memset(computed, 0, CONFORM_MAX_OUTPUTS * sizeof *computed);
    assert_true(npy_create(NPY_F4, 2, shape, &c->expected[ATTENTION_Y], message));
    assert_true(npy_create(NPY_F4, 2, shape, &computed[ATTENTION_Y], message));
    memcpy(c->expected[ATTENTION_Y].data, wanted, (size_t)count * sizeof *wanted);
    memcpy(computed[ATTENTION_Y].data, found, (size_t)count * sizeof *found);
}

static bool compare_one(float wanted, float found) {
    conform_case c;
    npy_array computed[CONFORM_MAX_OUTPUTS];
    char message[ATTUNE_MESSAGE_BYTES] = "";
    make_outputs(&c, computed, &wanted, &found, 1);
    const bool same = conform_compare(&c, computed, message);
    assert_int_equal(same, message[0] == 0);
    npy_free(&computed[ATTENTION_Y]);
    conform_case_free(&c);
    return same;
}

/* As numpy.allclose(found, wanted, rtol=1e-3, atol=1e-7, equal_nan=True) answers. */
static void test_elements_compare_as_in_numpy(void **state) {
    (void)state;
    assert_true(compare_one(2.0f, 2.00199f));
    assert_false(compare_one(2.0f, 2.00202f));
    assert_true(compare_one(-2.0f, -1.99801f));
    assert_false(compare_one(-2.0f, 2.0f));
    assert_true(compare_one(0.0f, 0.9e-7f));
    assert_false(compare_one(0.0f, 1.1e-7f));
    assert_true(compare_one(0.0f, -0.0f));
    assert_true(compare_one(NAN, NAN));
    assert_false(compare_one(NAN, 0.0f));
    assert_false(compare_one(0.0f, NAN));
    assert_true(compare_one(INFINITY, INFINITY));
    assert_true(compare_one(-INFINITY, -INFINITY));
    assert_false(compare_one(INFINITY, -INFINITY));
    assert_false(compare_one(INFINITY, 3e38f));
    assert_false(compare_one(3e38f, INFINITY));
}

/* 1 and its successors in bfloat16: two steps are tolerated, three are not, and a copy must be one. */
static void test_bfloat16_has_two_steps(void **state) {
    (void)state;
    static const uint16_t steps[4] = {0x3f80, 0x3f81, 0x3f82, 0x3f83};
    static const int64_t shape[1] = {1};
    char message[ATTUNE_MESSAGE_BYTES];
    for (int output = 0; output < CONFORM_MAX_OUTPUTS; output++) {
        conform_case c = {.op = CONFORM_ATTENTION, .rtol = 1e-3, .atol = 1e-7};
        npy_array computed[CONFORM_MAX_OUTPUTS] = {0};
        const bool is_copy = output == ATTENTION_PRESENT_KEY || output == ATTENTION_PRESENT_VALUE;
        assert_true(npy_create(NPY_V2, 1, shape, &c.expected[output], message));
        assert_true(npy_create(NPY_V2, 1, shape, &computed[output], message));
        *(uint16_t *)c.expected[output].data = steps[0];
        for (int i = 0; i < 4; i++) {
            *(uint16_t *)computed[output].data = steps[i];
            assert_int_equal(conform_compare(&c, computed, message), i <= (is_copy ? 0 : 2));
        }
        npy_free(&computed[output]);
        conform_case_free(&c);
    }
}

static void test_the_worst_element_is_named(void **state) {
    (void)state;
    static const float wanted[4] = {1, 2, 3, 4}, found[4] = {1, 2.5f, 3.0001f, 4.5f};
    conform_case c;
    npy_array computed[CONFORM_MAX_OUTPUTS];
    char message[ATTUNE_MESSAGE_BYTES] = "";
    make_outputs(&c, computed, wanted, found, 4);
    assert_false(conform_compare(&c, computed, message));
    assert_string_equal(message,
                        "Y[0, 1]: wanted 2, found 2.5, and 2 of 4 elements are beyond rtol 0.001 and atol 1e-07");
    computed[ATTENTION_Y].header.shape[1] = 3;
    assert_false(conform_compare(&c, computed, message));
    assert_string_equal(message, "Y: wanted <f4 of shape (1, 4), found <f4 of shape (1, 3)");
    npy_free(&computed[ATTENTION_Y]);
    conform_case_free(&c);
}

/* ---- Calls ---- */

static void give(npy_array *array, npy_type type, size_t rank, int64_t a, int64_t b, int64_t c, int64_t d) {
    char message[ATTUNE_MESSAGE_BYTES];
    const int64_t shape[4] = {a, b, c, d};
    npy_free(array);
    assert_true(npy_create(type, rank, shape, array, message));
}

/* Four heads of six columns over two of K and V, three queries, five keys, a batch of two. */
static void make_attention(conform_case *c) {
    *c = (conform_case){.op = CONFORM_ATTENTION};
    c->attributes[ATTENTION_LEFT_WINDOW].integer = c->attributes[ATTENTION_RIGHT_WINDOW].integer = -1;
    give(&c->inputs[ATTENTION_Q], NPY_F4, 4, 2, 4, 3, 6);
    give(&c->inputs[ATTENTION_K], NPY_F4, 4, 2, 2, 5, 6);
    give(&c->inputs[ATTENTION_V], NPY_F4, 4, 2, 2, 5, 7);
    give(&c->expected[ATTENTION_Y], NPY_F4, 4, 2, 4, 3, 7);
}

static void set_whole(conform_case *c, int attribute, int64_t value) {
    c->attributes[attribute] = (conform_attribute){.is_given = true, .integer = value};
}

static void create(const conform_case *c, conform_call *call) {
    static char message[ATTUNE_MESSAGE_BYTES];
    if (!conform_call_create(c, call, message)) fail_msg("%s", message);
}

static void assert_refused(const conform_case *c, const char *expected) {
    char message[ATTUNE_MESSAGE_BYTES] = "";
    conform_call call;
    const bool accepted = conform_call_create(c, &call, message);
    conform_call_free(&call);
    if (accepted || !strstr(message, expected)) fail_msg("got '%s', expected '%s'", message, expected);
}

static void assert_dims(const int64_t have[4], int64_t a, int64_t b, int64_t c, int64_t d) {
    const int64_t want[4] = {a, b, c, d};
    assert_memory_equal(have, want, sizeof want);
}

static void test_packed_heads_become_strides(void **state) {
    (void)state;
    conform_case c;
    conform_call call;
    make_attention(&c);
    give(&c.inputs[ATTENTION_Q], NPY_F4, 3, 2, 3, 4 * 6, 0);
    give(&c.inputs[ATTENTION_K], NPY_F4, 3, 2, 5, 2 * 6, 0);
    give(&c.inputs[ATTENTION_V], NPY_F4, 3, 2, 5, 2 * 7, 0);
    assert_refused(&c, "Q has 3 dimensions, and no attribute gives its number of heads");
    set_whole(&c, ATTENTION_Q_NUM_HEADS, 4);
    set_whole(&c, ATTENTION_KV_NUM_HEADS, 2);
    create(&c, &call);
    assert_dims(call.problem.q_strides, 72, 6, 24, 1);
    assert_dims(call.problem.k_strides, 60, 6, 12, 1);
    assert_dims(call.problem.v_strides, 70, 7, 14, 1);
    assert_dims(call.problem.out_strides, 84, 7, 28, 1);
    assert_int_equal(call.outputs[ATTENTION_Y].header.rank, 3);
    assert_int_equal(call.outputs[ATTENTION_Y].header.shape[2], 28);
    conform_call_free(&call);
    set_whole(&c, ATTENTION_Q_NUM_HEADS, 5);
    assert_refused(&c, "Q is of shape (2, 3, 24), which 5 heads do not divide");
    set_whole(&c, ATTENTION_Q_NUM_HEADS, 3);
    assert_refused(&c, "columns of Q and K 8, 6");
    conform_case_free(&c);
}

/* ---- Masks: short ones hide, also if one column is all they have. ---- */

static void test_a_mask_of_one_column_hides_the_others(void **state) {
    (void)state;
    conform_case c;
    conform_call call;
    make_attention(&c);
    give(&c.inputs[ATTENTION_MASK], NPY_B1, 4, 2, 1, 1, 1);
    memset(c.inputs[ATTENTION_MASK].data, 1, 2);
    create(&c, &call);
    assert_dims(call.problem.attn_mask_dims, 2, 1, 1, 2);
    assert_dims(call.problem.attn_bias_dims, 0, 0, 0, 0);
    assert_int_equal(call.problem.short_masks, 1);
    assert_memory_equal(call.arguments.attn_mask.data, "\1\0\1\0", 4);
    conform_call_free(&call);

    give(&c.inputs[ATTENTION_MASK], NPY_F2, 1, 1, 0, 0, 0);
    *(uint16_t *)c.inputs[ATTENTION_MASK].data = 0x3e00; /* 1.5 */
    create(&c, &call);
    assert_dims(call.problem.attn_bias_dims, 1, 1, 1, 2);
    assert_dims(call.problem.attn_mask_dims, 0, 0, 0, 0);
    assert_int_equal(call.problem.bias_dtype, ATTUNE_F32);
    assert_float_equal(((const float *)call.arguments.attn_bias.data)[0], 1.5f, 0);
    assert_true(isinf(((const float *)call.arguments.attn_bias.data)[1]));
    conform_call_free(&call);
    conform_case_free(&c);
}

static void test_masks_are_taken_as_they_are_where_they_can(void **state) {
    (void)state;
    conform_case c;
    conform_call call;
    make_attention(&c);
    give(&c.inputs[ATTENTION_MASK], NPY_F2, 3, 4, 1, 4, 0);
    create(&c, &call);
    assert_ptr_equal(call.arguments.attn_bias.data, c.inputs[ATTENTION_MASK].data);
    assert_int_equal(call.problem.bias_dtype, ATTUNE_F16);
    assert_dims(call.problem.attn_bias_dims, 1, 4, 1, 4);
    assert_int_equal(call.problem.short_masks, 1);
    conform_call_free(&call);
    c.inputs[ATTENTION_MASK].header.type = NPY_V2;
    create(&c, &call);
    assert_ptr_equal(call.arguments.attn_bias.data, c.inputs[ATTENTION_MASK].data);
    assert_int_equal(call.problem.bias_dtype, ATTUNE_BF16);
    conform_call_free(&call);
    give(&c.inputs[ATTENTION_MASK], NPY_B1, 2, 3, 5, 0, 0);
    create(&c, &call);
    assert_ptr_equal(call.arguments.attn_mask.data, c.inputs[ATTENTION_MASK].data);
    assert_int_equal(call.problem.short_masks, 0);
    conform_call_free(&call);
    give(&c.inputs[ATTENTION_MASK], NPY_I8, 2, 3, 5, 0, 0);
    ((int64_t *)c.inputs[ATTENTION_MASK].data)[7] = -3;
    create(&c, &call);
    assert_int_equal(call.problem.bias_dtype, ATTUNE_F32);
    assert_float_equal(((const float *)call.arguments.attn_bias.data)[7], -3.0f, 0);
    conform_call_free(&call);
    give(&c.inputs[ATTENTION_MASK], NPY_B1, 2, 3, 6, 0, 0);
    assert_refused(&c, "attn_mask is of shape (3, 6), which does not broadcast to (2, 4, 3, 5)");
    give(&c.inputs[ATTENTION_MASK], NPY_B1, 3, 2, 3, 5, 0);
    assert_refused(&c, "attn_mask is of shape (2, 3, 5)");
    give(&c.inputs[ATTENTION_MASK], NPY_B1, 0, 0, 0, 0, 0);
    assert_refused(&c, "attn_mask is of shape ()");
    conform_case_free(&c);
}

/* ---- Positions ---- */

static void test_positions_begin_where_onnx_has_them(void **state) {
    (void)state;
    conform_case c;
    conform_call call;
    make_attention(&c);
    set_whole(&c, ATTENTION_IS_CAUSAL, 1);
    set_whole(&c, ATTENTION_LEFT_WINDOW, INT64_MAX);
    create(&c, &call);
    assert_int_equal(call.problem.causal_align, ATTUNE_TOP_LEFT);
    assert_int_equal(call.problem.causal_offset, 0);
    assert_int_equal(call.problem.window_left, -1);
    assert_int_equal(call.problem.seq_new, 0);
    conform_call_free(&call);

    give(&c.inputs[ATTENTION_NONPAD_KV_SEQLEN], NPY_I8, 1, 2, 0, 0, 0);
    ((int64_t *)c.inputs[ATTENTION_NONPAD_KV_SEQLEN].data)[1] = 5;
    create(&c, &call);
    assert_int_equal(call.problem.causal_align, ATTUNE_BOTTOM_RIGHT);
    assert_int_equal(call.arguments.kv_lens[0], 0);
    assert_int_equal(call.arguments.kv_lens[1], 5);
    conform_call_free(&call);
    ((int64_t *)c.inputs[ATTENTION_NONPAD_KV_SEQLEN].data)[1] = 6;
    assert_refused(&c, "element 1 of nonpad_kv_seqlen is 6; it must be from 0 to 5");
    give(&c.expected[ATTENTION_PRESENT_KEY], NPY_F4, 4, 2, 2, 5, 6);
    assert_refused(&c, "nonpad_kv_seqlen does not go with");
    npy_free(&c.inputs[ATTENTION_NONPAD_KV_SEQLEN]);

    give(&c.inputs[ATTENTION_PAST_KEY], NPY_F4, 4, 2, 2, 4, 6);
    assert_refused(&c, "past_key and past_value must be given together");
    give(&c.inputs[ATTENTION_PAST_VALUE], NPY_F4, 4, 2, 2, 3, 7);
    assert_refused(&c, "past_value is of shape (2, 2, 3, 7); it must be of shape (2, 2, 4, 7)");
    give(&c.inputs[ATTENTION_PAST_VALUE], NPY_F4, 4, 2, 2, 4, 7);
    create(&c, &call);
    assert_int_equal(call.problem.causal_offset, 4);
    assert_int_equal(call.problem.seq_kv, 9);
    assert_int_equal(call.problem.seq_new, 5);
    assert_ptr_equal(call.arguments.k_new.data, c.inputs[ATTENTION_K].data);
    assert_ptr_equal(call.arguments.k.data, call.outputs[ATTENTION_PRESENT_KEY].data);
    conform_call_free(&call);
    conform_case_free(&c);
}

/* The past lies at the front of each head's part of the cache, whatever was there before. */
static void test_the_past_is_put_into_the_cache(void **state) {
    (void)state;
    conform_case c;
    conform_call call;
    make_attention(&c);
    give(&c.inputs[ATTENTION_PAST_KEY], NPY_F4, 4, 2, 2, 4, 6);
    give(&c.inputs[ATTENTION_PAST_VALUE], NPY_F4, 4, 2, 2, 4, 7);
    float *const past = c.inputs[ATTENTION_PAST_KEY].data;
    for (int i = 0; i < 2 * 2 * 4 * 6; i++) past[i] = (float)i;
    create(&c, &call);
    const float *const present = call.outputs[ATTENTION_PRESENT_KEY].data;
    conform_attention_prepare(&call);
    for (int head = 0; head < 4; head++)
        for (int i = 0; i < 9 * 6; i++)
            assert_float_equal(present[head * 9 * 6 + i], i < 4 * 6 ? (float)(head * 4 * 6 + i) : 0.0f, 0);
    conform_call_free(&call);
    conform_case_free(&c);
}

static void test_contradictions_are_refused(void **state) {
    (void)state;
    conform_case c;
    make_attention(&c);
    set_whole(&c, ATTENTION_SOFTMAX_PRECISION, 7);
    assert_refused(&c, "softmax_precision is 7; it must be 1, 10, 11 or 16");
    set_whole(&c, ATTENTION_SOFTMAX_PRECISION, 1);
    set_whole(&c, ATTENTION_KV_NUM_HEADS, 4);
    assert_refused(&c, "kv_num_heads is 4, but the input has 2 heads");
    set_whole(&c, ATTENTION_KV_NUM_HEADS, 2);
    give(&c.inputs[ATTENTION_Q], NPY_F4, 4, 2, 3, 3, 6);
    assert_refused(&c, "3 heads of Q are no multiple of 2 heads of K");
    give(&c.inputs[ATTENTION_V], NPY_F4, 4, 2, 2, 4, 7);
    assert_refused(&c, "tokens of K and V 5, 4");
    give(&c.inputs[ATTENTION_V], NPY_F4, 3, 2, 5, 14, 0);
    assert_refused(&c, "Q, K and V have 4, 4 and 3 dimensions");
    give(&c.inputs[ATTENTION_V], NPY_I4, 4, 2, 2, 5, 7);
    assert_refused(&c, "V is of dtype '<i4'");
    give(&c.inputs[ATTENTION_V], NPY_F4, 4, 2, 2, 5, 7);
    give(&c.inputs[ATTENTION_K], NPY_F2, 4, 2, 2, 5, 6);
    assert_refused(&c, "K is of dtype '<f2'; it must be of '<f4'");
    give(&c.inputs[ATTENTION_K], NPY_F4, 4, 2, 2, 0, 6);
    assert_refused(&c, "K is of shape (2, 2, 0, 6), which has no elements");
    give(&c.inputs[ATTENTION_K], NPY_F4, 2, 2, 2, 0, 0);
    assert_refused(&c, "K is of shape (2, 2); 3 or 4 dimensions are wanted");
    conform_case_free(&c);
}

static void test_rotary(void **state) {
    (void)state;
    conform_case c = {.op = CONFORM_ROTARY_EMBEDDING};
    conform_call call;
    give(&c.inputs[ROTARY_X], NPY_F4, 3, 2, 3, 4 * 8, 0);
    give(&c.inputs[ROTARY_COS], NPY_F4, 3, 2, 3, 2, 0);
    give(&c.inputs[ROTARY_SIN], NPY_F4, 3, 2, 3, 2, 0);
    set_whole(&c, ROTARY_NUM_HEADS, 4);
    assert_refused(&c, "cos_cache is of shape (2, 3, 2); it must be of shape (2, 3, 4)");
    set_whole(&c, ROTARY_DIM, 4);
    create(&c, &call);
    assert_dims(call.problem.q_strides, 96, 8, 32, 1);
    assert_int_equal(call.problem.rotary_dim, 4);
    assert_int_equal(call.arguments.rotary_positions, 3);
    assert_int_equal(call.arguments.rotary_batch_stride, 6);
    conform_call_free(&call);
    give(&c.inputs[ROTARY_POSITION_IDS], NPY_I8, 2, 2, 3, 0, 0);
    assert_refused(&c, "cos_cache is of shape (2, 3, 2); it must be of shape (2, 2)");
    give(&c.inputs[ROTARY_COS], NPY_F4, 2, 9, 2, 0, 0);
    give(&c.inputs[ROTARY_SIN], NPY_F4, 2, 9, 2, 0, 0);
    create(&c, &call);
    assert_int_equal(call.arguments.rotary_positions, 9);
    assert_int_equal(call.arguments.rotary_batch_stride, 0);
    conform_call_free(&call);
    ((int64_t *)c.inputs[ROTARY_POSITION_IDS].data)[4] = 9;
    assert_refused(&c, "element 4 of position_ids is 9; it must be from 0 to 8");
    set_whole(&c, ROTARY_DIM, 10);
    assert_refused(&c, "10 columns of 8 are to be rotated");
    set_whole(&c, ROTARY_DIM, 3);
    assert_refused(&c, "3 columns of 8 are to be rotated");
    conform_case_free(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_elements_compare_as_in_numpy),
        cmocka_unit_test(test_bfloat16_has_two_steps),
        cmocka_unit_test(test_the_worst_element_is_named),
        cmocka_unit_test(test_packed_heads_become_strides),
        cmocka_unit_test(test_a_mask_of_one_column_hides_the_others),
        cmocka_unit_test(test_masks_are_taken_as_they_are_where_they_can),
        cmocka_unit_test(test_positions_begin_where_onnx_has_them),
        cmocka_unit_test(test_the_past_is_put_into_the_cache),
        cmocka_unit_test(test_contradictions_are_refused),
        cmocka_unit_test(test_rotary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
