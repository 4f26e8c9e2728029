/* Weights that are codes already, in rows of ggml's q8_0 and q4_0: packing takes them as they are. */
#include "support/problems.h"
#include "support/statuses.h"
#include "support/tensor_calls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WIDE = 64, THREE = 3 * WIDE, BLOCK = 32, BLOCKS = WIDE / BLOCK, SCALE = 2, MOST = SCALE + BLOCK };

typedef struct weights {
    uint8_t qkv[THREE * BLOCKS * MOST], out[WIDE * BLOCKS * MOST]; /* as blocks */
    float plain_qkv[THREE][WIDE], plain_out[WIDE][WIDE];           /* as what they stand for */
} weights;

static size_t block_bytes(attune_dtype dtype) { return dtype == ATTUNE_I8 ? MOST : SCALE + BLOCK / 2; }

/* Any codes, and scales of both signs, 0 and denormal ones among them. */
static void draw(attune_dtype dtype, uint8_t *blocks, float *plain, int64_t count) {
    static uint32_t state = 1;
    for (int64_t n = 0; n < count; n++, blocks += block_bytes(dtype), plain += BLOCK) {
        for (size_t i = SCALE; i < block_bytes(dtype); i++)
            blocks[i] = (uint8_t)((state = state * 1664525 + 1013904223) >> 24);
        const _Float16 scale = (_Float16)(n % 7 ? (float)(n % 5 - 2) / 512 : 1e-6F);
        memcpy(blocks, &scale, SCALE);
        for (int i = 0; i < BLOCK; i++) {
            const uint8_t byte = blocks[SCALE + (dtype == ATTUNE_I8 ? i : i % 16)];
            const int code = dtype == ATTUNE_I8 ? (int8_t)byte : (i < 16 ? byte & 15 : byte >> 4) - 8;
            plain[i] = (float)code * (float)scale;
        }
    }
}

static void draw_weights(attune_dtype dtype, weights *w) {
    draw(dtype, w->qkv, &w->plain_qkv[0][0], (int64_t)THREE * BLOCKS);
    draw(dtype, w->out, &w->plain_out[0][0], (int64_t)WIDE * BLOCKS);
}

/* The weights of a problem: blocks where it has codes. */
static attune_mha_weights weights_of(const attune_problem *p, const weights *w, attune_dtype dtype) {
    attune_mha_weights all;
    const bool codes = dtype == ATTUNE_I8 || dtype == ATTUNE_I4;
    assert_ok(attune_mha_weights_init(&all, p, ATTUNE_OUT_IN));
    all.tensor[ATTUNE_QKV_WEIGHT].data = codes ? (const void *)w->qkv : w->plain_qkv;
    all.tensor[ATTUNE_OUT_WEIGHT].data = codes ? (const void *)w->out : w->plain_out;
    all.tensor[ATTUNE_QKV_WEIGHT].dtype = all.tensor[ATTUNE_OUT_WEIGHT].dtype = dtype;
    return all;
}

static void *pack(const attune_problem *p, const attune_mha_weights *all, size_t *bytes) {
    assert_ok(attune_packed_weights_size(p, bytes));
    void *const packed = aligned_alloc(64, (*bytes + 63) / 64 * 64);
    assert_non_null(packed);
    assert_ok(attune_pack_weights(p, all, packed, *bytes));
    return packed;
}

static void run(attune_context *context, tensors *t, const weights *w, attune_dtype dtype) {
    size_t bytes;
    attune_arguments a;
    const attune_mha_weights all = weights_of(&t->problem, w, dtype);
    void *const packed = pack(&t->problem, &all, &bytes);
    tensors_arguments(t, &a);
    a.packed_weights = packed;
    attune_kernel *kernel = kernel_of(context, &t->problem);
    assert_ok(attune_run(context, kernel, &a));
    attune_kernel_release(kernel);
    free(packed);
}

/* The bits of the numbers that codes and scales stand for, for one token and for many. */
static void test_bits_are_those_of_plain_weights(void **state) {
    (void)state;
    static weights w;
    static const char *const texts[] = {"embed_dim=64,num_heads=2,seq_q=1,reproducible=1",
                                        "embed_dim=64,num_heads=2,seq_q=19,batch=2,reproducible=1"};
    attune_context *context = tensors_context(NULL, 1);
    for (attune_dtype dtype = ATTUNE_I8; dtype <= ATTUNE_I4; dtype += ATTUNE_I4 - ATTUNE_I8)
        for (size_t n = 0; n < sizeof texts / sizeof *texts; n++) {
            char text[128];
            tensors coded, plain;
            snprintf(text, sizeof text, "%s,w_dtype=%s", texts[n], dtype == ATTUNE_I8 ? "i8" : "i4");
            draw_weights(dtype, &w);
            tensors_open_call(&coded, text, "", INPUT_ORDINARY, 5);
            tensors_open_call(&plain, texts[n], "", INPUT_ORDINARY, 5);
            run(context, &coded, &w, dtype);
            run(context, &plain, &w, ATTUNE_F32);
            tensors_assert_same(&coded, &plain, text);
            tensors_free(&coded);
            tensors_free(&plain);
        }
    attune_context_destroy(context);
}

/* ---- Refusals ---- */

static void assert_refused(const char *text, attune_mha_weights *all, const char *message) {
    static _Alignas(64) unsigned char packed[WIDE * WIDE * 4 * 5];
    const attune_problem p = problem_parsed(text);
    assert_int_equal(attune_pack_weights(&p, all, packed, sizeof packed), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(), message);
    for (size_t i = 0; i < sizeof packed; i++) assert_int_equal(packed[i], 0);
}

static void test_blocks_that_do_not_fit(void **state) {
    (void)state;
    static weights w;
    static const char i8[] = "embed_dim=64,num_heads=2,seq_q=1,w_dtype=i8";
    draw_weights(ATTUNE_I8, &w);
    const attune_problem p = problem_parsed(i8);
    attune_mha_weights all = weights_of(&p, &w, ATTUNE_I8);
    all.tensor[ATTUNE_OUT_WEIGHT].dtype = ATTUNE_F32;
    all.tensor[ATTUNE_OUT_WEIGHT].data = w.plain_out;
    assert_refused("embed_dim=64,num_heads=2,seq_q=1,w_dtype=i8,w_group=64", &all,
                   "qkv_weight is i8, in blocks of 32 inputs; w_group is 64");
    assert_refused("embed_dim=64,num_heads=2,seq_q=1,w_dtype=i4", &all,
                   "qkv_weight is [192, 64] i8; expected [192, 64] f32, f16, bf16, f64 or i4 ([out_dim, in_dim]) for "
                   "num_heads=2, num_kv_heads=2, head_dim=32, embed_dim=64, w_dtype=i4");
    assert_refused("embed_dim=64,num_heads=2,seq_q=1", &all,
                   "qkv_weight is [192, 64] i8; expected [192, 64] f32 ([out_dim, in_dim]) for num_heads=2, "
                   "num_kv_heads=2, head_dim=32, embed_dim=64, w_dtype=f32");
    all.tensor[ATTUNE_OUT_BIAS] = (attune_weight){w.plain_out, ATTUNE_I8, 1, {WIDE}};
    assert_refused(i8, &all, "out_bias is [64] i8; expected [64] f32, f16, bf16 or f64 for out_dim=64, w_dtype=i8");
    all.tensor[ATTUNE_OUT_BIAS].data = NULL;
    const uint16_t infinity = 0xfc00;
    memcpy(w.qkv + (size_t)(70 * BLOCKS + 1) * MOST, &infinity, SCALE);
    assert_refused(i8, &all, "qkv_weight has the scale -inf at output 70 and inputs 32 to 63");
    all.layout = ATTUNE_IN_OUT;
    all.tensor[ATTUNE_QKV_WEIGHT].dims[0] = WIDE;
    all.tensor[ATTUNE_QKV_WEIGHT].dims[1] = THREE;
    assert_refused(i8, &all, "qkv_weight is i8, which needs the layout [out_dim, in_dim] (ATTUNE_OUT_IN)");
}

static void test_rows_that_end_within_a_block(void **state) {
    (void)state;
    static const uint8_t any[48 * 48 * 2];
    static const char text[] = "embed_dim=48,num_heads=2,seq_q=1,w_dtype=i4";
    attune_mha_weights all;
    const attune_problem p = problem_parsed(text);
    assert_ok(attune_mha_weights_init(&all, &p, ATTUNE_OUT_IN));
    for (int id = 0; id < ATTUNE_Q_BIAS; id++) {
        all.tensor[id].data = any;
        all.tensor[id].dtype = ATTUNE_I4;
    }
    assert_refused(text, &all, "q_weight is i4, in blocks of 32 inputs; it has 48 inputs");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits_are_those_of_plain_weights),
        cmocka_unit_test(test_blocks_that_do_not_fit),
        cmocka_unit_test(test_rows_that_end_within_a_block),
    };
    return cmocka_run_group_tests_name("weight blocks", tests, NULL, NULL);
}
