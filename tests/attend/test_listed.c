/* Attention over listed keys (kv_ids): right for every place of the keys, the same from interpreter and machine code,
 * and with `reproducible` the bits of a call whose mask shows just these keys. */
#include <attune.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/calls.h"
#include "support/ir/jit_run.h"
#include "support/problems.h"
#include "support/tensor_calls.h"

/* ---- Results ---- */

typedef struct kind {
    const char *problem, *sizes;
} kind;

#define HEADS "num_heads=4,num_kv_heads=2,head_dim=24,"
static const kind kinds[] = {
    {HEADS "seq_q=3,seq_kv=90,kv_ids=query,num_ids=40", ""},
    {HEADS
     "batch=2,seq_q=3,seq_kv=90,kv_ids=query,num_ids=40,has_kv_id_lens=1,attn_bias_dims=hqk,has_sinks=1,has_lse=1",
     ""},
    {HEADS "batch=2,seq_q=5,seq_kv=30,kv_ids=sequence,num_ids=dynamic,has_kv_lens=1,attn_mask_dims=bqk", "num_ids=70"},
    /* Lists of several chunks, and beyond a tile. */
    {"num_heads=8,num_kv_heads=1,head_dim=16,seq_q=1,seq_kv=900,kv_ids=query,num_ids=1300,has_kv_id_lens=1,dtype=bf16",
     ""},
    /* Ragged batches: keys of a sequence begin anywhere, and the last tasks have no query. */
    {HEADS "batch=3,is_ragged=1,seq_q=dynamic,seq_kv=dynamic,kv_ids=query,num_ids=40,has_kv_id_lens=1,has_lse=1",
     "total_q=9,total_kv=150,seq_q=6"},
    {HEADS "batch=3,is_ragged=1,seq_q=dynamic,seq_kv=dynamic,kv_ids=sequence,num_ids=33,has_kv_id_lens=1,dtype=f16",
     "total_q=9,total_kv=150"},
    {HEADS "batch=3,is_ragged=1,seq_q=dynamic,seq_kv=dynamic,kv_ids=query,num_ids=40,has_kv_id_lens=1,page_size=6,"
           "has_kv_lens=1,kv_dtype=i8,kv_scales=token",
     "total_q=9,num_pages=40,max_pages=9"},
    /* Latent attention: more heads than a task has rows, and values that are columns of the keys. */
    {"num_heads=96,num_kv_heads=1,head_dim=20,head_dim_v=16,v_in_k=1,seq_q=2,seq_kv=200,kv_ids=query,num_ids=60,"
     "has_kv_id_lens=1,page_size=16,has_kv_lens=1,dtype=bf16",
     "num_pages=14,max_pages=13"},
    /* Few enough heads that keys of the next tile are prefetched, one tile or more, and the last one not whole. */
    {"num_heads=16,num_kv_heads=1,head_dim=72,head_dim_v=64,v_in_k=1,seq_q=2,seq_kv=1500,kv_ids=query,num_ids=1203,"
     "has_kv_id_lens=1,page_size=16,has_kv_lens=1,dtype=bf16",
     "num_pages=95,max_pages=94"},
    {"num_heads=9,num_kv_heads=1,head_dim=20,head_dim_v=16,v_in_k=1,seq_q=1,seq_kv=1500,kv_ids=sequence,num_ids=1115",
     ""},
    /* Appended keys can be listed. */
    {HEADS "seq_q=2,seq_kv=60,seq_new=2,has_kv_lens=1,kv_ids=query,num_ids=40,rotary_dim=8", "rotary_positions=70"},
    {"num_heads=4,num_kv_heads=2,head_dim=64,seq_q=2,seq_kv=90,kv_ids=query,num_ids=40,kv_dtype=i4,kv_scales=group",
     ""},
    {HEADS "seq_q=2,seq_kv=90,kv_ids=query,num_ids=40,kv_dtype=f8,kv_scales=head", ""},
    {HEADS "seq_q=2,seq_kv=700,kv_ids=query,num_ids=300,has_kv_id_lens=1,reproducible=1,page_size=16,has_kv_lens=1",
     "num_pages=50,max_pages=44"},
};

static void results_are_right(void **state) {
    (void)state;
    static const char *const sets[] = {"x86-64", "avx2", "avx512"};
    for (size_t s = 0; s < sizeof sets / sizeof *sets; s++) {
        const at_target *const target = at_target_find(sets[s]);
        if (!target_can_run(target)) continue;
        attune_context *const context = tensors_context(sets[s], 1);
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
            tensors compiled, interpreted;
            tensors_open_call(&compiled, kinds[i].problem, kinds[i].sizes, INPUT_ORDINARY, 3 + i);
            tensors_open_call(&interpreted, kinds[i].problem, kinds[i].sizes, INPUT_ORDINARY, 3 + i);
            tensors_run_chosen(context, &compiled, NULL);
            tensors_interpret(context, &interpreted, NULL);
            tensors_assert_same(&compiled, &interpreted, kinds[i].problem);
            tensors_assert_right(&compiled, INPUT_ORDINARY, kinds[i].problem);
            tensors_free(&compiled);
            tensors_free(&interpreted);
        }
        attune_context_destroy(context);
    }
}

/* ---- The same bits as a mask ---- */

static uint32_t next(uint32_t *seed) { return *seed = *seed * 1664525 + 1013904223; }

/* Shows some of the keys to each query: about one of `of`; to the last query none. And lists them. */
static void hide_keys(const sample_call *dense, const sample_call *listed, int64_t queries, int64_t keys, uint32_t of) {
    unsigned char *const mask = sample_call_data(dense, "attn_mask");
    int32_t *const ids = sample_call_data(listed, "kv_ids"), *const lens = sample_call_data(listed, "kv_id_lens");
    const int64_t columns = sample_call_tensor(listed, "kv_ids")->dims[2];
    uint32_t seed = 7;
    for (int64_t i = 0; i < queries; i++) {
        lens[i] = 0;
        for (int64_t j = 0; j < keys; j++) {
            const bool is_seen = i < queries - 1 && (next(&seed) >> 16) % of == 0 && lens[i] < columns;
            mask[i * keys + j] = is_seen;
            if (is_seen) ids[i * columns + lens[i]++] = (int32_t)j;
        }
        for (int64_t n = lens[i]; n < columns; n++) ids[i * columns + n] = -1; /* not read */
    }
}

/* Gives one call the numbers of another. */
static void copy_numbers(const sample_call *to, const sample_call *from) {
    for (size_t i = 0; i < to->count; i++) {
        const void *const numbers = sample_call_find(from, to->tensors[i].name, NULL);
        if (numbers) memcpy(to->memory[i].data, numbers, to->memory[i].bytes);
    }
}

static bool outputs_agree(const sample_call *a, const sample_call *b) {
    for (size_t i = 0; i < a->count; i++) {
        if (!a->tensors[i].is_output) continue;
        if (memcmp(a->memory[i].data, sample_call_data(b, a->tensors[i].name), a->memory[i].bytes)) return false;
    }
    return true;
}

static void bits_are_those_of_a_mask(void **state) {
    (void)state;
    enum { QUERIES = 4, KEYS = 1500 };
    static const char *const fields[] = {"", "dtype=bf16,", "dtype=f16,head_dim_v=24,v_in_k=1,",
                                         "kv_dtype=i8,kv_scales=token,", "has_sinks=1,has_lse=1,logits_soft_cap=20,"};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        for (uint32_t of = 1; of <= 100; of *= 10) {
            char text[2][300];
            sample_call dense, listed;
            for (int n = 0; n < 2; n++)
                snprintf(text[n], sizeof text[n],
                         "%sreproducible=1,num_heads=4,num_kv_heads=2,head_dim=32,seq_q=%d,seq_kv=%d,%s", fields[i],
                         QUERIES, KEYS, n ? "kv_ids=query,num_ids=1500,has_kv_id_lens=1" : "attn_mask_dims=qk");
            sample_call_open(&dense, &(sample){.problem = text[0], .sizes = ""}, ON_THE_HEAP);
            sample_call_open(&listed, &(sample){.problem = text[1], .sizes = ""}, ON_THE_HEAP);
            copy_numbers(&listed, &dense);
            hide_keys(&dense, &listed, QUERIES, KEYS, of);
            sample_call_run(sample_context, &dense, NULL);
            sample_call_run(sample_context, &listed, NULL);
            if (!outputs_agree(&dense, &listed)) fail_msg("%s, one key of %u: other bits", text[1], of);
            sample_call_close(&dense);
            sample_call_close(&listed);
        }
}

/* ---- Checks ---- */

static void refused(const char *problem, const char *name, int64_t at, int32_t value, const char *part) {
    sample_call c;
    sample_call_open(&c, &(sample){.problem = problem, .sizes = ""}, ON_THE_HEAP);
    size_t bytes;
    int32_t *const ids = sample_call_find(&c, "kv_ids", &bytes);
    for (size_t i = 0; i < bytes / sizeof *ids; i++) ids[i] = (int32_t)i % 5;
    int32_t *const lens = c.problem.has_kv_id_lens ? sample_call_data(&c, "kv_id_lens") : NULL;
    for (int i = 0; lens && i < 3; i++) lens[i] = 5;
    sample_call_run(sample_context, &c, NULL);
    ((int32_t *)sample_call_data(&c, name))[at] = value;
    sample_call_assert_refused(sample_context, &c, &c.arguments, part);
    sample_call_close(&c);
}

static void calls_are_checked(void **state) {
    (void)state;
    static const char by_query[] = "num_heads=2,seq_q=3,seq_kv=9,head_dim=8,kv_ids=query,num_ids=5,has_kv_id_lens=1";
    static const char in_order[] = "num_heads=2,seq_q=3,seq_kv=9,head_dim=8,kv_ids=query,num_ids=5,reproducible=1";
    refused(by_query, "kv_ids", 6, 9, "kv_ids has key 9 at place 1 of the list of query 1; sequence 0 has 9 keys");
    refused(by_query, "kv_ids", 14, -1, "kv_ids has key -1 at place 4 of the list of query 2");
    refused(by_query, "kv_id_lens", 2, 6, "kv_id_lens is 6 at list 2; it must be from 0 to 5 (num_ids)");
    refused(by_query, "kv_id_lens", 0, -1, "kv_id_lens is -1 at list 0");
    refused(in_order, "kv_ids", 6, 0, "kv_ids has key 0 after key 0 in the list of query 1; with reproducible=1 keys");
    refused("batch=2,num_heads=2,seq_q=3,seq_kv=9,head_dim=8,kv_ids=sequence,num_ids=5", "kv_ids", 5, 77,
            "kv_ids has key 77 at place 0 of the list of sequence 1; sequence 1 has 9 keys");
}

static void problems_are_checked(void **state) {
    (void)state;
    static const struct {
        const char *fields, *part;
    } rows[] = {
        {"is_causal=1", "is_causal=1 depends on where a key is in its sequence"},
        {"window_left=3", "window_left depends on"},
        {"has_alibi_slopes=1", "has_alibi_slopes depends on"},
        {"mask_mod=\"q >= kv\"", "mask_mod depends on"},
        {"integer=scores,k_dtype=i8", "leave out integer"},
        {"kv_layout=panels", "but their layout is panels"},
        {"weights_mode=softmax", "kv_ids and weights do not go together"},
        {"rotary_dim=4", "set seq_new to append keys"},
        {"num_ids=2000000", "num_ids is 2000000; it must be from 1 to 1048576"},
        {"attn_bias_dims=1:1:3:9", "attn_bias_dims[3] is 9; it must be 1 or num_ids = dynamic"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[300];
        snprintf(text, sizeof text, "num_heads=2,seq_q=3,seq_kv=9,head_dim=8,kv_ids=query,%s", rows[i].fields);
        const attune_problem p = problem_parsed(text);
        assert_int_equal(attune_problem_check(&p), ATTUNE_INVALID_PROBLEM);
        if (!strstr(attune_last_message(), rows[i].part)) fail_msg("%s: %s", text, attune_last_message());
    }
    const attune_problem general =
        problem_parsed("num_heads=2,seq_q=dynamic,seq_kv=dynamic,head_dim=8,kv_ids=sequence,is_general=1");
    assert_int_equal(attune_problem_check(&general), ATTUNE_INVALID_PROBLEM);
    assert_non_null(strstr(attune_last_message(), "is_general is 1, but queries share a list of keys"));
}

/* What no list names may hold anything, also in the debug mode, which reads it. */
static void unlisted_keys_may_be_nan(void **state) {
    (void)state;
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *checking = NULL;
    sample_call c;
    options.cache_dir = "";
    options.check = 1;
    assert_int_equal(attune_context_create(&options, &checking), ATTUNE_OK);
    sample_call_open(
        &c, &(sample){.problem = "num_heads=2,seq_q=1,seq_kv=9,head_dim=8,kv_ids=query,num_ids=3", .sizes = ""},
        ON_THE_HEAP);
    int32_t *const ids = sample_call_data(&c, "kv_ids");
    float *const k = sample_call_data(&c, "k");
    ids[0] = 5, ids[1] = 2, ids[2] = 5;
    k[4 * 8] = __builtin_nanf("");
    sample_call_run(checking, &c, NULL);
    k[5 * 8] = __builtin_nanf("");
    sample_call_assert_refused(checking, &c, &c.arguments, "k[0, 0, 5, 0]");
    sample_call_close(&c);
    attune_context_destroy(checking);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_are_right),        cmocka_unit_test(bits_are_those_of_a_mask),
        cmocka_unit_test(calls_are_checked),        cmocka_unit_test(problems_are_checked),
        cmocka_unit_test(unlisted_keys_may_be_nan),
    };
    return cmocka_run_group_tests(tests, sample_context_open, sample_context_close);
}
