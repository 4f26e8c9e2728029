/* qk_hadamard: appended keys and queries are multiplied by the matrix as attune/expert/problem.h defines it, products
 * stay the same, quantised caches lose less, and bits depend on no schedule. reference/ref_loops.h has the same by
 * halves. */
#include <attune.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/calls.h"
#include "support/ir/jit_run.h"

enum { MOST_COLUMNS = 256 };

/* Numbers; of keys column 3 stands out, as in models. */
static void fill(const sample_call *c, const char *name, uint32_t seed) {
    const int64_t columns = sample_call_tensor(c, name)->dims[3];
    const float most = name[0] == 'k' ? 30 : 1;
    size_t bytes;
    float *const x = sample_call_find(c, name, &bytes);
    for (size_t i = 0; i < bytes / sizeof *x; i++) {
        seed = seed * 1664525 + 1013904223;
        x[i] = (float)(int32_t)seed * 0x1p-31f * ((int64_t)i % columns == 3 ? most : 1);
    }
}

/* x H by the definition. */
static void multiply(const float *x, int columns, double *y) {
    for (int j = 0; j < columns; j++) {
        y[j] = 0;
        for (int i = 0; i < columns; i++) y[j] += __builtin_popcount((unsigned)(i & j)) % 2 ? -x[i] : x[i];
        y[j] /= sqrt(columns);
    }
}

static void appended_keys(void **state) {
    (void)state;
    static const int widths[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        char text[200];
        double wanted[MOST_COLUMNS];
        sample_call c;
        snprintf(text, sizeof text, "num_heads=2,seq_q=3,seq_kv=3,seq_new=3,head_dim=%d,qk_hadamard=1", widths[w]);
        sample_call_open(&c, &(sample){.problem = text, .sizes = ""}, ON_THE_HEAP);
        fill(&c, "k_new", 1);
        sample_call_run(sample_context, &c, NULL);
        const float *const from = sample_call_data(&c, "k_new"), *const k = sample_call_data(&c, "k");
        for (int row = 0; row < 2 * 3; row++) {
            double longest = 0;
            multiply(from + row * widths[w], widths[w], wanted);
            for (int i = 0; i < widths[w]; i++) longest = fmax(longest, fabs(wanted[i]));
            for (int i = 0; i < widths[w]; i++)
                if (!(fabs(k[row * widths[w] + i] - wanted[i]) <= 2e-6 * longest))
                    fail_msg("%s: column %d of row %d is %g instead of %g", text, i, row,
                             (double)k[row * widths[w] + i], wanted[i]);
        }
        sample_call_close(&c);
    }
}

/* The results of one problem with fields of its own, on the same numbers; free() them. */
static float *results(const char *text, const char *fields, size_t *count) {
    static const char *const names[] = {"q", "k", "v", "k_new", "v_new"};
    char whole[400];
    sample_call c;
    snprintf(whole, sizeof whole, "%s,%s", text, fields);
    sample_call_open(&c, &(sample){.problem = whole, .sizes = ""}, ON_THE_HEAP);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const attune_tensor *const t = sample_call_tensor(&c, names[i]);
        if (t && t->dtype == ATTUNE_F32) fill(&c, names[i], (uint32_t)i);
    }
    sample_call_run(sample_context, &c, NULL);
    size_t bytes;
    const void *const result = sample_call_find(&c, "out", &bytes);
    float *const out = malloc(bytes);
    assert_non_null(out);
    memcpy(out, result, bytes);
    *count = bytes / sizeof *out;
    sample_call_close(&c);
    return out;
}

/* The root of the mean square of differences. */
static double difference(const float *a, const float *b, size_t count) {
    double squares = 0;
    for (size_t i = 0; i < count; i++) squares += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    return sqrt(squares / (double)count);
}

#define NEW "num_heads=4,num_kv_heads=2,seq_q=1,seq_kv=200,seq_new=200,head_dim=64,softmax_scale=0.02"

static void products_stay(void **state) {
    (void)state;
    static const char *const texts[] = {NEW, "num_heads=2,seq_q=20,seq_kv=70,head_dim=32,softmax_scale=0.02"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        size_t count = 0;
        float *const without = results(texts[i], "qk_hadamard=0", &count);
        float *const with = results(texts[i], "qk_hadamard=1", &count);
        assert_true(difference(with, without, count) < 1e-5);
        assert_true(memcmp(with, without, count * sizeof *with) != 0);
        free(without);
        free(with);
    }
}

/* Scales of rows that have a column of 30 leave few codes for the others. */
static void codes_lose_less(void **state) {
    (void)state;
    static const char *const codes[] = {"k_dtype=i4,k_scales=token", "k_dtype=i4,k_scales=group,k_group=32",
                                        "k_dtype=i8,k_scales=token", "k_dtype=i4,k_scales=inline"};
    size_t count = 0;
    float *const exact = results(NEW, "softmax_precision=f64", &count);
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        char rotated[100];
        snprintf(rotated, sizeof rotated, "%s,qk_hadamard=1", codes[i]);
        float *const without = results(NEW, codes[i], &count), *const with = results(NEW, rotated, &count);
        const double before = difference(without, exact, count), after = difference(with, exact, count);
        if (!(after < 0.6 * before)) fail_msg("%s: %g with a rotation, %g without", codes[i], after, before);
        free(without);
        free(with);
    }
    free(exact);
}

/* Sums and differences have one order, and products are not fused with them: keys of a cache have the same bits on
 * every instruction set. */
static void same_bits(void **state) {
    (void)state;
    static const char *const sets[] = {"x86-64", "avx2", "avx512"};
    float first[2][64][64];
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
        attune_context *context = NULL, *const usual = sample_context;
        sample_call c;
        options.isa = sets[i];
        if (!target_can_run(at_target_find(sets[i]))) continue;
        assert_int_equal(attune_context_create(&options, &context), ATTUNE_OK);
        sample_call_open(
            &c, &(sample){.problem = "num_heads=2,seq_q=1,seq_kv=64,seq_new=64,head_dim=64,qk_hadamard=1", .sizes = ""},
            ON_THE_HEAP);
        fill(&c, "k_new", 1);
        sample_context = context;
        sample_call_run(sample_context, &c, NULL);
        sample_context = usual;
        if (i == 0) memcpy(first, sample_call_data(&c, "k"), sizeof first);
        if (memcmp(first, sample_call_data(&c, "k"), sizeof first)) fail_msg("%s has other bits", sets[i]);
        sample_call_close(&c);
        attune_context_destroy(context);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appended_keys),
        cmocka_unit_test(products_stay),
        cmocka_unit_test(codes_lose_less),
        cmocka_unit_test(same_bits),
    };
    return cmocka_run_group_tests(tests, sample_context_open, sample_context_close);
}
