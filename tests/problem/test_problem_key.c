/* The key differs exactly where kernels do. */
#define _GNU_SOURCE
#include "problem/key_words.h"
#include "problem/problem_fields.h"
#include "support/problems.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* Whether a word that both keys have differs: the reason why one kernel is not the other. */
static bool has_named_difference(const char *a, const char *b) {
    mha_key_word x[MHA_KEY_WORDS], y[MHA_KEY_WORDS];
    const attune_problem p = problem_canonical(a), q = problem_canonical(b);
    const size_t n = mha_key_words(&p, x), m = mha_key_words(&q, y);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < m; j++)
            if (x[i].kind == y[j].kind && !strcmp(x[i].name, y[j].name) && x[i].value != y[j].value) return true;
    return false;
}

/* `base` with the fields of `more`, which replace those of the same name. */
static void with(char *text, size_t size, const char *base, const char *more) {
    char copy[128], *rest = copy;
    size_t length = (size_t)snprintf(text, size, "%s", more);
    snprintf(copy, sizeof copy, "%s", base);
    for (char *pair; (pair = strsep(&rest, ","));) {
        char key[64];
        snprintf(key, sizeof key, ",%.*s", (int)(strchr(pair, '=') + 1 - pair), pair);
        if (strncmp(more, key + 1, strlen(key + 1)) && !strstr(more, key))
            length += (size_t)snprintf(text + length, size - length, ",%s", pair);
    }
}

/* The word of a field that both keys have, and whether it differs. */
static bool differs_by(const mha_field *field, const char *a, const char *b) {
    mha_key_word x[MHA_KEY_WORDS], y[MHA_KEY_WORDS];
    const attune_problem p = problem_canonical(a), q = problem_canonical(b);
    const size_t count = mha_key_words(&p, x);
    if ((size_t)field->key >= count || strcmp(x[field->key].name, field->name))
        fail_msg("%s: word %d of the key is not its own", field->name, field->key);
    mha_key_words(&q, y);
    return x[field->key].value != y[field->key].value ||
           (field->kind == MHA_FIELD_DIMS && x[field->key + 1].value != y[field->key + 1].value);
}

static void test_key(void **state) {
    (void)state;
    const char *base = "num_heads=4,seq_q=8,head_dim=16";
    assert_true(problems_share_key(
        base, "num_heads=4,num_kv_heads=4,seq_q=8,seq_kv=8,head_dim=16,head_dim_v=16,softmax_scale=0.25"));
    static const char *const others[] = {
        "num_kv_heads=2",
        "seq_q=9,seq_kv=8",
        "seq_kv=9",
        "seq_q=dynamic",
        "seq_q=dynamic,max_seq_q=9",
        "seq_kv=dynamic",
        "seq_kv=dynamic,max_seq_kv=9",
        "head_dim=17",
        "head_dim_v=17",
        "dtype=f16",
        "dtype=bf16",
        "dtype=f64",
        "k_dtype=f16",
        "v_dtype=f16",
        "k_dtype=i8",
        "k_dtype=i8,k_scales=token",
        "k_dtype=i8,k_scales=token,k_scale_strides=64:16:2",
        "v_dtype=i8",
        "v_dtype=i8,v_scales=token",
        "head_dim=64,k_dtype=i8",
        "head_dim=64,k_dtype=i4",
        "head_dim=64,k_dtype=i4,k_group=64",
        "head_dim=64,k_dtype=i4,k_scales=channel",
        "head_dim=64,k_dtype=i4,k_scales=inline",
        "head_dim=64,k_dtype=i4,k_scales=inline_min",
        "head_dim=64,k_dtype=i4,k_scales=token_min",
        "head_dim=64,k_dtype=i4,k_scales=group_min",
        "head_dim=64,k_dtype=i4,k_scales=group_min,k_group=64",
        "head_dim=64,k_dtype=i4,k_scales=channel_min",
        "head_dim=64,v_dtype=i4",
        "head_dim=64,v_dtype=i4,v_group=64",
        "head_dim=64,v_dtype=i4,v_scales=token_min",
        "head_dim=64,v_dtype=i8,v_scales=inline",
        "k_dtype=f8",
        "k_dtype=f8,k_scales=head",
        "k_layout=panels",
        "v_layout=panels",
        "k_dtype=i8,integer=scores",
        "k_dtype=i8,integer=scores,q_planes=1",
        "k_dtype=i8,v_dtype=i8,integer=all",
        "softmax_precision=f64",
        "softmax_scale=0.5",
        "softmax_scale=dynamic",
        "logits_soft_cap=30",
        "is_causal=1",
        "is_causal=1,causal_offset=1",
        "is_causal=1,has_causal_offsets=1",
        "is_causal=1,causal_align=top_left,has_kv_lens=1",
        "has_kv_lens=1",
        "window_left=3",
        "window_right=3",
        "window_left=3,global_tokens=2",
        "has_lse=1",
        "has_lse=1,lse_strides=64:16:2",
        "has_alibi_slopes=1",
        "has_sinks=1",
        "is_ragged=1",
        "page_size=4,seq_kv=8",
        "page_size=8,seq_kv=8",
        "seq_new=1",
        "seq_new=2",
        "seq_new=dynamic",
        "v_in_k=1",
        "attn_mask_dims=qk",
        "attn_mask_dims=q",
        "attn_mask_dims=hqk",
        "batch=2,attn_mask_dims=bqk",
        "attn_mask_dims=k",
        "attn_mask_dims=7,short_masks=1",
        "attn_mask_dims=6,short_masks=1",
        "attn_mask_dims=dynamic,short_masks=1",
        "attn_mask_dims=qk,attn_mask_strides=0:0:32:2",
        "attn_bias_dims=qk",
        "attn_bias_dims=qk,bias_dtype=f16",
        "attn_bias_dims=qk,bias_dtype=bf16",
        "rotary_dim=16",
        "rotary_dim=8",
        "rotary_dim=8,rotary_interleaved=1",
        "rotary_dim=8,has_position_ids=1",
        "qk_norm_eps=1e-6",
        "qk_norm_eps=1e-5",
        "qk_hadamard=1",
        "matmul_precision=bf16",
        "dtype=bf16,matmul_precision=f32",
        "weights_mode=scaled",
        "weights_mode=softmax",
        "weights_mode=softmax,weights_average=1",
        "reproducible=1",
        "kv_ids=query",
        "kv_ids=sequence",
        "kv_ids=query,num_ids=7",
        "kv_ids=query,has_kv_id_lens=1",
        "seq_q=dynamic,is_general=1",
        "score_mod=\"score * score\"",
        "mask_mod=\"(q + kv) % 2 == 0\"",
        "prob_mod=\"prob * 2\"",
        "score_mod=\"score + slope[h]\",tensors=\"slope:f32[h]\"",
        "op=weights",
        "op=weights,weights_mode=capped",
        "op=weights,weights_mode=capped,logits_soft_cap=30",
        "op=weights,has_row_ids=1,num_rows=2",
        "op=weights,has_row_ids=1,num_rows=3",
        "op=rotary,rotary_dim=8",
        "op=merge,num_parts=2",
        "op=merge,num_parts=3",
        "q_strides=1024:256:32:2",
        "k_strides=1024:256:32:2",
        "v_strides=1024:256:32:2",
        "out_strides=1024:256:32:2",
    };
    enum { COUNT = sizeof others / sizeof *others };
    char texts[COUNT][160];
    for (int i = 0; i < COUNT; i++) {
        with(texts[i], sizeof texts[i], base, others[i]);
        if (problems_share_key(base, texts[i])) fail_msg("%s has the key of %s", texts[i], base);
        if (!has_named_difference(base, texts[i])) fail_msg("nothing tells %s from %s by name", texts[i], base);
        for (int j = 0; j < i; j++)
            if (problems_share_key(texts[i], texts[j])) fail_msg("%s has the key of %s", texts[i], texts[j]);
    }
    const unsigned of_blocks = 1u << ATTUNE_MHA;
    for (int f = 0; f < MHA_NUM_FIELDS; f++) {
        const mha_field *const field = &mha_fields[f];
        if (field->key < 0 || !(field->operators & ~of_blocks)) continue;
        bool is_told = false;
        for (int i = 0; i < COUNT && !is_told; i++) is_told = differs_by(field, base, texts[i]);
        if (!is_told) fail_msg("no problem differs in %s", field->name);
    }
}

/* Arguments of the kernel are not in its key. */
static void test_not_in_the_key(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"num_heads=4,seq_q=8,head_dim=16", "batch=7,num_heads=2,seq_q=8,head_dim=16"},
        {"num_heads=4,seq_q=8,head_dim=16", "num_heads=4,seq_q=8,head_dim=16,layout=bshd"},
        {"batch=3,num_heads=4,seq_q=8,head_dim=16,attn_mask_dims=bhqk",
         "batch=7,num_heads=2,seq_q=8,head_dim=16,attn_mask_dims=bhqk"},
        {"num_heads=4,seq_q=8,head_dim=16,attn_mask_dims=qk,attn_mask_strides=0:0:99:1",
         "num_heads=4,seq_q=8,head_dim=16,attn_mask_dims=qk"},
        {"num_heads=4,num_kv_heads=2,seq_q=8,head_dim=16,attn_bias_dims=bqk,batch=3",
         "num_heads=2,num_kv_heads=1,seq_q=8,head_dim=16,attn_bias_dims=bqk,batch=5"},
        {"num_heads=4,seq_q=dynamic,head_dim=16,q_strides=9999:999:99:1", "num_heads=2,seq_q=dynamic,head_dim=16"},
        {"num_heads=4,seq_q=8,head_dim=16,weights_mode=softmax,weights_strides=9999:999:99:1",
         "num_heads=2,seq_q=8,head_dim=16,weights_mode=softmax"},
        {"num_heads=4,is_ragged=1,head_dim=16", "num_heads=2,batch=9,is_ragged=1,head_dim=16"},
        /* Steps after the one whose scores are asked for. */
        {"op=weights,weights_mode=scaled,seq_q=8,head_dim=16,logits_soft_cap=30,is_causal=1",
         "op=weights,weights_mode=scaled,seq_q=8,head_dim=16"},
        {"op=weights,weights_mode=capped,seq_q=8,head_dim=16,logits_soft_cap=30,window_left=2,has_alibi_slopes=1",
         "op=weights,weights_mode=capped,seq_q=8,head_dim=16,logits_soft_cap=30"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (!problems_share_key(pairs[i][0], pairs[i][1]))
            fail_msg("%s has not the key of %s", pairs[i][0], pairs[i][1]);
}

/* Words have the names of the text form, so that they can be typed in. */
static void test_names(void **state) {
    (void)state;
    static const char *const derived[] = {"key_format", "heads_per_kv_head", "few_rows"};
    mha_key_word words[MHA_KEY_WORDS];
    const attune_problem p = problem_canonical("num_heads=4,seq_q=8,head_dim=16");
    const size_t count = mha_key_words(&p, words);
    for (size_t i = 0; i < count; i++) {
        bool is_known = false;
        char name[80] = "";
        mha_writer w = {name, sizeof name, 0};
        mha_key_word_name(&words[i], &w);
        assert_true(w.length > 0);
        for (size_t j = 0; j < i; j++)
            assert_true(words[i].kind != words[j].kind || strcmp(words[i].name, words[j].name));
        for (size_t j = 0; j < sizeof derived / sizeof *derived; j++) is_known |= !strcmp(words[i].name, derived[j]);
        /* Of a stride: the field is that of its tensor; the word has more text after the tensor's name. */
        const size_t length = strcspn(name, " ");
        for (int j = 0; j < MHA_NUM_FIELDS; j++)
            is_known |= strlen(mha_fields[j].name) == length && !strncmp(mha_fields[j].name, name, length);
        if (!is_known) fail_msg("%s is no field", name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_key),
        cmocka_unit_test(test_not_in_the_key),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
