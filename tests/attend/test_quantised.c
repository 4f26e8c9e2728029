/* Caches of i8 and f8: appended rows become the codes and scales that attune.h defines, in every cache and by both
 * engines; codes are read as code times scale. */
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

#include "ref_attention.h"
#include "support/calls.h"

static const float largest[] = {[ATTUNE_I8] = 127, [ATTUNE_F8] = 448};

/* ---- The quantiser, written down once more ---- */

static float f8_value(uint8_t code) { return (float)ref_load(ATTUNE_F8, &code, 0); }

/* The nearest of all codes; of two the even one. */
static uint8_t nearest_f8(float x) {
    uint8_t best = 0;
    if (isnan(x)) return 0x7f;
    for (int code = 0; code < 0x7f; code++) {
        const double own = fabs((double)f8_value((uint8_t)code) - fabs((double)x));
        const double old = fabs((double)f8_value(best) - fabs((double)x));
        if (own < old || (own == old && code % 2 == 0)) best = (uint8_t)code;
    }
    return signbit(x) ? best | 0x80 : best;
}

static uint8_t code_of(attune_dtype dtype, float x) {
    const float most = largest[dtype];
    if (dtype == ATTUNE_I8 && isnan(x)) return 0;
    const float inside = x > most ? most : x < -most ? -most : x;
    return dtype == ATTUNE_I8 ? (uint8_t)(int8_t)lrintf(inside) : nearest_f8(inside);
}

static float scale_of(attune_dtype dtype, const float *row, int columns) {
    float most = 0;
    for (int i = 0; i < columns; i++) {
        if (!isfinite(row[i])) return NAN;
        most = fmaxf(most, fabsf(row[i]));
    }
    return most / largest[dtype];
}

static bool is_nan_code(attune_dtype dtype, uint8_t code) { return dtype == ATTUNE_F8 && (code & 0x7f) == 0x7f; }

static void assert_row(attune_dtype dtype, const float *row, int columns, bool has_scale, float scale,
                       const uint8_t *codes) {
    for (int i = 0; i < columns; i++) {
        const bool usable = scale != 0 && isfinite(scale);
        const uint8_t wanted = code_of(dtype, !has_scale ? row[i] : usable ? row[i] / scale : 0);
        if (codes[i] == wanted || (is_nan_code(dtype, codes[i]) && is_nan_code(dtype, wanted))) continue;
        fail_msg("%a with scale %a became 0x%02x instead of 0x%02x", (double)row[i], (double)scale, codes[i], wanted);
    }
}

/* ---- Appending ---- */

enum { KEYS = 9, NEW = 8, COLUMNS = 21 };

/* Rows of all sorts; every fourth element of the ordinary ones lies in the middle between two codes of scale 1. */
static void fill_rows(float rows[NEW][COLUMNS]) {
    for (int r = 0; r < NEW; r++)
        for (int i = 0; i < COLUMNS; i++) {
            const float x = (float)((i * 37 + r * 101) % 211 - 105) * (r == 1 ? 3.25f : 0.0193f);
            rows[r][i] = i % 4 == 3 ? (float)(i - 9) * 0.5f : x;
            if (r == 2) rows[r][i] = 0;
            if (r == 3) rows[r][i] = ldexpf((float)(i % 5), -149); /* the scale of such a row is 0 */
            if (r == 4) rows[r][i] = ldexpf(x, -143);              /* and of this a denormal */
            if (r == 7) rows[r][i] = ldexpf(x, 120);
        }
    rows[5][11] = NAN;
    rows[6][20] = -INFINITY;
    rows[6][2] = INFINITY;
}

static void assert_appended(const sample_call *c, attune_dtype dtype, attune_scales scales, float rows[NEW][COLUMNS],
                            const float given, const char *engine) {
    const uint8_t *codes = sample_call_data(c, "k");
    const float *scale = sample_call_find(c, "k_scale", NULL);
    for (int r = 0; r < NEW; r++) {
        const int key = KEYS - NEW + r;
        float of_row = given;
        if (scales == ATTUNE_SCALES_TOKEN) {
            of_row = scale_of(dtype, rows[r], COLUMNS);
            if (scale[key] != of_row && !(isnan(scale[key]) && isnan(of_row)))
                fail_msg("%s: the scale of row %d is %a instead of %a", engine, r, (double)scale[key], (double)of_row);
        }
        assert_row(dtype, rows[r], COLUMNS, scales != ATTUNE_SCALES_NONE, of_row, codes + key * COLUMNS);
    }
}

static void append_once(attune_dtype dtype, attune_scales scales, float given) {
    static const char *const dtypes[] = {[ATTUNE_I8] = "i8", [ATTUNE_F8] = "f8"};
    static const char *const kinds[] = {"", "none", "head", "token"};
    char text[160];
    float rows[NEW][COLUMNS];
    snprintf(text, sizeof text, "seq_q=2,seq_kv=%d,head_dim=%d,seq_new=%d,kv_dtype=%s,kv_scales=%s", KEYS, COLUMNS, NEW,
             dtypes[dtype], kinds[scales]);
    fill_rows(rows);
    for (int engine = 0; engine < 2; engine++) {
        sample_call c;
        attune_kernel *kernel = NULL;
        sample_call_open(&c, &(sample){.problem = text}, ON_THE_HEAP);
        memcpy(sample_call_data(&c, "k_new"), rows, sizeof rows);
        if (scales == ATTUNE_SCALES_HEAD) memcpy(sample_call_data(&c, "k_scale"), &given, sizeof given);
        attune_status status = ATTUNE_OK;
        if (engine) {
            status = attune_run_interpreted(sample_context, &c.problem, NULL, &c.arguments);
        } else {
            status = attune_compile(sample_context, &c.problem, NULL, &kernel);
            if (!status) status = attune_run(sample_context, kernel, &c.arguments);
            attune_kernel_release(kernel);
        }
        if (status) fail_msg("%s: %s", text, attune_last_message());
        assert_appended(&c, dtype, scales, rows, given, engine ? "interpreter" : "machine code");
        sample_call_close(&c);
    }
}

static void rows_become_codes(void **state) {
    (void)state;
    static const float given[] = {1, 0.02f, -0.5f, 0, INFINITY, NAN, 0x1p-140f};
    static const attune_dtype dtypes[] = {ATTUNE_I8, ATTUNE_F8};
    for (int i = 0; i < 2; i++) {
        append_once(dtypes[i], ATTUNE_SCALES_TOKEN, 1);
        for (size_t n = 0; n < sizeof given / sizeof *given; n++) append_once(dtypes[i], ATTUNE_SCALES_HEAD, given[n]);
    }
    append_once(ATTUNE_F8, ATTUNE_SCALES_NONE, 1);
}

/* ---- Reading ---- */

/* The same numbers, once as codes and scales that are powers of two and once as f32. */
static void codes_are_read(const char *more, bool by_token) {
    enum { HEADS = 2, LONG = 37, DIM = 20 };
    char coded[256], plain[256];
    snprintf(coded, sizeof coded, "num_heads=6,num_kv_heads=2,seq_kv=37,head_dim=20,k_dtype=i8,v_dtype=f8,%s%s",
             by_token ? "kv_scales=token" : "kv_scales=head", more);
    snprintf(plain, sizeof plain, "num_heads=6,num_kv_heads=2,seq_kv=37,head_dim=20%s", more);
    sample_call a, b;
    sample_call_open(&a, &(sample){.problem = coded}, ON_THE_HEAP);
    sample_call_open(&b, &(sample){.problem = plain}, ON_THE_HEAP);
    int8_t *k = sample_call_data(&a, "k");
    uint8_t *v = sample_call_data(&a, "v");
    float *k_scale = sample_call_data(&a, "k_scale"), *v_scale = sample_call_data(&a, "v_scale"),
          *wide_k = sample_call_data(&b, "k"), *wide_v = sample_call_data(&b, "v");
    for (int row = 0; row < HEADS * LONG; row++) {
        const int at = by_token ? row : row / LONG;
        k_scale[at] = ldexpf(1, -7 + at % 3);
        v_scale[at] = ldexpf(1, at % 4 - 2);
        for (int i = 0; i < DIM; i++) {
            k[row * DIM + i] = (int8_t)(row * 29 + i * 53);
            v[row * DIM + i] = (uint8_t)((row * 31 + i * 7) % 120 + (i % 2 ? 0x80 : 0));
        }
    }
    for (int row = 0; row < HEADS * LONG; row++) {
        const int at = by_token ? row : row / LONG;
        for (int i = 0; i < DIM; i++) {
            wide_k[row * DIM + i] = (float)k[row * DIM + i] * k_scale[at];
            wide_v[row * DIM + i] = f8_value(v[row * DIM + i]) * v_scale[at];
        }
    }
    /* Powers of two change no rounding: the bits are those of f32, by whatever engine. */
    for (int i = 0; i < 2; i++) {
        const sample_call *c = i ? &b : &a;
        attune_kernel *kernel = NULL;
        attune_status status = attune_compile(sample_context, &c->problem, NULL, &kernel);
        if (!status) status = attune_run(sample_context, kernel, &c->arguments);
        if (status) fail_msg("%s: %s", coded, attune_last_message());
        attune_kernel_release(kernel);
    }
    size_t bytes;
    const void *const out = sample_call_find(&a, "out", &bytes);
    if (memcmp(out, sample_call_data(&b, "out"), bytes)) fail_msg("%s: other bits than f32", coded);
    sample_call_close(&a);
    sample_call_close(&b);
}

static void codes_times_scales(void **state) {
    (void)state;
    static const char *const more[] = {
        ",seq_q=1,reproducible=1",
        ",seq_q=9,reproducible=1",
        ",seq_q=40,reproducible=1,is_causal=1,causal_align=bottom_right",
        ",seq_q=3,reproducible=1,logits_soft_cap=5,has_sinks=1",
    };
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        for (int by_token = 0; by_token < 2; by_token++) codes_are_read(more[i], by_token);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_become_codes),
        cmocka_unit_test(codes_times_scales),
    };
    return cmocka_run_group_tests(tests, sample_context_open, sample_context_close);
}
