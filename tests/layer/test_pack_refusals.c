/* Weights that are wrong, each with its sentence, and blobs that come back from a file. */
#include "support/block_model.h"
#include "support/problems.h"
#include "support/temp_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- Weights that are wrong ---- */

/* Changes a model of {embed_dim=24, kv_embed_dim=10, 3 heads of 8, out_dim=7}, then sees it refused with `part`. */
typedef struct wrong {
    int id;
    attune_weight weight; /* data NULL: it is missing */
    const char *part;
} wrong;

static const char any_data[1] = "";

static void assert_refused(const char *text, attune_weight_layout layout, const wrong *w) {
    model m = open_model(text, layout, RANDOM_BITS);
    attune_mha_weights weights = m.weights;
    unsigned char *before = malloc(m.blob_bytes);
    assert_non_null(before);
    memcpy(before, m.blob, m.blob_bytes);
    weights.tensor[w->id] = w->weight;
    assert_fails(attune_pack_weights(&m.problem, &weights, m.blob, m.blob_bytes), ATTUNE_INVALID_ARGUMENT, w->part);
    assert_memory_equal(m.blob, before, m.blob_bytes); /* nothing is written before all is checked */
    free(before);
    close_model(&m);
}

static void test_wrong_weights(void **state) {
#define GIVEN(...) {any_data, ATTUNE_F32, __VA_ARGS__}
    static const char cross[] = "embed_dim=24,kv_embed_dim=10,num_heads=3,out_dim=7,seq_q=4,seq_kv=5";
    static const wrong of_cross[] = {
        {ATTUNE_K_WEIGHT, GIVEN(2, {24, 9}),
         "k_weight is [24, 9] f32; expected [24, 10] f32 ([out_dim, in_dim]) for num_kv_heads=3, head_dim=8, "
         "kv_embed_dim=10"},
        {ATTUNE_K_WEIGHT, GIVEN(2, {10, 24}), "kv_embed_dim=10; it would fit the other layout, ATTUNE_IN_OUT"},
        {ATTUNE_Q_WEIGHT, GIVEN(2, {24, 25}), "for num_heads=3, head_dim=8, embed_dim=24"},
        {ATTUNE_V_WEIGHT, GIVEN(2, {24, 24}), "for num_kv_heads=3, head_dim_v=8, kv_embed_dim=10"},
        {ATTUNE_OUT_WEIGHT, GIVEN(2, {24, 24}), "expected [7, 24] f32 ([out_dim, in_dim]) for out_dim=7, num_heads=3"},
        {ATTUNE_OUT_WEIGHT, GIVEN(1, {168}), "out_weight is [168] f32; expected [7, 24] f32"},
        {ATTUNE_Q_WEIGHT, GIVEN(2, {-24, -24}), "q_weight is [-24, -24] f32"},
        {ATTUNE_Q_WEIGHT, GIVEN(4, {INT64_MAX, INT64_MAX, 3, 8}), "q_weight is [9223372036854775807, "},
        {ATTUNE_Q_WEIGHT, GIVEN(0, {24, 24}), "q_weight has rank 0; it must be from 1 to 4"},
        {ATTUNE_Q_WEIGHT, GIVEN(5, {24, 24}), "q_weight has rank 5"},
        {ATTUNE_Q_BIAS, GIVEN(1, {23}), "q_bias is [23] f32; expected [24] f32 for num_heads=3, head_dim=8"},
        {ATTUNE_V_BIAS, GIVEN(1, {23}), "v_bias is [23] f32; expected [24] f32 for num_kv_heads=3, head_dim_v=8"},
        {ATTUNE_OUT_BIAS, GIVEN(1, {24}), "out_bias is [24] f32; expected [7] f32 for out_dim=7"},
        {ATTUNE_QKV_BIAS, GIVEN(1, {72}), "q_bias and qkv_bias are both given"},
        {ATTUNE_QKV_WEIGHT, GIVEN(2, {72, 24}),
         "qkv_weight is given, but q has 24 inputs, k 10 and v 10: give their weights one by one"},
        {ATTUNE_Q_WEIGHT,
         {any_data, ATTUNE_F16, 2, {24, 24}},
         "q_weight is [24, 24] f16; expected [24, 24] f32 ([out_dim, in_dim]) for num_heads=3, head_dim=8, "
         "embed_dim=24, w_dtype=f32"},
        {ATTUNE_OUT_BIAS, {any_data, ATTUNE_DTYPE_DEFAULT, 1, {7}}, "out_bias is [7] no dtype; expected [7] f32"},
        {ATTUNE_OUT_BIAS, {any_data, (attune_dtype)99, 1, {7}}, "out_bias is [7] no dtype; expected [7] f32"},
        {ATTUNE_K_WEIGHT, {NULL, ATTUNE_F32, 0, {0}}, "k_weight is missing"},
        {ATTUNE_OUT_WEIGHT, {NULL, ATTUNE_F32, 0, {0}}, "out_weight is missing"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof of_cross / sizeof *of_cross; i++) assert_refused(cross, ATTUNE_OUT_IN, &of_cross[i]);

    static const struct {
        const char *problem;
        attune_weight_layout layout;
        wrong wrong;
    } others[] = {
        {cross,
         ATTUNE_IN_OUT,
         {ATTUNE_OUT_WEIGHT, GIVEN(2, {7, 24}),
          "expected [24, 7] f32 ([in_dim, out_dim]) for out_dim=7, num_heads=3, head_dim_v=8; it would fit the other "
          "layout, ATTUNE_OUT_IN"}},
        {"embed_dim=24,v_embed_dim=11,num_heads=3,seq_q=4",
         ATTUNE_OUT_IN,
         {ATTUNE_V_WEIGHT, GIVEN(2, {24, 24}), "for num_kv_heads=3, head_dim_v=8, v_embed_dim=11"}},
        {"embed_dim=24,num_heads=3,seq_q=4",
         ATTUNE_OUT_IN,
         {ATTUNE_QKV_WEIGHT, GIVEN(2, {72, 23}),
          "qkv_weight is [72, 23] f32; expected [72, 24] f32 ([out_dim, in_dim]) for num_heads=3, num_kv_heads=3, "
          "head_dim=8, embed_dim=24"}},
        {"embed_dim=24,num_heads=3,seq_q=4",
         ATTUNE_OUT_IN,
         {ATTUNE_QKV_WEIGHT, GIVEN(2, {72, 24}), "q_weight and qkv_weight are both given: they say the same"}},
        {"embed_dim=24,num_heads=3,seq_q=4",
         ATTUNE_OUT_IN,
         {ATTUNE_K_WEIGHT, {NULL, ATTUNE_F32, 0, {0}}, "k_weight is missing, and so is qkv_weight"}},
        {"embed_dim=24,num_heads=3,seq_q=4,no_out_projection=1",
         ATTUNE_OUT_IN,
         {ATTUNE_OUT_BIAS, GIVEN(1, {24}), "out_bias is given, but the problem has no output projection "}},
        {"embed_dim=24,num_heads=3,seq_q=4,seq_kv=5,kv_projected=1",
         ATTUNE_OUT_IN,
         {ATTUNE_K_WEIGHT, GIVEN(2, {24, 24}), "k_weight is given, but the problem has keys and values that are "}},
        {"embed_dim=24,num_heads=3,seq_q=4,seq_kv=5,kv_projected=1",
         ATTUNE_OUT_IN,
         {ATTUNE_QKV_BIAS, GIVEN(1, {72}), "qkv_bias is given, but the problem has keys and values that are "}},
        {"embed_dim=24,num_heads=3,seq_q=4,v_in_k=1",
         ATTUNE_OUT_IN,
         {ATTUNE_V_BIAS, GIVEN(1, {24}), "v_bias is given, but the problem has values that are columns of the keys "}},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_refused(others[i].problem, others[i].layout, &others[i].wrong);
}

static void test_wrong_calls(void **state) {
    (void)state;
    model m = open_model("embed_dim=24,num_heads=3,seq_q=4", ATTUNE_OUT_IN, RANDOM_BITS);
    size_t bytes;
    const attune_problem plain = problem_parsed("num_heads=3,seq_q=4,head_dim=8");
    const attune_status no_block = ATTUNE_INVALID_PROBLEM, bad = ATTUNE_INVALID_ARGUMENT;
    assert_fails(attune_packed_weights_size(&plain, &bytes), no_block,
                 "embed_dim is 0: only a block has weights, and a block has an embed_dim");
    assert_fails(attune_mha_weights_init(&m.weights, &plain, ATTUNE_OUT_IN), no_block, "embed_dim is 0");
    assert_fails(attune_pack_weights(&plain, &m.weights, m.blob, m.blob_bytes), no_block, "embed_dim is 0");
    assert_fails(attune_packed_weights_check(&plain, m.blob, m.blob_bytes), no_block, "embed_dim is 0");
    assert_fails(attune_packed_weights_size(NULL, &bytes), bad, "attune_packed_weights_size was given NULL");
    assert_fails(attune_packed_weights_size(&m.problem, NULL), bad, "attune_packed_weights_size was given NULL");
    assert_fails(attune_mha_weights_init(NULL, &m.problem, ATTUNE_OUT_IN), bad, "attune_mha_weights_init was given");
    assert_fails(attune_mha_weights_init(&m.weights, &m.problem, (attune_weight_layout)2), bad, "layout is 2");
    assert_fails(attune_pack_weights(&m.problem, NULL, m.blob, 64), bad, "attune_pack_weights was given NULL");
    assert_fails(attune_pack_weights(&m.problem, &m.weights, NULL, 64), bad, "attune_pack_weights was given NULL");
    assert_fails(attune_packed_weights_check(&m.problem, NULL, 64), bad, "attune_packed_weights_check was given NULL");
    char text[100];
    snprintf(text, sizeof text, "packed has %zu bytes; the weights of this problem take %zu", m.blob_bytes - 1,
             m.blob_bytes);
    assert_fails(attune_pack_weights(&m.problem, &m.weights, m.blob, m.blob_bytes - 1), bad, text);
    assert_fails(attune_pack_weights(&m.problem, &m.weights, m.blob + 32, m.blob_bytes), bad, "aligned to 64 bytes");
    assert_fails(attune_packed_weights_check(&m.problem, m.blob + 1, m.blob_bytes), bad, "aligned to 64 bytes");
    attune_mha_weights w = m.weights;
    w.layout = (attune_weight_layout)-1;
    assert_fails(attune_pack_weights(&m.problem, &w, m.blob, m.blob_bytes), bad, "layout is -1");
    w.struct_size = 8;
    assert_fails(attune_pack_weights(&m.problem, &w, m.blob, m.blob_bytes), bad,
                 "attune_mha_weights.struct_size is 8, expected");
    assert_string_equal(attune_weight_name(ATTUNE_Q_WEIGHT), "q_weight");
    assert_string_equal(attune_weight_name(ATTUNE_QKV_BIAS), "qkv_bias");
    assert_null(attune_weight_name(ATTUNE_NUM_WEIGHTS));
    assert_null(attune_weight_name((attune_weight_id)-1));
    close_model(&m);
}

/* ---- Blobs that come back ---- */

static void test_saved_and_damaged(void **state) {
    char path[TEMP_DIR_CHARS + 16];
    snprintf(path, sizeof path, "%s/weights", (const char *)*state);
    model m = open_model("embed_dim=24,num_heads=3,seq_q=4,w_dtype=bf16", ATTUNE_OUT_IN, RANDOM_BITS);
    pack_model(&m);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(m.blob, 1, m.blob_bytes, file), m.blob_bytes);
    assert_int_equal(fclose(file), 0);
    unsigned char *read = aligned_alloc(64, m.blob_bytes + 64);
    assert_non_null(read);
    file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(read, 1, m.blob_bytes + 64, file), m.blob_bytes);
    fclose(file);
    assert_ok(attune_packed_weights_check(&m.problem, read, m.blob_bytes));
    assert_ok(attune_packed_weights_check(&m.problem, read, m.blob_bytes + 64)); /* bytes after it do not matter */

    for (size_t at = 0; at < m.blob_bytes; at += at < 2 * MHA_PACKED_HEADER ? 1 : 97) {
        read[at] ^= (unsigned char)(1 << at % 8);
        const attune_status status = attune_packed_weights_check(&m.problem, read, m.blob_bytes);
        if (status != ATTUNE_BAD_FILE) fail_msg("a change of byte %zu went unnoticed", at);
        read[at] ^= (unsigned char)(1 << at % 8);
    }
    for (size_t bytes = 0; bytes < m.blob_bytes; bytes += bytes < 2 * MHA_PACKED_HEADER ? 1 : 97)
        assert_fails(attune_packed_weights_check(&m.problem, read, bytes), ATTUNE_BAD_FILE, "are cut off");
    assert_fails(attune_packed_weights_check(&m.problem, read, m.blob_bytes - 1), ATTUNE_BAD_FILE, "are cut off");
    assert_ok(attune_packed_weights_check(&m.problem, read, m.blob_bytes));
    read[m.blob_bytes - 1] ^= 1;
    assert_fails(attune_packed_weights_check(&m.problem, read, m.blob_bytes), ATTUNE_BAD_FILE, "checksum is wrong");
    read[8] = 2;
    assert_fails(attune_packed_weights_check(&m.problem, read, m.blob_bytes), ATTUNE_BAD_FILE,
                 "of format 2; this library reads format 3: pack them again");
    memset(read, 0, 8);
    assert_fails(attune_packed_weights_check(&m.problem, read, m.blob_bytes), ATTUNE_BAD_FILE, "no packed weights");
    for (int i = 0; i < 8; i++) read[i] = m.blob[7 - i];
    assert_fails(attune_packed_weights_check(&m.problem, read, m.blob_bytes), ATTUNE_BAD_FILE, "other byte order");
    free(read);
    close_model(&m);
}

/* Which problems share a blob, and which must not. */
static void test_who_shares_a_blob(void **state) {
    static const char *const same[] = {
        "embed_dim=24,num_heads=6,num_kv_heads=3,seq_q=dynamic,is_causal=1",
        "embed_dim=24,num_heads=6,num_kv_heads=3,seq_q=1,seq_new=1,seq_kv=dynamic,is_causal=1,"
        "causal_align=bottom_right",
        "embed_dim=24,num_heads=6,num_kv_heads=3,seq_q=9,batch=3,out_dim=24,head_dim_v=4,dtype=f16,w_dtype=f32",
        "embed_dim=24,num_heads=6,num_kv_heads=3,is_cross=1,seq_q=9,seq_kv=4,rotary_dim=4,reproducible=1",
        "embed_dim=24,num_heads=6,num_kv_heads=3,kv_projected=1,seq_q=4,seq_kv=4",
    };
    static const char *const other[] = {
        "embed_dim=25,num_heads=6,num_kv_heads=3,head_dim=4,seq_q=4",
        "embed_dim=24,kv_embed_dim=25,num_heads=6,num_kv_heads=3,seq_q=4",
        "embed_dim=24,v_embed_dim=25,num_heads=6,num_kv_heads=3,seq_q=4",
        "embed_dim=24,num_heads=6,num_kv_heads=3,out_dim=25,seq_q=4",
        "embed_dim=24,num_heads=6,num_kv_heads=2,seq_q=4",
        "embed_dim=24,num_heads=3,num_kv_heads=3,seq_q=4",
        "embed_dim=24,num_heads=6,num_kv_heads=3,head_dim=3,seq_q=4",
        "embed_dim=24,num_heads=6,num_kv_heads=3,head_dim_v=3,seq_q=4",
        "embed_dim=24,num_heads=6,num_kv_heads=3,dtype=f16,seq_q=4",
        "embed_dim=24,num_heads=6,num_kv_heads=3,dtype=bf16,seq_q=4",
        "embed_dim=24,num_heads=6,num_kv_heads=3,no_out_projection=1,seq_q=4",
        "embed_dim=24,num_heads=6,num_kv_heads=3,kv_projected=1,no_out_projection=1,seq_q=4,seq_kv=4",
        "embed_dim=24,num_heads=6,num_kv_heads=3,kv_projected=1,out_dim=25,seq_q=4,seq_kv=4",
        "embed_dim=24,num_heads=6,num_kv_heads=3,kv_projected=1,w_dtype=f64,seq_q=4,seq_kv=4",
        "embed_dim=24,num_heads=6,num_kv_heads=3,v_in_k=1,seq_q=4",
    };
    (void)state;
    model m = open_model("embed_dim=24,num_heads=6,num_kv_heads=3,seq_q=4", ATTUNE_OUT_IN, RANDOM_BITS);
    pack_model(&m);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        attune_problem p = problem_parsed(same[i]);
        assert_ok(attune_packed_weights_check(&p, m.blob, m.blob_bytes));
    }
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        const attune_problem p = problem_parsed(other[i]);
        assert_fails(attune_packed_weights_check(&p, m.blob, m.blob_bytes), ATTUNE_BAD_FILE, "of another problem");
    }
    close_model(&m);

    /* Halves of two sorts lie alike. */
    model half = open_model("embed_dim=24,num_heads=6,seq_q=4,w_dtype=f16", ATTUNE_OUT_IN, RANDOM_BITS);
    pack_model(&half);
    half.problem.w_dtype = ATTUNE_BF16;
    assert_fails(attune_packed_weights_check(&half.problem, half.blob, half.blob_bytes), ATTUNE_BAD_FILE,
                 "of another problem");
    close_model(&half);
}

/* A problem that needs neither k nor v reads the blob of one that has them beside the same other weights; not the
 * reverse. */
static void test_projected_keys_need_a_part(void **state) {
    static const char *const wholes[] = {
        "embed_dim=24,num_heads=6,num_kv_heads=3,seq_q=4",
        "embed_dim=24,kv_embed_dim=70,num_heads=6,num_kv_heads=3,seq_q=4,seq_kv=5",
        "embed_dim=24,kv_embed_dim=7,v_embed_dim=9,num_heads=6,num_kv_heads=3,seq_q=4,seq_kv=5",
        "embed_dim=24,num_heads=6,num_kv_heads=3,v_in_k=1,seq_q=4",
        "embed_dim=24,num_heads=6,num_kv_heads=3,kv_projected=1,seq_q=4",
    };
    (void)state;
    model part = open_model("embed_dim=24,num_heads=6,num_kv_heads=3,kv_projected=1,seq_q=1,seq_kv=dynamic",
                            ATTUNE_OUT_IN, RANDOM_BITS);
    pack_model(&part);
    for (size_t i = 0; i < sizeof wholes / sizeof *wholes; i++) {
        model m = open_model(wholes[i], ATTUNE_OUT_IN, RANDOM_BITS);
        const bool has_more = m.blob_bytes > part.blob_bytes;
        pack_model(&m);
        assert_ok(attune_packed_weights_check(&part.problem, m.blob, m.blob_bytes));
        assert_fails(attune_packed_weights_check(&part.problem, m.blob, m.blob_bytes - 1), ATTUNE_BAD_FILE, "cut off");
        m.blob[m.blob_bytes - 1] ^= 1; /* of v, which is not needed */
        assert_fails(attune_packed_weights_check(&part.problem, m.blob, m.blob_bytes), ATTUNE_BAD_FILE, "checksum");
        m.blob[m.blob_bytes - 1] ^= 1;
        memset(m.blob + 32, 0, 8); /* a length that cannot be */
        assert_fails(attune_packed_weights_check(&part.problem, m.blob, m.blob_bytes), ATTUNE_BAD_FILE, "checksum");
        assert_int_equal(has_more, i < 4);
        if (has_more)
            assert_fails(attune_packed_weights_check(&m.problem, part.blob, part.blob_bytes), ATTUNE_BAD_FILE,
                         "of another problem");
        close_model(&m);
    }
    close_model(&part);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_weights),
        cmocka_unit_test(test_wrong_calls),
        cmocka_unit_test_setup_teardown(test_saved_and_damaged, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test(test_who_shares_a_blob),
        cmocka_unit_test(test_projected_keys_need_a_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
