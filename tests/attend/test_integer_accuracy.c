/* integer=all beside bf16 arithmetic and beside the error that a cache of codes makes by itself (docs/numerics.md). */
#include "support/tensor_calls.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { HEADS = 4, KEYS = 700, DIM = 64 };

/* A KV head: rows of floats, what their codes stand for, and that in bf16. */
typedef struct cache {
    double exact[KEYS][DIM], coded[KEYS][DIM], rounded[KEYS][DIM];
} cache;

static double in_bf16(double x) {
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Codes of a type, and the columns that share a scale. */
typedef struct format {
    const char *fields;
    int largest, k_columns, v_columns;
} format;

static void put_code(const format *f, signed char *row, int d, int code) {
    enum { RUN = 32, HALF = RUN / 2, ZERO = 8, BITS = 4 };
    if (f->largest == 127) {
        row[d] = (signed char)code;
        return;
    }
    unsigned char *const byte = (unsigned char *)row + d / RUN * HALF + d % HALF;
    const int shift = d % RUN / HALF * BITS;
    *byte = (unsigned char)((*byte & ~(15 << shift)) | (code + ZERO) << shift);
}

/* Random rows, as codes with a scale for each run of columns. */
static void fill_cache(cache *c, const format *f, int columns, signed char *codes, float *scales, tool_random *random) {
    const int bytes = f->largest == 127 ? DIM : DIM / 2;
    for (int j = 0; j < KEYS; j++) {
        for (int d = 0; d < DIM; d++) c->exact[j][d] = tool_random_normal(random);
        for (int first = 0; first < DIM; first += columns) {
            double most = 0;
            for (int d = first; d < first + columns; d++) most = fmax(most, fabs(c->exact[j][d]));
            const float scale = *scales++ = (float)(most / f->largest);
            for (int d = first; d < first + columns; d++) {
                const double code = rint(fmin(f->largest, fmax(-f->largest, c->exact[j][d] / scale)));
                put_code(f, codes + (ptrdiff_t)j * bytes, d, (int)code);
                c->coded[j][d] = code * scale;
                c->rounded[j][d] = in_bf16(c->coded[j][d]);
            }
        }
    }
}

/* Attention of one row in f64. as_bf16: with q and probabilities in bf16, and sums of f32 elsewhere. */
static void attend(const double *q, double (*k)[DIM], double (*v)[DIM], bool as_bf16, double *out) {
    static double p[KEYS];
    double most = -INFINITY, sum = 0;
    for (int j = 0; j < KEYS; j++) {
        double dot = 0;
        for (int d = 0; d < DIM; d++) dot += (as_bf16 ? in_bf16(q[d]) : q[d]) * k[j][d];
        p[j] = dot / sqrt(DIM);
        most = fmax(most, p[j]);
    }
    for (int j = 0; j < KEYS; j++) sum += p[j] = exp(p[j] - most);
    for (int d = 0; d < DIM; d++) {
        double o = 0;
        for (int j = 0; j < KEYS; j++) o += (as_bf16 ? in_bf16(p[j]) : p[j]) * v[j][d];
        out[d] = o / sum;
    }
}

/* Sums of squared errors against f64 on what the codes stand for. */
typedef struct errors {
    double integer, bf16, of_cache;
} errors;

static void add_row(errors *e, const double *q, cache *k, cache *v, const float *out) {
    double exact[DIM], coded[DIM], rounded[DIM];
    attend(q, k->exact, v->exact, false, exact);
    attend(q, k->coded, v->coded, false, coded);
    attend(q, k->rounded, v->rounded, true, rounded);
    for (int d = 0; d < DIM; d++) {
        e->integer += pow(out[d] - coded[d], 2);
        e->bf16 += pow(rounded[d] - coded[d], 2);
        e->of_cache += pow(exact[d] - coded[d], 2);
    }
}

/* RMS errors of rows whose scores are about N(0, sharpness). */
static errors measure(const format *f, int planes, double sharpness) {
    static cache k, v;
    char text[200];
    tool_random random = {(uint64_t)(sharpness * 16)};
    snprintf(text, sizeof text,
             "num_heads=%d,num_kv_heads=1,seq_q=1,seq_kv=%d,head_dim=%d,%s,v_scales=token,integer=all,q_planes=%d",
             HEADS, KEYS, DIM, f->fields, planes);
    attune_context *context = tensors_context(NULL, 1);
    tensors t;
    tensors_open_call(&t, text, "", INPUT_ORDINARY, 1);
    fill_cache(&k, f, f->k_columns, tensors_find(&t, "k")->data, tensors_floats(&t, "k_scale"), &random);
    fill_cache(&v, f, f->v_columns, tensors_find(&t, "v")->data, tensors_floats(&t, "v_scale"), &random);
    float *const q = tensors_floats(&t, "q");
    for (int i = 0; i < HEADS * DIM; i++) q[i] = (float)sharpness * tool_random_normal(&random);
    tensors_run_chosen(context, &t, NULL);
    errors e = {0};
    for (int head = 0; head < HEADS; head++) {
        double row[DIM];
        for (int d = 0; d < DIM; d++) row[d] = q[head * DIM + d];
        add_row(&e, row, &k, &v, tensors_floats(&t, "out") + head * DIM);
    }
    tensors_free(&t);
    attune_context_destroy(context);
    const double count = HEADS * DIM;
    return (errors){sqrt(e.integer / count), sqrt(e.bf16 / count), sqrt(e.of_cache / count)};
}

static void test_two_planes_are_more_exact_than_bf16(void **state) {
    (void)state;
    static const double sharpness[] = {0.25, 1, 3, 8};
    static const format formats[] = {{"kv_dtype=i8,k_scales=token", 127, DIM, DIM},
                                     {"kv_dtype=i4,k_scales=token", 7, DIM, DIM},
                                     {"kv_dtype=i4,k_scales=group", 7, 32, DIM}};
    for (size_t i = 0; i < sizeof formats / sizeof *formats * 4; i++) {
        const format *const f = &formats[i / 4];
        const errors two = measure(f, 2, sharpness[i % 4]), one = measure(f, 1, sharpness[i % 4]);
        print_message("%s, scores of N(0, %g): cache %.2e, bf16 %.2e, two planes %.2e, one plane %.2e\n", f->fields,
                      sharpness[i % 4], two.of_cache, two.bf16, two.integer, one.integer);
        assert_true(two.integer <= two.bf16);
        assert_true(two.integer <= 0.1 * two.of_cache);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_two_planes_are_more_exact_than_bf16)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
