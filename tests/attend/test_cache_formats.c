/* Caches whose codes are packed or have scales by group, channel or block: what is read are the bits of f32 caches with
 * the numbers that attune.h says, and appended rows become the codes and scales that it says. */
#include <attune.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "ref_attention.h"
#include "support/calls.h"

enum { HEADS = 2, KEYS = 37, DIM = 64, NEW = 7, RUN = 32, FEW = 16 };

/* ---- Formats, written down once more ---- */

typedef struct format {
    const char *fields; /* of K and V alike */
    attune_dtype dtype;
    int group;       /* columns with a scale; 0: all */
    bool is_inline;  /* f16 among the codes */
    bool by_channel; /* a scale for each column of a head */
    bool by_row;     /* a scale for each key, with which scores are multiplied: of powers of two here */
    bool has_least;  /* one more f16, from which codes count; or an f32 after the scales of a row */
} format;

static const format formats[] = {
    {"kv_dtype=i4", ATTUNE_I4, 32},
    {"kv_dtype=i4,kv_group=64", ATTUNE_I4, 64},
    {"kv_dtype=i4,kv_scales=inline", ATTUNE_I4, 32, .is_inline = true},                        /* ggml's q4_0 */
    {"kv_dtype=i4,kv_scales=inline_min", ATTUNE_I4, 32, .is_inline = true, .has_least = true}, /* ggml's q4_1 */
    {"kv_dtype=i8,kv_scales=inline", ATTUNE_I8, 32, .is_inline = true},                        /* ggml's q8_0 */
    {"kv_dtype=i8,kv_scales=group,kv_group=64", ATTUNE_I8, 64},
    {"kv_dtype=f8,kv_scales=group", ATTUNE_F8, 32},
    {"kv_dtype=i4,kv_scales=channel", ATTUNE_I4, .by_channel = true},
    {"kv_dtype=i8,kv_scales=channel", ATTUNE_I8, .by_channel = true},
    {"kv_dtype=i4,kv_scales=token", ATTUNE_I4, .by_row = true},
    {"kv_dtype=i4,kv_scales=token_min", ATTUNE_I4, DIM, .has_least = true},
    {"kv_dtype=i4,kv_scales=group_min", ATTUNE_I4, 32, .has_least = true},
    {"kv_dtype=i4,kv_scales=group_min,kv_group=64", ATTUNE_I4, 64, .has_least = true},
    {"kv_dtype=i4,kv_scales=channel_min", ATTUNE_I4, .by_channel = true, .has_least = true},
};
enum { NUM_FORMATS = sizeof formats / sizeof *formats };

static int before(const format *f) { return f->is_inline ? 2 * (1 + f->has_least) : 0; }
static int block_bytes(const format *f) { return before(f) + (f->dtype == ATTUNE_I4 ? FEW : RUN); }
static int row_bytes(const format *f) { return DIM / RUN * block_bytes(f); }

static float half_at(const uint8_t *bytes) {
    _Float16 half;
    memcpy(&half, bytes, sizeof half);
    return (float)half;
}

static float code_at(const format *f, const uint8_t *row, int column) {
    const uint8_t *const codes = row + column / RUN * block_bytes(f) + before(f);
    if (f->dtype == ATTUNE_I8) return (int8_t)codes[column % RUN];
    if (f->dtype == ATTUNE_F8) return (float)ref_load(ATTUNE_F8, codes, column % RUN);
    return (float)(codes[column % FEW] >> (column % RUN < FEW ? 0 : 4) & 15) - (f->has_least ? 0 : 8);
}

/* Scales in a row of them. */
static int row_scales(const format *f) { return f->by_channel ? DIM : f->group ? DIM / f->group : 1; }

/* The scale of a column; `row` counts the keys of all heads. */
static const float *scale_at(const format *f, const float *scales, int row, int keys, int column) {
    const int numbers = row_scales(f) * (1 + f->has_least);
    if (f->by_channel) return &scales[row / keys * numbers + column];
    return f->by_row ? &scales[row] : &scales[row * numbers + column / f->group];
}

static float least_at(const format *f, const uint8_t *block, const float *scale) {
    if (!f->has_least) return 0;
    return f->is_inline ? half_at(block + 2) : scale[row_scales(f)];
}

static float value_at(const format *f, const uint8_t *row_of, const float *scales, int row, int keys, int column) {
    const float code = code_at(f, row_of, column);
    const uint8_t *const block = row_of + column / RUN * block_bytes(f);
    if (f->is_inline) return code * half_at(block) + least_at(f, block, NULL);
    const float *const scale = scale_at(f, scales, row, keys, column);
    const volatile float product = code * *scale; /* rounded before the sum */
    return f->has_least ? product + least_at(f, block, scale) : product;
}

/* ---- Calls ---- */

/* ---- Reading ---- */

static const float odd_scales[] = {0, -0.017F, 0x1p-140F, 3e-6F, 65504};

static void fill_scales(const format *f, const sample_call *c, const char *name) {
    size_t bytes;
    float *const scales = sample_call_find(c, name, &bytes);
    for (size_t i = 0; i < bytes / sizeof *scales; i++) {
        scales[i] = f->by_row ? ldexpf(1, (int)(i % 5) - 4) : 0.01F + 0.0037F * (float)(i % 11);
        if (!f->by_row && i % 13 == 5) scales[i] = odd_scales[i / 13 % 5];
        const size_t count = (size_t)row_scales(f);
        if (f->has_least && i / count % 2) scales[i] = 0.0713F * (float)(i % 17) - 0.61F;
    }
}

/* Codes of any bits, and the numbers that they stand for. f8 has no NaN here. */
static void fill_cache(const format *f, uint8_t *bytes, const float *scales, float *numbers, uint32_t seed) {
    for (int row = 0; row < HEADS * KEYS; row++) {
        uint8_t *const codes = bytes + row * row_bytes(f);
        for (int i = 0; i < row_bytes(f); i++) {
            seed = seed * 1664525 + 1013904223;
            codes[i] = (uint8_t)(seed >> 24);
            if (f->dtype == ATTUNE_F8) codes[i] &= 0xbf;
        }
        for (int i = 0; f->is_inline && i < DIM; i += RUN) {
            const int number = row * 2 + i / RUN;
            const _Float16 half =
                number % 7 == 3 ? (_Float16)odd_scales[number % 5] : (_Float16)(0.02F * (float)(number % 9));
            const _Float16 least = (_Float16)(0.11F * (float)(number % 7 - 3));
            memcpy(codes + i / RUN * block_bytes(f), &half, sizeof half);
            if (f->has_least) memcpy(codes + i / RUN * block_bytes(f) + 2, &least, sizeof least);
        }
        for (int i = 0; i < DIM; i++) numbers[row * DIM + i] = value_at(f, codes, scales, row, KEYS, i);
    }
}

static void assert_read(const format *f, const char *more) {
    char coded[320], plain[320];
    snprintf(coded, sizeof coded, "num_heads=6,num_kv_heads=2,seq_kv=%d,head_dim=%d,reproducible=1,%s,%s", KEYS, DIM,
             f->fields, more);
    snprintf(plain, sizeof plain, "num_heads=6,num_kv_heads=2,seq_kv=%d,head_dim=%d,reproducible=1,%s", KEYS, DIM,
             more);
    sample_call a, b;
    sample_call_open(&a, &(sample){.problem = coded}, ON_THE_HEAP);
    sample_call_open(&b, &(sample){.problem = plain}, ON_THE_HEAP);
    fill_scales(f, &a, "k_scale");
    fill_scales(f, &a, "v_scale");
    size_t bytes;
    sample_call_find(&a, "k", &bytes);
    assert_int_equal(bytes, HEADS * KEYS * row_bytes(f));
    fill_cache(f, sample_call_data(&a, "k"), sample_call_find(&a, "k_scale", NULL), sample_call_data(&b, "k"), 1);
    fill_cache(f, sample_call_data(&a, "v"), sample_call_find(&a, "v_scale", NULL), sample_call_data(&b, "v"), 2);
    sample_call_run(sample_context, &a, NULL);
    sample_call_run(sample_context, &b, NULL);
    const void *const out = sample_call_find(&a, "out", &bytes);
    if (memcmp(out, sample_call_data(&b, "out"), bytes)) fail_msg("%s: other bits than f32", coded);
    sample_call_close(&a);
    sample_call_close(&b);
}

static void numbers_are_those_of_f32(void **state) {
    (void)state;
    static const char *const more[] = {"seq_q=1", "seq_q=9", "seq_q=40,is_causal=1,causal_align=bottom_right"};
    for (int f = 0; f < NUM_FORMATS; f++)
        for (size_t i = 0; i < sizeof more / sizeof *more; i++) assert_read(&formats[f], more[i]);
}

/* ---- Appending ---- */

/* Rows of all sorts: zeros, denormals, large ones, NaN and infinities, and numbers in the middle between two codes. */
static void fill_rows(float *rows) {
    for (int r = 0; r < HEADS * NEW; r++)
        for (int i = 0; i < DIM; i++) {
            float x = (float)((i * 37 + r * 101) % 211 - 105) * 0.0193F;
            if (r == 1 && i < RUN) x = 0;
            if (r == 2) x = ldexpf((float)(i % 5), -149);
            if (r == 3) x = ldexpf(x, -20);
            if (r == 4) x = ldexpf(x, 110);
            if (r == 5) x = i % RUN == 0 ? 8 : (float)(i % 17 - 8) * 0.5F;
            if (r == 6) x = i % RUN == 3 ? -4 : i % RUN == 7 ? 4 : x;
            rows[r * DIM + i] = x;
        }
    rows[7 * DIM + 5] = NAN;
    rows[8 * DIM + 40] = -INFINITY;
}

static float largest_of(const format *f) {
    if (f->has_least) return 15;
    return f->dtype == ATTUNE_I8 ? 127 : f->dtype == ATTUNE_F8 ? 448 : 7;
}

/* The scale of `count` numbers, as attune.h says; and the least of them. */
static float measured(const format *f, const float *x, int count, float *smallest) {
    float most = f->has_least ? x[0] : 0, least = most;
    *smallest = NAN;
    for (int i = 0; i < count; i++) {
        if (!isfinite(x[i])) return NAN;
        most = fmaxf(most, x[i]);
        least = fminf(least, x[i]);
    }
    *smallest = f->is_inline ? (float)(_Float16)least : least;
    const float span = (most - least) / 15;
    if (f->has_least) return f->is_inline ? (float)(_Float16)span : span;
    const float extreme = most >= -least ? most : least;
    const float scale = f->dtype == ATTUNE_I4 && f->group ? extreme / -8 : fabsf(extreme) / largest_of(f);
    return f->is_inline ? (float)(_Float16)scale : scale;
}

static float code_of(const format *f, float x, float scale) {
    const float most = largest_of(f), least = f->has_least ? 0 : f->dtype == ATTUNE_I4 && f->group ? -8 : -most;
    float code = scale != 0 && isfinite(scale) ? x / scale : 0;
    if (isnan(code)) return f->dtype == ATTUNE_F8 ? code : 0;
    code = fminf(most, fmaxf(least, code));
    return f->dtype == ATTUNE_F8 ? (float)ref_rounded(ATTUNE_F8, code) : nearbyintf(code);
}

static bool same(float a, float b) { return a == b || (isnan(a) && isnan(b)); }

static void assert_row(const format *f, const float *x, const uint8_t *codes, const float *scales, int row) {
    float scale = 0, least = 0;
    for (int i = 0; i < DIM; i++) {
        const int run = f->by_channel ? 1 : f->group ? f->group : DIM;
        if (f->by_channel)
            scale = *scale_at(f, scales, row, NEW, i);
        else if (i % run == 0)
            scale = measured(f, x + i, run, &least);
        const float stored =
            f->is_inline ? half_at(codes + i / RUN * block_bytes(f)) : *scale_at(f, scales, row, NEW, i);
        if (!same(stored, scale))
            fail_msg("%s: the scale of row %d, column %d is %a instead of %a", f->fields, row, i, (double)stored,
                     (double)scale);
        const uint8_t *const block = codes + i / RUN * block_bytes(f);
        const float from = least_at(f, block, f->is_inline ? NULL : scale_at(f, scales, row, NEW, i));
        if (f->has_least && !f->by_channel && !same(from, least))
            fail_msg("%s: the least number of row %d, column %d is %a instead of %a", f->fields, row, i, (double)from,
                     (double)least);
        if (!same(code_at(f, codes, i), code_of(f, x[i] - from, scale)))
            fail_msg("%s: %a with scale %a of row %d, column %d became %g instead of %g", f->fields, (double)x[i],
                     (double)scale, row, i, (double)code_at(f, codes, i), (double)code_of(f, x[i] - from, scale));
    }
}

static void assert_appended(const format *f, bool interpreted) {
    char text[320];
    float rows[HEADS * NEW * DIM];
    snprintf(text, sizeof text, "num_heads=2,seq_q=1,seq_kv=%d,head_dim=%d,seq_new=%d,%s", NEW, DIM, NEW, f->fields);
    sample_call c;
    sample_call_open(&c, &(sample){.problem = text}, ON_THE_HEAP);
    fill_rows(rows);
    memcpy(sample_call_data(&c, "k_new"), rows, sizeof rows);
    memcpy(sample_call_data(&c, "v_new"), rows, sizeof rows);
    if (f->by_channel) fill_scales(f, &c, "k_scale");
    if (f->by_channel) fill_scales(f, &c, "v_scale");
    if (!interpreted)
        sample_call_run(sample_context, &c, NULL);
    else if (attune_run_interpreted(sample_context, &c.problem, NULL, &c.arguments))
        fail_msg("%s", attune_last_message());
    for (int row = 0; row < HEADS * NEW; row++) {
        const uint8_t *const k = sample_call_data(&c, "k"), *const v = sample_call_data(&c, "v");
        assert_row(f, rows + row * DIM, k + row * row_bytes(f), sample_call_find(&c, "k_scale", NULL), row);
        assert_row(f, rows + row * DIM, v + row * row_bytes(f), sample_call_find(&c, "v_scale", NULL), row);
    }
    sample_call_close(&c);
}

static void rows_become_codes(void **state) {
    (void)state;
    for (int f = 0; f < NUM_FORMATS; f++)
        for (int interpreted = 0; interpreted < 2; interpreted++) assert_appended(&formats[f], interpreted);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_those_of_f32),
        cmocka_unit_test(rows_become_codes),
    };
    return cmocka_run_group_tests(tests, sample_context_open, sample_context_close);
}
