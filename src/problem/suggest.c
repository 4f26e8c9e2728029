#include "problem/suggest.h"

#include "base/nearest.h"
#include "problem/problem_fields.h"

#include <stdio.h>
#include <string.h>

typedef struct alias {
    const char *usual, *meant;
} alias;

/* Names that are too far from attune's for a count of letters. Flags need no line for their is_ or has_. */
static const alias field_aliases[] = {
    {"b", "batch"},
    {"bs", "batch"},
    {"bsz", "batch"},
    {"batch_size", "batch"},
    {"h", "num_heads"},
    {"heads", "num_heads"},
    {"nhead", "num_heads"},
    {"n_head", "num_heads"},
    {"n_heads", "num_heads"},
    {"q_heads", "num_heads"},
    {"num_q_heads", "num_heads"},
    {"num_attention_heads", "num_heads"},
    {"kv_heads", "num_kv_heads"},
    {"n_kv_heads", "num_kv_heads"},
    {"num_key_value_heads", "num_kv_heads"},
    {"num_query_groups", "num_kv_heads"},
    {"s", "seq_q"},
    {"sq", "seq_q"},
    {"seq", "seq_q"},
    {"seqlen", "seq_q"},
    {"seq_len", "seq_q"},
    {"seqlen_q", "seq_q"},
    {"seq_len_q", "seq_q"},
    {"q_len", "seq_q"},
    {"tokens", "seq_q"},
    {"skv", "seq_kv"},
    {"seq_k", "seq_kv"},
    {"seqlen_k", "seq_kv"},
    {"seqlen_kv", "seq_kv"},
    {"seq_len_kv", "seq_kv"},
    {"kv_len", "seq_kv"},
    {"k_len", "seq_kv"},
    {"d", "head_dim"},
    {"dim", "head_dim"},
    {"d_head", "head_dim"},
    {"d_k", "head_dim"},
    {"dim_head", "head_dim"},
    {"head_size", "head_dim"},
    {"d_v", "head_dim_v"},
    {"v_head_dim", "head_dim_v"},
    {"d_model", "embed_dim"},
    {"hidden_size", "embed_dim"},
    {"hidden_dim", "embed_dim"},
    {"n_embd", "embed_dim"},
    {"kdim", "kv_embed_dim"},
    {"vdim", "v_embed_dim"},
    {"type", "dtype"},
    {"data_type", "dtype"},
    {"cache_dtype", "kv_dtype"},
    {"kv_cache_dtype", "kv_dtype"},
    {"weight_dtype", "w_dtype"},
    {"weights_dtype", "w_dtype"},
    {"scale", "softmax_scale"},
    {"sm_scale", "softmax_scale"},
    {"softcap", "logits_soft_cap"},
    {"soft_cap", "logits_soft_cap"},
    {"logit_cap", "logits_soft_cap"},
    {"window", "window_left"},
    {"window_size", "window_left"},
    {"sliding_window", "window_left"},
    {"return_lse", "lse"},
    {"alibi", "alibi_slopes"},
    {"varlen", "ragged"},
    {"block_size", "page_size"},
    {"mask", "attn_mask"},
    {"attention_mask", "attn_mask"},
    {"attn_mask_dims", "attn_mask"},
    {"bias", "attn_bias"},
    {"attention_bias", "attn_bias"},
    {"attn_bias_dims", "attn_bias"},
    {"rope", "rotary_dim"},
    {"rope_dim", "rotary_dim"},
    {"rotary", "rotary_dim"},
    {"interleaved", "rotary_interleaved"},
    {"weights_mode", "weights"},
    {"need_weights", "weights"},
    {"deterministic", "reproducible"},
};

static const alias value_aliases[] = {
    {"float", "f32"},
    {"single", "f32"},
    {"float32", "f32"},
    {"half", "f16"},
    {"float16", "f16"},
    {"bfloat16", "bf16"},
    {"bfloat", "bf16"},
    {"double", "f64"},
    {"float64", "f64"},
    {"int8", "i8"},
    {"fp8", "f8"},
    {"float8", "f8"},
    {"e4m3", "f8"},
    {"fp8_e4m3", "f8"},
    {"f8_e4m3", "f8"},
    {"float8_e4m3fn", "f8"},
    {"yes", "true"},
    {"on", "true"},
    {"no", "false"},
    {"off", "false"},
    {"upper_left", "top_left"},
    {"lower_right", "bottom_right"},
    {"sdpa", "attention"},
    {"attn", "attention"},
    {"rope", "rotary"},
    {"block", "mha"},
    {"per_head", "head"},
    {"per_token", "token"},
    {"bnsh", "bhsd"},
    {"bsnh", "bshd"},
    {"hnd", "bhsd"},
    {"nhd", "bshd"},
};

static const char *find_alias(const alias *list, size_t count, const char *text, size_t length) {
    for (size_t i = 0; i < count; i++)
        if (at_same_word(text, length, list[i].usual)) return list[i].meant;
    return NULL;
}

static mha_suggestion sentence(const char *word) {
    mha_suggestion s = {""};
    if (word) snprintf(s.text, sizeof s.text, "; did you mean %s?", word);
    return s;
}

/* The name without is_ or has_. */
static size_t prefix_length(const char *text, size_t length) {
    if (length > 3 && !memcmp(text, "is_", 3)) return 3;
    return length > 4 && !memcmp(text, "has_", 4) ? 4 : 0;
}

/* Whether text and name differ by an is_ or has_ at most. */
static bool is_same_flag(const char *text, size_t length, const char *name) {
    const size_t of_text = prefix_length(text, length), of_name = prefix_length(name, strlen(name));
    return at_same_word(text + of_text, length - of_text, name + of_name);
}

mha_suggestion mha_suggest_field(const mha_pair *pair) {
    static const char *const others[] = {"layout", "kv_dtype", "kv_scales"};
    const size_t length = (size_t)pair->key_length;
    const char *const usual =
        find_alias(field_aliases, sizeof field_aliases / sizeof *field_aliases, pair->key, length);
    if (usual) return sentence(usual);
    for (int i = 0; i < MHA_NUM_FIELDS; i++)
        if (is_same_flag(pair->key, length, mha_fields[i].name)) return sentence(mha_fields[i].name);
    at_nearest nearest = at_nearest_to(pair->key, length);
    for (int i = 0; i < MHA_NUM_FIELDS; i++) at_nearest_try(&nearest, mha_fields[i].name);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) at_nearest_try(&nearest, others[i]);
    return sentence(nearest.word);
}

mha_suggestion mha_suggest_value(const mha_pair *pair, const char *const *words, int count) {
    const size_t length = (size_t)pair->value_length;
    const char *const usual =
        find_alias(value_aliases, sizeof value_aliases / sizeof *value_aliases, pair->value, length);
    at_nearest nearest = at_nearest_to(pair->value, length);
    for (int i = 0; i < count; i++) {
        if (!words[i]) continue;
        if (usual && strcmp(usual, words[i]) == 0) return sentence(words[i]);
        at_nearest_try(&nearest, words[i]);
    }
    return sentence(nearest.word);
}

mha_suggestion mha_suggest_name(const mha_pair *pair, const char *const *names, int count) {
    at_nearest nearest = at_nearest_to(pair->key, (size_t)pair->key_length);
    for (int i = 0; i < count; i++) at_nearest_try(&nearest, names[i]);
    return sentence(nearest.word);
}
