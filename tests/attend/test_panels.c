/* Caches in panels: the format as docs/panels.md has it, results with the bits of rows, appending, and what lies in the
 * place of tokens that do not count. */
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

#include "support/problems.h"
#include "support/calls.h"

/* ---- The format ---- */

enum { HEADS = 2, TOKENS = 37, COLUMNS = 6, PANELS_OF_HEAD = 3, PANEL = 16 * COLUMNS };

/* The manual's formulas, once more. */
static int place_of(bool is_value, int unit, int token, int column) {
    const int panel = token / 16 * PANEL, in_panel = token % 16;
    if (is_value) return panel + in_panel / unit * (COLUMNS * unit) + column * unit + in_panel % unit;
    return panel + column / unit * (16 * unit) + in_panel * unit + column % unit;
}

static void panels_of_16_bits(bool is_value) {
    static uint16_t rows[HEADS][TOKENS][COLUMNS], back[HEADS][TOKENS][COLUMNS], panels[HEADS][PANELS_OF_HEAD * PANEL];
    for (int i = 0; i < HEADS * TOKENS * COLUMNS; i++) (&rows[0][0][0])[i] = (uint16_t)(i + 1);
    memset(panels, 0xff, sizeof panels);
    attune_panels p = ATTUNE_PANELS_INIT;
    p.dtype = ATTUNE_BF16, p.is_value = is_value, p.heads = HEADS, p.tokens = TOKENS, p.columns = COLUMNS;
    p.rows = rows, p.panels = panels;
    assert_int_equal(attune_panels_from_rows(&p), ATTUNE_OK);
    for (int h = 0; h < HEADS; h++)
        for (int t = 0; t < 16 * PANELS_OF_HEAD; t++)
            for (int c = 0; c < COLUMNS; c++)
                assert_int_equal(panels[h][place_of(is_value, 2, t, c)], t < TOKENS ? rows[h][t][c] : 0);
    p.rows = back;
    assert_int_equal(attune_panels_to_rows(&p), ATTUNE_OK);
    assert_memory_equal(rows, back, sizeof rows);
}

/* f32 with strides: heads beside each other, and panels apart. */
static void panels_of_32_bits(bool is_value) {
    enum { APART = PANEL + 5 };
    static float rows[TOKENS][HEADS][COLUMNS], panels[PANELS_OF_HEAD][HEADS][APART];
    for (int i = 0; i < HEADS * TOKENS * COLUMNS; i++) (&rows[0][0][0])[i] = (float)(i + 1);
    memset(panels, 0xff, sizeof panels);
    attune_panels p = ATTUNE_PANELS_INIT;
    p.dtype = ATTUNE_F32, p.is_value = is_value, p.heads = HEADS, p.tokens = TOKENS, p.columns = COLUMNS;
    p.rows = rows, p.row_head_stride = COLUMNS, p.row_stride = HEADS * COLUMNS;
    p.panels = panels, p.panel_head_stride = APART, p.panel_stride = HEADS * APART;
    assert_int_equal(attune_panels_from_rows(&p), ATTUNE_OK);
    for (int h = 0; h < HEADS; h++)
        for (int t = 0; t < TOKENS; t++)
            for (int c = 0; c < COLUMNS; c++)
                assert_true(panels[t / 16][h][place_of(is_value, 1, t % 16, c)] == rows[t][h][c]);
    assert_true(isnan(panels[0][0][PANEL]));
}

/* i8, of rows of 8 columns. */
static void panels_of_8_bits(bool is_value) {
    enum { BYTES = 8, SIZE = 16 * BYTES, TOKENS_OF_I8 = 19 };
    int8_t rows[TOKENS_OF_I8][BYTES], back[TOKENS_OF_I8][BYTES], panels[2 * SIZE];
    for (int i = 0; i < TOKENS_OF_I8 * BYTES; i++) rows[i / BYTES][i % BYTES] = (int8_t)(37 * i - 128);
    memset(panels, 0x55, sizeof panels);
    attune_panels p = ATTUNE_PANELS_INIT;
    p.dtype = ATTUNE_I8, p.is_value = is_value, p.heads = 1, p.tokens = TOKENS_OF_I8, p.columns = BYTES;
    p.rows = rows, p.panels = panels;
    assert_int_equal(attune_panels_from_rows(&p), ATTUNE_OK);
    for (int t = 0; t < 32; t++)
        for (int c = 0; c < BYTES; c++) {
            const int in_panel = t % 16, at = is_value ? in_panel / 4 * BYTES * 4 + c * 4 + in_panel % 4
                                                       : c / 4 * 64 + in_panel * 4 + c % 4;
            assert_int_equal(panels[t / 16 * SIZE + at], t < TOKENS_OF_I8 ? rows[t][c] : 0);
        }
    p.rows = back;
    assert_int_equal(attune_panels_to_rows(&p), ATTUNE_OK);
    assert_memory_equal(back, rows, sizeof rows);
}

/* i4, of rows of 64 columns: bytes, which lie as codes of i8 do. */
static void panels_of_4_bits(bool is_value) {
    enum { BYTES = 32, SIZE = 16 * BYTES, TOKENS_OF_I4 = 21 };
    uint8_t rows[TOKENS_OF_I4][BYTES], back[TOKENS_OF_I4][BYTES], panels[2 * SIZE];
    for (int i = 0; i < TOKENS_OF_I4 * BYTES; i++) rows[i / BYTES][i % BYTES] = (uint8_t)(41 * i + 7);
    memset(panels, 0x55, sizeof panels);
    attune_panels p = ATTUNE_PANELS_INIT;
    p.dtype = ATTUNE_I4, p.is_value = is_value, p.heads = 1, p.tokens = TOKENS_OF_I4, p.columns = 2 * BYTES;
    p.rows = rows, p.panels = panels;
    assert_int_equal(attune_panels_from_rows(&p), ATTUNE_OK);
    for (int t = 0; t < TOKENS_OF_I4; t++)
        for (int c = 0; c < 2 * BYTES; c++) {
            const int in_panel = t % 16, byte = c / 32 * 16 + c % 16, shift = c % 32 / 16 * 4;
            const int at =
                is_value ? in_panel / 4 * BYTES * 4 + byte * 4 + in_panel % 4 : byte / 4 * 64 + in_panel * 4 + byte % 4;
            assert_int_equal(panels[t / 16 * SIZE + at] >> shift & 15, rows[t][byte] >> shift & 15);
        }
    p.rows = back;
    assert_int_equal(attune_panels_to_rows(&p), ATTUNE_OK);
    assert_memory_equal(back, rows, sizeof rows);
}

static void rows_and_panels(void **state) {
    (void)state;
    for (int is_value = 0; is_value < 2; is_value++) {
        panels_of_4_bits(is_value);
        panels_of_8_bits(is_value);
        panels_of_16_bits(is_value);
        panels_of_32_bits(is_value);
    }
}

static void assert_bad(attune_panels p, const char *part) {
    assert_int_equal(attune_panels_from_rows(&p), ATTUNE_INVALID_ARGUMENT);
    if (!strstr(attune_last_message(), part)) fail_msg("'%s' without '%s'", attune_last_message(), part);
}

static void bad_arguments(void **state) {
    (void)state;
    float rows[4] = {0}, panels[64] = {0};
    attune_panels good = ATTUNE_PANELS_INIT, bad;
    good.dtype = ATTUNE_F32, good.heads = 1, good.tokens = 1, good.columns = 4, good.rows = rows, good.panels = panels;
    assert_int_equal(attune_panels_from_rows(&good), ATTUNE_OK);
    assert_int_equal(attune_panels_to_rows(NULL), ATTUNE_INVALID_ARGUMENT);
#define BAD(change, part) bad = good, change, assert_bad(bad, part)
    BAD(bad.dtype = ATTUNE_F8, "it must be f32, bf16, i8 or i4");
    BAD((bad.dtype = ATTUNE_I4, bad.columns = 16), "columns is 16; rows of i4 need a multiple of 32");
    BAD((bad.dtype = ATTUNE_I8, bad.columns = 6), "columns is 6; keys of i8 in panels need a multiple of 4");
    BAD((bad.dtype = ATTUNE_BF16, bad.columns = 3), "columns is 3; keys of bf16");
    BAD(bad.is_value = 2, "is_value is 2; it must be from 0 to 1");
    BAD(bad.tokens = -1, "tokens is -1; it must be from 0");
    BAD(bad.columns = 0, "columns is 0; it must be from 1 to 8192");
    BAD(bad.rows = NULL, "rows is NULL");
    BAD(bad.panels = NULL, "panels is NULL");
    BAD(bad.row_stride = 3, "row_stride is 3; it must be from 4");
    BAD(bad.panel_stride = 63, "panel_stride is 63; it must be from 64");
    BAD(bad.struct_size = 8, "attune_panels");
#undef BAD
}

/* ---- Calls ---- */

typedef struct pair {
    sample_call rows, panels; /* of one problem, with the same numbers */
} pair;

/* The caches of the call with rows, as panels. */
static void to_panels(const pair *p, bool is_value, void *panels) {
    const attune_tensor *rows = sample_call_tensor(&p->rows, is_value ? "v" : "k");
    attune_panels all = ATTUNE_PANELS_INIT;
    const attune_problem *const problem = &p->rows.problem;
    const bool is_i4 = (is_value ? problem->v_dtype : problem->k_dtype) == ATTUNE_I4;
    all.dtype = is_i4 ? ATTUNE_I4 : rows->dtype, all.is_value = is_value;
    all.heads = rows->dims[0] * rows->dims[1], all.tokens = rows->dims[2];
    all.columns = (is_i4 ? 2 : 1) * rows->dims[3];
    all.rows = sample_call_data(&p->rows, is_value ? "v" : "k"), all.panels = panels;
    if (attune_panels_from_rows(&all)) fail_msg("%s", attune_last_message());
}

static void open_pair(const char *text, pair *p) {
    static const char *const shared[] = {"q",           "k_new",   "v_new",   "cos",    "sin",
                                         "block_table", "kv_lens", "k_scale", "v_scale"};
    char with_panels[300];
    snprintf(with_panels, sizeof with_panels, "%s,kv_layout=panels", text);
    sample_call_open(&p->rows, &(sample){.problem = text, .sizes = "", .kv = {33, 21}}, ON_THE_HEAP);
    sample_call_open(&p->panels, &(sample){.problem = with_panels, .sizes = "", .kv = {33, 21}}, ON_THE_HEAP);
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++) {
        size_t bytes = 0;
        void *const from = sample_call_find(&p->rows, shared[i], &bytes);
        if (from) memcpy(sample_call_find(&p->panels, shared[i], &bytes), from, bytes);
    }
    for (int i = 0; i < 2; i++) to_panels(p, i, sample_call_data(&p->panels, i ? "v" : "k"));
}

static void close_pair(pair *p) {
    sample_call_close(&p->rows);
    sample_call_close(&p->panels);
}

static void assert_same(const pair *p, const char *name, const char *text) {
    size_t bytes = 0, others = 0;
    const void *const a = sample_call_find(&p->rows, name, &bytes), *const b =
                                                                        sample_call_find(&p->panels, name, &others);
    if (bytes != others || memcmp(a, b, bytes)) fail_msg("%s of %s has other bits in panels", name, text);
}

/* With a promise of bits (integer=all is one), or by q-lanes with one schedule, rows and panels have the same. */
static void same_bits_as_rows(void **state) {
    (void)state;
    static const char *const texts[] = {
        "num_heads=4,num_kv_heads=2,seq_q=1,seq_kv=83,head_dim=40,reproducible=1",
        "num_heads=4,num_kv_heads=2,seq_q=1,seq_kv=83,head_dim=40,dtype=bf16,reproducible=1",
        "num_heads=2,seq_q=50,seq_kv=83,head_dim=24,dtype=bf16,reproducible=1,is_causal=1,causal_align=bottom_right",
        "num_heads=2,seq_q=70,seq_kv=97,head_dim=32,dtype=bf16",
        "num_heads=2,seq_q=70,seq_kv=97,head_dim=32,is_causal=1,causal_align=bottom_right,dtype=bf16",
        "num_heads=2,seq_q=70,seq_kv=97,head_dim=36,window_left=9,is_causal=1",
        "num_heads=1,seq_q=1,seq_kv=5,head_dim=9,v_dtype=bf16,softmax_precision=f64,reproducible=1",
        "num_heads=4,num_kv_heads=2,seq_q=1,seq_kv=83,head_dim=40,kv_dtype=i8,reproducible=1",
        "num_heads=2,seq_q=50,seq_kv=83,head_dim=24,kv_dtype=i8,kv_scales=token,is_causal=1,"
        "causal_align=bottom_right",
        "num_heads=2,seq_q=50,seq_kv=83,head_dim=24,kv_dtype=i8,softmax_precision=f64,dtype=bf16",
        "num_heads=8,num_kv_heads=2,seq_q=1,seq_kv=1300,head_dim=128,kv_dtype=i8,integer=all,q_planes=1,has_lse=1",
        "num_heads=8,num_kv_heads=2,seq_q=1,seq_kv=1301,head_dim=44,head_dim_v=70,kv_dtype=i8,integer=all,"
        "kv_scales=token",
        "num_heads=3,num_kv_heads=1,seq_q=5,seq_kv=530,head_dim=8,head_dim_v=3,kv_dtype=i8,integer=all,is_causal=1,"
        "causal_align=bottom_right,kv_scales=token",
        "num_heads=1,seq_q=3,seq_kv=2,head_dim=4,kv_dtype=i8,integer=all",
        "batch=2,num_heads=4,num_kv_heads=2,seq_q=1,seq_kv=64,head_dim=32,kv_dtype=i8,integer=all,has_kv_lens=1,"
        "window_left=9,window_right=0,causal_align=bottom_right",
        "num_heads=4,num_kv_heads=2,seq_q=1,seq_kv=83,head_dim=96,kv_dtype=i4,kv_scales=token,reproducible=1",
        "num_heads=2,seq_q=50,seq_kv=83,head_dim=32,head_dim_v=64,kv_dtype=i4,kv_scales=head,dtype=bf16",
        "num_heads=8,num_kv_heads=2,seq_q=1,seq_kv=1301,head_dim=160,head_dim_v=96,kv_dtype=i4,integer=all,"
        "kv_scales=token,has_lse=1",
        "num_heads=3,num_kv_heads=1,seq_q=5,seq_kv=530,head_dim=32,head_dim_v=224,kv_dtype=i4,integer=all,"
        "q_planes=1,is_causal=1,causal_align=bottom_right,kv_scales=head",
        "num_heads=4,num_kv_heads=1,seq_q=2,seq_kv=77,head_dim=64,k_dtype=i4,k_scales=token,v_dtype=i8,integer=all",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        pair p;
        open_pair(texts[i], &p);
        const mha_schedule s = schedule_chosen_by(sample_context, &p.panels.problem);
        sample_call_run(sample_context, &p.rows,
                        strstr(texts[i], "reproducible") || strstr(texts[i], "integer") ? NULL : &s);
        sample_call_run(sample_context, &p.panels, &s);
        assert_same(&p, "out", texts[i]);
        close_pair(&p);
    }
}

/* Appended rows are the same as those of a cache of rows, and no other element changes. */
static void appended_rows(void **state) {
    (void)state;
    static const char *const texts[] = {
        "batch=2,num_heads=4,num_kv_heads=2,seq_q=3,seq_kv=64,seq_new=3,head_dim=24,has_kv_lens=1,reproducible=1",
        "batch=2,num_heads=4,num_kv_heads=2,seq_q=1,seq_kv=64,seq_new=20,head_dim=24,dtype=bf16,has_kv_lens=1,"
        "reproducible=1",
        "batch=2,num_heads=2,seq_q=2,seq_kv=64,seq_new=2,head_dim=24,dtype=bf16,has_kv_lens=1,reproducible=1,"
        "qk_norm_eps=0.5",
        "batch=2,num_heads=2,seq_q=2,seq_kv=64,seq_new=2,head_dim=32,dtype=bf16,has_kv_lens=1,reproducible=1,"
        "qk_hadamard=1",
        "batch=2,num_heads=2,seq_q=2,seq_kv=64,seq_new=2,head_dim=24,head_dim_v=7,kv_dtype=i8,has_kv_lens=1,"
        "reproducible=1",
        "batch=2,num_heads=2,seq_q=2,seq_kv=64,seq_new=19,head_dim=24,kv_dtype=i8,kv_scales=token,has_kv_lens=1,"
        "integer=all,qk_norm_eps=0.5",
        "batch=2,num_heads=2,seq_q=2,seq_kv=64,seq_new=19,head_dim=64,kv_dtype=i4,kv_scales=token,has_kv_lens=1,"
        "integer=all,qk_hadamard=1",
        "batch=2,num_heads=2,seq_q=2,seq_kv=64,seq_new=2,head_dim=32,head_dim_v=96,kv_dtype=i4,kv_scales=head,"
        "has_kv_lens=1,reproducible=1",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        pair p;
        open_pair(texts[i], &p);
        sample_call_run(sample_context, &p.rows, NULL);
        sample_call_run(sample_context, &p.panels, NULL);
        assert_same(&p, "out", texts[i]);
        for (int v = 0; v < 2; v++) {
            size_t bytes = 0;
            if (sample_call_find(&p.rows, v ? "v_scale" : "k_scale", &bytes))
                assert_same(&p, v ? "v_scale" : "k_scale", texts[i]);
            const void *const found = sample_call_find(&p.panels, v ? "v" : "k", &bytes);
            void *const wanted = malloc(bytes);
            assert_non_null(wanted);
            to_panels(&p, v, wanted);
            if (memcmp(found, wanted, bytes)) fail_msg("%s of %s was appended to differently", v ? "v" : "k", texts[i]);
            free(wanted);
        }
        close_pair(&p);
    }
}

/* NaN in the place of tokens beyond the last, which share pairs and vectors with it, changes no bit. */
static void nothing_beyond_the_last(void **state) {
    (void)state;
    static const char *const texts[] = {
        "num_heads=4,num_kv_heads=1,seq_q=1,seq_kv=37,head_dim=40,dtype=bf16",
        "num_heads=4,num_kv_heads=1,seq_q=1,seq_kv=37,head_dim=40",
        "num_heads=2,seq_q=70,seq_kv=37,head_dim=40,dtype=bf16",
        "num_heads=2,seq_q=70,seq_kv=37,head_dim=40,dtype=bf16,is_causal=1,causal_align=bottom_right",
        "num_heads=4,num_kv_heads=1,seq_q=1,seq_kv=37,head_dim=40,kv_dtype=i8",
        "num_heads=2,seq_q=70,seq_kv=37,head_dim=40,kv_dtype=i8,kv_scales=token",
        "num_heads=4,num_kv_heads=1,seq_q=1,seq_kv=37,head_dim=40,kv_dtype=i8,kv_scales=token,integer=all",
        "num_heads=4,num_kv_heads=1,seq_q=1,seq_kv=37,head_dim=64,kv_dtype=i4,kv_scales=token",
        "num_heads=4,num_kv_heads=1,seq_q=1,seq_kv=37,head_dim=64,kv_dtype=i4,kv_scales=token,integer=all",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        pair p;
        open_pair(texts[i], &p);
        sample_call_run(sample_context, &p.panels, NULL);
        size_t bytes = 0;
        const void *const out = sample_call_find(&p.panels, "out", &bytes);
        void *const before = malloc(bytes);
        assert_non_null(before);
        memcpy(before, out, bytes);
        for (int v = 0; v < 2; v++) {
            const attune_tensor *t = sample_call_tensor(&p.panels, v ? "v" : "k");
            const int width = t->dtype == ATTUNE_I8 ? 1 : t->dtype == ATTUNE_BF16 ? 2 : 4, unit = 4 / width;
            const int columns = (int)t->dims[3] / 16; /* or bytes */
            unsigned char *const bytes_of = sample_call_data(&p.panels, v ? "v" : "k");
            for (int64_t h = 0; h < t->dims[1]; h++)
                for (int token = 37 % 16; token < 16; token++)
                    for (int c = 0; c < columns; c++) {
                        const int64_t at = v ? token / unit * columns * unit + c * unit + token % unit
                                             : c / unit * 16 * unit + token * unit + c % unit;
                        memset(bytes_of + (h * t->strides[1] + 2 * t->strides[2] + at) * width, 0xff, (size_t)width);
                    }
        }
        sample_call_run(sample_context, &p.panels, NULL);
        if (memcmp(before, out, bytes)) fail_msg("%s: what lies beyond the last token matters", texts[i]);
        free(before);
        close_pair(&p);
    }
}

/* A tile of q-lanes must not begin with the second token of a pair; those that are chosen do not. */
static void tiles_begin_with_pairs(void **state) {
    (void)state;
    const attune_problem p = problem_parsed("seq_q=50,seq_kv=41,head_dim=14,dtype=bf16,v_layout=panels");
    mha_schedule s = schedule_chosen_by(sample_context, &p);
    assert_int_equal(s.kv_tile % 2, 0);
    s.score_keys = 1, s.kv_tile = 19;
    assert_int_not_equal(attune_schedule_choose(sample_context, &p, mha_schedule_text(&s).text, NULL, 0), ATTUNE_OK);
    assert_non_null(strstr(attune_last_message(), "kv_tile must be even where v is bf16 in panels"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_and_panels),         cmocka_unit_test(bad_arguments),
        cmocka_unit_test(same_bits_as_rows),       cmocka_unit_test(appended_rows),
        cmocka_unit_test(nothing_beyond_the_last), cmocka_unit_test(tiles_begin_with_pairs),
    };
    return cmocka_run_group_tests(tests, sample_context_open, sample_context_close);
}
