/* integer=scores of keys that are numbers: each call makes codes of them, without their mean (docs/numerics.md). How
 * exact that is, what the mean does, and that keys which a row does not see do no harm. */
#include "schedule/choose.h"
#include "support/problems.h"
#include "support/tensor_calls.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { HEADS = 4, ROWS = 48, KEYS = 700, DIM = 64 };

/* ---- How exact ---- */

/* What scores and keys are like: q is normal times `sharpness`, k normal plus `offset` in each column. */
typedef struct inputs {
    double sharpness, offset;
} inputs;

static float q[HEADS * ROWS * DIM], k[KEYS * DIM], v[KEYS * DIM];

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float number_of(uint16_t bf16) {
    const uint32_t bits = (uint32_t)bf16 << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* An input of the call. In bf16 the numbers become what the call sees. */
static void put(tensors *t, const char *name, float *x, int count) {
    void *const to = tensors_find(t, name)->data;
    for (int i = 0; i < count; i++)
        if (t->problem.dtype == ATTUNE_BF16) {
            const uint16_t half = (uint16_t)((bits_of(x[i]) + 0x7fff + (bits_of(x[i]) >> 16 & 1)) >> 16);
            ((uint16_t *)to)[i] = half;
            x[i] = number_of(half);
        } else {
            ((float *)to)[i] = x[i];
        }
}

static void fill(tensors *t, const inputs *in) {
    tool_random random = {(uint64_t)(in->sharpness * 16)};
    for (int i = 0; i < HEADS * ROWS * DIM; i++) q[i] = (float)in->sharpness * tool_random_normal(&random);
    for (int i = 0; i < KEYS * DIM; i++) k[i] = tool_random_normal(&random) + (float)in->offset;
    for (int i = 0; i < KEYS * DIM; i++) v[i] = tool_random_normal(&random);
    put(t, "q", q, HEADS * ROWS * DIM);
    put(t, "k", k, KEYS * DIM);
    put(t, "v", v, KEYS * DIM);
}

static double output(const tensors *t, int at) {
    const void *const out = tensors_find(t, "out")->data;
    return t->problem.dtype == ATTUNE_BF16 ? number_of(((const uint16_t *)out)[at]) : ((const float *)out)[at];
}

/* A row in f64: its output, and its lse. */
static double attend(const float *row, double *out) {
    static double p[KEYS];
    double most = -INFINITY, sum = 0;
    for (int j = 0; j < KEYS; j++) {
        double dot = 0;
        for (int d = 0; d < DIM; d++) dot += (double)row[d] * k[j * DIM + d];
        p[j] = dot / sqrt(DIM);
        most = fmax(most, p[j]);
    }
    for (int j = 0; j < KEYS; j++) sum += p[j] = exp(p[j] - most);
    for (int d = 0; d < DIM; d++) out[d] = 0;
    for (int j = 0; j < KEYS; j++)
        for (int d = 0; d < DIM; d++) out[d] += p[j] / sum * v[j * DIM + d];
    return most + log(sum);
}

/* RMS errors of the output, and the largest of lse. */
typedef struct errors {
    double out, lse;
} errors;

static errors measure(const inputs *in, const char *fields) {
    char text[200];
    errors e = {0};
    snprintf(text, sizeof text, "num_heads=%d,num_kv_heads=1,seq_q=%d,seq_kv=%d,head_dim=%d,has_lse=1%s", HEADS, ROWS,
             KEYS, DIM, fields);
    attune_context *context = tensors_context(NULL, 1);
    tensors t;
    tensors_open_call(&t, text, "", INPUT_ORDINARY, 1);
    fill(&t, in);
    tensors_run_chosen(context, &t, NULL);
    for (int row = 0; row < HEADS * ROWS; row++) {
        double wanted[DIM];
        const double lse = attend(q + row * DIM, wanted);
        e.lse = fmax(e.lse, fabs(tensors_floats(&t, "lse")[row] - lse));
        for (int d = 0; d < DIM; d++) e.out += pow(output(&t, row * DIM + d) - wanted[d], 2);
    }
    tensors_free(&t);
    attune_context_destroy(context);
    e.out = sqrt(e.out / (HEADS * ROWS * DIM));
    return e;
}

/* Twice what docs/numerics.md says. */
static void test_errors(void **state) {
    (void)state;
    static const double sharpness[] = {0.25, 1, 3, 8}, most[] = {2.4e-4, 1.04e-3, 1.2e-2, 4.2e-2};
    for (int i = 0; i < 4; i++) {
        const inputs in = {sharpness[i], 0};
        const errors f32 = measure(&in, ""), codes = measure(&in, ",integer=scores");
        const errors bf16 = measure(&in, ",dtype=bf16"), bf16_codes = measure(&in, ",dtype=bf16,integer=scores");
        print_message("scores of N(0, %g): f32 %.1e, codes %.1e; bf16 %.1e, codes %.1e; lse %.1e, codes %.1e\n",
                      sharpness[i], f32.out, codes.out, bf16.out, bf16_codes.out, f32.lse, codes.lse);
        assert_true(codes.out > 10 * f32.out); /* codes were used */
        assert_true(codes.out < most[i] && bf16_codes.out < most[i]);
        assert_true(codes.lse < 0.1 * sharpness[i]);
    }
}

/* Codes of k itself would be 30 times coarser here. The lse has q · mean, which is large. */
static void test_a_mean_costs_nothing(void **state) {
    (void)state;
    const inputs plain = {1, 0}, moved = {1, 100};
    const errors without = measure(&plain, ",integer=scores"), with = measure(&moved, ",integer=scores");
    print_message("out %.2e, with an offset %.2e; lse %.2e, with an offset %.2e\n", without.out, with.out, without.lse,
                  with.lse);
    assert_true(with.out < 1.1 * without.out);
    assert_true(with.lse < 1.1 * without.lse);
}

/* ---- Keys that are no numbers ---- */

/* A NaN or an infinity is in no mean, so it is seen by the rows that see its key. */
static void test_odd_keys_stay_hidden(void **state) {
    (void)state;
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    attune_context *context = tensors_context(NULL, 1);
    for (int i = 0; i < 3; i++) {
        tensors t;
        tensors_open_call(&t, "num_heads=1,seq_q=40,seq_kv=40,head_dim=20,is_causal=1,has_lse=1,integer=scores", "",
                          INPUT_ORDINARY, 5);
        tensors_floats(&t, "k")[30 * 20 + 7] = odd[i];
        tensors_run_chosen(context, &t, NULL);
        for (int row = 0; row < 40; row++) {
            assert_int_equal(!isfinite(tensors_floats(&t, "out")[row * 20]), row >= 30);
            assert_int_equal(!isfinite(tensors_floats(&t, "lse")[row]), row >= 30);
        }
        tensors_free(&t);
    }
    attune_context_destroy(context);
}

/* A key that is finite, hidden and much larger than the others spoils the mean and nothing else. */
static void test_large_keys_stay_hidden(void **state) {
    (void)state;
    static const float large[] = {1e2f, 1e6f, -1e18f, 3e38f};
    static const char problem[] = "num_heads=1,seq_q=40,seq_kv=40,head_dim=20,is_causal=1";
    char with_codes[128];
    snprintf(with_codes, sizeof with_codes, "%s,integer=scores", problem);
    attune_context *context = tensors_context(NULL, 1);
    for (int i = 0; i < 4; i++) {
        tensors plain, codes;
        tensors_open_call(&plain, problem, "", INPUT_ORDINARY, 5);
        tensors_open_call(&codes, with_codes, "", INPUT_ORDINARY, 5);
        for (int d = 0; d < 20; d++) tensors_floats(&codes, "k")[39 * 20 + d] = large[i];
        tensors_run_chosen(context, &plain, NULL);
        tensors_run_chosen(context, &codes, NULL);
        for (int at = 0; at < 39 * 20; at++)
            assert_true(fabsf(tensors_floats(&codes, "out")[at] - tensors_floats(&plain, "out")[at]) < 0.05f);
        tensors_free(&plain);
        tensors_free(&codes);
    }
    attune_context_destroy(context);
}

/* Rows of zeros, and such that 127 / range overflows, have codes of 0. Their scores are q · mean. */
static void test_rows_without_codes(void **state) {
    (void)state;
    static const float sizes[] = {0, 0x1p-140f};
    attune_context *context = tensors_context(NULL, 1);
    for (int i = 0; i < 2; i++) {
        tensors t;
        tensors_open_call(&t, "num_heads=1,seq_q=3,seq_kv=4,head_dim=20,integer=scores", "", INPUT_ORDINARY, 5);
        for (int n = 0; n < 3 * 20; n++) tensors_floats(&t, "q")[n] = sizes[i];
        tensors_run_chosen(context, &t, NULL);
        const float *const x = tensors_floats(&t, "v");
        for (int d = 0; d < 20; d++)
            assert_true(fabsf(tensors_floats(&t, "out")[d] - (x[d] + x[20 + d] + x[40 + d] + x[60 + d]) / 4) < 1e-5f);
        tensors_free(&t);
    }
    attune_context_destroy(context);
}

/* ---- Every target ---- */

/* The largest sums that there are: 1024 products of 127 and 127, and of 127 and -127. */
static void test_extreme_sums(void **state) {
    (void)state;
    enum { COLUMNS = 1024, HALF = 512 };
    const char *const text = "num_heads=1,seq_q=1,seq_kv=2,head_dim=1024,has_lse=1,integer=scores";
    const attune_problem p = problem_canonical(text);
    tensors t;
    tensors_open_call(&t, text, "", INPUT_ORDINARY, 7);
    for (int d = 0; d < COLUMNS; d++) {
        tensors_floats(&t, "q")[d] = d < HALF ? 1 : -1;
        tensors_floats(&t, "k")[d] = d < HALF ? 1 : -1;
        tensors_floats(&t, "k")[COLUMNS + d] = d < HALF ? -1 : 1;
    }
    for (const at_target *target = at_targets(); target->name; target++) {
        mha_schedule schedule = {0};
        mha_choose(mha_read(&p), target, usual_machine(target), &schedule);
        assert_int_equal(schedule.strategy, MHA_Q_LANES);
        tensors_interpret_for(&t, target, &schedule);
        assert_true(fabsf(tensors_floats(&t, "lse")[0] - 32) < 1e-4f);
        assert_true(fabsf(tensors_floats(&t, "out")[0] - tensors_floats(&t, "v")[0]) < 1e-4f);
    }
    tensors_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_a_mean_costs_nothing),
        cmocka_unit_test(test_odd_keys_stay_hidden),
        cmocka_unit_test(test_large_keys_stay_hidden),
        cmocka_unit_test(test_rows_without_codes),
        cmocka_unit_test(test_extreme_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
