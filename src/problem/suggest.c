/* First a list of other libraries' names, then the nearest word by letters. */
#include "problem/suggest.h"

#include "base/nearest.h"
#include "problem/problem_fields.h"

#include <stdio.h>
#include <string.h>

typedef struct alias {
    const char *usual, *meant;
} alias;

/* Names in other libraries for keys that are not fields; fields.def has those for fields. Flags need no entry for a
 * missing is_ or has_. */
static const alias key_aliases[] = {
    {"cache_dtype", "kv_dtype"},
    {"kv_cache_dtype", "kv_dtype"},
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

/* Whether a list of words, separated by blanks, has this word. */
static bool has_word(const char *list, const char *text, size_t length) {
    for (const char *at = list; at && *at; at += strspn(at, " ")) {
        const size_t letters = strcspn(at, " ");
        char word[64];
        snprintf(word, sizeof word, "%.*s", (int)letters, at);
        if (at_same_word(text, length, word)) return true;
        at += letters;
    }
    return false;
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

/* Whether text and name differ at most by is_ or has_. */
static bool is_same_flag(const char *text, size_t length, const char *name) {
    const size_t of_text = prefix_length(text, length), of_name = prefix_length(name, strlen(name));
    return at_same_word(text + of_text, length - of_text, name + of_name);
}

mha_suggestion mha_suggest_field(const mha_pair *pair) {
    const size_t length = (size_t)pair->key_length;
    const char *const usual = find_alias(key_aliases, sizeof key_aliases / sizeof *key_aliases, pair->key, length);
    if (usual) return sentence(usual);
    for (int i = 0; i < MHA_NUM_FIELDS; i++)
        if (has_word(mha_fields[i].also, pair->key, length)) return sentence(mha_fields[i].name);
    for (int i = 0; i < MHA_NUM_FIELDS; i++)
        if (is_same_flag(pair->key, length, mha_fields[i].name)) return sentence(mha_fields[i].name);
    at_nearest nearest = at_nearest_to(pair->key, length);
    for (int i = 0; i < MHA_NUM_FIELDS; i++) at_nearest_try(&nearest, mha_fields[i].name);
    at_nearest_try(&nearest, "layout");
    for (int i = 0; i < MHA_NUM_FIELDS; i++)
        if (mha_fields[i].both) at_nearest_try(&nearest, mha_fields[i].both);
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
