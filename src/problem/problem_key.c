/* What a kernel is specialised for, as bytes. */
#include "nest/gemm.h"
#include "problem/key_words.h"
#include "problem/problem_fields.h"

#include <math.h>
#include <string.h>

/* ---- The words of a key ---- */

/* Changing the order or the meaning of the words changes KEY_FORMAT. */
enum { KEY_FORMAT = 6 };

/* What is in every key, in this order: the name, that of the text where there is one, and the value. Names and values
 * are one list, so that no word is without its name. */
#define KEY_FIELDS(X, p)                                                                                               \
    X("key_format", KEY_FORMAT)                                                                                        \
    X("op", (p)->op)                                                                                                   \
    X("dtype", (p)->dtype)                                                                                             \
    X("k_dtype", (p)->k_dtype)                                                                                         \
    X("v_dtype", (p)->v_dtype)                                                                                         \
    X("bias_dtype", (p)->bias_dtype)                                                                                   \
    X("softmax_precision", (p)->softmax_precision)                                                                     \
    X("heads_per_kv_head", (p)->num_heads / (p)->num_kv_heads)                                                         \
    X("seq_q", (p)->seq_q)                                                                                             \
    X("seq_kv", (p)->seq_kv)                                                                                           \
    X("max_seq_q", (p)->max_seq_q)                                                                                     \
    X("max_seq_kv", (p)->max_seq_kv)                                                                                   \
    X("head_dim", (p)->head_dim)                                                                                       \
    X("head_dim_v", (p)->head_dim_v)                                                                                   \
    X("is_causal", (p)->is_causal)                                                                                     \
    X("causal_align", (p)->causal_align)                                                                               \
    X("causal_offset", (p)->causal_offset)                                                                             \
    X("window_left", (p)->window_left)                                                                                 \
    X("window_right", (p)->window_right)                                                                               \
    X("global_tokens", (p)->global_tokens)                                                                             \
    X("lse", (p)->has_lse)                                                                                             \
    X("alibi_slopes", (p)->has_alibi_slopes)                                                                           \
    X("sinks", (p)->has_sinks)                                                                                         \
    X("kv_lens", (p)->has_kv_lens)                                                                                     \
    X("causal_offsets", (p)->has_causal_offsets)                                                                       \
    X("ragged", (p)->is_ragged)                                                                                        \
    X("page_size", (p)->page_size)                                                                                     \
    X("seq_new", (p)->seq_new)                                                                                         \
    X("v_in_k", (p)->v_in_k)                                                                                           \
    X("short_masks", (p)->short_masks)                                                                                 \
    X("rotary_dim", (p)->rotary_dim)                                                                                   \
    X("rotary_interleaved", (p)->rotary_interleaved)                                                                   \
    X("position_ids", (p)->has_position_ids)                                                                           \
    X("weights", (p)->weights_mode)                                                                                    \
    X("weights_average", (p)->weights_average)                                                                         \
    X("row_ids", (p)->has_row_ids)                                                                                     \
    X("reproducible", (p)->reproducible)                                                                               \
    X("num_rows", (p)->num_rows)                                                                                       \
    X("num_parts", (p)->num_parts)                                                                                     \
    X("num_heads", (p)->op == ATTUNE_MHA ? (p)->num_heads : 0)                                                         \
    X("few_rows", mha_few_rows(p))                                                                                     \
    X("embed_dim", (p)->embed_dim)                                                                                     \
    X("kv_embed_dim", (p)->kv_embed_dim)                                                                               \
    X("v_embed_dim", (p)->v_embed_dim)                                                                                 \
    X("out_dim", (p)->out_dim)                                                                                         \
    X("cross", (p)->is_cross)                                                                                          \
    X("kv_projected", (p)->kv_projected)                                                                               \
    X("no_out_projection", (p)->no_out_projection)                                                                     \
    X("low_rank", (p)->low_rank)                                                                                       \
    X("low_rank_heads", (p)->low_rank_heads)                                                                           \
    X("low_rank_shared", (p)->low_rank_shared)                                                                         \
    X("w_dtype", (p)->w_dtype)                                                                                         \
    X("k_scales", (p)->k_scales)                                                                                       \
    X("v_scales", (p)->v_scales)

typedef struct word_writer {
    mha_key_word *words;
    size_t count;
} word_writer;

static void put(word_writer *w, mha_key_word_kind kind, const char *name, int64_t value) {
    w->words[w->count++] = (mha_key_word){kind, name, value};
}

/* A number of the arithmetic that the kernel does: one of f32 is rounded first. */
static void put_number(word_writer *w, const attune_problem *p, const char *name, double value) {
    const double rounded = p->softmax_precision == ATTUNE_F64 ? value : (double)(float)value;
    int64_t bits;
    memcpy(&bits, &rounded, sizeof bits);
    put(w, MHA_KEY_NUMBER, name, bits);
}

/* What a mask is the same for. Of batch and heads too: where its strides are left open they follow from that at run
 * time. */
static void put_mask(word_writer *w, const attune_problem *p, const char *name, const int64_t dims[4]) {
    put(w, MHA_KEY_MASK, name,
        !dims[3] ? 0 : 16 + (dims[0] == 1) + 2 * (dims[1] == 1) + 4 * (dims[2] == 1) + 8 * (dims[3] == 1));
    put(w, MHA_KEY_MASK_KEYS, name, p->short_masks && dims[3] != 1 ? dims[3] : 0);
}

static void put_tensors(word_writer *w, const attune_problem *p) {
    mha_tensor tensors[MHA_NUM_TENSORS];
    const size_t count = mha_tensors(p, tensors);
    for (size_t i = 0; i < count; i++)
        if (tensors[i].has_strides) put(w, MHA_KEY_STRIDE, tensors[i].name, tensors[i].inner_stride);
}

size_t mha_key_words(const attune_problem *p, mha_key_word words[MHA_KEY_WORDS]) {
#define WORD(name, value) {MHA_KEY_FIELD, name, value},
    const mha_key_word fields[] = {KEY_FIELDS(WORD, p)};
    enum { COUNT = sizeof fields / sizeof *fields };
    /* Beside the fields: two numbers, two words for each mask, and the inner strides of twelve tensors at most. */
    _Static_assert(COUNT + 2 + 4 + 12 <= MHA_KEY_WORDS, "a key holds all of them");
    memcpy(words, fields, sizeof fields);
    word_writer w = {words, COUNT};
    put_number(&w, p, "softmax_scale", p->has_softmax_scale ? ATTUNE_DEFAULT_SCALE : p->softmax_scale);
    put_number(&w, p, "logits_soft_cap", p->logits_soft_cap);
    put_mask(&w, p, "attn_mask", p->attn_mask_dims);
    put_mask(&w, p, "attn_bias", p->attn_bias_dims);
    put_tensors(&w, p);
    return w.count;
}

size_t mha_key(const attune_problem *p, uint8_t key[MHA_KEY_BYTES]) {
    mha_key_word words[MHA_KEY_WORDS];
    const size_t count = mha_key_words(p, words);
    for (size_t i = 0; i < count; i++)
        for (int b = 0; b < 8; b++) key[8 * i + (size_t)b] = (uint8_t)((uint64_t)words[i].value >> (8 * b));
    return 8 * count;
}

/* ---- For people ---- */

void mha_key_word_name(const mha_key_word *word, mha_writer *w) {
    static const char *const behind[] = {[MHA_KEY_FIELD] = "",
                                         [MHA_KEY_NUMBER] = "",
                                         [MHA_KEY_MASK] = "",
                                         [MHA_KEY_MASK_KEYS] = " (keys)",
                                         [MHA_KEY_STRIDE] = "_strides (the last)"};
    mha_write(w, "%s%s", word->name, behind[word->kind]);
}

static const mha_field *field_named(const char *name) {
    for (int i = 0; i < MHA_NUM_FIELDS; i++)
        if (!strcmp(mha_fields[i].name, name)) return &mha_fields[i];
    return NULL;
}

static void write_field(const mha_key_word *word, mha_writer *w) {
    const mha_field *field = field_named(word->name);
    const int64_t value = word->value;
    if (field && field->kind == MHA_FIELD_SIZE && value == ATTUNE_DYNAMIC)
        mha_write(w, "dynamic");
    else if (field && field->kind == MHA_FIELD_WORD && value >= 0 && value < field->num_words && field->words[value])
        mha_write(w, "%s", field->words[value]);
    else
        mha_write(w, "%lld", (long long)value);
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
