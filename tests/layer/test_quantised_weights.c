/* Weights of blocks as codes: their bits are those of the plain numbers that codes and scales stand for. */
#include "support/problems.h"
#include "support/statuses.h"
#include "support/tensor_calls.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- A plain implementation ---- */

static float rounded_to_f16(float x) {
    const _Float16 half = (_Float16)x;
    return (float)half;
}

/* What codes of a group stand for. */
static void round_group(float *w, int64_t count, bool is_i4) {
    float largest = 0;
    for (int64_t i = 0; i < count; i++)
        if (fabsf(w[i]) > fabsf(largest)) largest = w[i];
    const float scale = rounded_to_f16(is_i4 ? largest / -8 : fabsf(largest) / 127);
    for (int64_t i = 0; i < count; i++) {
        float code = scale != 0 ? nearbyintf(w[i] / scale) : 0;
        if (code > (is_i4 ? 7 : 127)) code = is_i4 ? 7 : 127;
        if (code < (is_i4 ? -8 : -127)) code = is_i4 ? -8 : -127;
        w[i] = code * scale;
    }
}

static bool is_matrix(int id) { return id <= ATTUNE_OUT_WEIGHT || id == ATTUNE_QKV_WEIGHT; }

/* Where input `i` of output `o` lies in a matrix. */
static int64_t place(const attune_mha_weights *all, int id, int64_t o, int64_t i) {
    const attune_weight *const w = &all->tensor[id];
    return all->layout == ATTUNE_OUT_IN ? o * w->dims[1] + i : i * w->dims[1] + o;
}

static void round_matrix(const attune_mha_weights *all, int id, int64_t group, bool is_i4) {
    const attune_weight *const w = &all->tensor[id];
    const bool out_first = all->layout == ATTUNE_OUT_IN;
    const int64_t outputs = w->dims[!out_first], inputs = w->dims[out_first];
    float *const data = (float *)w->data, part[128];
    for (int64_t o = 0; o < outputs; o++)
        for (int64_t first = 0; first < inputs; first += group) {
            const int64_t n = inputs - first < group ? inputs - first : group;
            for (int64_t i = 0; i < n; i++) part[i] = data[place(all, id, o, first + i)];
            round_group(part, n, is_i4);
            for (int64_t i = 0; i < n; i++) data[place(all, id, o, first + i)] = part[i];
        }
}

/* ---- Blobs ---- */

static void *pack(const attune_problem *p, const attune_mha_weights *weights, size_t *bytes) {
    assert_ok(attune_packed_weights_size(p, bytes));
    void *const packed = aligned_alloc(64, (*bytes + 63) / 64 * 64);
    assert_non_null(packed);
    assert_ok(attune_pack_weights(p, weights, packed, *bytes));
    assert_ok(attune_packed_weights_check(p, packed, *bytes));
    return packed;
}

/* ---- Bits ---- */

/* A group of zeros, one whose scale is rounded to 0, some whose scales are denormal or the largest that there is, and
 * one that is mostly negative. */
static void put_odd_groups(tensors *t, float largest) {
    float *const w = (float *)t->weights.tensor[ATTUNE_OUT_WEIGHT].data;
    const float odd[] = {0, 1e-9F, -3e-6F, 4e-5F, largest, -2};
    const attune_mha_weights *const all = &t->weights;
    for (int64_t o = 0; o < 6; o++)
        for (int64_t i = 0; i < 32; i++) w[place(all, ATTUNE_OUT_WEIGHT, o, i)] = odd[o] * (float)(i % 7 + 1) / 7;
}

static void assert_plain_bits(attune_context *context, const char *text, const char *codes, int64_t group) {
    char all[256];
    const bool is_i4 = strstr(codes, "i4") != NULL;
    tensors coded, plain;
    snprintf(all, sizeof all, "%s,%s", text, codes);
    tensors_open_call(&coded, all, "", INPUT_ORDINARY, 5);
    put_odd_groups(&coded, 65504.0F * (is_i4 ? 8 : 127));
    assert_true(tensors_pack(&coded));
    tensors_run_chosen(context, &coded, NULL);
    tensors_open_call(&plain, text, "", INPUT_ORDINARY, 5);
    for (int id = 0; id < ATTUNE_NUM_WEIGHTS; id++)
        if (is_matrix(id) && coded.weights.tensor[id].data) round_matrix(&coded.weights, id, group, is_i4);
    size_t bytes;
    attune_arguments a;
    void *const packed = pack(&plain.problem, &coded.weights, &bytes);
    tensors_arguments(&plain, &a);
    a.packed_weights = packed;
    a.x.data = coded.arguments.x.data;
    attune_kernel *kernel = kernel_of(context, &plain.problem);
    assert_ok(attune_run(context, kernel, &a));
    attune_kernel_release(kernel);
    tensors_assert_same(&coded, &plain, all);
    free(packed);
    tensors_free(&coded);
    tensors_free(&plain);
}

/* One token and many, whole groups and not, of each size. */
static void test_bits_are_those_of_plain_weights(void **state) {
    (void)state;
    static const struct {
        const char *codes;
        int64_t group;
    } cases[] = {
        {"w_dtype=i8", 32}, {"w_dtype=i8,w_group=64", 64}, {"w_dtype=i4", 32}, {"w_dtype=i4,w_group=128", 128}};
    static const char *const texts[] = {"embed_dim=200,num_heads=4,head_dim=40,seq_q=1,reproducible=1",
                                        "embed_dim=72,num_heads=3,head_dim=24,seq_q=19,batch=2,reproducible=1"};
    attune_context *context = tensors_context(NULL, 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t n = 0; n < sizeof texts / sizeof *texts; n++)
            assert_plain_bits(context, texts[n], cases[i].codes, cases[i].group);
    attune_context_destroy(context);
}

/* ---- Inputs as codes ---- */

/* Inputs that are codes times a scale already lose nothing: 127 is the largest of each group. All sums are then exact
 * in f32, and the bits those of inputs that are no codes. The output projection has inputs that are computed, so there
 * is none. */
static void test_exact_inputs_lose_nothing(void **state) {
    (void)state;
    static const char text[] =
        "embed_dim=96,num_heads=2,head_dim=48,seq_q=1,no_out_projection=1,reproducible=1,w_dtype=i4";
    char integers[160];
    attune_context *context = tensors_context(NULL, 1);
    tensors plain, coded;
    snprintf(integers, sizeof integers, "%s,x_planes=1", text);
    tensors_open_call(&plain, text, "", INPUT_ORDINARY, 7);
    tensors_open_call(&coded, integers, "", INPUT_ORDINARY, 7);
    for (int i = 0; i < 96; i++)
        tensors_floats(&plain, "x")[i] = tensors_floats(&coded, "x")[i] =
            (float)(i % 32 ? i * 29 % 127 - 60 : 127) / 64;
    for (int id = 0; id < ATTUNE_NUM_WEIGHTS; id++) {
        const attune_weight *const w = &coded.weights.tensor[id], *const other = &plain.weights.tensor[id];
        if (!w->data) continue;
        const int64_t count = w->dims[0] * (w->rank > 1 ? w->dims[1] : 1);
        for (int64_t i = 0; i < count; i++)
            ((float *)w->data)[i] = ((float *)other->data)[i] = (float)(i % 8 ? i * 5 % 15 - 7 : -8) / 16;
    }
    assert_true(tensors_pack(&plain) && tensors_pack(&coded));
    tensors_run_chosen(context, &plain, NULL);
    tensors_run_chosen(context, &coded, NULL);
    tensors_assert_same(&plain, &coded, "inputs as codes");
    tensors_free(&plain);
    tensors_free(&coded);
    attune_context_destroy(context);
}

/* ---- Sources ---- */

/* The same numbers as bf16, in the other layout, and q, k and v as one matrix make the same blob. */
static void test_sources_make_one_blob(void **state) {
    (void)state;
    enum { WIDE = 64, THREE = 3 * WIDE };
    static float square[WIDE][WIDE], turned[WIDE][WIDE], three[THREE][WIDE];
    static uint16_t half[WIDE][WIDE];
    attune_mha_weights first, second;
    size_t bytes;
    const attune_problem p = problem_parsed("embed_dim=64,num_heads=2,seq_q=1,w_dtype=i4");
    for (int o = 0; o < WIDE; o++)
        for (int i = 0; i < WIDE; i++) {
            const float x = (float)((o * 37 + i * 11) % 128 - 60) / 32; /* a bf16 */
            uint32_t bits;
            memcpy(&bits, &x, sizeof bits);
            half[o][i] = (uint16_t)(bits >> 16);
            square[o][i] = turned[i][o] = x;
            for (int n = 0; n < 3; n++) three[n * WIDE + o][i] = x;
        }
    assert_ok(attune_mha_weights_init(&first, &p, ATTUNE_OUT_IN));
    for (int id = 0; id < ATTUNE_Q_BIAS; id++) first.tensor[id].data = square;
    void *const blob = pack(&p, &first, &bytes);
    second = first;
    for (int id = 0; id < ATTUNE_Q_BIAS; id++) {
        second.tensor[id].data = half;
        second.tensor[id].dtype = ATTUNE_BF16;
    }
    void *other = pack(&p, &second, &bytes);
    assert_memory_equal(blob, other, bytes);
    free(other);
    assert_ok(attune_mha_weights_init(&second, &p, ATTUNE_IN_OUT));
    for (int id = 0; id < ATTUNE_Q_BIAS; id++) second.tensor[id].data = turned;
    other = pack(&p, &second, &bytes);
    assert_memory_equal(blob, other, bytes);
    free(other);
    assert_ok(attune_mha_weights_init(&second, &p, ATTUNE_OUT_IN));
    second.tensor[ATTUNE_QKV_WEIGHT].data = three;
    second.tensor[ATTUNE_OUT_WEIGHT].data = square;
    other = pack(&p, &second, &bytes);
    assert_memory_equal(blob, other, bytes);
    free(other);
    free(blob);
}

/* ---- Refusals ---- */

static void assert_refused(const char *text, float weight, const char *part) {
    enum { WIDE = 40, OUTPUT = 7, INPUT = 33 };
    static float square[WIDE][WIDE];
    attune_mha_weights weights;
    size_t bytes;
    const attune_problem p = problem_parsed(text);
    assert_ok(attune_mha_weights_init(&weights, &p, ATTUNE_OUT_IN));
    for (int id = 0; id < ATTUNE_Q_BIAS; id++) weights.tensor[id].data = square;
    unsigned char *const packed = pack(&p, &weights, &bytes);
    memset(packed, 0x5a, bytes);
    square[OUTPUT][INPUT] = weight;
    assert_int_equal(attune_pack_weights(&p, &weights, packed, bytes), ATTUNE_INVALID_ARGUMENT);
    if (!strstr(attune_last_message(), part)) fail_msg("%s", attune_last_message());
    for (size_t i = 0; i < bytes; i++) assert_int_equal(packed[i], 0x5a);
    square[OUTPUT][INPUT] = 0;
    free(packed);
}

static void test_weights_without_codes_are_refused(void **state) {
    (void)state;
    const char *const i8 = "embed_dim=40,num_heads=2,seq_q=1,w_dtype=i8";
    const char *const i4 = "embed_dim=40,num_heads=2,seq_q=1,w_dtype=i4";
    assert_refused(i8, NAN, "q_weight has nan at output 7 and input 33; i8 with scales of f16 holds numbers");
    assert_refused(i8, -INFINITY, "q_weight has -inf at output 7 and input 33");
    assert_refused(i8, 8.4e6F, "holds numbers of at most 8.31901e+06");
    assert_refused(i4, 8.4e6F, "i4 with scales of f16 holds numbers of at most 524032");
}

static void test_groups_are_checked(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {{"w_dtype=i8,w_group=48", "w_group is 48; it must be 32, 64 or 128"},
                 {"w_dtype=bf16,x_planes=1", "x_planes is 1, but it is for quantised weights: w_dtype is bf16"},
                 {"w_dtype=i4,w_group=256", "w_group is 256; it must be from 0 to 128"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[128];
        size_t bytes;
        snprintf(text, sizeof text, "embed_dim=64,num_heads=2,seq_q=1,%s", cases[i].text);
        const attune_problem p = problem_parsed(text);
        assert_int_equal(attune_packed_weights_size(&p, &bytes), ATTUNE_INVALID_PROBLEM);
        assert_string_equal(attune_last_message(), cases[i].message);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits_are_those_of_plain_weights), cmocka_unit_test(test_exact_inputs_lose_nothing),
        cmocka_unit_test(test_sources_make_one_blob), cmocka_unit_test(test_weights_without_codes_are_refused),
        cmocka_unit_test(test_groups_are_checked)};
    return cmocka_run_group_tests_name("weight codes", tests, NULL, NULL);
}
