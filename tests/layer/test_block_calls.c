/* The promise about a block's bits: they depend neither on the threads, nor on the rest of the batch, nor on whether
 * keys come out of a cache (test_block_decoding.c). Also errors of a call. */
#include "support/statuses.h"
#include "support/tensor_calls.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The caller's thread alone, and with one and two others. */
static void test_bits_do_not_depend_on_threads(void **state) {
    (void)state;
    tensors first, other;
    tensors_open_call(&first, "batch=3,embed_dim=96,num_heads=6,num_kv_heads=2,seq_q=50,rotary_dim=8,is_causal=1",
                      "rotary_positions=50", INPUT_ORDINARY, 1);
    for (uint32_t workers = 1; workers <= 3; workers++) {
        attune_context *context = tensors_context(NULL, workers);
        if (workers > 1) assert_true(tensors_share(&other, &first));
        tensors_run_chosen(context, workers == 1 ? &first : &other, NULL);
        if (workers > 1) {
            tensors_assert_same(&first, &other, "threads");
            tensors_free(&other);
        }
        attune_context_destroy(context);
    }
    tensors_free(&first);
}

/* ---- The same tokens in other calls ---- */

/* A blob of one problem made of the weights of another one. */
static void *pack_again(const attune_problem *p, const tensors *from) {
    attune_mha_weights weights;
    size_t bytes;
    weights = from->weights;
    if (attune_packed_weights_size(p, &bytes)) fail_msg("%s", attune_last_message());
    for (int id = 0; id < ATTUNE_NUM_WEIGHTS; id++) {
        const bool is_of_kv =
            id == ATTUNE_K_WEIGHT || id == ATTUNE_V_WEIGHT || id == ATTUNE_K_BIAS || id == ATTUNE_V_BIAS;
        if (p->kv_projected && is_of_kv) weights.tensor[id] = (attune_weight){.data = NULL};
    }
    void *packed = aligned_alloc(64, bytes);
    assert_non_null(packed);
    if (attune_pack_weights(p, &weights, packed, bytes)) fail_msg("%s", attune_last_message());
    return packed;
}

static void run_call(attune_context *context, const attune_problem *p, const attune_arguments *a) {
    attune_kernel *kernel = kernel_of(context, p);
    if (attune_run(context, kernel, a)) fail_msg("%s", attune_last_message());
    attune_kernel_release(kernel);
}

/* A ragged batch's entries have the bits that each has alone, and tokens without an owner are left unchanged. */
static void test_ragged_entries_are_independent(void **state) {
    (void)state;
    enum { ENTRIES = 3, EMBED = 40, TOTAL = 23 };
    static const int32_t begin[ENTRIES + 1] = {2, 9, 9, 20};
    attune_context *context = tensors_context(NULL, 2);
    tensors all, alone;
    tensors_open_call(&all, "batch=3,embed_dim=40,num_heads=4,is_ragged=1,is_causal=1,rotary_dim=10,reproducible=1",
                      "seq_q=11,seq_kv=11,total_q=23,rotary_positions=11", INPUT_ORDINARY, 6);
    all.arguments.rotary_batch_stride = 0;
    memcpy(tensors_find(&all, "cu_seqlens_q")->data, begin, sizeof begin);
    float *out = tensors_floats(&all, "out");
    for (int i = 0; i < TOTAL * EMBED; i++) out[i] = -77;
    tensors_run_chosen(context, &all, NULL);
    for (int i = 0; i < begin[0] * EMBED; i++) assert_true(out[i] == -77);
    for (int i = begin[ENTRIES] * EMBED; i < TOTAL * EMBED; i++) assert_true(out[i] == -77);
    for (int b = 0; b < ENTRIES; b++) {
        const int tokens = begin[b + 1] - begin[b];
        char sizes[64];
        snprintf(sizes, sizeof sizes, "seq_q=%d,rotary_positions=11", tokens);
        tensors_open_call(&alone, "embed_dim=40,num_heads=4,is_causal=1,rotary_dim=10,reproducible=1,seq_q=dynamic",
                          sizes, INPUT_ORDINARY, 7);
        attune_arguments a;
        tensors_arguments(&alone, &a);
        a.packed_weights = all.arguments.packed_weights;
        a.cos = all.arguments.cos;
        a.sin = all.arguments.sin;
        a.rotary_batch_stride = 0;
        a.x.data = tensors_floats(&all, "x") + begin[b] * EMBED;
        run_call(context, &alone.problem, &a);
        const size_t bytes = (size_t)(tokens * EMBED) * sizeof(float);
        if (bytes) assert_memory_equal(tensors_floats(&alone, "out"), out + begin[b] * EMBED, bytes);
        tensors_free(&alone);
    }
    tensors_free(&all);
    attune_context_destroy(context);
}

/* Keys and values of an encoder's output projected into caches once, and then only used. */
static void test_cross_attention_from_caches(void **state) {
    (void)state;
    static const char all[] = "batch=2,embed_dim=40,kv_embed_dim=28,num_heads=4,num_kv_heads=2,seq_q=3,seq_kv=13";
    char text[256];
    attune_context *context = tensors_context(NULL, 2);
    tensors direct, filled;
    tensors_open_call(&direct, all, "", INPUT_ORDINARY, 8);
    tensors_run_chosen(context, &direct, NULL);
    snprintf(text, sizeof text, "%s,seq_new=13", all);
    tensors_open_call(&filled, text, "", INPUT_ORDINARY, 9);
    attune_arguments a;
    tensors_arguments(&filled, &a);
    a.x.data = direct.arguments.x.data;
    a.x_kv.data = direct.arguments.x_kv.data;
    a.packed_weights = direct.arguments.packed_weights;
    run_call(context, &filled.problem, &a);
    const size_t bytes = 2 * 3 * 40 * sizeof(float);
    assert_memory_equal(tensors_floats(&filled, "out"), tensors_floats(&direct, "out"), bytes);

    /* No K and V projection: the whole blob would do, and so does one that lacks theirs. */
    attune_problem later;
    assert_true(
        problem_from_text("batch=2,embed_dim=40,num_heads=4,num_kv_heads=2,seq_q=3,seq_kv=13,kv_projected=1", &later));
    if (!direct.weights.tensor[ATTUNE_Q_WEIGHT].data) fail_msg("the sources of q, k and v differ, and are packed");
    void *packed = pack_again(&later, &direct);
    float out[2 * 3 * 40];
    attune_arguments from_caches;
    assert_int_equal(attune_arguments_init(&from_caches, &later), ATTUNE_OK);
    from_caches.x.data = direct.arguments.x.data;
    from_caches.k.data = a.k.data;
    from_caches.v.data = a.v.data;
    from_caches.out.data = out;
    from_caches.packed_weights = packed;
    run_call(context, &later, &from_caches);
    assert_memory_equal(out, tensors_floats(&direct, "out"), bytes);
    free(packed);
    tensors_free(&filled);
    tensors_free(&direct);
    attune_context_destroy(context);
}

/* ---- What goes wrong ---- */

/* Which of rows of `columns` numbers are NaN, as a set of columns that all rows agree on. */
static uint64_t nan_columns(const float *out, int64_t rows, int64_t columns) {
    uint64_t some = 0, all = ~UINT64_C(0);
    for (int64_t r = 0; r < rows; r++) {
        uint64_t set = 0;
        for (int64_t i = 0; i < columns; i++) set |= (uint64_t)(isnan(out[r * columns + i]) != 0) << i;
        some |= set;
        all &= set;
    }
    assert_true(some == all);
    return some;
}

/* A NaN in a weight reaches the outputs that depend on it, and no others. Two heads of 4 columns. */
static void test_nan_in_weights(void **state) {
    (void)state;
    static const struct {
        attune_weight_id id;
        int64_t at;          /* element; weights are [out, in] with 8 inputs */
        uint64_t heads, out; /* columns that are NaN, without and with the output projection */
    } cases[] = {
        {ATTUNE_Q_WEIGHT, 5 * 8 + 3, 0xf0, 0xff},
        {ATTUNE_K_WEIGHT, 2 * 8 + 7, 0x0f, 0xff},
        {ATTUNE_V_WEIGHT, 6 * 8, 0x40, 0xff},
        {ATTUNE_Q_BIAS, 0, 0x0f, 0xff},
        {ATTUNE_V_BIAS, 3, 0x08, 0xff},
        {ATTUNE_OUT_WEIGHT, 2 * 8 + 1, 0, 0x04},
        {ATTUNE_OUT_BIAS, 7, 0, 0x80},
    };
    attune_context *context = tensors_context(NULL, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int projects = 0; projects < 2; projects++) {
            if (!projects && !cases[i].heads) continue;
            float numbers[ATTUNE_NUM_WEIGHTS][64], x[5 * 8], out[5 * 8];
            attune_problem p = ATTUNE_PROBLEM_INIT;
            attune_mha_weights weights;
            p.embed_dim = 8;
            p.num_heads = 2;
            p.seq_q = 5;
            p.no_out_projection = !projects;
            assert_int_equal(attune_mha_weights_init(&weights, &p, ATTUNE_OUT_IN), ATTUNE_OK);
            for (int id = 0; id < ATTUNE_QKV_WEIGHT; id++) {
                for (int n = 0; n < 64; n++) numbers[id][n] = (float)(n % 7 - 3) / 8;
                if (weights.tensor[id].rank) weights.tensor[id].data = numbers[id];
            }
            numbers[cases[i].id][cases[i].at] = NAN;
            for (int n = 0; n < 5 * 8; n++) x[n] = (float)(n % 11 - 5) / 4 + 0.125f;
            attune_mha *mha = NULL;
            attune_arguments a;
            if (attune_mha_create(context, &p, NULL, &weights, &mha)) fail_msg("%s", attune_last_message());
            assert_int_equal(attune_arguments_init(&a, &p), ATTUNE_OK);
            a.x.data = x;
            a.out.data = out;
            if (attune_mha_run(mha, &a, NULL)) fail_msg("%s", attune_last_message());
            assert_int_equal(nan_columns(out, 5, 8), projects ? cases[i].out : cases[i].heads);
            attune_mha_destroy(mha);
        }
    attune_context_destroy(context);
}

static void test_workspace_too_small(void **state) {
    (void)state;
    attune_context *context = tensors_context(NULL, 2);
    tensors t;
    tensors_open_call(&t, "batch=2,embed_dim=40,num_heads=4,seq_q=9", "", INPUT_ORDINARY, 1);
    attune_arguments a;
    tensors_arguments(&t, &a);
    size_t bytes = 0;
    char number[32];
    attune_kernel *kernel = kernel_of(context, &t.problem);
    assert_int_equal(attune_workspace_size(context, kernel, &a, &bytes), ATTUNE_OK);
    assert_true(bytes >= 2 * 9 * 40 * 4 * sizeof(float)); /* q, k, v and the heads */
    a.workspace = aligned_alloc(64, (bytes + 63) / 64 * 64);
    a.workspace_bytes = bytes - 1;
    assert_int_equal(attune_run(context, kernel, &a), ATTUNE_WORKSPACE_TOO_SMALL);
    snprintf(number, sizeof number, "%zu", bytes);
    if (!strstr(attune_last_message(), number)) fail_msg("%s: does not say %s", attune_last_message(), number);
    a.workspace_bytes = bytes;
    assert_int_equal(attune_run(context, kernel, &a), ATTUNE_OK);
    free(a.workspace);
    attune_kernel_release(kernel);
    tensors_free(&t);
    attune_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits_do_not_depend_on_threads), cmocka_unit_test(test_ragged_entries_are_independent),
        cmocka_unit_test(test_cross_attention_from_caches),   cmocka_unit_test(test_nan_in_weights),
        cmocka_unit_test(test_workspace_too_small),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
