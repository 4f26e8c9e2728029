/* Descriptions as text: what a text names, the kernels that steps then find, and sentences for what is wrong. */
#include <attune.h>

#include "support/statuses.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static attune_context *open_context(uint64_t memory_bytes) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *context;
    options.cache_dir = "", options.memory_cache_bytes = memory_bytes;
    assert_ok(attune_context_create(&options, &context));
    return context;
}

static void assert_kernel(const char *text, size_t number, size_t count, const char *wanted) {
    char kernel[ATTUNE_DESCRIPTION_BYTES];
    size_t has;
    assert_ok(attune_description_kernel(text, number, kernel, sizeof kernel, &has));
    assert_string_equal(kernel, wanted);
    assert_int_equal(has, count);
    /* The whole text of a kernel names itself. */
    assert_ok(attune_description_kernel(wanted, 0, kernel, sizeof kernel, &has));
    assert_string_equal(kernel, wanted);
    assert_int_equal(has, 1);
}

/* Defaults are filled in, and what no kernel depends on is left out. */
static void kernels_of_texts(void **state) {
    (void)state;
    static const char linear[] = "op=linear,num_heads=2,head_dim=8,rule=delta,has_beta=1,scale=0.5,dtype=bf16";
#define REST "head_dim=8,head_dim_v=8,dtype=bf16,decay_dtype=f32,beta_dtype=f32,state_dtype=f32,rule=delta,has_beta=1"
#define MANY "op=linear,num_heads=16,num_kv_heads=16,num_k_heads=16,"
    assert_kernel(linear, 0, 2, MANY REST ",kernel=few");
    assert_kernel(linear, 1, 2, "op=linear,num_heads=2,num_kv_heads=2,num_k_heads=2," REST ",kernel=chunks");
    assert_kernel("op=linear,num_heads=2,head_dim=8,beta_dtype=bf16,decay_dtype=f16,qk_norm_eps=-0.0,dtype=bf16", 0, 2,
                  MANY "head_dim=8,head_dim_v=8,dtype=bf16,decay_dtype=f32,beta_dtype=f32,state_dtype=f32,kernel=few");
    assert_kernel("op=linear,num_heads=96,num_kv_heads=24,num_k_heads=6,rule=delta,has_beta=1,qk_norm_eps=1e-6,"
                  "head_dim=8,dtype=bf16",
                  1, 2, "op=linear,num_heads=64,num_kv_heads=16,num_k_heads=16," REST ",kernel=chunks");
    assert_kernel("op=linear,num_heads=2,rule=delta,has_beta=1,head_dim=64,dtype=bf16,kernel=any", 0, 1,
                  MANY "head_dim=256,head_dim_v=256,dtype=bf16,decay_dtype=f32,beta_dtype=f32,state_dtype=f32,"
                       "rule=delta,has_beta=1,kernel=any");
    assert_kernel("op=linear , has_beta = 1, rule=delta,reproducible=1,num_heads=2,head_dim=8,dtype=bf16", 1, 2,
                  MANY REST ",kernel=tokens");
    assert_kernel("op=conv,channels=77,taps=4,has_silu=1", 3, 4,
                  "op=conv,channels=1,taps=4,dilation=1,dtype=f32,has_silu=1,kernel=tokens");
    assert_kernel("op=index,num_heads=4,head_dim=32,num_ids=16,dtype=f8", 0, 1,
                  "op=index,num_heads=4,head_dim=32,num_ids=16,dtype=f8,w_dtype=f32,kernel=own");
    assert_kernel("op=index,num_heads=4,head_dim=128,num_ids=16,dtype=bf16,is_causal=1,page_size=64,kernel=any", 0, 1,
                  "op=index,num_heads=64,head_dim=128,num_ids=2048,dtype=bf16,w_dtype=f32,kernel=any");
    assert_kernel("op=blocks,num_heads=4,head_dim=64,block_size=64,stride=8", 2, 4,
                  "op=blocks,num_heads=4,num_kv_heads=4,head_dim=64,dtype=f32,block_size=64,stride=8,"
                  "softmax_scale=0.125,kernel=4096");
    assert_kernel("op=mla,embed_dim=32,num_heads=2,kv_lora_rank=16,qk_nope_head_dim=8,qk_rope_head_dim=4,page_size=16,"
                  "form=absorbed,has_ids=1",
                  15, 16,
                  "op=mla,embed_dim=32,out_dim=32,num_heads=2,kv_lora_rank=16,qk_nope_head_dim=8,qk_rope_head_dim=4,"
                  "v_head_dim=8,dtype=f32,norm_eps=1e-06,form=absorbed,kernel=out_512");
    assert_kernel(" op = index , num_heads=4,head_dim=32,num_ids=16", 0, 1,
                  "op=index,num_heads=4,head_dim=32,num_ids=16,dtype=f32,w_dtype=f32,kernel=own");
    size_t count = 1;
    assert_ok(attune_description_kernel("num_heads=2,seq_q=3,head_dim=8", 0, NULL, 0, &count));
    assert_int_equal(count, 0);
    assert_ok(attune_description_kernel("op=linearly", 0, NULL, 0, &count));
    assert_int_equal(count, 0);
}

static void mistakes(void **state) {
    (void)state;
    static const struct {
        const char *text;
        attune_status status;
        const char *message;
    } wrong[] = {
        {"op=linear,num_heads=2,head_dim=8,kernel=many", ATTUNE_INVALID_PROBLEM,
         "kernel is 'many'; it must be few, tokens, chunks, any or any_tokens"},
        {"op=linear,num_heads=2,head_dim=8,heads=3", ATTUNE_INVALID_PROBLEM, "op=linear has no field 'heads'"},
        {"op=linear,num_heads=2,num_heads=2", ATTUNE_INVALID_PROBLEM, "'num_heads' is given twice"},
        {"op=linear,num_heads=two", ATTUNE_INVALID_PROBLEM, "num_heads is 'two', which is not an integer"},
        {"op=linear,num_heads=2,head_dim=8,scale=x", ATTUNE_INVALID_PROBLEM, "scale is 'x', which is not a number"},
        {"op=linear,num_heads=2,head_dim=8,dtype=f33", ATTUNE_INVALID_PROBLEM, "dtype is 'f33'; it must be"},
        {"op=linear,num_heads=2,head_dim=8,dtype=f64", ATTUNE_UNSUPPORTED, "dtype is f64; it must be f32, bf16 or f16"},
        {"op=linear,num_heads=2,head_dim=24,head_dim_v=64,kernel=any", ATTUNE_UNSUPPORTED,
         "head_dim is 24; of kernel=any it must be a multiple of 16 up to 256"},
        {"op=linear,num_heads=2,head_dim=272,head_dim_v=64,kernel=any_tokens", ATTUNE_UNSUPPORTED,
         "head_dim is 272; of kernel=any_tokens it must be a multiple of 16 up to 256"},
        {"op=linear,num_heads=2,head_dim=32,kernel=any", ATTUNE_UNSUPPORTED,
         "head_dim_v is 32; of kernel=any it must be a multiple of 64"},
        {"op=linear,num_heads=2,head_dim=64,out_norm_eps=1e-6,kernel=any", ATTUNE_UNSUPPORTED,
         "out_norm_eps is 1e-06; of kernel=any it must be 0"},
        {"op=linear,num_heads=2,head_dim=64,gate=silu,kernel=any", ATTUNE_UNSUPPORTED,
         "gate is silu; of kernel=any it must be none"},
        {"op=conv,channels=8,taps=65", ATTUNE_INVALID_ARGUMENT, "taps is 65; it must be from 1 to 64"},
        {"op=conv,channels=8,taps=4,has_bias=2", ATTUNE_INVALID_PROBLEM, "has_bias is 2; it must be 0 or 1"},
        {"op=index,num_heads=2,head_dim=8,num_ids=4,kernel=few", ATTUNE_INVALID_PROBLEM,
         "kernel is 'few'; it must be own or any"},
        {"op=index,num_heads=2,head_dim=64,num_ids=4,kernel=any", ATTUNE_UNSUPPORTED,
         "head_dim is 64; of kernel=any it must be 128"},
        {"op=index,num_heads=65,head_dim=128,num_ids=4,kernel=any", ATTUNE_INVALID_ARGUMENT,
         "num_heads of kernel=any is 65; it must be from 1 to 64"},
        {"op=index,num_heads=2,head_dim=128,num_ids=4,dtype=f8,kernel=any", ATTUNE_UNSUPPORTED,
         "dtype is f8; of kernel=any it must be f32 or bf16"},
        {"op=conv,", ATTUNE_INVALID_PROBLEM, "nothing follows the last comma"},
    };
    size_t count;
    char small[8];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_fails(attune_description_kernel(wrong[i].text, 0, NULL, 0, &count), wrong[i].status, wrong[i].message);
    assert_fails(attune_description_kernel("op=conv,channels=8,taps=4", 4, small, sizeof small, NULL),
                 ATTUNE_INVALID_ARGUMENT, "number is 4; the text has 4 kernels");
    assert_fails(attune_description_kernel("num_heads=2", 0, small, sizeof small, NULL), ATTUNE_INVALID_ARGUMENT,
                 "number is 0; the text has 0 kernels");
    assert_fails(attune_description_kernel("op=conv,channels=8,taps=4", 0, small, sizeof small, NULL),
                 ATTUNE_INVALID_ARGUMENT, "there is room for 8");
    attune_context *const context = open_context(0);
    attune_kernel *kernel;
    assert_fails(attune_description_compile(context, "op=conv,channels=8,taps=4", &kernel), ATTUNE_INVALID_PROBLEM,
                 "has 4 kernels; name one, such as kernel=channels");
    assert_fails(attune_description_compile(context, "num_heads=2", &kernel), ATTUNE_INVALID_PROBLEM,
                 "'num_heads=2' is no description of one of attune's operators");
    assert_null(kernel);
    attune_context_destroy(context);
}

/* A step takes the kernel that a text has compiled. */
static void steps_find_them(void **state) {
    (void)state;
    attune_context *const context = open_context(0);
    attune_conv_desc desc = ATTUNE_CONV_DESC_INIT;
    attune_conv_step step = ATTUNE_CONV_STEP_INIT;
    attune_conv *conv;
    attune_kernel *kernel;
    float x[3 * 5] = {0}, weights[5 * 2] = {0}, out[3 * 5], past[5] = {0};
    assert_ok(attune_description_compile(context, "op=conv,channels=9,taps=2,kernel=channels", &kernel));
    const attune_statistics before = statistics_of(context);
    desc.channels = 5, desc.taps = 2;
    assert_ok(attune_conv_create(context, &desc, &conv));
    step.batch = 1, step.seq = 3, step.x.data = x, step.weights = weights, step.out.data = out;
    step.state.data = past;
    assert_ok(attune_conv_run(conv, &step));
    const attune_statistics after = statistics_of(context);
    assert_int_equal(after.compiles, before.compiles);
    assert_int_equal(after.memory_kernels, 1);
    attune_conv_destroy(conv);
    attune_kernel_release(kernel);
    attune_context_destroy(context);
}

/* What a kernel keeps for the interpreter counts towards memory_cache_bytes. */
static void memory_is_bounded(void **state) {
    (void)state;
    enum { KERNELS = 12, BYTES = 1 << 20 };
    attune_context *const context = open_context(BYTES);
    for (int dim = 1; dim <= KERNELS; dim++) {
        char text[80];
        attune_kernel *kernel;
        snprintf(text, sizeof text, "op=linear,num_heads=1,head_dim=%d,kernel=few", dim);
        assert_ok(attune_description_compile(context, text, &kernel));
        attune_kernel_release(kernel);
        assert_true(statistics_of(context).memory_code_bytes <= BYTES);
    }
    assert_true(statistics_of(context).memory_evictions > 0);
    attune_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(kernels_of_texts), cmocka_unit_test(mistakes),
                                       cmocka_unit_test(steps_find_them), cmocka_unit_test(memory_is_bounded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
