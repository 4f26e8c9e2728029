/* Problems: text, refusals, defaults. Positions: test_positions.c. */
#include "problem/problem_fields.h"
#include "support/problems.h"
#include "support/ir/random_ir.h"
#include "support/temp_dir.h"

#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_text_round_trip(void **state) {
    (void)state;
    static const char *const texts[] = {
        "num_heads=12,seq_q=512,seq_kv=512,head_dim=64",
        "batch=3,num_heads=8,num_kv_heads=2,seq_q=5,seq_kv=7,head_dim=3,head_dim_v=11,has_lse=1",
        "num_heads=1,seq_q=5,seq_kv=9,head_dim=3,softmax_scale=0.25,is_causal=1,causal_offset=-2",
        "num_heads=1,seq_q=5,seq_kv=9,head_dim=3,softmax_scale=dynamic,is_causal=1",
        "embed_dim=16,num_heads=2,seq_q=4,seq_kv=4,head_dim=8,softmax_scale=dynamic",
        "num_heads=2,seq_q=4,seq_kv=4,head_dim=8,q_strides=64:8:16:1",
        "num_heads=2,seq_q=dynamic,seq_kv=dynamic,head_dim=8,max_seq_q=64,max_seq_kv=4096,attn_mask_dims=qk",
        "num_heads=2,seq_q=4,seq_kv=6,head_dim=8,k_dtype=f16,softmax_precision=f64,logits_soft_cap=30,window_left=2,"
        "global_tokens=1,has_sinks=1,has_kv_lens=1,attn_mask_dims=hk,attn_bias_dims=1:1:1:1",
        "num_heads=1,seq_q=4,seq_kv=6,head_dim=8,dtype=f64,short_masks=1,attn_mask_dims=1:1:1:3,attn_bias_dims=k",
        "num_heads=1,seq_q=4,seq_kv=6,head_dim=8,dtype=bf16,k_dtype=f16,v_dtype=f32,attn_bias_dims=k",
        "num_heads=1,seq_q=4,seq_kv=6,head_dim=8,k_dtype=bf16,v_dtype=bf16,bias_dtype=bf16,attn_bias_dims=k",
        "num_heads=1,seq_q=dynamic,seq_kv=dynamic,head_dim=8,short_masks=1,attn_bias_dims=1:1:1:7",
        "num_heads=2,seq_q=dynamic,seq_kv=dynamic,head_dim=8,is_ragged=1,page_size=16,seq_new=dynamic,rotary_dim=4,"
        "rotary_interleaved=1,has_position_ids=1",
        "batch=2,num_heads=2,seq_q=4,seq_kv=6,head_dim=8,weights_mode=masked,weights_average=1,reproducible=1",
        "op=weights,batch=2,num_heads=2,seq_q=4,seq_kv=6,head_dim=8,has_row_ids=1,num_rows=dynamic",
        "num_heads=1,seq_q=4,seq_kv=6,head_dim=8,k_dtype=i8,v_dtype=f8,k_scales=token,v_scales=head",
        "num_heads=1,seq_q=4,seq_kv=6,head_dim=8,k_dtype=i8,v_dtype=i8,k_scales=token,k_scale_strides=8:8:1",
        "num_heads=1,seq_q=4,seq_kv=6,head_dim=64,k_dtype=i4,v_dtype=i4,k_group=64,k_group_strides=16:8:1:1",
        "num_heads=1,seq_q=4,seq_kv=6,head_dim=64,k_dtype=i8,v_dtype=i4,k_scales=inline,v_scales=channel",
        "num_heads=1,seq_q=4,seq_kv=6,head_dim=64,k_dtype=i4,v_dtype=i4,k_scales=token_min,v_scales=group_min,"
        "v_group=64,v_group_strides=24:24:4:1",
        "op=rotary,num_heads=2,seq_q=4,seq_kv=4,head_dim=8,causal_offset=3,rotary_dim=8",
        "op=merge,num_heads=2,seq_q=4,seq_kv=4,head_dim=8,has_lse=1,num_parts=3",
        "num_heads=1,seq_q=4,seq_kv=6,head_dim=8,softmax_scale=0.1,qk_norm_eps=1e-06",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const attune_problem problem = problem_parsed(texts[i]);
        char text[512];
        assert_int_equal(mha_problem_print(&problem, text, sizeof text), strlen(texts[i]));
        assert_string_equal(text, texts[i]);
    }
}

/* A program that has set its user's locale must neither read nor write "0,25". */
static void test_text_in_another_locale(void **state) {
    (void)state;
    char dir[TEMP_DIR_CHARS], command[TEMP_DIR_CHARS + 128], text[512];
    static const char expected[] = "num_heads=1,seq_q=5,seq_kv=9,head_dim=3,softmax_scale=0.25";
    temp_dir_make(dir);
    snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 '%s/de_DE.UTF-8' >/dev/null 2>&1", dir);
    const int made = system(command); /* warnings count as failures, so only the result is asked */
    setenv("LOCPATH", dir, 1);
    const bool comma = made >= 0 && setlocale(LC_ALL, "de_DE.UTF-8") && localeconv()->decimal_point[0] == ',';
    unsetenv("LOCPATH");
    temp_dir_remove_all(dir);
    if (!comma) skip();
    const attune_problem problem = problem_parsed("seq_q=5,seq_kv=9,head_dim=3,softmax_scale=0.25");
    mha_problem_print(&problem, text, sizeof text);
    setlocale(LC_ALL, "C");
    assert_true(problem.softmax_scale == 0.25);
    assert_string_equal(text, expected);
}

static void test_print_truncates(void **state) {
    (void)state;
    const attune_problem problem = problem_parsed("num_heads=12,seq_q=512,head_dim=64");
    char text[8] = "xxxxxxx";
    const size_t needed = mha_problem_print(&problem, NULL, 0);
    assert_int_equal(mha_problem_print(&problem, text, sizeof text), needed);
    assert_string_equal(text, "num_hea");
}

static void test_text_refused(void **state) {
    (void)state;
    static const refusal cases[] = {
        {"heads=12", "'heads' is not a field of a problem"},
        {"seq_q", "'seq_q' is not of the form key=value"},
        {"=3", "'=3' is not of the form key=value"},
        {"seq_q=3,,seq_kv=4", "'' is not of the form key=value"},
        {"seq_q=3, ", "'' is not of the form key=value; nothing follows the last comma"},
        {"seq_q=12x", "seq_q is '12x', which is not an integer"},
        {"seq_q=", "seq_q is '', which is not an integer"},
        {"seq_q=1 3", "seq_q is '1 3', which is not an integer"},
        {" ,seq_q=3", "'' is not of the form key=value"},
        {"  = 3", "'= 3' is not of the form key=value"},
        {"seq_q=3 , seq_q =4", "'seq_q' is given twice"},
        {"seq_q=3 seq_kv=4", "seq_q is '3 seq_kv=4', which has a '=' in it; commas separate pairs"},
        {"seq_q=99999999999999999999", "seq_q is '99999999999999999999', which is not an integer of 64 bits"},
        {"seq_q=3,seq_q=4", "'seq_q' is given twice"},
        {"softmax_scale=abc", "softmax_scale is 'abc', which is not a number"},
        {"softmax_scale=nan", "softmax_scale is 'nan'; it must be a number, 'default' or 'dynamic'"},
        {"is_causal=2", "is_causal is '2'; it must be 0 or 1"},
        {"causal_align=left", "causal_align is 'left'; it must be bottom_right or top_left"},
        {"dtype=f8", "dtype is 'f8'; it must be f32, f16, bf16 or f64"},
        {"k_dtype=u8", "k_dtype is 'u8'; it must be f32, f16, bf16, f64, i8, f8 or i4"},
        {"kv_dtype=int8", "kv_dtype is 'int8'; it must be f32, f16, bf16, f64, i8, f8 or i4"},
        {"kv_dtype=i8,v_dtype=f16", "'v_dtype' gives v_dtype, which is given already"},
        {"k_scales=head,kv_scales=token", "'kv_scales' gives k_scales, which is given already"},
        {"v_scales=row", "v_scales is 'row'; it must be none, head, token, group, channel, inline, inline_min, "
                         "token_min, group_min or channel_min"},
        {"softmax_precision=f16", "softmax_precision is 'f16'; it must be f32 or f64"},
        {"softmax_precision=bf16", "softmax_precision is 'bf16'; it must be f32 or f64"},
        {"layout=sbhd", "layout is 'sbhd'; it must be bhsd or bshd"},
        {"q_strides=1:2:3", "q_strides is '1:2:3'; it must be 4 strides separated by ':'"},
        {"q_strides=1:2:3:4:5", "it must be 4 strides"},
        {"q_strides=1:2:dynamic:4", "q_strides is 'dynamic', which is not an integer"},
        {"op=attend", "op is 'attend'; it must be attention, weights, rotary, merge or mha"},
        {"weights_mode=all", "weights_mode is 'all'; it must be none, scaled, capped, masked or softmax"},
        {"batch=dynamic", "batch is 'dynamic', which is not an integer"},
        {"seq_q=dynamo", "seq_q is 'dynamo', which is not an integer"},
        {"logits_soft_cap=default", "logits_soft_cap is 'default', which is not a number"},
        {"attn_mask_dims=kq", "attn_mask_dims is 'kq'; it must be the letters"},
        {"attn_mask_dims=1:1:1:1:1", "attn_mask_dims is '1:1:1:1:1'; it must be at most 4 dims separated by ':'"},
        {"seq_q=dynamic,head_dim=4,layout=bshd", "layout=bshd needs sizes that are known"},
        {"is_ragged=1,head_dim=4,layout=bhsd", "layout=bhsd needs sizes that are known"},
    };
    assert_texts_refused(cases, sizeof cases / sizeof *cases);
}

/* The same problem, as people write it. */
static void test_text_is_lenient(void **state) {
    (void)state;
    static const char *const texts[] = {
        "num_heads=2,seq_q=5,head_dim=4,is_causal=1,has_lse=0",
        "num_heads=2, seq_q=5, head_dim=4, is_causal=true, has_lse=false",
        "  num_heads = 2 ,\tseq_q =5,\n  head_dim= 4,is_causal=1  \n",
        "num_heads=2,seq_q=5,head_dim=4,is_causal= true ,has_lse= false",
    };
    const attune_problem wanted = problem_parsed(texts[0]);
    for (size_t i = 1; i < sizeof texts / sizeof *texts; i++) {
        const attune_problem problem = problem_parsed(texts[i]);
        if (memcmp(&problem, &wanted, sizeof problem) != 0) fail_msg("'%s' is another problem", texts[i]);
    }
    const attune_problem initial = ATTUNE_PROBLEM_INIT, empty = problem_parsed(" \n");
    assert_memory_equal(&empty, &initial, sizeof empty);
}

static void test_did_you_mean(void **state) {
    (void)state;
    static const refusal cases[] = {
        {"causal=1", "'causal' is not a field of a problem; did you mean is_causal?"},
        {"num_head=12", "'num_head' is not a field of a problem; did you mean num_heads?"},
        {"Heads=12", "; did you mean num_heads?"},
        {"NUM_HEADS=12", "; did you mean num_heads?"},
        {"hidden_size=8", "; did you mean embed_dim?"},
        {"sm_scale=1", "; did you mean softmax_scale?"},
        {"is_kv_lens=1", "; did you mean has_kv_lens?"},
        {"has_cross=1", "; did you mean is_cross?"},
        {"has_softmax_scale=1", "; did you mean softmax_scale?"},
        {"cache_seqlens=1", "; did you mean has_kv_lens?"},
        {"cu_seqlens_q=1", "; did you mean is_ragged?"},
        {"softmax_lse=1", "; did you mean has_lse?"},
        {"block_table=1", "; did you mean page_size?"},
        {"key_padding_mask=1", "; did you mean attn_mask_dims?"},
        {"seq_vk=4", "; did you mean seq_kv?"},
        {"layuot=bshd", "; did you mean layout?"},
        {"kv_dtypes=i8", "; did you mean kv_dtype?"},
        {"xyzzy=1", "'xyzzy' is not a field of a problem; the names are those of attune_problem"},
        {"qk=1", "'qk' is not a field of a problem; the names"},
        {"dtype=fp16", "dtype is 'fp16'; it must be f32, f16, bf16 or f64; did you mean f16?"},
        {"dtype=float32", "; did you mean f32?"},
        {"dtype=bfloat16", "; did you mean bf16?"},
        {"dtype=BF16", "; did you mean bf16?"},
        {"kv_dtype=int8", "it must be f32, f16, bf16, f64, i8, f8 or i4; did you mean i8?"},
        {"kv_dtype=float8_e4m3fn", "; did you mean f8?"},
        {"is_causal=yes", "is_causal is 'yes'; it must be 0 or 1, false or true; did you mean true?"},
        {"is_causal=False", "; did you mean false?"},
        {"causal_align=bottomright", "; did you mean bottom_right?"},
        {"op=atention", "; did you mean attention?"},
        {"layout=nhd", "layout is 'nhd'; it must be bhsd or bshd; did you mean bshd?"},
        {"seq_q=dynamik", "seq_q is 'dynamik', which is not an integer; did you mean dynamic?"},
        {"attn_mask_dims=qkv",
         "attn_mask_dims is 'qkv'; it must be the letters of the dims that are not 1, of b, h, q and k in this"
         " order (qk, bqk, k), or the dims (1:1:512:512)"},
        {"attn_mask_dims=dog", "attn_mask_dims is 'dog'; it must be the letters"},
        {"attn_bias_dims=kq", "attn_bias_dims is 'kq'; it must be the letters"},
        {"attn_bias_dims=", "attn_bias_dims is ''; it must be the letters"},
        {"attn_mask_dims=1:q", "attn_mask_dims is 'q', which is not an integer"},
    };
    assert_texts_refused(cases, sizeof cases / sizeof *cases);
    /* A type that the field cannot have is not suggested. */
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    at_error err = {0};
    assert_int_equal(mha_problem_parse("dtype=int8", &problem, &err), ATTUNE_INVALID_PROBLEM);
    assert_null(strstr(err.message, "did you mean"));
}

/* A field has one name: that of the struct's member. Others are refused, and the message has the right one. */
static void test_names_of_members(void **state) {
    (void)state;
    static const char members[] = "num_heads=2,seq_q=4,seq_kv=4,head_dim=8,has_lse=1,has_alibi_slopes=1,has_sinks=1,"
                                  "has_kv_lens=1,attn_mask_dims=qk,weights_mode=softmax";
    const attune_problem problem = problem_parsed(members);
    char printed[256];
    mha_problem_print(&problem, printed, sizeof printed);
    assert_string_equal(printed, members);
    static const refusal cases[] = {
        {"attn_mask=qk", "'attn_mask' is not a field of a problem; did you mean attn_mask_dims?"},
        {"attn_bias=qk", "'attn_bias' is not a field of a problem; did you mean attn_bias_dims?"},
        {"weights=softmax", "'weights' is not a field of a problem; did you mean weights_mode?"},
        {"tensor=\"x:f32[h]\"", "'tensor' is not a field of a problem; did you mean tensors?"},
        {"has_lse=2", "has_lse is '2'; it must be 0 or 1"},
        {"qk_hadamard=2", "qk_hadamard is '2'; it must be 0 or 1"},
    };
    assert_texts_refused(cases, sizeof cases / sizeof *cases);
    int flags = 0;
    for (int i = 0; i < MHA_NUM_FIELDS; i++) {
        const char *const name = mha_fields[i].name;
        const size_t prefix = !strncmp(name, "is_", 3) ? 3 : !strncmp(name, "has_", 4) ? 4 : 0;
        char text[64], message[128];
        if (!prefix) continue;
        snprintf(text, sizeof text, "%s=1", name + prefix);
        snprintf(message, sizeof message, "'%s' is not a field of a problem; did you mean %s?", name + prefix, name);
        assert_texts_refused(&(refusal){text, message}, 1);
        flags++;
    }
    assert_true(flags > 10);
}

static void test_ranges(void **state) {
    (void)state;
    static const refusal cases[] = {
        {"seq_q=0,head_dim=4", "seq_q is not given, or 0; it must be from 1"},
        {"seq_q=4", "head_dim is not given, or 0; it must be from 1"},
        {"seq_q=4,head_dim=8193", "head_dim is 8193; it must be from 1 to 8192"},
        {"seq_q=4,head_dim=4,seq_kv=-2", "seq_kv is -2; it must be from 1 to 2147483647, or dynamic"},
        {"seq_q=4,head_dim=4,batch=0", "batch is 0"},
        {"seq_q=4,head_dim=4,num_heads=3000000000", "num_heads is 3000000000"},
        {"seq_q=4,head_dim=4,num_heads=6,num_kv_heads=4", "num_kv_heads is 4, which does not divide num_heads = 6"},
        {"seq_q=4,head_dim=4,softmax_scale=inf", "softmax_scale is inf; it must be from -1e+38 to 1e+38"},
        {"seq_q=4,head_dim=4,is_causal=1,causal_offset=99999999999", "causal_offset is 99999999999"},
        {"batch=2147483647,num_heads=2147483647,seq_q=2147483647,head_dim=8", "q has too many elements"},
        {"seq_q=4,head_dim=4,q_strides=0:0:-4:1", "q_strides[2] is -4"},
        {"batch=1025,num_heads=8388608,seq_q=1,head_dim=1,q_strides=1099511627776:1099511627776:1:1", "q is too large"},
        {"seq_q=4,head_dim=4,out_strides=16:16:3:1",
         "out_strides make two elements of the output coincide: 1x1x4x4 with strides 16:16:3:1"},
        {"seq_q=4,head_dim=4,num_heads=2,has_lse=1,lse_strides=8:2:1", "lse_strides make two elements"},
        {"seq_q=-7,head_dim=4", "seq_q is -7; it must be from 1 to 2147483647, or dynamic"},
        {"seq_q=4,head_dim=4,logits_soft_cap=-1", "logits_soft_cap is -1; it must be 0, or from 1e-30 to 1e+38"},
        {"seq_q=4,head_dim=4,logits_soft_cap=inf", "logits_soft_cap is inf"},
        {"seq_q=4,head_dim=4,window_left=-2", "window_left is -2; it must be from -1"},
        {"seq_q=4,head_dim=4,window_right=-2", "window_right is -2; it must be from -1"},
        {"seq_q=4,head_dim=4,global_tokens=-1", "global_tokens is -1; it must be from 0"},
        {"seq_q=4,head_dim=4,page_size=-16", "page_size is -16; it must be from 0"},
        {"seq_q=4,head_dim=4,max_seq_q=-1", "max_seq_q is -1; it must be from 0"},
        {"seq_q=4,head_dim=4,max_seq_kv=-1", "max_seq_kv is -1; it must be from 0"},
        {"seq_q=4,head_dim=4,seq_new=-3", "seq_new is -3; it must be from 0"},
        {"is_ragged=1,head_dim=4,seq_new=-3", "seq_new is -3; it must be from 0"},
        {"seq_q=4,head_dim=4,rotary_dim=6", "rotary_dim is 6; it must be from 0 to 4"},
        {"seq_q=4,head_dim=4,rotary_dim=3", "rotary_dim is 3; it must be even"},
        {"op=rotary,seq_q=4,head_dim=4", "rotary_dim is not given, or 0; it must be from 2 to 4"},
        {"op=merge,seq_q=4,head_dim=4", "num_parts is not given, or 0; it must be from 1"},
        {"op=weights,has_row_ids=1,seq_q=4,head_dim=4", "num_rows is not given, or 0; it must be from 1"},
        {"seq_q=4,head_dim=4,is_causal=1,causal_align=bottom_right,seq_kv=9,causal_offset=2147483647",
         "causal_offset + seq_kv - seq_q is 2147483652"},
        {"seq_q=4,head_dim=4,seq_new=2,k_strides=0:0:1:1", "k_strides make two elements of the output coincide"},
        {"seq_q=dynamic,head_dim=4,q_strides=0:0:-4:1", "q_strides[2] is -4"},
        {"seq_q=4,head_dim=4,attn_mask_dims=qk,attn_mask_strides=0:0:-1:1", "attn_mask_strides[2] is -1"},
    };
    assert_problems_refused(cases, sizeof cases / sizeof *cases);
}

static void test_contradictions(void **state) {
    (void)state;
    static const refusal cases[] = {
        {"seq_q=4,head_dim=4,dtype=f64,softmax_precision=f32", "softmax_precision is f32, but dtype is f64"},
        {"seq_q=4,head_dim=4,k_dtype=f64,softmax_precision=f32", "softmax_precision is f32, but k_dtype is f64"},
        {"seq_q=4,head_dim=4,v_dtype=f64,softmax_precision=f32", "softmax_precision is f32, but v_dtype is f64"},
        {"seq_q=4,head_dim=4,attn_bias_dims=k,bias_dtype=f64,softmax_precision=f32", "but bias_dtype is f64"},
        {"seq_q=4,head_dim=4,page_size=16",
         "page_size is 16, but nothing says how many keys there are: set has_kv_lens, is_ragged or seq_kv"},
        {"seq_q=4,head_dim=4,max_seq_q=3", "seq_q is 4, more than max_seq_q = 3"},
        {"seq_q=4,seq_kv=9,head_dim=4,max_seq_kv=8", "seq_kv is 9, more than max_seq_kv = 8"},
        {"seq_q=4,seq_kv=9,head_dim=4,seq_new=10", "seq_new is 10, more than seq_kv = 9"},
        {"seq_q=4,seq_kv=dynamic,max_seq_kv=8,head_dim=4,seq_new=10", "seq_new is 10, more than max_seq_kv = 8"},
        {"seq_q=4,head_dim=4,has_position_ids=1", "rotary_dim is 0"},
        {"seq_q=4,seq_kv=5,head_dim=4,rotary_dim=4,has_position_ids=1",
         "of all keys alike, but seq_q is 4 and seq_kv 5"},
        {"seq_q=4,seq_kv=9,seq_new=2,head_dim=4,rotary_dim=4,has_position_ids=1", "seq_q is 4 and seq_new 2"},
        {"seq_q=4,head_dim=4,head_dim_v=5,v_in_k=1", "head_dim_v is 5 and head_dim 4"},
        {"seq_q=4,head_dim=4,v_in_k=1,v_dtype=f16", "v_dtype is f16 and k_dtype f32"},
        {"seq_q=4,head_dim=4,integer=all", "integer=all multiplies quantised i8 or i4, but k_dtype is f32"},
        {"seq_q=4,head_dim=4,k_dtype=f8,integer=scores", "takes k of i8, i4, f32, f16 or bf16, but k_dtype is f8"},
        {"seq_q=4,head_dim=4,integer=scores,q_planes=2", "integer=scores quantises k to one byte"},
        {"seq_q=4,head_dim=4,dtype=f64,integer=scores", "quantises k in f32, but softmax_precision is f64"},
        {"seq_q=4,head_dim=4,reproducible=1,integer=scores", "so no row can be reproducible"},
        {"seq_q=4,head_dim=1025,integer=scores", "head_dim is 1025; with integer=scores it must be at most 1024"},
        {"seq_q=4,head_dim=4,weights_mode=softmax,integer=scores", "leave out weights_mode or integer"},
        {"seq_q=4,head_dim=4,k_dtype=i8,integer=all", "integer=all multiplies quantised i8 or i4, but v_dtype is f32"},
        {"seq_q=4,head_dim=2048,k_dtype=i8,integer=scores",
         "head_dim is 2048; with integer=scores it must be at most 1024"},
        {"seq_q=4,head_dim=4,k_dtype=i8,rotary_dim=2,integer=scores", "but rotary_dim rotates it first"},
        {"seq_q=4,head_dim=4,k_dtype=i8,weights_mode=softmax,integer=scores", "leave out weights_mode or integer"},
        {"seq_q=4,head_dim=4,kv_scales=token", "k_scales is token, but k_dtype is f32, which is not quantised"},
        {"seq_q=4,head_dim=4,k_dtype=f8,v_scales=head", "v_scales is head, but v_dtype is f32, which is not quantised"},
        {"seq_q=4,head_dim=4,q_planes=2", "q_planes is 2, but integer is not set"},
        {"seq_q=4,head_dim=4,rotary_interleaved=1", "rotary_interleaved is 1, but rotary_dim is not set"},
        {"seq_q=4,head_dim=4,num_rows=3", "num_rows is 3, but has_row_ids is not set"},
        {"seq_q=4,head_dim=4,num_parts=3", "num_parts is 3, but it means nothing with op = attention"},
        {"embed_dim=8,seq_q=4,low_rank_heads=1", "low_rank_heads is 1, but low_rank is not set"},
        {"seq_q=4,head_dim=4,k_strides=0:0:576:0", "k_strides[3] is 0, but others are set"},
        {"seq_q=dynamic,head_dim=4,v_strides=0:0:576:0", "v_strides[3] is 0, but others are set"},
        {"seq_q=4,head_dim=4,kv_dtype=i8,k_scales=none",
         "k_dtype is i8, but k_scales is none; it must be head, token, group, channel or inline"},
        {"seq_q=4,head_dim=4,v_dtype=i8,v_scales=none", "v_dtype is i8, but v_scales is none"},
        {"seq_q=4,head_dim=4,v_in_k=1,k_dtype=i8,k_scales=token,v_scales=head", "but v_scales is not k_scales"},
        {"seq_q=4,head_dim=32,kv_dtype=i4,kv_scales=none",
         "k_dtype is i4, but k_scales is none; it must be head, token, group, channel or inline, or with a "
         "minimum: inline_min, token_min, group_min, channel_min"},
        {"seq_q=4,head_dim=48,kv_dtype=i4", "head_dim is 48; with k_dtype = i4 and k_scales = group it must be a "
                                            "multiple of 32"},
        {"seq_q=4,head_dim=20,kv_dtype=i4,kv_scales=token", "head_dim is 20; with k_dtype = i4"},
        {"seq_q=4,head_dim=64,head_dim_v=40,v_dtype=i8,v_scales=channel", "head_dim_v is 40; with v_dtype = i8"},
        {"seq_q=4,head_dim=64,kv_dtype=i4,kv_scales=token,kv_group=64",
         "k_group is 64, but only scales of groups have one: k_scales is token"},
        {"seq_q=4,head_dim=64,kv_dtype=i4,kv_group=48", "k_group is 48; it must be 32, 64 or 128"},
        {"seq_q=4,head_dim=64,kv_dtype=i4,kv_group=256", "k_group is 256; it must be from 0 to 128"},
        {"seq_q=4,head_dim=96,kv_dtype=i8,kv_scales=group,kv_group=64",
         "k_group is 64, which does not divide head_dim"},
        {"seq_q=4,head_dim=64,kv_dtype=f8,kv_scales=inline",
         "k_scales is inline, but k_dtype is f8; it must be i8 or i4"},
        {"seq_q=4,head_dim=64,kv_dtype=i4,k_strides=128:128:64:2",
         "k_strides[3] is 2; it must be 1, as rows of i4 are"},
        {"seq_q=4,head_dim=64,v_in_k=1,k_dtype=i4,k_group=32,v_group=64", "but v_group is not k_group"},
        {"seq_q=4,head_dim=64,kv_dtype=i8,kv_scales=inline,integer=scores",
         "integer=scores wants scales of heads, tokens or groups for k, but k_scales is inline"},
        {"seq_q=4,head_dim=64,kv_dtype=i4,kv_scales=channel,integer=scores", "but k_scales is channel"},
        {"seq_q=4,head_dim=64,kv_dtype=i4,kv_scales=group,integer=all",
         "integer=all wants scales of heads or tokens for v, but v_scales is group"},
        {"seq_q=4,head_dim=64,k_dtype=f8,v_dtype=i4,v_scales=token,integer=all", "but k_dtype is f8"},
        {"seq_q=4,head_dim=4,kv_dtype=i8,kv_scales=token,seq_new=2,k_scale_strides=4:4:0",
         "k_scale_strides make two elements of the output coincide"},
        {"seq_q=4,head_dim=32,kv_layout=panels,kv_dtype=f8",
         "k_layout is panels, but k_dtype is f8; it must be f32, bf16, i8 or i4"},
        {"seq_q=4,head_dim=32,kv_dtype=i4,kv_scales=token_min,seq_new=2,k_group_strides=8:8:1:1",
         "k_group_strides make two elements of the output coincide"},
        {"seq_q=4,head_dim=32,kv_layout=panels,kv_dtype=i4",
         "k_layout is panels, but k_scales is group; it must be head or token"},
        {"seq_q=4,head_dim=4,v_layout=panels,v_dtype=f16",
         "v_layout is panels, but v_dtype is f16; it must be f32, bf16, i8 or i4"},
        {"seq_q=4,head_dim=32,v_layout=panels,v_dtype=i8,v_scales=inline",
         "v_layout is panels, but v_scales is inline; it must be head or token"},
        {"seq_q=4,head_dim=32,k_layout=panels,k_dtype=i8,k_scales=group", "but k_scales is group; it must be head or"},
        {"seq_q=4,head_dim=6,k_layout=panels,k_dtype=i8",
         "k_layout is panels of i8, but head_dim is 6; it must be a multiple of 4"},
        {"seq_q=4,head_dim=5,dtype=bf16,k_layout=panels",
         "k_layout is panels of bf16, but head_dim is 5; it must be even"},
        {"seq_q=4,head_dim=4,k_layout=panels,k_strides=64:64:64:2",
         "k_strides[3] is 2; it must be 1 with k_layout=panels"},
        {"seq_q=4,head_dim=4,kv_layout=panels,v_in_k=1", "k_layout is panels, but v_in_k takes v from rows of k"},
        {"seq_q=4,seq_kv=8,head_dim=4,v_layout=panels,page_size=8",
         "page_size is 8; with v_layout=panels it must be a multiple of 16"},
        {"is_ragged=1,head_dim=4,kv_layout=panels",
         "k_layout is panels, but keys of a ragged batch begin anywhere in them: set page_size"},
        {"seq_q=4,head_dim=4,kv_layout=panels,rotary_dim=2",
         "k_layout is panels, but rotary_dim prepares all of k in this call: append prepared keys (seq_new)"},
        {"seq_q=4,head_dim=4,kv_layout=panels,qk_norm_eps=0.5", "but qk_norm_eps prepares all of k in this call"},
        {"embed_dim=8,seq_q=4,seq_new=4,kv_layout=panels",
         "k_layout is panels, but embed_dim is 8: a block has caches of rows"},
        {"embed_dim=8,seq_q=4,reproducible=1,k_dtype=i8", "k_dtype is i8, but only a cache is quantised"},
        {"embed_dim=8,seq_q=4,reproducible=1,v_dtype=f8", "v_dtype is f8, but only a cache is quantised"},
        {"seq_q=4,head_dim=4,v_in_k=1,rotary_dim=2", "v_in_k and rotary_dim = 2 do not go together"},
        {"seq_q=4,head_dim=4,v_in_k=1,qk_norm_eps=0.5", "v_in_k and qk_norm_eps = 0.5 do not go together"},
        {"seq_q=4,head_dim=32,kv_dtype=i8,kv_scales=inline_min",
         "k_scales is inline_min, but k_dtype is i8; it must be i4"},
        {"seq_q=4,head_dim=32,kv_dtype=f8,v_scales=group_min",
         "v_scales is group_min, but v_dtype is f8; it must be i4"},
        {"seq_q=4,head_dim=64,kv_dtype=i4,kv_scales=token_min,kv_group=64",
         "k_group is 64, but only scales of groups have one: k_scales is token_min"},
        {"seq_q=4,head_dim=64,kv_dtype=i4,kv_scales=channel_min,integer=scores",
         "integer=scores wants scales of heads, tokens or groups for k, but k_scales is channel_min"},
        {"seq_q=4,head_dim=64,kv_dtype=i4,kv_scales=token_min,integer=all",
         "integer=all wants scales of heads or tokens for v, but v_scales is token_min"},
        {"seq_q=4,head_dim=4,kv_layout=panels,qk_hadamard=1", "but qk_hadamard prepares all of k in this call"},
        {"seq_q=4,head_dim=4,v_in_k=1,qk_hadamard=1", "v_in_k and qk_hadamard = 1 do not go together"},
        {"seq_q=4,head_dim=12,qk_hadamard=1", "head_dim is 12; with qk_hadamard=1 it must be a power of two"},
        {"seq_q=4,head_dim=4,matmul_precision=bf16,reproducible=1",
         "matmul_precision is bf16, but reproducible is 1, which computes in f32 on every CPU"},
        {"seq_q=4,head_dim=4,matmul_precision=bf16,softmax_precision=f64",
         "matmul_precision is bf16, but softmax_precision is f64"},
        {"seq_q=4,head_dim=4,matmul_precision=bf16,kv_dtype=i8,integer=all",
         "matmul_precision is bf16, but integer multiplies quantised values"},
        {"embed_dim=8,seq_q=4,num_heads=2,matmul_precision=bf16",
         "matmul_precision is bf16, but it means nothing with op = mha"},
        {"seq_q=4,head_dim=32,kv_dtype=i4,qk_hadamard=1",
         "qk_hadamard is 1, k_dtype i4, but keys are rotated before they are quantised: set seq_new"},
        {"op=weights,seq_q=4,head_dim=8,qk_hadamard=1,k_dtype=i8",
         "keys are rotated before they are quantised: ask the attention call for weights"},
        {"seq_q=4,head_dim=4,qk_norm_eps=2", "qk_norm_eps is 2; it must be 0, or from 1e-12 to 1"},
        {"seq_q=4,head_dim=4,kv_dtype=i8,qk_norm_eps=1e-6", "but keys are normalised before they are quantised"},
        {"is_ragged=1,head_dim=4,weights_mode=softmax", "weights are for batches of equal lengths"},
        {"op=weights,is_ragged=1,head_dim=4", "weights are for batches of equal lengths"},
        {"op=weights,seq_q=4,head_dim=4,seq_new=1", "seq_new is 1, but op=weights appends nothing"},
        {"seq_q=4,head_dim=4,has_row_ids=1,num_rows=2,weights_mode=softmax", "they need op=weights"},
        {"op=rotary,is_ragged=1,head_dim=4,rotary_dim=4", "op=rotary takes no ragged batch"},
        {"op=merge,is_ragged=1,head_dim=4,num_parts=2", "op=merge takes no ragged batch"},
    };
    assert_problems_refused(cases, sizeof cases / sizeof *cases);
}

static void test_masks_that_do_not_fit(void **state) {
    (void)state;
    static const refusal cases[] = {
        {"batch=2,seq_q=4,head_dim=4,attn_mask_dims=3:1:4:4", "attn_mask_dims[0] is 3; it must be 1 or batch = 2"},
        {"num_heads=6,num_kv_heads=2,seq_q=4,head_dim=4,attn_bias_dims=1:2:4:4",
         "attn_bias_dims[1] is 2; it must be 1 or num_heads = 6"},
        {"seq_q=4,seq_kv=5,head_dim=4,attn_mask_dims=5:5", "attn_mask_dims[2] is 5; it must be 1 or seq_q = 4"},
        {"seq_q=4,seq_kv=5,head_dim=4,attn_mask_dims=4:4", "attn_mask_dims[3] is 4; it must be 1 or seq_kv = 5"},
        {"seq_q=4,seq_kv=5,head_dim=4,short_masks=1,attn_mask_dims=4:6",
         "dims[3] is 6; it must be 1 or at most seq_kv = 5"},
        {"seq_q=4,seq_kv=5,head_dim=4,attn_mask_dims=1:0:4:5", "attn_mask_dims[1] is 0"},
        {"seq_q=4,head_dim=4,attn_mask_dims=dynamic:1:4:4", "attn_mask_dims[0] is -1; it must be 1 or batch = 1"},
        {"seq_q=dynamic,head_dim=4,attn_mask_dims=7:dynamic",
         "attn_mask_dims[2] is 7; it must be 1 or seq_q = dynamic"},
        {"seq_q=4,seq_kv=dynamic,head_dim=4,attn_mask_dims=4:9",
         "attn_mask_dims[3] is 9; it must be 1 or seq_kv = dynamic"},
        {"seq_q=4,seq_kv=dynamic,max_seq_kv=8,head_dim=4,short_masks=1,attn_mask_dims=4:9", "attn_mask_dims[3] is 9"},
        {"is_ragged=1,seq_q=8,head_dim=4,attn_mask_dims=8:8",
         "attn_mask_dims[2] is 8; it must be 1 or seq_q = dynamic"},
    };
    assert_problems_refused(cases, sizeof cases / sizeof *cases);
}

/* Values that no text can say. */
static void test_choices(void **state) {
    (void)state;
    static const wrong_value cases[] = {
        {offsetof(attune_problem, op), ATTUNE_OP_COUNT, "op is 5, which is no attune_op"},
        {offsetof(attune_problem, dtype), ATTUNE_DTYPE_COUNT, "dtype is 10, which is no attune_dtype"},
        {offsetof(attune_problem, dtype), ATTUNE_I32, "dtype is i32; it must be f32, f16, bf16 or f64"},
        {offsetof(attune_problem, dtype), ATTUNE_I8, "dtype is i8; it must be f32, f16, bf16 or f64"},
        {offsetof(attune_problem, k_dtype), ATTUNE_BOOL,
         "k_dtype is bool; it must be f32, f16, bf16, f64, i8, f8 or i4"},
        {offsetof(attune_problem, v_dtype), ATTUNE_I32, "v_dtype is i32; it must be f32, f16, bf16, f64, i8, f8 or i4"},
        {offsetof(attune_problem, v_dtype), -1, "v_dtype is -1, which is no attune_dtype"},
        {offsetof(attune_problem, bias_dtype), ATTUNE_BOOL, "bias_dtype is bool"},
        {offsetof(attune_problem, bias_dtype), ATTUNE_F8, "bias_dtype is f8; it must be f32, f16, bf16 or f64"},
        {offsetof(attune_problem, k_scales), ATTUNE_SCALES_COUNT, "k_scales is 11, which is no attune_scales"},
        {offsetof(attune_problem, v_scales), -1, "v_scales is -1, which is no attune_scales"},
        {offsetof(attune_problem, softmax_precision), ATTUNE_I32, "softmax_precision is i32; it must be f32 or f64"},
        {offsetof(attune_problem, softmax_precision), 77, "softmax_precision is 77, which is no attune_dtype"},
        {offsetof(attune_problem, causal_align), 1, "causal_align is 1, which is no attune_causal_align"},
        {offsetof(attune_problem, causal_align), 3, "causal_align is 3, which is no attune_causal_align"},
        {offsetof(attune_problem, weights_mode), -1, "weights_mode is -1, which is no attune_weights_mode"},
        {offsetof(attune_problem, is_causal), 2, "is_causal is 2; it must be 0 or 1"},
        {offsetof(attune_problem, has_lse), -1, "has_lse is -1; it must be 0 or 1"},
        {offsetof(attune_problem, has_alibi_slopes), 2, "has_alibi_slopes is 2"},
        {offsetof(attune_problem, has_sinks), 2, "has_sinks is 2"},
        {offsetof(attune_problem, has_kv_lens), 2, "has_kv_lens is 2"},
        {offsetof(attune_problem, has_causal_offsets), 2, "has_causal_offsets is 2"},
        {offsetof(attune_problem, is_ragged), 2, "is_ragged is 2"},
        {offsetof(attune_problem, v_in_k), 2, "v_in_k is 2"},
        {offsetof(attune_problem, short_masks), 2, "short_masks is 2"},
        {offsetof(attune_problem, rotary_interleaved), 2, "rotary_interleaved is 2"},
        {offsetof(attune_problem, has_position_ids), 2, "has_position_ids is 2"},
        {offsetof(attune_problem, weights_average), 2, "weights_average is 2"},
        {offsetof(attune_problem, has_row_ids), 2, "has_row_ids is 2"},
        {offsetof(attune_problem, reproducible), 2, "reproducible is 2"},
        {offsetof(attune_problem, has_softmax_scale), 2, "has_softmax_scale is 2"},
        {offsetof(attune_problem, matmul_precision), ATTUNE_F16, "matmul_precision is f16; it must be f32 or bf16"},
    };
    assert_values_refused("seq_q=4,head_dim=4", cases, sizeof cases / sizeof *cases);
}

/* Two texts for one canonical problem. */
static void test_same_problem(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"seq_q=4,head_dim=16",
         "dtype=f32,seq_q=4,seq_kv=4,num_kv_heads=1,head_dim=16,head_dim_v=16,softmax_scale=0.25"},
        {"seq_q=4,head_dim=32", "seq_q=4,head_dim=32,softmax_scale=0.17677669"}, /* the same f32 */
        {"seq_q=4,head_dim=16,dtype=f16",
         "seq_q=4,head_dim=16,dtype=f16,k_dtype=f16,v_dtype=f16,softmax_precision=f32"},
        {"seq_q=4,head_dim=16,dtype=bf16", "seq_q=4,head_dim=16,dtype=bf16,matmul_precision=bf16"},
        {"seq_q=4,head_dim=16,kv_dtype=f16", "seq_q=4,head_dim=16,kv_dtype=f16,matmul_precision=f32"},
        {"seq_q=4,head_dim=16,dtype=bf16,reproducible=1",
         "seq_q=4,head_dim=16,dtype=bf16,reproducible=1,matmul_precision=f32"},
        {"seq_q=4,head_dim=16,dtype=bf16",
         "seq_q=4,head_dim=16,dtype=bf16,k_dtype=bf16,v_dtype=bf16,softmax_precision=f32"},
        {"seq_q=4,head_dim=16,v_dtype=f64", "seq_q=4,head_dim=16,v_dtype=f64,softmax_precision=f64"},
        {"seq_q=4,head_dim=16,kv_dtype=i8", "seq_q=4,head_dim=16,k_dtype=i8,v_dtype=i8,k_scales=head,v_scales=head"},
        {"seq_q=4,head_dim=16,kv_dtype=f8", "seq_q=4,head_dim=16,k_dtype=f8,v_dtype=f8,kv_scales=none"},
        {"seq_q=4,head_dim=16,k_dtype=i8", "seq_q=4,head_dim=16,k_dtype=i8,v_dtype=f32,k_scales=head,v_scales=none"},
        {"seq_q=4,head_dim=16,v_in_k=1,k_dtype=i8", "seq_q=4,head_dim=16,v_in_k=1,kv_dtype=i8,kv_scales=head"},
        {"seq_q=4,head_dim=16,kv_dtype=i8", "seq_q=4,head_dim=16,kv_dtype=i8,k_scale_strides=9:3:1"},
        {"seq_q=4,head_dim=64,kv_dtype=i4", "seq_q=4,head_dim=64,kv_dtype=i4,kv_scales=group,kv_group=32"},
        {"embed_dim=32,seq_q=4", "embed_dim=32,seq_q=4,kv_dtype=i8,kv_scales=token"},
        {"op=weights,seq_q=4,head_dim=16,k_dtype=i8", "op=weights,seq_q=4,head_dim=16,kv_dtype=i8,v_scales=token"},
        {"is_ragged=1,head_dim=16", "is_ragged=1,seq_q=dynamic,seq_kv=dynamic,head_dim=16"},
        {"is_ragged=1,seq_q=9,max_seq_q=12,seq_kv=5,head_dim=16", "is_ragged=1,max_seq_q=9,max_seq_kv=5,head_dim=16"},
        {"is_ragged=1,seq_new=1,head_dim=16", "is_ragged=1,seq_new=dynamic,head_dim=16"},
        {"seq_q=4,max_seq_q=9,head_dim=16", "seq_q=4,head_dim=16"},
        {"seq_q=4,head_dim=16,attn_mask_dims=4:4", "seq_q=4,head_dim=16,attn_mask_dims=dynamic:dynamic"},
        {"seq_q=4,head_dim=16,attn_mask_dims=4:4,short_masks=1", "seq_q=4,head_dim=16,attn_mask_dims=qk"},
        {"batch=1,num_heads=3,seq_q=4,head_dim=16,attn_mask_dims=bhqk",
         "num_heads=3,seq_q=4,head_dim=16,attn_mask_dims=1:3:4:4"},
        {"seq_q=4,head_dim=16,attn_mask_dims=k,attn_mask_strides=7:7:7:1", "seq_q=4,head_dim=16,attn_mask_dims=k"},
        {"seq_q=4,head_dim=16,dtype=f16,bias_dtype=f16,lse_strides=9:9:1", "seq_q=4,head_dim=16,dtype=f16"},
        {"seq_q=4,head_dim=16,layout=bshd,is_ragged=1", "head_dim=16,is_ragged=1,max_seq_q=4"},
        {"seq_q=4,head_dim=16,page_size=8,has_kv_lens=1,attn_mask_dims=qk",
         "seq_q=4,seq_kv=dynamic,head_dim=16,page_size=8,has_kv_lens=1,attn_mask_dims=4:dynamic"},
        {"seq_q=4,seq_kv=64,num_heads=2,head_dim=16,page_size=8,layout=bshd",
         "seq_q=4,seq_kv=64,num_heads=2,head_dim=16,page_size=8,q_strides=128:16:32:1,out_strides=128:16:32:1,"
         "k_strides=256:16:32:1,v_strides=256:16:32:1"},
        /* Fields that another op ignores. */
        {"op=rotary,seq_q=4,head_dim=16,rotary_dim=8",
         "op=rotary,seq_q=4,head_dim=16,rotary_dim=8,seq_kv=9,"
         "num_kv_heads=5,is_causal=1,window_left=3,has_lse=1,has_sinks=1,"
         "has_kv_lens=1,page_size=3,seq_new=2,attn_mask_dims=7:7,"
         "weights_mode=softmax,head_dim_v=3,softmax_scale=2,reproducible=1"},
        {"op=merge,seq_q=4,head_dim=16,num_parts=2",
         "op=merge,seq_q=4,head_dim=3,head_dim_v=16,num_parts=2,seq_kv=9,is_causal=1,rotary_dim=2,attn_bias_dims=7:7"},
        {"op=weights,seq_q=4,head_dim=16",
         "op=weights,seq_q=4,head_dim=16,weights_mode=softmax,has_lse=1,head_dim_v=3,v_in_k=0,has_sinks=1,v_dtype=f16"},
        {"op=weights,seq_q=4,head_dim=16,weights_mode=scaled",
         "op=weights,seq_q=4,head_dim=16,weights_mode=scaled,"
         "logits_soft_cap=3,is_causal=1,attn_bias_dims=qk,has_alibi_slopes=1,has_lse=1"},
        {"op=weights,seq_q=4,head_dim=16,weights_mode=capped,logits_soft_cap=3",
         "op=weights,seq_q=4,head_dim=16,weights_mode=capped,logits_soft_cap=3,short_masks=1,attn_mask_dims=2,"
         "window_left=1"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const attune_problem a = problem_canonical(pairs[i][0]), b = problem_canonical(pairs[i][1]);
        if (memcmp(&a, &b, sizeof a)) {
            char x[1024], y[1024];
            mha_problem_print(&a, x, sizeof x);
            mha_problem_print(&b, y, sizeof y);
            fail_msg("%s is not %s", x, y);
        }
    }
}

/* ---- random problems ---- */

static random_ir source = {.state = 31};

static int below(int n) { return random_ir_below(&source, n); }
static int64_t pick(const int64_t *values, int count) { return values[below(count)]; }

static int64_t random_size(bool may_be_dynamic) {
    static const int64_t sizes[] = {1, 2, 3, 8, 17, 64, ATTUNE_DYNAMIC};
    return pick(sizes, may_be_dynamic ? 7 : 6);
}

static void random_dims(const attune_problem *p, int64_t dims[4]) {
    const int64_t full[4] = {p->batch, p->num_heads, p->seq_q, p->seq_kv};
    if (below(3)) return;
    for (int i = 0; i < 4; i++) dims[i] = below(2) ? 1 : p->is_ragged && i > 1 ? ATTUNE_DYNAMIC : full[i];
    if (p->short_masks && below(2)) dims[3] = below(2) ? ATTUNE_DYNAMIC : 1 + below(4);
}

static void random_strides(int64_t *strides, int rank) {
    if (below(4)) return;
    for (int64_t i = rank - 1, stride = 1 + below(2); i >= 0; i--, stride *= 100 + below(9)) strides[i] = stride;
}

/* Widths that fit, some of the time. */
static void random_block(attune_problem *p) {
    int64_t *const widths[] = {&p->kv_embed_dim, &p->v_embed_dim, &p->out_dim};
    int *const flags[] = {&p->is_cross, &p->kv_projected, &p->no_out_projection, &p->low_rank_heads,
                          &p->low_rank_shared};
    p->embed_dim = below(3) ? 12 : random_size(false);
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) *widths[i] = below(2) ? 0 : random_size(false);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) *flags[i] = !below(4);
    p->low_rank = below(6) ? 0 : random_size(false);
    p->w_dtype = below(3) ? 0 : (attune_dtype)below(5);
    random_strides(p->x_strides, 3);
    random_strides(p->x_kv_strides, 3);
    random_strides(p->x_v_strides, 3);
    if (!p->no_out_projection) p->out_strides[3] = 0;
    if (below(4)) p->head_dim = 0;
    if (below(4)) p->seq_kv = p->seq_new || p->is_cross ? p->seq_kv : 0;
    if (p->seq_new && below(4)) p->seq_new = p->seq_q;
}

/* Every field has a chance; about half the problems can be compiled. */
/* Fields that mean nothing without another one are refused. */
static void forget_parts(attune_problem *p) {
    for (int i = 0; i < MHA_NUM_FIELDS; i++)
        if (mha_fields[i].part_of && mha_field_is_initial(p, &mha_fields[mha_fields[i].part_of]))
            mha_field_reset(p, &mha_fields[i]);
    if (!mha_is_quantised(p->k_dtype)) p->k_scales = ATTUNE_SCALES_DEFAULT;
    if (!mha_is_quantised(p->v_dtype)) p->v_scales = ATTUNE_SCALES_DEFAULT;
    if (p->op != ATTUNE_MERGE) p->num_parts = 0;
}

static attune_problem random_problem(void) {
    attune_problem p = ATTUNE_PROBLEM_INIT;
    p.op = below(2) ? ATTUNE_ATTENTION : (attune_op)below(ATTUNE_OP_COUNT);
    p.dtype = (attune_dtype)below(4);
    p.batch = random_size(false);
    p.num_kv_heads = 1 + below(3);
    p.num_heads = p.num_kv_heads * (1 + below(3));
    p.is_ragged = !below(5);
    p.seq_q = random_size(true);
    p.seq_kv = random_size(true);
    p.head_dim = 2 * random_size(false);
    p.head_dim_v = below(2) ? 0 : random_size(false);
    if (!below(3)) p.softmax_scale = (below(2001) - 1000) / 8.0;
    if (!below(3)) p.logits_soft_cap = 0.1 * below(1000);
    p.is_causal = below(2);
    p.causal_align = below(2) ? ATTUNE_BOTTOM_RIGHT : ATTUNE_TOP_LEFT;
    p.causal_offset = below(3) ? 0 : below(41) - 20;
    p.window_left = below(3) ? -1 : below(20);
    p.window_right = below(3) ? -1 : below(20);
    p.global_tokens = below(2) ? 0 : below(5);
    int *const flags[] = {
        &p.has_lse,     &p.has_alibi_slopes,   &p.has_sinks,       &p.has_kv_lens, &p.has_causal_offsets,
        &p.short_masks, &p.rotary_interleaved, &p.weights_average, &p.reproducible};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) *flags[i] = !below(3);
    attune_dtype *const dtypes[] = {&p.k_dtype, &p.v_dtype, &p.bias_dtype};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) *dtypes[i] = below(3) ? 0 : (attune_dtype)below(4);
    if (!below(6)) p.k_dtype = p.v_dtype = below(2) ? ATTUNE_I8 : ATTUNE_F8;
    p.k_scales = (attune_scales)below(ATTUNE_SCALES_COUNT);
    p.v_scales = (attune_scales)below(ATTUNE_SCALES_COUNT);
    p.softmax_precision = below(3) ? ATTUNE_DTYPE_DEFAULT : ATTUNE_F64;
    p.page_size = below(4) ? 0 : 1 + below(32);
    p.max_seq_q = below(3) ? 0 : 64 + below(9);
    p.max_seq_kv = below(3) ? 0 : 64 + below(9);
    p.seq_new = below(4) || p.op == ATTUNE_WEIGHTS ? 0 : random_size(true);
    p.v_in_k = !below(8);
    p.rotary_dim = below(3) ? 0 : 2 * (1 + below((int)p.head_dim / 2));
    p.has_position_ids = p.rotary_dim && !below(4);
    p.weights_mode = below(3) || p.is_ragged ? ATTUNE_WEIGHTS_NONE : (attune_weights_mode)below(5);
    p.has_row_ids = p.op == ATTUNE_WEIGHTS && below(2);
    p.num_rows = random_size(true);
    p.num_parts = below(5);
    random_dims(&p, p.attn_mask_dims);
    random_dims(&p, p.attn_bias_dims);
    int64_t *const strides[] = {p.q_strides,     p.k_strides,         p.v_strides,
                                p.out_strides,   p.attn_mask_strides, p.attn_bias_strides,
                                p.k_new_strides, p.v_new_strides,     p.weights_strides};
    for (size_t i = 0; i < sizeof strides / sizeof *strides; i++) random_strides(strides[i], 4);
    random_strides(p.lse_strides, 3);
    random_strides(p.k_scale_strides, 3);
    random_strides(p.v_scale_strides, 3);
    if (p.op == ATTUNE_MHA || (p.op == ATTUNE_ATTENTION && below(2))) random_block(&p);
    if (below(8)) forget_parts(&p);
    return p;
}

/* The canonical form is its own canonical form, and its text means the same; so does the text of a refused problem. */
static void test_random_round_trips(void **state) {
    (void)state;
    int legal = 0, blocks = 0;
    for (int n = 0; n < 20000; n++) {
        const attune_problem p = random_problem();
        attune_problem c, again, parsed = ATTUNE_PROBLEM_INIT;
        char text[2048];
        at_error err = {0};
        if (mha_problem_print(&p, text, sizeof text) >= sizeof text) fail_msg("too long: %s", text);
        if (mha_problem_parse(text, &parsed, &err)) fail_msg("%s: %s", text, err.message);
        if (mha_canonicalize(&p, &c, &err)) {
            at_error other = {0};
            assert_int_equal(mha_canonicalize(&parsed, &again, &other), err.status);
            assert_string_equal(err.message, other.message);
            continue;
        }
        legal++;
        blocks += c.op == ATTUNE_MHA;
        assert_int_equal(mha_canonicalize(&c, &again, &err), ATTUNE_OK);
        if (memcmp(&c, &again, sizeof c)) fail_msg("not its own canonical form: %s", text);
        if (mha_canonicalize(&parsed, &again, &err)) fail_msg("%s: %s", text, err.message);
        if (memcmp(&c, &again, sizeof c)) fail_msg("means something else: %s", text);
        uint8_t key[MHA_KEY_BYTES], other[MHA_KEY_BYTES];
        const size_t length = mha_key(&c, key);
        assert_true(length <= sizeof key && mha_key(&again, other) == length && !memcmp(key, other, length));
    }
    assert_in_range(legal, 6000, 19000);
    assert_in_range(blocks, 1500, 9000);
}

/* A struct whose size no version can have is neither read nor written beyond it. */
static void test_struct_size_is_checked(void **state) {
    (void)state;
    attune_problem problem = problem_parsed("seq_q=4,head_dim=4"), out;
    const size_t sizes[] = {0, 8, sizeof problem - 1, sizeof problem + 4, (size_t)1 << 20, SIZE_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char text[16] = "before";
        at_error err = {0};
        problem.struct_size = sizes[i];
        assert_int_equal(mha_problem_parse("seq_q=5", &problem, &err), ATTUNE_INVALID_ARGUMENT);
        assert_non_null(strstr(err.message, "ATTUNE_PROBLEM_INIT"));
        assert_int_equal(problem.seq_q, 4);
        assert_int_equal(mha_canonicalize(&problem, &out, NULL), ATTUNE_INVALID_ARGUMENT);
        assert_int_equal(mha_problem_print(&problem, text, sizeof text), 0);
        assert_string_equal(text, "");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_round_trip),
        cmocka_unit_test(test_text_in_another_locale),
        cmocka_unit_test(test_print_truncates),
        cmocka_unit_test(test_text_refused),
        cmocka_unit_test(test_text_is_lenient),
        cmocka_unit_test(test_did_you_mean),
        cmocka_unit_test(test_names_of_members),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_contradictions),
        cmocka_unit_test(test_masks_that_do_not_fit),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_same_problem),
        cmocka_unit_test(test_random_round_trips),
        cmocka_unit_test(test_struct_size_is_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
