/* Calls of blocks: their tensors, and calls that must be refused. */
#define _GNU_SOURCE
#include "support/calls.h"
#include "support/statuses.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const sample plain = {.problem = "batch=2,embed_dim=12,num_heads=3,num_kv_heads=1,seq_q=5,has_lse=1"};
static const sample cross = {.problem = "batch=2,embed_dim=8,kv_embed_dim=6,v_embed_dim=3,out_dim=10,num_heads=2,"
                                        "seq_q=dynamic,seq_kv=dynamic,dtype=f16,w_dtype=f32",
                             .sizes = "seq_q=3,seq_kv=7"};
static const sample dynamic = {.problem = "embed_dim=8,num_heads=2,seq_q=dynamic,max_seq_q=40,attn_mask_dims=k",
                               .sizes = "seq_q=19,seq_kv=19"};
static const sample cached = {.problem = "batch=2,embed_dim=8,num_heads=2,seq_q=3,seq_kv=16,seq_new=3,has_kv_lens=1,"
                                         "is_causal=1,causal_align=bottom_right",
                              .kv = {16, 5}};
static const sample steps = {.problem = "embed_dim=8,num_heads=2,seq_q=dynamic,seq_kv=16,seq_new=dynamic",
                             .sizes = "seq_q=2,seq_new=2"};
static const sample appended = {.problem =
                                    "batch=2,embed_dim=8,kv_embed_dim=6,num_heads=2,seq_q=1,seq_kv=16,seq_new=4"};
static const sample served = {.problem = "batch=3,is_ragged=1,embed_dim=8,num_heads=2,num_kv_heads=1,page_size=4,"
                                         "seq_new=dynamic,has_kv_lens=1,is_causal=1,causal_align=bottom_right",
                              .sizes = "total_q=12,num_pages=8,max_pages=3",
                              .q = {5, 1, 6},
                              .kv = {9, 3, 11}};
static const sample ragged = {.problem = "batch=3,is_ragged=1,embed_dim=8,v_embed_dim=5,num_heads=2,rotary_dim=4,"
                                         "has_position_ids=1,has_lse=1",
                              .sizes = "total_q=12,rotary_positions=6",
                              .q = {5, 0, 6}};
static const sample given = {.problem = "batch=2,embed_dim=8,num_heads=2,seq_q=3,seq_kv=9,kv_projected=1,rotary_dim=4,"
                                        "has_position_ids=1,no_out_projection=1,head_dim_v=3",
                             .sizes = "rotary_positions=4"};
static const sample low = {.problem = "batch=2,embed_dim=8,num_heads=4,num_kv_heads=2,seq_q=6,low_rank=3,"
                                      "low_rank_heads=1,weights_mode=softmax,w_dtype=f64"};
static const sample shared = {.problem = "embed_dim=8,num_heads=2,seq_q=6,low_rank=3,low_rank_shared=1"};
static const sample masked = {.problem = "batch=2,is_ragged=1,embed_dim=8,num_heads=2,attn_mask_dims=bk",
                              .sizes = "total_q=9,seq_q=6",
                              .q = {6, 3}};

static const sample no_keys = {.problem = "embed_dim=8,out_dim=5,num_heads=2,seq_q=3,seq_kv=dynamic,is_cross=1",
                               .sizes = "seq_kv=0"};

static const sample *const all[] = {&plain,  &cross,  &dynamic, &cached, &steps,  &appended,
                                    &served, &ragged, &given,   &low,    &shared, &masked};

#define BAD(c, change, part)                                                                                           \
    do {                                                                                                               \
        attune_arguments a = (c).arguments;                                                                            \
        a.change;                                                                                                      \
        sample_call_assert_refused(sample_context, &(c), &a, part);                                                    \
    } while (0)

/* ---- attune_tensors ---- */

/* How many elements a blob has is not for this test to know: 0 stands for that. */
static void assert_tensors(const sample *from, const char *expected) {
    char text[4096];
    sample_call c;
    size_t bytes;
    sample_call_open(&c, from, ON_THE_HEAP);
    assert_ok_for(attune_packed_weights_size(&c.problem, &bytes), from->problem);
    for (size_t i = 0; i < c.count; i++) {
        if (strcmp(c.tensors[i].name, "packed_weights")) continue;
        assert_int_equal(c.memory[i].bytes, bytes);
        c.tensors[i].dims[0] = 0;
    }
    sample_tensors_text(c.tensors, c.count, text, sizeof text);
    assert_string_equal(text, expected);
    sample_call_close(&c);
}

static void tensors_of_blocks(void **state) {
    (void)state;
    assert_tensors(&plain, "out f32 2x5x12 60:12:1 out\n"
                           "lse f32 2x3x5 15:5:1 out\n"
                           "x f32 2x5x12 60:12:1 in\n"
                           "packed_weights f32 0 1 in\n");
    assert_tensors(&cross, "out f16 2x3x10 30:10:1 out\n"
                           "x f16 2x3x8 24:8:1 in\n"
                           "x_kv f16 2x7x6 42:6:1 in\n"
                           "x_v f16 2x7x3 21:3:1 in\n"
                           "packed_weights f32 0 1 in\n");
    assert_tensors(&cached, "k f32 2x2x16x4 128:64:4:1 in out\n"
                            "v f32 2x2x16x4 128:64:4:1 in out\n"
                            "out f32 2x3x8 24:8:1 out\n"
                            "kv_lens i32 2 1 in\n"
                            "x f32 2x3x8 24:8:1 in\n"
                            "packed_weights f32 0 1 in\n");
    assert_tensors(&appended, "k f32 2x2x16x4 128:64:4:1 in out\n"
                              "v f32 2x2x16x4 128:64:4:1 in out\n"
                              "out f32 2x1x8 8:8:1 out\n"
                              "x f32 2x1x8 8:8:1 in\n"
                              "x_kv f32 2x4x6 24:6:1 in\n"
                              "packed_weights f32 0 1 in\n");
    assert_tensors(&served, "k f32 8x1x4x4 16:16:4:1 in out\n"
                            "v f32 8x1x4x4 16:16:4:1 in out\n"
                            "out f32 1x12x8 96:8:1 out\n"
                            "kv_lens i32 3 1 in\n"
                            "cu_seqlens_q i32 4 1 in\n"
                            "block_table i32 3x3 3:1 in\n"
                            "x f32 1x12x8 96:8:1 in\n"
                            "packed_weights f32 0 1 in\n");
    /* Entries that attend to themselves have one table. */
    assert_tensors(&ragged, "out f32 1x12x8 96:8:1 out\n"
                            "lse f32 1x2x12 24:12:1 out\n"
                            "cu_seqlens_q i32 4 1 in\n"
                            "cos f32 3x6x2 0:2:1 in\n"
                            "sin f32 3x6x2 0:2:1 in\n"
                            "position_ids i32 1x12 12:1 in\n"
                            "x f32 1x12x8 96:8:1 in\n"
                            "x_v f32 1x12x5 60:5:1 in\n"
                            "packed_weights f32 0 1 in\n");
    assert_tensors(&given, "k f32 2x2x9x4 72:36:4:1 in\n"
                           "v f32 2x2x9x3 54:27:3:1 in\n"
                           "out f32 2x2x3x3 18:3:6:1 out\n"
                           "cos f32 2x4x2 0:2:1 in\n"
                           "sin f32 2x4x2 0:2:1 in\n"
                           "position_ids i32 2x3 3:1 in\n"
                           "x f32 2x3x8 24:8:1 in\n"
                           "packed_weights f32 0 1 in\n");
    assert_tensors(&low, "out f32 2x6x8 48:8:1 out\n"
                         "weights f32 2x4x6x3 72:18:3:1 out\n"
                         "x f32 2x6x8 48:8:1 in\n"
                         "packed_weights f64 0 1 in\n"
                         "keys_low f64 2x3x6 18:6:1 in\n"
                         "values_low f64 2x3x6 18:6:1 in\n");
    assert_tensors(&shared, "out f32 1x6x8 48:8:1 out\n"
                            "x f32 1x6x8 48:8:1 in\n"
                            "packed_weights f32 0 1 in\n"
                            "keys_low f32 3x6 6:1 in\n");
}

/* Where they are no tensors of the block, neither are they looked at. */
static void unused_arguments(void **state) {
    (void)state;
    sample_call c;
    sample_call_open(&c, &plain, ON_THE_HEAP);
    attune_arguments a = c.arguments;
    a.q.strides[1] = a.k.strides[1] = a.x_kv.strides[1] = -7;
    a.total_q = -1;
    assert_ok_for(attune_run_interpreted(sample_context, &c.problem, NULL, &a), plain.problem);
    sample_call_close(&c);
}

/* Strides of x that are not the problem's, which share no array with those of other tensors. */
static void strides_of_a_call(void **state) {
    (void)state;
    sample_call c, spread;
    sample_call_open(&c, &plain, ON_THE_HEAP);
    sample_call_open(&spread, &plain, ON_THE_HEAP);
    assert_ok_for(attune_run_interpreted(sample_context, &c.problem, NULL, &c.arguments), plain.problem);
    float *const rows = calloc(10, 20 * sizeof *rows);
    for (int i = 0; i < 10; i++) memcpy(&rows[20 * i], (const float *)c.arguments.x.data + 12 * i, 12 * sizeof *rows);
    spread.arguments.x.data = rows;
    spread.arguments.x.strides[0] = 100;
    spread.arguments.x.strides[1] = 20;
    assert_ok_for(attune_run_interpreted(sample_context, &c.problem, NULL, &spread.arguments), plain.problem);
    assert_true(sample_calls_agree(&c, &spread));
    free(rows);
    sample_call_close(&c);
    sample_call_close(&spread);
}

/* The number of keys may be left out where it is that of x's rows. */
static void lengths_that_follow(void **state) {
    (void)state;
    sample_call c, without;
    sample_call_open(&c, &dynamic, ON_THE_HEAP);
    sample_call_open(&without, &dynamic, ON_THE_HEAP);
    without.arguments.seq_kv = ATTUNE_NOT_SET;
    assert_ok_for(attune_run_interpreted(sample_context, &c.problem, NULL, &c.arguments), dynamic.problem);
    assert_ok_for(attune_run_interpreted(sample_context, &c.problem, NULL, &without.arguments), dynamic.problem);
    assert_true(sample_calls_agree(&c, &without));
    sample_call_close(&c);
    sample_call_close(&without);
    sample_call_open(&c, &steps, ON_THE_HEAP);
    c.arguments.seq_new = ATTUNE_NOT_SET;
    assert_ok_for(attune_run_interpreted(sample_context, &c.problem, NULL, &c.arguments), steps.problem);
    sample_call_close(&c);
}

/* Every call of this file that is not refused runs, and machine code gives the interpreter's bits. */
static void calls_run(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        sample_call jit, interpreted;
        attune_kernel *kernel;
        sample_call_open(&jit, all[i], BEFORE_A_GUARD);
        sample_call_open(&interpreted, all[i], AFTER_A_GUARD);
        assert_ok_for(attune_compile(sample_context, &jit.problem, NULL, &kernel), all[i]->problem);
        assert_ok_for(attune_run(sample_context, kernel, &jit.arguments), all[i]->problem);
        assert_ok_for(attune_run_interpreted(sample_context, &jit.problem, NULL, &interpreted.arguments),
                      all[i]->problem);
        if (!sample_calls_agree(&jit, &interpreted)) fail_msg("%s: other bits", all[i]->problem);
        attune_kernel_release(kernel);
        sample_call_close(&jit);
        sample_call_close(&interpreted);
    }
}

/* A tensor without elements needs no pointer; heads that see no key are 0, and the output is its bias. */
static void empty_tensors(void **state) {
    (void)state;
    sample_call c;
    sample_call_open(&c, &dynamic, ON_THE_HEAP);
    c.arguments.seq_q = c.arguments.seq_kv = 0;
    c.arguments.x.data = c.arguments.out.data = NULL;
    assert_ok_for(attune_run_interpreted(sample_context, &c.problem, NULL, &c.arguments), "no rows");
    BAD(c, packed_weights = NULL, "the pointer to packed_weights is NULL");
    sample_call_close(&c);
    sample_call_open(&c, &no_keys, ON_THE_HEAP);
    c.arguments.x_kv.data = NULL;
    assert_ok_for(attune_run_interpreted(sample_context, &c.problem, NULL, &c.arguments), no_keys.problem);
    const float *out = c.arguments.out.data;
    for (int i = 0; i < 3 * 5; i++) assert_true(out[i] == out[i % 5] && fabsf(out[i]) <= 1.0f && out[i] != 0.0f);
    sample_call_close(&c);
}

/* ---- Bad calls ---- */

static void bad_sizes(void **state) {
    (void)state;
    sample_call c;
    sample_call_open(&c, &plain, ON_THE_HEAP);
    BAD(c, num_heads = 6, "num_heads is 6; this block was compiled for 3");
    BAD(c, num_kv_heads = 3, "num_kv_heads is 3; this block was compiled for 1");
    BAD(c, num_heads = 0, "num_heads is 0");
    BAD(c, num_kv_heads = 0, "num_kv_heads is 0");
    BAD(c, batch = 0, "batch is 0; this kernel takes 1 to");
    BAD(c, x.strides[1] = -12, "x_strides[1] is -12");
    BAD(c, x.strides[2] = 2, "the innermost stride of x is 2; the kernel was compiled for 1");
    BAD(c, out.strides[1] = 11, "out_strides make two elements of the output coincide: 2x5x12 with strides 60:11:1");
    BAD(c, x.data = NULL, "the pointer to x is NULL");
    BAD(c, x.data = (const char *)a.x.data + 2, "not aligned to 4 bytes");
    sample_call_close(&c);
    sample_call_open(&c, &dynamic, ON_THE_HEAP);
    BAD(c, seq_q = 41, "seq_q is 41; this kernel takes 0 to 40");
    BAD(c, seq_kv = 18, "seq_kv is 18, but the block projects keys from x, and seq_q is 19");
    sample_call_close(&c);
    sample_call_open(&c, &steps, ON_THE_HEAP);
    BAD(c, seq_new = 3, "seq_new is 3, but the block projects new keys from x, and seq_q is 2");
    BAD(c, seq_q = 17; a.seq_new = -1, "sequence 0 has 16 keys, fewer than the 17 that are appended");
    sample_call_close(&c);
    sample_call_open(&c, &cross, ON_THE_HEAP);
    BAD(c, seq_kv = -2, "seq_kv is -2");
    BAD(c, x_kv.data = NULL, "the pointer to x_kv is NULL");
    BAD(c, x_v.data = NULL, "the pointer to x_v is NULL");
    BAD(c, x_kv.strides[2] = 3, "the innermost stride of x_kv is 3");
    BAD(c, x_v.strides[0] = -1, "x_v_strides[0] is -1");
    sample_call_close(&c);
    sample_call_open(&c, &low, ON_THE_HEAP);
    BAD(c, keys_low = NULL, "the pointer to keys_low is NULL");
    BAD(c, values_low = NULL, "the pointer to values_low is NULL");
    BAD(c, values_low = (const char *)a.values_low + 4, "not aligned to 8 bytes");
    sample_call_close(&c);
}

static void bad_tables(void **state) {
    (void)state;
    sample_call c;
    sample_call_open(&c, &ragged, ON_THE_HEAP); /* cu_seqlens_q 0 5 5 11 */
    int32_t *cu = sample_call_data(&c, "cu_seqlens_q"), *ids = sample_call_data(&c, "position_ids");
    cu[3] = 13;
    sample_call_assert_refused(sample_context, &c, &c.arguments, "cu_seqlens_q[3] is 13, but there are only 12 tokens");
    cu[3] = 11;
    ids[4] = 6;
    sample_call_assert_refused(sample_context, &c, &c.arguments, "position_ids[0, 4] is 6; it must be from 0 to 5");
    sample_call_close(&c);
    /* The layout of the mask must not depend on the contents of the table. */
    sample_call_open(&c, &masked, ON_THE_HEAP);
    BAD(c, seq_q = 0, "sequence 0 of cu_seqlens_q has 6 tokens; this call takes at most 0");
    sample_call_close(&c);
    sample_call_open(&c, &cached, ON_THE_HEAP);
    int32_t *lens = sample_call_data(&c, "kv_lens");
    lens[1] = 2;
    sample_call_assert_refused(sample_context, &c, &c.arguments,
                               "sequence 1 has 2 keys (kv_lens), fewer than the 3 that are appended");
    sample_call_close(&c);
    sample_call_open(&c, &given, ON_THE_HEAP);
    ids = sample_call_data(&c, "position_ids");
    ids[5] = 4;
    sample_call_assert_refused(sample_context, &c, &c.arguments, "position_ids[1, 2] is 4; it must be from 0 to 3");
    sample_call_close(&c);
}

static void bad_weights(void **state) {
    (void)state;
    sample_call c, other;
    sample_call_open(&c, &plain, ON_THE_HEAP);
    sample_call_open(&other, &shared, ON_THE_HEAP);
    BAD(c, packed_weights = NULL, "the pointer to packed_weights is NULL");
    BAD(c, packed_weights = (const char *)a.packed_weights + 16, "is not aligned to 64 bytes");
    BAD(c, packed_weights = (const char *)a.packed_weights + 64,
        "packed_weights cannot be used: these are no packed weights");
    BAD(c, packed_weights = other.arguments.packed_weights,
        "packed_weights cannot be used: the packed weights are those of another problem");
    BAD(c, packed_weights = (const void *)(UINTPTR_MAX - 63),
        "bytes from 0xffffffffffffffc0 on: beyond the end of the address space");
    sample_call_close(&c);
    sample_call_close(&other);
}

static void bad_overlaps(void **state) {
    (void)state;
    sample_call c;
    sample_call_open(&c, &plain, ON_THE_HEAP);
    BAD(c, out.data = (void *)a.x.data, "the output out overlaps x");
    BAD(c, out.data = (char *)a.packed_weights + 64, "the output out overlaps packed_weights");
    BAD(c, lse.data = (char *)a.out.data + 16, "overlaps");
    sample_call_close(&c);
    sample_call_open(&c, &cached, ON_THE_HEAP);
    BAD(c, x.data = a.k.data, "the output k overlaps x");
    BAD(c, v.data = a.k.data, "the output k overlaps v");
    sample_call_close(&c);
    sample_call_open(&c, &low, ON_THE_HEAP);
    BAD(c, keys_low = a.out.data, "the output out overlaps keys_low");
    sample_call_close(&c);
    /* Only read, caches may be anywhere. */
    sample_call_open(&c, &given, ON_THE_HEAP);
    c.arguments.v.data = c.arguments.k.data;
    c.arguments.v.strides[0] = 72;
    assert_ok_for(attune_run_interpreted(sample_context, &c.problem, NULL, &c.arguments), given.problem);
    sample_call_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_of_blocks),   cmocka_unit_test(unused_arguments), cmocka_unit_test(strides_of_a_call),
        cmocka_unit_test(lengths_that_follow), cmocka_unit_test(calls_run),        cmocka_unit_test(empty_tensors),
        cmocka_unit_test(bad_sizes),           cmocka_unit_test(bad_tables),       cmocka_unit_test(bad_weights),
        cmocka_unit_test(bad_overlaps),
    };
    return cmocka_run_group_tests(tests, sample_context_open, sample_context_close);
}
