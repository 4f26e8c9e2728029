/* The canonical key: the properties that a kernel is specialised for, as bytes. */
#define XXH_INLINE_ALL
#include "expr/expr.h"
#include "problem/key_words.h"
#include "problem/problem.h"
#include "problem/signature.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

/* ---- The words of a key ---- */

/* Words that are not fields, and their numbers among those of fields.def. */
enum { KEY_FORMAT = 0, HEADS_PER_KV_HEAD = 7, NUM_HEADS = 39, FEW_ROWS = 40, NUM_DERIVED = 4, NUM_FUNCTIONS = 3 };
enum { NUM_KEYS = MHA_FIELD_KEYS + NUM_DERIVED };

/* Raise it when the order or the meaning of words changes. One more word raises it by itself. */
enum { FORMAT = NUM_KEYS - 54 };

/* A number in the precision of the arithmetic: for f32 it is rounded first. NaN: each call has its own. */
static int64_t bits_of(const attune_problem *p, const mha_field *field) {
    const double value = mha_field_open(p, field) ? ATTUNE_DEFAULT_SCALE : mha_field_number(p, field);
    const double rounded = p->softmax_precision == ATTUNE_F64 ? value : (double)(float)value;
    int64_t bits;
    memcpy(&bits, &rounded, sizeof bits);
    return bits;
}

/* Two words: the dims along which the mask repeats, and its number of keys. Batch and heads are among the dims, since
 * strides that are left open follow from them at run time. */
static void put_mask(mha_key_word words[2], const attune_problem *p, const mha_field *field) {
    int64_t dims[4];
    memcpy(dims, mha_field_of(p, field), sizeof dims);
    const int64_t ones = (dims[0] == 1) + 2 * (dims[1] == 1) + 4 * (dims[2] == 1) + 8 * (dims[3] == 1);
    words[0] = (mha_key_word){MHA_KEY_MASK, field->name, dims[3] ? 16 + ones : 0};
    words[1] = (mha_key_word){MHA_KEY_MASK_KEYS, field->name, p->short_masks && dims[3] != 1 ? dims[3] : 0};
}

/* A word that tells functions apart; the key itself holds their text as well (put_functions). */
static int64_t hash_of(const attune_problem *p, const mha_field *field) {
    return mha_field_is_initial(p, field) ? 0 : (int64_t)XXH3_64bits(mha_field_of(p, field), mha_field_bytes(field));
}

static void put_field(mha_key_word words[MHA_KEY_WORDS], const attune_problem *p, const mha_field *field) {
    mha_key_word *word = &words[field->key];
    if (field->kind == MHA_FIELD_DIMS)
        put_mask(word, p, field);
    else if (field->kind == MHA_FIELD_NUMBER)
        *word = (mha_key_word){MHA_KEY_NUMBER, field->name, bits_of(p, field)};
    else if (field->kind == MHA_FIELD_TEXT || field->kind == MHA_FIELD_TENSORS)
        *word = (mha_key_word){MHA_KEY_TEXT, field->name, hash_of(p, field)};
    else
        *word = (mha_key_word){MHA_KEY_FIELD, field->name, mha_field_value(p, field)};
}

static void put_derived(mha_key_word words[MHA_KEY_WORDS], const attune_problem *p) {
    const int64_t group = p->num_heads / p->num_kv_heads, heads = mha_is_block(p) ? p->num_heads : 0;
    words[KEY_FORMAT] = (mha_key_word){MHA_KEY_FIELD, "key_format", FORMAT};
    words[HEADS_PER_KV_HEAD] = (mha_key_word){MHA_KEY_FIELD, "heads_per_kv_head", group};
    words[NUM_HEADS] = (mha_key_word){MHA_KEY_FIELD, "num_heads", heads};
    words[FEW_ROWS] = (mha_key_word){MHA_KEY_FIELD, "few_rows", mha_few_rows(p)};
}

size_t mha_key_words(const attune_problem *p, mha_key_word words[MHA_KEY_WORDS]) {
    enum { MOST_STRIDES = 12 };
    _Static_assert(NUM_KEYS + MOST_STRIDES <= MHA_KEY_WORDS, "a key holds all of them");
    mha_tensor tensors[MHA_NUM_TENSORS];
    const size_t count = mha_tensors(p, tensors);
    size_t n = NUM_KEYS;
    put_derived(words, p);
    for (int i = 0; i < MHA_NUM_FIELDS; i++)
        if (mha_fields[i].key != MHA_NO_KEY) put_field(words, p, &mha_fields[i]);
    for (size_t i = 0; i < count; i++)
        if (tensors[i].problem_strides)
            words[n++] = (mha_key_word){MHA_KEY_STRIDE, tensors[i].name, tensors[i].inner_stride};
    return n;
}

/* What the functions say, byte by byte, and the tensors that they read. */
static size_t put_functions(const attune_problem *p, uint8_t *key) {
    const char *const texts[NUM_FUNCTIONS] = {p->score_mod, p->mask_mod, p->prob_mod};
    size_t n = 0;
    if (!mha_has_functions(p)) return 0;
    for (int i = 0; i < NUM_FUNCTIONS; i++) {
        const size_t length = strlen(texts[i]) + 1;
        memcpy(key + n, texts[i], length);
        n += length;
    }
    const size_t bytes = (size_t)ex_count_tensors(p->tensors) * sizeof *p->tensors;
    memcpy(key + n, p->tensors, bytes);
    return n + bytes;
}

size_t mha_key(const attune_problem *p, uint8_t key[MHA_KEY_BYTES]) {
    _Static_assert(8 * MHA_KEY_WORDS + NUM_FUNCTIONS * ATTUNE_FUNCTION_BYTES + sizeof p->tensors <= MHA_KEY_BYTES,
                   "all fit");
    mha_key_word words[MHA_KEY_WORDS];
    const size_t count = mha_key_words(p, words);
    for (size_t i = 0; i < count; i++)
        for (int b = 0; b < 8; b++) key[8 * i + (size_t)b] = (uint8_t)((uint64_t)words[i].value >> (8 * b));
    return 8 * count + put_functions(p, key + 8 * count);
}

/* ---- For people ---- */

void mha_key_word_name(const mha_key_word *word, mha_writer *w) {
    static const char *const behind[] = {[MHA_KEY_FIELD] = "", [MHA_KEY_NUMBER] = "",
                                         [MHA_KEY_MASK] = "",  [MHA_KEY_MASK_KEYS] = " (keys)",
                                         [MHA_KEY_TEXT] = "",  [MHA_KEY_STRIDE] = "_strides (the last)"};
    mha_write(w, "%s%s", word->name, behind[word->kind]);
}

static void write_field(const mha_key_word *word, mha_writer *w) {
    const mha_field *field = mha_field_named(word->name);
    const bool is_size = field && field->kind == MHA_FIELD_SIZE;
    const char *of_value = field && field->words ? mha_field_word(field, word->value) : NULL;
    if (is_size && word->value == ATTUNE_DYNAMIC) of_value = "dynamic";
    if (of_value)
        mha_write(w, "%s", of_value);
    else
        mha_write(w, "%lld", (long long)word->value);
}

/* The letters of the dims that are not 1, as the text has them. */
static void write_mask(int64_t value, mha_writer *w) {
    if (!value || (value & 15) == 15) mha_write(w, value ? "1" : "none");
    for (int i = 0; value && i < 4; i++)
        if (!(value >> i & 1)) mha_write(w, "%c", mha_dim_letters[i]);
}

void mha_key_word_value(const mha_key_word *word, mha_writer *w) {
    double number;
    switch (word->kind) {
    case MHA_KEY_FIELD: write_field(word, w); break;
    case MHA_KEY_MASK: write_mask(word->value, w); break;
    case MHA_KEY_TEXT:
        if (word->value)
            mha_write(w, "text %016llx", (long long)word->value);
        else
            mha_write(w, "none");
        break;
    case MHA_KEY_NUMBER:
        memcpy(&number, &word->value, sizeof number);
        if (isnan(number)) /* of a scale that each call has */
            mha_write(w, "dynamic");
        else
            mha_write(w, "%.9g", number);
        break;
    default: mha_write(w, "%lld", (long long)word->value);
    }
}
