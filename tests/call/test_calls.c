/* Calls: the tensors of every sort of problem, and calls that must be refused. */
#define _GNU_SOURCE
#include "support/calls.h"
#include "support/problems.h"
#include "support/statuses.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- attune_tensors ---- */

static void assert_tensors(const sample *from, const char *expected) {
    char text[4096];
    sample_call c;
    sample_call_open(&c, from, ON_THE_HEAP);
    sample_tensors_text(c.tensors, c.count, text, sizeof text);
    assert_string_equal(text, expected);
    sample_call_close(&c);
}

static void tensors_of_problems(void **state) {
    (void)state;
    assert_tensors(&samples[PLAIN], "q f32 2x4x13x12 624:156:12:1 in\n"
                                    "k f32 2x2x21x12 504:252:12:1 in\n"
                                    "v f32 2x2x21x12 504:252:12:1 in\n"
                                    "out f32 2x4x13x12 624:156:12:1 out\n"
                                    "lse f32 2x4x13 52:13:1 out\n");
    assert_tensors(&samples[DYNAMIC], "q f32 1x2x19x8 304:152:8:1 in\n"
                                      "k f32 1x2x37x8 592:296:8:1 in\n"
                                      "v f32 1x2x37x8 592:296:8:1 in\n"
                                      "out f32 1x2x19x8 304:152:8:1 out\n"
                                      "lse f32 1x2x19 38:19:1 out\n");
    assert_tensors(&samples[MASKED], "q f32 2x3x5x7 105:35:7:1 in\n"
                                     "k f32 2x3x19x7 399:133:7:1 in\n"
                                     "v f32 2x3x19x7 399:133:7:1 in\n"
                                     "out f32 2x3x5x7 105:35:7:1 out\n"
                                     "attn_mask bool 2x3x5x19 0:0:19:1 in\n"
                                     "attn_bias f32 2x3x5x19 57:19:0:1 in\n");
    assert_tensors(&samples[SHORT_MASK], "q f32 1x2x4x8 64:32:8:1 in\n"
                                         "k f32 1x2x30x8 480:240:8:1 in\n"
                                         "v f32 1x2x30x8 480:240:8:1 in\n"
                                         "out f32 1x2x4x8 64:32:8:1 out\n"
                                         "attn_mask bool 1x2x4x17 0:0:17:1 in\n");
    /* Tokens of a ragged batch are contiguous, whatever the number of heads. */
    assert_tensors(&samples[RAGGED], "q f32 1x2x12x8 192:8:16:1 in\n"
                                     "k f32 1x2x24x8 384:8:16:1 in\n"
                                     "v f32 1x2x24x8 384:8:16:1 in\n"
                                     "out f32 1x2x12x8 192:8:16:1 out\n"
                                     "lse f32 1x2x12 24:12:1 out\n"
                                     "cu_seqlens_q i32 4 1 in\n"
                                     "cu_seqlens_kv i32 4 1 in\n");
    assert_tensors(&samples[SERVED], "q f32 1x2x12x8 192:8:16:1 in\n"
                                     "k f32 8x2x4x8 64:32:8:1 in out\n"
                                     "v f32 8x2x4x8 64:32:8:1 in out\n"
                                     "out f32 1x2x12x8 192:8:16:1 out\n"
                                     "kv_lens i32 3 1 in\n"
                                     "cu_seqlens_q i32 4 1 in\n"
                                     "block_table i32 3x3 3:1 in\n"
                                     "k_new f32 1x2x12x8 192:8:16:1 in\n"
                                     "v_new f32 1x2x12x8 192:8:16:1 in\n");
    assert_tensors(&samples[RAGGED_MASK], "q f32 1x2x9x8 144:8:16:1 in\n"
                                          "k f32 1x2x16x8 256:8:16:1 in\n"
                                          "v f32 1x2x16x8 256:8:16:1 in\n"
                                          "out f32 1x2x9x8 144:8:16:1 out\n"
                                          "attn_mask bool 2x2x6x12 72:0:12:1 in\n"
                                          "cu_seqlens_q i32 3 1 in\n"
                                          "cu_seqlens_kv i32 3 1 in\n");
    assert_tensors(&samples[ROTARY], "q f32 2x2x6x8 96:48:8:1 in\n"
                                     "out f32 2x2x6x8 96:48:8:1 out\n"
                                     "cos f32 2x5x4 20:4:1 in\n"
                                     "sin f32 2x5x4 20:4:1 in\n"
                                     "position_ids i32 2x6 6:1 in\n");
    assert_tensors(&samples[WEIGHTS], "q f32 2x2x9x8 144:72:8:1 in\n"
                                      "k f32 2x2x11x8 176:88:8:1 in\n"
                                      "lse f32 2x2x9 18:9:1 in\n"
                                      "row_ids i32 4 1 in\n"
                                      "weights f32 2x2x4x11 88:44:11:1 out\n");
    assert_tensors(&samples[MERGE], "out f32 1x2x3x8 48:24:8:1 out\n"
                                    "lse f32 1x2x3 6:3:1 out\n"
                                    "parts f32 3x6x8 48:8:1 in\n"
                                    "parts_lse f32 3x6 6:1 in\n");
    assert_tensors(&samples[HALF], "q f16 1x2x9x10 180:90:10:1 in\n"
                                   "k f16 1x2x9x10 180:90:10:1 in\n"
                                   "v f16 1x2x9x10 180:90:10:1 in\n"
                                   "out f16 1x2x9x10 180:90:10:1 out\n"
                                   "lse f32 1x2x9 18:9:1 out\n");
    assert_tensors(&samples[CODES], "q f32 2x4x5x12 240:60:12:1 in\n"
                                    "k i8 2x2x19x12 456:228:12:1 in\n"
                                    "v f8 2x2x19x12 456:228:12:1 in\n"
                                    "out f32 2x4x5x12 240:60:12:1 out\n"
                                    "k_scale f32 2x2x19 38:19:1 in\n"
                                    "v_scale f32 2 1 in\n");
    assert_tensors(&samples[CODES_SERVED], "q f32 1x2x12x8 192:8:16:1 in\n"
                                           "k i8 8x2x4x8 64:32:8:1 in out\n"
                                           "v i8 8x2x4x8 64:32:8:1 in out\n"
                                           "out f32 1x2x12x8 192:8:16:1 out\n"
                                           "kv_lens i32 3 1 in\n"
                                           "cu_seqlens_q i32 4 1 in\n"
                                           "block_table i32 3x3 3:1 in\n"
                                           "k_new f32 1x2x12x8 192:8:16:1 in\n"
                                           "v_new f32 1x2x12x8 192:8:16:1 in\n"
                                           "k_scale f32 8x2x4 8:4:1 in out\n"
                                           "v_scale f32 8x2x4 8:4:1 in out\n");
    assert_tensors(&samples[CODES_WEIGHTS], "q f32 1x2x9x8 144:72:8:1 in\n"
                                            "k f8 1x2x11x8 176:88:8:1 in\n"
                                            "lse f32 1x2x9 18:9:1 in\n"
                                            "k_scale f32 1x2x11 22:11:1 in\n"
                                            "weights f32 1x2x9x11 198:99:11:1 out\n");
    assert_tensors(&samples[LATENT], "q f32 1x4x3x20 240:60:20:1 in\n"
                                     "k f32 1x1x11x20 220:220:20:1 in\n"
                                     "out f32 1x4x3x16 192:48:16:1 out\n");
}

/* Without arguments, sizes that only a call has are -1; a failure leaves no tensors. */
static void tensors_without_arguments(void **state) {
    (void)state;
    attune_tensor tensors[SAMPLE_TENSORS];
    size_t count = 7;
    char text[4096];
    attune_problem problem = problem_parsed("seq_q=3,seq_kv=dynamic,head_dim=4,rotary_dim=4");
    assert_ok_for(attune_tensors(&problem, NULL, tensors, SAMPLE_TENSORS, &count), "tensors");
    sample_tensors_text(tensors, count, text, sizeof text);
    assert_string_equal(text, "q f32 1x1x3x4 12:12:4:1 in\n"
                              "k f32 1x1x-1x4 0:0:0:0 in\n"
                              "v f32 1x1x-1x4 0:0:0:0 in\n"
                              "out f32 1x1x3x4 12:12:4:1 out\n"
                              "cos f32 1x-1x2 0:0:0 in\n"
                              "sin f32 1x-1x2 0:0:0 in\n");
    for (size_t i = 0; i < count; i++) /* the pointers are there */
        assert_true(tensors[i].pointer_offset >= offsetof(attune_arguments, q) &&
                    tensors[i].pointer_offset < sizeof(attune_arguments));
    problem = (attune_problem)ATTUNE_PROBLEM_INIT;
    assert_ok_for(attune_problem_parse(&problem, "seq_q=1,seq_kv=dynamic,head_dim=4,short_masks=1,attn_mask_dims=9"),
                  "parse");
    assert_ok_for(attune_tensors(&problem, NULL, tensors, SAMPLE_TENSORS, &count), "tensors");
    sample_tensors_text(tensors, count, text, sizeof text);
    assert_non_null(strstr(text, "attn_mask bool 1x1x1x9 0:0:0:1 in\n"));
    problem.window_left = -2;
    assert_int_equal(attune_tensors(&problem, NULL, tensors, SAMPLE_TENSORS, &count), ATTUNE_INVALID_PROBLEM);
    assert_int_equal(count, 0);
    assert_int_equal(attune_tensors(NULL, NULL, tensors, SAMPLE_TENSORS, &count), ATTUNE_INVALID_ARGUMENT);
}

/* Strides of dims that are the same for all say nothing, whether the problem or the call has them. */
static void broadcast_strides(void **state) {
    (void)state;
    static const sample from = {.problem = "batch=2,num_heads=3,seq_q=4,seq_kv=5,head_dim=4,attn_mask_dims=bhk"};
    attune_tensor tensors[SAMPLE_TENSORS];
    size_t count;
    sample_call c;
    sample_call_open(&c, &from, ON_THE_HEAP);
    memcpy(c.arguments.attn_mask.strides, ((int64_t[]){0, 0, 7, 0}), sizeof c.arguments.attn_mask.strides);
    assert_ok_for(attune_tensors(&c.problem, &c.arguments, tensors, SAMPLE_TENSORS, &count), "tensors");
    for (size_t i = 0; i < count; i++)
        if (!strcmp(tensors[i].name, "attn_mask"))
            assert_memory_equal(tensors[i].strides, ((int64_t[]){15, 5, 0, 1}), sizeof tensors[i].strides);
    sample_call_close(&c);
}

/* Where ids are shared by queries and keys there are as many of these as of those, even if only tables say how many. */
static void pages_with_shared_ids(void **state) {
    (void)state;
    static const sample from = {.problem = "batch=2,seq_q=dynamic,seq_kv=dynamic,head_dim=4,page_size=4,has_kv_lens=1,"
                                           "rotary_dim=4,has_position_ids=1",
                                .sizes = "seq_q=5,num_pages=8,max_pages=4,rotary_positions=5",
                                .kv = {5, 2}};
    sample_call c;
    sample_call_open(&c, &from, ON_THE_HEAP);
    assert_ok_for(attune_run_interpreted(sample_context, &c.problem, NULL, &c.arguments), from.problem);
    sample_call_close(&c);
}

/* A view of an engine's wider table: what stands between its rows is never looked at. */
static void rows_of_a_wider_table(void **state) {
    enum { BATCH = 3, COLUMNS = 4, STRIDE = 9, ROWS = BATCH * 8 };
    static const sample from = {.problem =
                                    "batch=3,num_heads=2,seq_q=1,seq_kv=dynamic,head_dim=4,page_size=4,has_kv_lens=1",
                                .sizes = "num_pages=12,max_pages=4",
                                .kv = {5, 16, 1}};
    int32_t wide[(BATCH - 1) * STRIDE + COLUMNS]; /* the last row is no longer than it must be */
    float expected[ROWS], found[ROWS];
    sample_call c;
    attune_kernel *kernel;
    attune_plan *plan;
    (void)state;
    sample_call_open(&c, &from, ON_THE_HEAP);
    assert_ok_for(attune_compile(sample_context, &c.problem, NULL, &kernel), from.problem);
    assert_ok_for(attune_plan_create(sample_context, &c.problem, NULL, &plan), from.problem);
    attune_arguments a = c.arguments;
    a.out.data = expected;
    assert_ok_for(attune_run(sample_context, kernel, &a), from.problem);
    for (int i = 0; i < (int)(sizeof wide / sizeof *wide); i++) wide[i] = INT32_MAX;
    for (int b = 0; b < BATCH; b++)
        memcpy(wide + b * STRIDE, (const int32_t *)sample_call_data(&c, "block_table") + b * COLUMNS,
               COLUMNS * sizeof *wide);
    a.block_table = wide;
    a.block_table_stride = STRIDE;
    a.out.data = found;
    for (int how = 0; how < 4; how++) { /* twice by the kernel: settled anew, and as the call before */
        memset(found, 0, sizeof found);
        assert_ok_for(how < 2    ? attune_run(sample_context, kernel, &a)
                      : how == 2 ? attune_run_interpreted(sample_context, &c.problem, NULL, &a)
                                 : attune_plan_run(plan, &a, NULL),
                      from.problem);
        assert_memory_equal(found, expected, sizeof expected);
    }
    wide[STRIDE] = 12;
    assert_int_equal(attune_run(sample_context, kernel, &a), ATTUNE_INVALID_ARGUMENT);
    assert_non_null(strstr(attune_last_message(), "block_table[1, 0] is 12; num_pages is 12"));
    attune_plan_destroy(plan);
    attune_kernel_release(kernel);
    sample_call_close(&c);
}

/* Ids of tokens after the last entry have no meaning, whatever their values. */
static void ids_of_no_entry(void **state) {
    (void)state;
    static const sample from = {.problem = "batch=2,is_ragged=1,head_dim=4,rotary_dim=4,has_position_ids=1",
                                .sizes = "total_q=9,total_kv=9,rotary_positions=5",
                                .q = {5, 2},
                                .kv = {5, 2}};
    sample_call c;
    sample_call_open(&c, &from, ON_THE_HEAP);
    int32_t *ids = sample_call_data(&c, "position_ids");
    ids[7] = -5;
    ids[8] = INT32_MAX;
    assert_ok_for(attune_run_interpreted(sample_context, &c.problem, NULL, &c.arguments), from.problem);
    sample_call_close(&c);
}

/* ---- Bad calls ---- */

#define BAD_SIZE(c, change, part)                                                                                      \
    do {                                                                                                               \
        attune_arguments a = (c).arguments;                                                                            \
        a.change;                                                                                                      \
        sample_call_assert_refused(sample_context, &(c), &a, part);                                                    \
    } while (0)

/* One element of a table changed. */
static void bad_value(sample_call *c, const char *table, int index, int value, const char *part) {
    int32_t *data = sample_call_data(c, table), saved = data[index];
    data[index] = value;
    sample_call_assert_refused(sample_context, c, &c->arguments, part);
    data[index] = saved;
}

static void bad_sizes(void **state) {
    (void)state;
    sample_call c;
    sample_call_open(&c, &samples[DYNAMIC], ON_THE_HEAP);
    BAD_SIZE(c, seq_q = 41, "seq_q is 41; this kernel takes 0 to 40 (max_seq_q)");
    BAD_SIZE(c, seq_kv = 51, "seq_kv is 51; this kernel takes 0 to 50 (max_seq_kv)");
    BAD_SIZE(c, seq_q = -2, "seq_q is -2");
    BAD_SIZE(c, seq_kv = INT64_MIN, "seq_kv is -9223372036854775808");
    BAD_SIZE(c, batch = 0, "batch is 0");
    BAD_SIZE(c, batch = INT64_MAX, "batch is 9223372036854775807");
    BAD_SIZE(c, num_heads = -2, "num_heads is -2");
    BAD_SIZE(c, num_kv_heads = 0, "num_kv_heads is 0");
    BAD_SIZE(c, num_kv_heads = 1, "groups of 1");
    BAD_SIZE(c, out.data = NULL, "the pointer to out is NULL");
    BAD_SIZE(c, q.strides[3] = 2, "the innermost stride of q is 2");
    BAD_SIZE(c, k.strides[1] = -8, "k_strides[1] is -8");
    sample_call_close(&c);
    sample_call_open(&c, &samples[HALF], ON_THE_HEAP);
    BAD_SIZE(c, q.data = (const char *)a.q.data + 1, "not aligned to 2 bytes");
    BAD_SIZE(c, lse.data = (char *)a.lse.data + 2, "not aligned to 4 bytes");
    sample_call_close(&c);
    sample_call_open(&c, &samples[SHORT_MASK], ON_THE_HEAP);
    BAD_SIZE(c, mask_seq_kv = 31, "attn_mask has 31 columns; it must have from 0 to seq_kv = 30");
    BAD_SIZE(c, mask_seq_kv = -5, "attn_mask has -5 columns");
    BAD_SIZE(c, attn_mask.strides[3] = 2, "the innermost stride of attn_mask is 2");
    sample_call_close(&c);
    sample_call_open(&c, &samples[CODES], ON_THE_HEAP);
    BAD_SIZE(c, k_scale.data = NULL, "the pointer to k_scale is NULL");
    BAD_SIZE(c, v_scale.data = NULL, "the pointer to v_scale is NULL");
    BAD_SIZE(c, k_scale.data = (float *)(void *)((char *)a.k_scale.data + 2), "k_scale");
    BAD_SIZE(c, k_scale.strides[1] = -1, "k_scale_strides[1] is -1");
    BAD_SIZE(c, k_scale.strides[2] = 2, "the innermost stride of k_scale is 2");
    BAD_SIZE(c, v_scale.data = a.out.data, "the output out overlaps v_scale");
    sample_call_close(&c);
    sample_call_open(&c, &samples[CODES_SERVED], ON_THE_HEAP);
    BAD_SIZE(c, v_scale.data = a.k_scale.data, "the output k_scale overlaps v_scale");
    BAD_SIZE(c, k_scale.data = a.k.data, "overlaps");
    BAD_SIZE(c, k_scale.strides[0] = 8; a.k_scale.strides[1] = 3;
             a.k_scale.strides[2] = 1, "k_scale_strides make two elements of the output coincide");
    sample_call_close(&c);
    sample_call_open(&c, &samples[MERGE], ON_THE_HEAP);
    BAD_SIZE(c, parts = NULL, "the pointer to parts is NULL");
    BAD_SIZE(c, lse.data = (char *)a.parts_lse + 12, "the output lse overlaps parts_lse");
    sample_call_close(&c);
}

static void bad_lengths(void **state) {
    (void)state;
    sample_call c;
    sample_call_open(&c, &samples[PADDED], ON_THE_HEAP);
    bad_value(&c, "kv_lens", 1, 22, "kv_lens[1] is 22; it must be from 0 to 21 (seq_kv)");
    bad_value(&c, "kv_lens", 2, -1, "kv_lens[2] is -1");
    BAD_SIZE(c, kv_lens = NULL, "the pointer to kv_lens is NULL");
    BAD_SIZE(c, kv_lens = (const int32_t *)(const void *)((const char *)a.kv_lens + 2), "not aligned to 4 bytes");
    sample_call_close(&c);
    sample_call_open(&c, &samples[APPENDED], ON_THE_HEAP);
    bad_value(&c, "kv_lens", 1, 2, "sequence 1 has 2 keys (kv_lens), fewer than the 3 that are appended");
    BAD_SIZE(c, out.data = a.k.data, "overlaps");
    BAD_SIZE(c, k_new.data = a.v.data, "the output v overlaps k_new");
    BAD_SIZE(c, k.data = a.v.data, "the output k overlaps v");
    BAD_SIZE(c, k.strides[2] = 0; memcpy(a.k.strides, ((int64_t[]){128, 64, 4, 1}), sizeof a.k.strides),
                                  "k_strides make two elements of the output coincide");
    sample_call_close(&c);
}

/* Where a bound comes from is said by the names of the sizes that the caller can change. */
static void bounds_of_keys(void **state) {
    (void)state;
    static const struct {
        sample sample;
        const char *table, *message;
    } cases[] = {
        {{.problem = "batch=2,seq_q=1,seq_kv=dynamic,head_dim=4,page_size=16,has_kv_lens=1,max_seq_kv=24",
          .sizes = "num_pages=4,max_pages=2",
          .kv = {6, 6}},
         "kv_lens",
         "kv_lens[1] is 40; it must be from 0 to 24 (max_seq_kv)"},
        {{.problem = "batch=2,seq_q=1,seq_kv=dynamic,head_dim=4,page_size=16,has_kv_lens=1",
          .sizes = "seq_kv=20,num_pages=4,max_pages=2",
          .kv = {6, 6}},
         "kv_lens",
         "kv_lens[1] is 40; it must be from 0 to 20 (seq_kv)"},
        {{.problem = "batch=2,seq_q=dynamic,seq_kv=dynamic,head_dim=4,is_ragged=1,has_kv_lens=1",
          .q = {5, 5},
          .kv = {6, 6},
          .sizes = "total_q=10,total_kv=12"},
         "kv_lens",
         "kv_lens[1] is 40; it must be from 0 to 6 (its length in cu_seqlens_kv)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sample_call c;
        sample_call_open(&c, &cases[i].sample, ON_THE_HEAP);
        bad_value(&c, cases[i].table, 1, 40, cases[i].message);
        sample_call_close(&c);
    }
}

static void bad_ragged_batches(void **state) {
    (void)state;
    sample_call c;
    sample_call_open(&c, &samples[RAGGED], ON_THE_HEAP); /* cu_seqlens_q 0 5 5 11, cu_seqlens_kv 0 9 12 23 */
    bad_value(&c, "cu_seqlens_q", 0, -1, "cu_seqlens_q[0] is -1");
    bad_value(&c, "cu_seqlens_q", 2, 4, "cu_seqlens_q falls from 5 to 4 at index 2");
    bad_value(&c, "cu_seqlens_q", 3, 13, "cu_seqlens_q[3] is 13, but there are only 12 tokens (total_q)");
    bad_value(&c, "cu_seqlens_q", 1, INT32_MIN, "cu_seqlens_q falls from 0 to -2147483648");
    bad_value(&c, "cu_seqlens_kv", 1, 13, "cu_seqlens_kv falls from 13 to 12");
    bad_value(&c, "cu_seqlens_kv", 3, 25, "cu_seqlens_kv[3] is 25, but there are only 24 tokens (total_kv)");
    int32_t *cu = sample_call_data(&c, "cu_seqlens_q");
    cu[1] = cu[2] = 2; /* the last entry: from 2 to 11 */
    sample_call_assert_refused(sample_context, &c, &c.arguments,
                               "sequence 2 of cu_seqlens_q has 9 tokens; this call takes at most 8 (max_seq_q)");
    cu[1] = cu[2] = 5;
    BAD_SIZE(c, seq_kv = 10, "sequence 2 of cu_seqlens_kv has 11 tokens; this call takes at most 10 (seq_kv)");
    BAD_SIZE(c, total_q = -2, "total_q is -2");
    BAD_SIZE(c, total_kv = 22, "there are only 22 tokens (total_kv)");
    BAD_SIZE(c, cu_seqlens_q = NULL, "the pointer to cu_seqlens_q is NULL");
    BAD_SIZE(c, cu_seqlens_kv = memcpy(a.out.data, a.cu_seqlens_kv, 4 * sizeof(int32_t)),
             "the output out overlaps cu_seqlens_kv");
    sample_call_close(&c);
    /* The layout of a mask must not depend on the contents of the tables. */
    sample_call_open(&c, &samples[RAGGED_MASK], ON_THE_HEAP);
    BAD_SIZE(c, seq_q = 0, "sequence 0 of cu_seqlens_q has 6 tokens; this call takes at most 0");
    BAD_SIZE(c, seq_kv = 0, "sequence 0 of cu_seqlens_kv has 5 tokens; this call takes at most 0");
    sample_call_close(&c);
    sample_call_open(&c, &samples[SERVED], ON_THE_HEAP);
    bad_value(&c, "kv_lens", 2, 5, "sequence 2 has 5 keys (kv_lens), fewer than the 6 that are appended");
    sample_call_close(&c);
}

static void bad_pages(void **state) {
    (void)state;
    sample_call c;
    sample_call_open(&c, &samples[PAGED], ON_THE_HEAP); /* 13 keys in 4 pages, 6 keys in 2 */
    bad_value(&c, "block_table", 3, 9, "block_table[0, 3] is 9; num_pages is 9");
    bad_value(&c, "block_table", 5, -1, "block_table[1, 1] is -1");
    bad_value(&c, "kv_lens", 1, 9, "block_table[1, 2] is -7"); /* a third page, which is none */
    bad_value(&c, "kv_lens", 0, 17, "kv_lens[0] is 17; it must be from 0 to 16 (max_pages * page_size = 4 * 4)");
    BAD_SIZE(c, num_pages = 5, "num_pages is 5");
    BAD_SIZE(c, max_pages = 3, "kv_lens[0] is 13; it must be from 0 to 12 (max_pages * page_size = 3 * 4)");
    BAD_SIZE(c, num_pages = -2, "num_pages is -2");
    BAD_SIZE(c, block_table = NULL, "the pointer to block_table is NULL");
    BAD_SIZE(c, max_pages = INT64_MAX, "max_pages is 9223372036854775807");
    sample_call_close(&c);
    static const sample full = {
        .problem = "batch=2,seq_q=1,seq_kv=6,head_dim=4,page_size=4", .sizes = "num_pages=4,max_pages=2", .kv = {6, 6}};
    sample_call_open(&c, &full, ON_THE_HEAP);
    BAD_SIZE(c, block_table_stride = 1, "block_table_stride is 1; it must be 0, or from 2 (max_pages) to ");
    BAD_SIZE(c, block_table_stride = -2, "block_table_stride is -2");
    BAD_SIZE(c, max_pages = 1,
             "sequence 0 has 6 keys, but its row of block_table has 1 pages of 4 (max_pages, page_size)");
    sample_call_close(&c);
}

static void bad_positions(void **state) {
    (void)state;
    sample_call c;
    sample_call_open(&c, &samples[PLACED], ON_THE_HEAP);
    bad_value(&c, "causal_offsets", 1, INT32_MAX - 5,
              "the queries of sequence 1 stand at positions 2147483642 to 214748364");
    bad_value(&c, "causal_offsets", 0, INT32_MIN, "sequence 0 stand at positions -2147483648");
    sample_call_close(&c);
    sample_call_open(&c, &samples[ROTATED], ON_THE_HEAP);
    BAD_SIZE(c, rotary_positions = 5, "stand at positions 0 to 5; rotary_positions is 5");
    BAD_SIZE(c, rotary_batch_stride = -18, "rotary_batch_stride is -18");
    BAD_SIZE(c, cos = NULL, "the pointer to cos is NULL");
    sample_call_close(&c);
    sample_call_open(&c, &samples[ROTARY], ON_THE_HEAP);
    bad_value(&c, "position_ids", 8, 5, "position_ids[1, 2] is 5; it must be from 0 to 4 (rotary_positions - 1)");
    bad_value(&c, "position_ids", 0, -1, "position_ids[0, 0] is -1");
    sample_call_close(&c);
    static const sample before_zero = {.problem =
                                           "batch=2,op=rotary,seq_q=3,head_dim=4,rotary_dim=4,has_causal_offsets=1",
                                       .sizes = "rotary_positions=9"};
    sample_call_open(&c, &before_zero, ON_THE_HEAP);
    bad_value(&c, "causal_offsets", 1, -1, "sequence 1 stand at positions -1 to 1");
    bad_value(&c, "causal_offsets", 0, 7, "sequence 0 stand at positions 7 to 9; rotary_positions is 9");
    sample_call_close(&c);
    static const sample longer = {.problem = "seq_q=2,seq_kv=7,head_dim=4,rotary_dim=4,causal_align=top_left",
                                  .sizes = "rotary_positions=7"};
    sample_call_open(&c, &longer, ON_THE_HEAP);
    BAD_SIZE(c, rotary_positions = 6, "sequence 0 has 7 keys, but rotary_positions is 6");
    sample_call_close(&c);
    static const sample early = {.problem = "batch=2,seq_q=2,seq_kv=7,head_dim=4,rotary_dim=4,has_kv_lens=1",
                                 .sizes = "rotary_positions=7",
                                 .kv = {7, 2}};
    sample_call_open(&c, &early, ON_THE_HEAP);
    bad_value(&c, "kv_lens", 1, 1,
              "sequence 1 has 2 queries and 1 keys: with the last query at the last key (bottom_right) its first query "
              "is at position -1, which rotary_dim has no angle for");
    sample_call_close(&c);
    static const sample shared_ids = {.problem =
                                          "seq_q=dynamic,seq_kv=dynamic,head_dim=4,rotary_dim=4,has_position_ids=1",
                                      .sizes = "seq_q=4,seq_kv=4,rotary_positions=4"};
    sample_call_open(&c, &shared_ids, ON_THE_HEAP);
    BAD_SIZE(c, seq_kv = 3, "seq_q is 4 and seq_kv 3; with position_ids they must be equal");
    sample_call_close(&c);
    sample_call_open(&c, &samples[WEIGHTS], ON_THE_HEAP);
    bad_value(&c, "row_ids", 3, 9, "row_ids[3] is 9; it must be from 0 to 8 (seq_q - 1)");
    bad_value(&c, "row_ids", 0, -1, "row_ids[0] is -1");
    sample_call_close(&c);
}

static void bad_problems(void **state) {
    (void)state;
    static const char *const texts[][2] = {
        {"seq_q=4,head_dim=4,window_left=-2", "window_left is -2"},
        {"num_heads=4,seq_q=4,head_dim=4,attn_mask_dims=1:3:4:4", "attn_mask_dims[1] is 3"},
        {"seq_q=4,head_dim=4,attn_bias_dims=5:4", "attn_bias_dims[2] is 5"},
        {"seq_q=4,head_dim=4,attn_mask_dims=4:3", "attn_mask_dims[3] is 3"},
        {"seq_q=4,head_dim=4,attn_mask_dims=4:5,short_masks=1", "attn_mask_dims[3] is 5"},
        {"seq_q=4,head_dim=4,rotary_dim=3", "rotary_dim is 3"},
        {"seq_q=4,head_dim=4,has_position_ids=1", "rotary_dim is 0"},
        {"seq_q=4,head_dim=4,dtype=f64,softmax_precision=f32", "softmax_precision is f32"},
        {"seq_q=4,seq_kv=3,seq_new=4,head_dim=4", "seq_new is 4"},
        {"op=merge,seq_q=4,head_dim=4", "num_parts is not given, or 0"},
        {"is_ragged=1,head_dim=4,weights_mode=softmax", "is_ragged"},
        {"seq_q=4,head_dim=4,head_dim_v=5,v_in_k=1", "v_in_k"},
        {"seq_q=-2,head_dim=4", "seq_q is -2"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        attune_kernel *kernel;
        const attune_problem problem = problem_parsed(texts[i][0]);
        assert_int_equal(attune_compile(sample_context, &problem, NULL, &kernel), ATTUNE_INVALID_PROBLEM);
        if (!strstr(attune_last_message(), texts[i][1])) fail_msg("%s: %s", texts[i][0], attune_last_message());
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_of_problems), cmocka_unit_test(tensors_without_arguments),
        cmocka_unit_test(broadcast_strides),   cmocka_unit_test(pages_with_shared_ids),
        cmocka_unit_test(broadcast_strides),   cmocka_unit_test(rows_of_a_wider_table),
        cmocka_unit_test(ids_of_no_entry),     cmocka_unit_test(bad_sizes),
        cmocka_unit_test(bad_lengths),         cmocka_unit_test(bounds_of_keys),
        cmocka_unit_test(bad_ragged_batches),  cmocka_unit_test(bad_pages),
        cmocka_unit_test(bad_positions),       cmocka_unit_test(bad_problems),
    };
    return cmocka_run_group_tests(tests, sample_context_open, sample_context_close);
}
