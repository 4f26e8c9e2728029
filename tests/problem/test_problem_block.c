/* Problems with embed_dim: text, defaults, refusals, the key, and the number of operations. */
#include "support/problems.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* ---- text ---- */

static void test_text_round_trip(void **state) {
    (void)state;
    static const char *const texts[] = {
        "embed_dim=768,num_heads=12,seq_q=512,seq_kv=512,head_dim=64",
        "batch=2,embed_dim=10,kv_embed_dim=6,v_embed_dim=3,out_dim=7,num_heads=4,num_kv_heads=2,seq_q=5,seq_kv=9,"
        "head_dim=3,head_dim_v=11,w_dtype=bf16,x_strides=90:9:1,x_kv_strides=110:11:1,x_v_strides=99:7:2",
        "embed_dim=8,is_cross=1,num_heads=2,seq_q=5,seq_kv=9,head_dim=4,dtype=f16",
        "embed_dim=8,num_heads=2,seq_q=dynamic,seq_kv=dynamic,head_dim=4,k_dtype=f16,max_seq_kv=64,seq_new=dynamic",
        "embed_dim=8,num_heads=2,seq_q=1,seq_kv=9,head_dim=4,kv_projected=1,rotary_dim=4,has_position_ids=1",
        "embed_dim=8,num_heads=2,seq_q=5,seq_kv=5,head_dim=4,head_dim_v=2,v_in_k=1,no_out_projection=1,"
        "out_strides=100:2:20:1",
        "embed_dim=8,num_heads=2,seq_q=5,seq_kv=5,head_dim=4,low_rank=3,low_rank_heads=1,low_rank_shared=1,"
        "out_strides=80:16:2",
        "embed_dim=8,num_heads=2,seq_q=dynamic,seq_kv=dynamic,head_dim=4,is_ragged=1,max_seq_q=9,reproducible=1",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const attune_problem problem = problem_parsed(texts[i]);
        char text[512];
        mha_problem_print(&problem, text, sizeof text);
        assert_string_equal(text, texts[i]);
        assert_int_equal(problem_canonical(texts[i]).op, ATTUNE_MHA);
    }
}

/* The text of a problem that cannot be compiled says what its fields do. */
static void test_text_of_what_is_refused(void **state) {
    (void)state;
    const attune_problem problem = problem_parsed("op=mha,seq_q=3");
    char text[512];
    mha_problem_print(&problem, text, sizeof text);
    assert_string_equal(text, "op=mha,num_heads=1,seq_q=3,seq_kv=0,head_dim=0");
}

static void test_text_refused(void **state) {
    (void)state;
    static const refusal cases[] = {
        {"is_cross=2", "is_cross is '2'; it must be 0 or 1"},
        {"was_cross=1", "'was_cross' is not a field of a problem"},
        {"embed_dim=dynamic", "embed_dim is 'dynamic', which is not an integer"},
        {"low_rank_heads=", "low_rank_heads is ''; it must be 0 or 1"},
        {"w_dtype=f8", "w_dtype is 'f8'; it must be f32, f16, bf16, f64, i8 or i4"},
        {"x_strides=1:2:3:4", "x_strides is '1:2:3:4'; it must be 3 strides separated by ':'"},
        {"out_strides=1:2:3", "out_strides is '1:2:3'; it must be 4 strides separated by ':'"},
        {"out_strides=1:2:3:4,embed_dim=8", "out_strides is '1:2:3:4'; it must be 3 strides separated by ':'"},
        {"embed_dim=8,no_out_projection=1,out_strides=1:2:3", "out_strides is '1:2:3'; it must be 4 strides"},
        {"embed_dim=8,layout=bhsd", "layout=bhsd is for q, k, v and out of attention alone, but embed_dim is 8"},
        {"layout=bshd,embed_dim=8", "layout=bshd is for q, k, v and out of attention alone"},
    };
    assert_texts_refused(cases, sizeof cases / sizeof *cases);
}

/* ---- what is refused ---- */

static void test_ranges(void **state) {
    (void)state;
    static const refusal cases[] = {
        {"op=mha,seq_q=4,head_dim=4", "embed_dim is not given, or 0; it must be from 1 to 262144"},
        {"embed_dim=-8,seq_q=4,head_dim=4", "embed_dim is -8; it must be from 1 to 262144"},
        {"embed_dim=262145,seq_q=4,head_dim=4", "embed_dim is 262145; it must be from 1"},
        {"embed_dim=8,kv_embed_dim=-1,seq_q=4", "kv_embed_dim is -1; it must be from 1 to 262144"},
        {"embed_dim=8,v_embed_dim=-1,seq_q=4", "v_embed_dim is -1; it must be from 0 to 262144"},
        {"embed_dim=8,out_dim=-1,seq_q=4", "out_dim is -1; it must be from 1 to 262144"},
        {"embed_dim=8,low_rank=-1,seq_q=4", "low_rank is -1; it must be from 0 to 262144"},
        {"embed_dim=8,low_rank=2,seq_q=262145", "low_rank is 2 and seq_kv 262145; keys_low has at most 262144 columns"},
        {"embed_dim=8,num_heads=0,seq_q=4", "num_heads is 0; it must be from 1"},
        {"embed_dim=8,num_heads=-4,seq_q=4", "num_heads is -4; it must be from 1"},
        {"embed_dim=8", "seq_q is not given, or 0; it must be from 1"},
        {"embed_dim=700,num_heads=12,seq_q=4", "num_heads is 12, which does not divide embed_dim = 700: set head_dim"},
        {"embed_dim=16384,num_heads=1,seq_q=4", "head_dim is 16384; it must be from 1 to 8192"},
        {"embed_dim=768,num_heads=12,num_kv_heads=5,seq_q=4",
         "num_kv_heads is 5, which does not divide num_heads = 12"},
        {"embed_dim=8,num_heads=100,head_dim=4096,seq_q=4",
         "num_heads = 100 times head_dim = 4096 are 409600 columns; a projection has at most 262144"},
        {"embed_dim=8,num_heads=100,head_dim=4,head_dim_v=4096,seq_q=4",
         "num_heads = 100 times head_dim_v = 4096 are 409600 columns"},
        {"embed_dim=8,num_heads=2147483647,head_dim=8192,seq_q=4", "are 17592186036224 columns"},
        {"embed_dim=8,seq_q=4,x_strides=0:-8:1", "x_strides[1] is -8; it must be from 0"},
        {"embed_dim=8,kv_embed_dim=6,seq_q=4,x_kv_strides=0:6:-1", "x_kv_strides[2] is -1"},
        {"embed_dim=8,seq_q=4,out_strides=32:7:1",
         "out_strides make two elements of the output coincide: 1x4x8 with strides 32:7:1"},
        {"batch=2147483647,embed_dim=262144,head_dim=1,seq_q=2147483647", "too many elements"},
    };
    assert_problems_refused(cases, sizeof cases / sizeof *cases);
}

static void test_contradictions(void **state) {
    (void)state;
    static const refusal cases[] = {
        {"op=weights,embed_dim=8,seq_q=4,head_dim=4", "embed_dim is 8, but op=weights has no projections"},
        {"op=rotary,embed_dim=8,seq_q=4,head_dim=4,rotary_dim=4", "embed_dim is 8, but op=rotary has no projections"},
        {"op=merge,embed_dim=8,seq_q=4,head_dim=4,num_parts=2", "embed_dim is 8, but op=merge has no projections"},
        {"embed_dim=8,seq_q=4,seq_kv=5",
         "seq_kv is 5, but without is_cross, seq_new and kv_projected the keys are those of x, and seq_q is 4"},
        {"embed_dim=8,seq_q=4,seq_kv=dynamic", "seq_kv is dynamic, but without is_cross"},
        {"embed_dim=8,seq_q=dynamic,seq_kv=5", "the keys are those of x, and seq_q is dynamic"},
        {"embed_dim=8,seq_q=4,seq_kv=9,seq_new=3",
         "seq_new is 3, but without is_cross the new keys are those of x, and seq_q is 4"},
        {"embed_dim=8,seq_q=4,seq_kv=9,seq_new=dynamic", "seq_new is dynamic, but without is_cross the new keys"},
        {"embed_dim=8,seq_q=4,seq_new=4,kv_projected=1",
         "seq_new is 4, but with kv_projected all keys are in k already"},
        {"embed_dim=8,seq_q=4,page_size=16,has_kv_lens=1", "page_size is 16, but pages are of caches"},
        {"embed_dim=8,kv_embed_dim=6,seq_q=4,seq_kv=9,page_size=16", "and the block has none without seq_new or"},
        {"embed_dim=8,seq_q=4,v_in_k=1,v_embed_dim=5", "v_in_k takes v from k, but v_embed_dim is 5"},
        {"embed_dim=8,num_heads=2,seq_q=4,no_out_projection=1,out_dim=7",
         "out_dim is 7, but with no_out_projection the output has num_heads * head_dim_v = 8 columns"},
        {"embed_dim=8,seq_q=4,w_dtype=f64,softmax_precision=f32", "softmax_precision is f32, but w_dtype is f64"},
        {"embed_dim=8,seq_q=4,has_row_ids=1,num_rows=2,weights_mode=softmax", "they need op=weights"},
        {"embed_dim=8,kv_embed_dim=6,seq_q=4,seq_kv=5,rotary_dim=4,has_position_ids=1",
         "of all keys alike, but seq_q is 4 and seq_kv 5"},
        {"embed_dim=8,is_ragged=1,weights_mode=softmax", "weights are for batches of equal lengths"},
        {"embed_dim=8,seq_q=9,max_seq_kv=8", "seq_kv is 9, more than max_seq_kv = 8"},
    };
    assert_problems_refused(cases, sizeof cases / sizeof *cases);
}

static void test_low_rank_refused(void **state) {
    (void)state;
    static const refusal cases[] = {
        {"embed_dim=8,seq_q=4,low_rank=2,is_causal=1",
         "low_rank is 2, and such keys are mixtures that have no order: is_causal cannot be 1"},
        {"embed_dim=8,seq_q=4,low_rank=2,window_left=3", "window_left cannot be 3"},
        {"embed_dim=8,seq_q=4,low_rank=2,window_right=0", "window_right cannot be 0"},
        {"embed_dim=8,seq_q=4,low_rank=2,has_alibi_slopes=1", "has_alibi_slopes cannot be 1"},
        {"embed_dim=8,seq_q=4,low_rank=2,has_kv_lens=1", "has_kv_lens cannot be 1"},
        {"embed_dim=8,low_rank=2,is_ragged=1", "is_ragged cannot be 1"},
        {"embed_dim=8,seq_q=4,low_rank=2,rotary_dim=4", "rotary_dim cannot be 4"},
        {"embed_dim=8,seq_q=4,low_rank=2,qk_norm_eps=1e-6", "keys that are mixtures are not normalised"},
        {"embed_dim=8,seq_q=4,low_rank=2,qk_hadamard=1", "keys that are mixtures are not rotated"},
        {"embed_dim=8,seq_q=4,low_rank=2,seq_new=4", "seq_new cannot be 4"},
        {"embed_dim=8,seq_q=4,low_rank=2,kv_projected=1", "kv_projected cannot be 1"},
        {"embed_dim=8,seq_q=4,low_rank=2,attn_mask_dims=qk", "attn_mask_dims cannot be set"},
        {"embed_dim=8,seq_q=4,low_rank=2,attn_bias_dims=qk", "attn_bias_dims cannot be set"},
        {"embed_dim=8,seq_q=dynamic,low_rank=2", "low_rank is 2, but seq_kv is dynamic: keys_low has a column"},
        {"embed_dim=8,seq_q=4,low_rank=2,v_in_k=1", "low_rank is 2 and v_in_k is 1"},
    };
    assert_problems_refused(cases, sizeof cases / sizeof *cases);
}

/* Values that no text can say. */
static void test_choices(void **state) {
    (void)state;
    static const wrong_value cases[] = {
        {offsetof(attune_problem, w_dtype), ATTUNE_DTYPE_COUNT, "w_dtype is 10, which is no attune_dtype"},
        {offsetof(attune_problem, w_dtype), ATTUNE_F8, "w_dtype is f8; it must be f32, f16, bf16, f64, i8 or i4"},
        {offsetof(attune_problem, w_dtype), ATTUNE_I32, "w_dtype is i32; it must be f32, f16, bf16, f64, i8 or i4"},
        {offsetof(attune_problem, softmax_precision), ATTUNE_F16, "softmax_precision is f16; it must be f32 or f64"},
        {offsetof(attune_problem, softmax_precision), ATTUNE_BF16, "softmax_precision is bf16; it must be f32 or f64"},
        {offsetof(attune_problem, is_cross), 2, "is_cross is 2; it must be 0 or 1"},
        {offsetof(attune_problem, kv_projected), -1, "kv_projected is -1; it must be 0 or 1"},
        {offsetof(attune_problem, no_out_projection), 2, "no_out_projection is 2"},
        {offsetof(attune_problem, low_rank_heads), 2, "low_rank_heads is 2"},
        {offsetof(attune_problem, low_rank_shared), 2, "low_rank_shared is 2"},
    };
    assert_values_refused("embed_dim=8,seq_q=4", cases, sizeof cases / sizeof *cases);
}

/* ---- the canonical form ---- */

static void test_defaults(void **state) {
    (void)state;
    const attune_problem p = problem_canonical("embed_dim=12,num_heads=3,num_kv_heads=1,seq_q=5,dtype=bf16");
    assert_int_equal(p.head_dim, 4);
    assert_int_equal(p.head_dim_v, 4);
    assert_int_equal(p.kv_embed_dim, 12);
    assert_int_equal(p.v_embed_dim, 0);
    assert_int_equal(p.out_dim, 12);
    assert_int_equal(p.w_dtype, ATTUNE_BF16);
    assert_int_equal(p.is_cross, 0);
    assert_memory_equal(p.x_strides, ((int64_t[]){60, 12, 1}), sizeof p.x_strides);
    assert_memory_equal(p.out_strides, ((int64_t[]){60, 12, 1, 0}), sizeof p.out_strides);
    /* Heads of the full width, and heads side by side in the output. */
    const attune_problem wide = problem_canonical("embed_dim=6,num_heads=4,head_dim=6,seq_q=5,seq_kv=9,kv_embed_dim=3,"
                                                  "no_out_projection=1,head_dim_v=2,w_dtype=f64");
    assert_int_equal(wide.out_dim, 8);
    assert_int_equal(wide.is_cross, 1);
    assert_int_equal(wide.softmax_precision, ATTUNE_F64);
    assert_memory_equal(wide.out_strides, ((int64_t[]){40, 2, 8, 1}), sizeof wide.out_strides);
    assert_memory_equal(wide.x_kv_strides, ((int64_t[]){27, 3, 1}), sizeof wide.x_kv_strides);
}

/* Two texts for one canonical problem. */
static void test_same_problem(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"embed_dim=8,num_heads=2,seq_q=4",
         "op=mha,embed_dim=8,kv_embed_dim=8,out_dim=8,num_heads=2,head_dim=4,seq_q=4,seq_kv=4,dtype=f32,w_dtype=f32"},
        {"embed_dim=8,kv_embed_dim=6,seq_q=4,seq_kv=5", "embed_dim=8,kv_embed_dim=6,is_cross=1,seq_q=4,seq_kv=5"},
        /* Strides of tensors that are not there. */
        {"embed_dim=8,seq_q=4", "embed_dim=8,seq_q=4,q_strides=9:9:9:1,k_strides=9:9:9:1,v_strides=9:9:9:1,"
                                "k_new_strides=9:9:9:1,v_new_strides=9:9:9:1,x_kv_strides=9:9:1,x_v_strides=9:9:1"},
        {"embed_dim=8,seq_q=4,seq_kv=9,seq_new=4",
         "embed_dim=8,seq_q=4,seq_kv=9,seq_new=4,q_strides=9:9:9:1,k_new_strides=9:9:9:1,v_new_strides=9:9:9:1"},
        /* Given keys need no projections. */
        {"embed_dim=8,seq_q=4,seq_kv=9,kv_projected=1",
         "embed_dim=8,seq_q=4,seq_kv=9,kv_projected=1,is_cross=1,kv_embed_dim=5,v_embed_dim=3,x_kv_strides=9:9:1"},
        /* Keys and values outside a cache have no type of their own, except with reproducible. */
        {"embed_dim=8,seq_q=4", "embed_dim=8,seq_q=4,k_dtype=f16,v_dtype=f64"},
        {"embed_dim=8,seq_q=4,no_out_projection=1", "embed_dim=8,seq_q=4,no_out_projection=1,out_dim=8"},
        /* Keys that are those of x are as many as its rows, and have their bounds. */
        {"embed_dim=8,seq_q=dynamic,max_seq_q=9", "embed_dim=8,seq_q=dynamic,seq_kv=dynamic,max_seq_kv=9"},
        {"embed_dim=8,seq_q=dynamic,max_seq_q=9,max_seq_kv=7", "embed_dim=8,seq_q=dynamic,max_seq_kv=7"},
        {"embed_dim=8,is_ragged=1,seq_q=9,seq_kv=7", "embed_dim=8,is_ragged=1,max_seq_q=7"},
        {"embed_dim=8,is_ragged=1,seq_new=1", "embed_dim=8,is_ragged=1,seq_new=dynamic"},
        {"embed_dim=8,seq_q=dynamic,is_causal=1", "embed_dim=8,seq_q=dynamic,is_causal=1,causal_align=top_left"},
        {"embed_dim=8,is_ragged=1,is_causal=1", "embed_dim=8,is_ragged=1,is_causal=1,causal_align=top_left"},
        {"embed_dim=8,seq_q=4,attn_mask_dims=qk", "embed_dim=8,seq_q=4,attn_mask_dims=4:4"},
        {"embed_dim=8,seq_q=4,low_rank=2", "embed_dim=8,seq_q=4,low_rank=2,global_tokens=3,causal_offset=5"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const attune_problem a = problem_canonical(pairs[i][0]), b = problem_canonical(pairs[i][1]);
        if (!memcmp(&a, &b, sizeof a)) continue;
        char x[1024], y[1024];
        mha_problem_print(&a, x, sizeof x);
        mha_problem_print(&b, y, sizeof y);
        fail_msg("%s is not %s", x, y);
    }
}

/* Combinations that resemble such a pair, but are none. */
static void test_other_problem(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"embed_dim=8,seq_q=4,reproducible=1", "embed_dim=8,seq_q=4,reproducible=1,k_dtype=f16"},
        {"embed_dim=8,seq_q=4,seq_new=4,seq_kv=9", "embed_dim=8,seq_q=4,seq_new=4,seq_kv=9,v_dtype=f16"},
        {"embed_dim=8,seq_q=4,has_kv_lens=1,is_causal=1",
         "embed_dim=8,seq_q=4,has_kv_lens=1,is_causal=1,causal_align=top_left"},
        {"embed_dim=8,seq_q=4", "embed_dim=8,seq_q=4,is_cross=1"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const attune_problem a = problem_canonical(pairs[i][0]), b = problem_canonical(pairs[i][1]);
        if (!memcmp(&a, &b, sizeof a)) fail_msg("%s is %s", pairs[i][0], pairs[i][1]);
    }
}

/* ---- the key ---- */

static void test_key(void **state) {
    (void)state;
    static const char *const texts[] = {
        "head_dim=8,seq_q=4",
        "embed_dim=8,seq_q=4",
        "embed_dim=9,head_dim=8,seq_q=4",
        "embed_dim=8,seq_q=4,num_heads=2,head_dim=8",
        "embed_dim=8,seq_q=4,num_heads=4,head_dim=8",
        "embed_dim=8,seq_q=4,num_heads=4,num_kv_heads=2,head_dim=8",
        "embed_dim=8,seq_q=4,is_cross=1",
        "embed_dim=8,seq_q=4,kv_embed_dim=6",
        "embed_dim=8,seq_q=4,v_embed_dim=6",
        "embed_dim=8,seq_q=4,v_embed_dim=8",
        "embed_dim=8,seq_q=4,out_dim=6",
        "embed_dim=8,seq_q=4,no_out_projection=1",
        "embed_dim=8,seq_q=4,seq_kv=8,seq_new=4",
        "embed_dim=8,seq_q=4,seq_kv=8,kv_projected=1",
        "embed_dim=8,seq_q=4,low_rank=2",
        "embed_dim=8,seq_q=4,low_rank=3",
        "embed_dim=8,seq_q=4,low_rank=2,low_rank_heads=1",
        "embed_dim=8,seq_q=4,low_rank=2,low_rank_shared=1",
        "embed_dim=8,seq_q=4,w_dtype=bf16",
        "embed_dim=8,seq_q=4,x_strides=0:16:2",
        "embed_dim=8,seq_q=4,out_strides=0:16:2",
        "embed_dim=8,seq_q=4,is_cross=1,x_kv_strides=0:16:2",
        "embed_dim=8,seq_q=4,v_embed_dim=6,x_v_strides=0:16:2",
    };
    enum { COUNT = sizeof texts / sizeof *texts };
    for (int i = 0; i < COUNT; i++)
        for (int j = 0; j < i; j++)
            if (problems_share_key(texts[i], texts[j])) fail_msg("%s has the key of %s", texts[i], texts[j]);
    assert_true(problems_share_key("embed_dim=8,seq_q=40",
                                   "batch=3,embed_dim=8,seq_q=40,x_strides=99:9:1,out_strides=999:9:1"));
    /* Schedules for few rows are for as many as there are, those of all batch entries counted. */
    assert_true(problems_share_key("embed_dim=8,seq_q=4", "embed_dim=8,seq_q=4,x_strides=99:9:1"));
    assert_false(problems_share_key("embed_dim=8,seq_q=4", "batch=2,embed_dim=8,seq_q=4"));
    assert_false(
        problems_share_key("embed_dim=8,seq_q=1,seq_new=1,seq_kv=9", "batch=8,embed_dim=8,seq_q=1,seq_new=1,seq_kv=9"));
}

/* ---- work ---- */

static void test_flops(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double flops;
    } cases[] = {
        {"embed_dim=768,num_heads=12,seq_q=512", 8.0 * 512 * 768 * 768 + 4.0 * 512 * 512 * 768},
        {"batch=3,embed_dim=8,out_dim=5,num_heads=4,num_kv_heads=2,seq_q=7,head_dim=3,head_dim_v=6,is_causal=1",
         2.0 * 3 * 7 * (8 * 12 + 8 * 6 + 8 * 12 + 24 * 5) + 2.0 * 3 * 4 * 9 * 28},
        {"batch=2,embed_dim=8,kv_embed_dim=6,v_embed_dim=5,num_heads=2,seq_q=3,seq_kv=7",
         2.0 * 2 * (3 * 8 * 8 + 7 * (6 * 8 + 5 * 8) + 3 * 8 * 8) + 2.0 * 2 * 2 * 8 * 3 * 7},
        {"embed_dim=8,seq_q=3,seq_kv=7,seq_new=3,v_in_k=1,no_out_projection=1",
         2.0 * 3 * (8 * 8 + 8 * 8) + 2.0 * 16 * 3 * 7},
        {"embed_dim=8,seq_q=3,seq_kv=7,kv_projected=1", 2.0 * 3 * (8 * 8 + 8 * 8) + 2.0 * 16 * 3 * 7},
        {"embed_dim=8,num_heads=2,seq_q=6,low_rank=2", 2.0 * 6 * 4 * 8 * 8 + 2.0 * 2 * 6 * 16 + 2.0 * 2 * 8 * 6 * 2},
        {"embed_dim=8,seq_q=dynamic", 0},
        {"embed_dim=8,is_ragged=1,batch=3", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const attune_problem p = problem_canonical(cases[i].text);
        if (mha_problem_flops(&p) != cases[i].flops)
            fail_msg("%s: %.17g, not %.17g", cases[i].text, mha_problem_flops(&p), cases[i].flops);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_round_trip),
        cmocka_unit_test(test_text_of_what_is_refused),
        cmocka_unit_test(test_text_refused),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_contradictions),
        cmocka_unit_test(test_low_rank_refused),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_same_problem),
        cmocka_unit_test(test_other_problem),
        cmocka_unit_test(test_key),
        cmocka_unit_test(test_flops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
