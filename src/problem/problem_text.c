/* Reads problems from text: "num_heads=12,seq_q=512,head_dim=64,is_causal=1". */
#include "expr/expr.h"
#include "problem/problem.h"
#include "problem/suggest.h"

#include <math.h>
#include <string.h>

typedef enum layout { LAYOUT_NONE, LAYOUT_BHSD, LAYOUT_BSHD } layout;

/* Letters and the strides of `out` depend on other fields, so they are resolved after all pairs have been read. */
typedef struct parse_state {
    attune_problem problem;
    layout layout;
    bool lettered[MHA_NUM_FIELDS]; /* dims that were given as letters: 1 in place of a size, 0 for 1 */
    mha_pair out_strides;          /* their number depends on other fields */
    bool given[MHA_NUM_FIELDS];
    const mha_field *out_field; /* NULL: not given */
} parse_state;

static attune_status bad_choice(const mha_pair *pair, const char *choices, mha_suggestion suggestion, at_error *err) {
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "%.*s is '%.*s'; it must be %s%s", pair->key_length, pair->key,
                   pair->value_length > 80 ? 80 : pair->value_length, pair->value, choices, suggestion.text);
}

static const mha_suggestion no_suggestion = {""};

/* ---- values ---- */

static attune_status parse_flag(const mha_pair *pair, void *out, at_error *err) {
    static const char *const words[] = {"false", "true"};
    const int value = mha_value_is(pair, "1") || mha_value_is(pair, "true");
    if (!value && !mha_value_is(pair, "0") && !mha_value_is(pair, "false"))
        return bad_choice(pair, "0 or 1, false or true", mha_suggest_value(pair, words, 2), err);
    memcpy(out, &value, sizeof value);
    return ATTUNE_OK;
}

static attune_status parse_word(const mha_pair *pair, const mha_field *field, void *out, at_error *err) {
    const char *words[32];
    char choices[128] = "";
    mha_writer w = {choices, sizeof choices, 0};
    int count = 0;
    for (int i = 0; i < field->words->count; i++) {
        const char *const word = words[count] = mha_field_choice(field, i);
        if (!word) continue;
        count++;
        if (!mha_value_is(pair, word)) continue;
        memcpy(out, &i, sizeof i);
        return ATTUNE_OK;
    }
    mha_write_choices(&w, field);
    return bad_choice(pair, choices, mha_suggest_value(pair, words, count), err);
}

/* The struct uses NaN for "default"; in text a NaN is always a mistake. */
static attune_status parse_number(const mha_pair *pair, const mha_field *field, attune_problem *p, at_error *err) {
    const int is_dynamic = field->open && mha_value_is(pair, "dynamic");
    double value = ATTUNE_DEFAULT_SCALE;
    if (!is_dynamic && !(field->open && mha_value_is(pair, "default"))) {
        const attune_status status = mha_value_double(pair, ATTUNE_INVALID_PROBLEM, &value, err);
        if (status) return status;
        if (isnan(value))
            return bad_choice(pair, field->open ? "a number, 'default' or 'dynamic'" : "a number", no_suggestion, err);
    }
    if (field->open) memcpy((char *)p + field->open, &is_dynamic, sizeof is_dynamic);
    memcpy(mha_field_at(p, field), &value, sizeof value);
    return ATTUNE_OK;
}

static attune_status parse_int(const mha_pair *pair, bool may_be_dynamic, int64_t *out, at_error *err) {
    static const char *const words[] = {"dynamic"};
    if (may_be_dynamic && mha_value_is(pair, words[0])) {
        *out = ATTUNE_DYNAMIC;
        return ATTUNE_OK;
    }
    const mha_suggestion suggestion = may_be_dynamic ? mha_suggest_value(pair, words, 1) : no_suggestion;
    if (!*suggestion.text) return mha_value_int(pair, ATTUNE_INVALID_PROBLEM, out, err);
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "%.*s is '%.*s', which is not an integer%s", pair->key_length,
                   pair->key, pair->value_length, pair->value, suggestion.text);
}

static attune_status parse_array(const mha_pair *pair, const mha_field *field, int rank, int64_t *out, at_error *err) {
    const bool dims = field->kind == MHA_FIELD_DIMS;
    int64_t values[4];
    int count = 0;
    for (const char *at = pair->value, *end = at + pair->value_length; at <= end; count++) {
        const char *colon = memchr(at, ':', (size_t)(end - at)), *stop = colon ? colon : end;
        if (count == rank) {
            count++;
            break;
        }
        const mha_pair item = {pair->key, at, pair->key_length, (int)(stop - at)};
        const attune_status status = parse_int(&item, dims, &values[count], err);
        if (status) return status;
        at = stop + 1;
    }
    if (count > rank || (count < rank && !dims))
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "%.*s is '%.*s'; it must be %s%d %s separated by ':'",
                       pair->key_length, pair->key, pair->value_length, pair->value, dims ? "at most " : "", rank,
                       dims ? "dims" : "strides");
    memset(out, 0, mha_field_bytes(field));
    memcpy(out + rank - count, values, (size_t)count * sizeof *out);
    return ATTUNE_OK;
}

/* Letters of dims that are not 1, in their order. */
static bool parse_letters(const mha_pair *pair, int64_t dims[4]) {
    int used = 0, letters = 0;
    for (int i = 0; i < 4; i++) {
        dims[i] = used < pair->value_length && pair->value[used] == mha_dim_letters[i];
        used += dims[i] != 0;
        letters += dims[i] != 0;
    }
    return letters > 0 && used == pair->value_length;
}

static attune_status parse_layout(const mha_pair *pair, layout *out, at_error *err) {
    static const char *const words[] = {"bhsd", "bshd"};
    *out = mha_value_is(pair, "bhsd") ? LAYOUT_BHSD : LAYOUT_BSHD;
    if (*out == LAYOUT_BHSD || mha_value_is(pair, "bshd")) return ATTUNE_OK;
    return bad_choice(pair, "bhsd or bshd", mha_suggest_value(pair, words, 2), err);
}

/* Letters, or dims as numbers and `dynamic`. */
static attune_status parse_dims(const mha_pair *pair, const mha_field *field, int64_t *out, bool *lettered,
                                at_error *err) {
    static const char numeric[] = "0123456789+-", open[] = "dynamic";
    *lettered = parse_letters(pair, out);
    if (*lettered) return ATTUNE_OK;
    if (pair->value_length &&
        (memchr(numeric, pair->value[0], sizeof numeric - 1) || !strncmp(pair->value, open, sizeof open - 1)))
        return parse_array(pair, field, field->rank, out, err);
    return bad_choice(pair,
                      "the letters of the dims that are not 1, of b, h, q and k in this order (qk, bqk, k), or the "
                      "dims (1:1:512:512)",
                      no_suggestion, err);
}

/* In quotation marks, in which commas and colons belong to the text. */
static attune_status parse_function(const mha_pair *pair, char *out, at_error *err) {
    const mha_pair text = mha_unquoted(pair);
    if (text.value_length >= ATTUNE_FUNCTION_BYTES)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "%.*s has %d characters; it must have at most %d", pair->key_length,
                       pair->key, text.value_length, ATTUNE_FUNCTION_BYTES - 1);
    memset(out, 0, ATTUNE_FUNCTION_BYTES);
    memcpy(out, text.value, (size_t)text.value_length);
    return ATTUNE_OK;
}

static attune_status parse_tensors(const mha_pair *pair, attune_user_tensor *out, at_error *err) {
    const mha_pair text = mha_unquoted(pair);
    return ex_parse_tensors(text.value, (size_t)text.value_length, out, err);
}

static attune_status parse_field(parse_state *state, int i, const mha_pair *pair, at_error *err) {
    const mha_field *field = &mha_fields[i];
    void *out = mha_field_at(&state->problem, field);
    if (state->given[i])
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "'%.*s' gives %s, which is given already", pair->key_length,
                       pair->key, field->name);
    state->given[i] = true;
    switch (field->kind) {
    case MHA_FIELD_FLAG: return parse_flag(pair, out, err);
    case MHA_FIELD_WORD: return parse_word(pair, field, out, err);
    case MHA_FIELD_NUMBER: return parse_number(pair, field, &state->problem, err);
    case MHA_FIELD_TEXT: return parse_function(pair, out, err);
    case MHA_FIELD_TENSORS: return parse_tensors(pair, out, err);
    case MHA_FIELD_DIMS: return parse_dims(pair, field, out, &state->lettered[i], err);
    case MHA_FIELD_STRIDES:
        if (i != MHA_ID_out_strides) return parse_array(pair, field, field->rank, out, err);
        state->out_strides = *pair;
        state->out_field = field;
        return ATTUNE_OK;
    default: return parse_int(pair, field->kind == MHA_FIELD_SIZE, out, err);
    }
}

/* Whether the key is the field's name, or that of K's and V's fields together. */
static bool names_field(const mha_pair *pair, const mha_field *field) {
    return mha_key_is(pair, field->name) || (field->both && mha_key_is(pair, field->both));
}

static attune_status parse_pair(void *user, const mha_pair *pair, at_error *err) {
    parse_state *state = user;
    bool found = false;
    if (mha_key_is(pair, "layout")) return parse_layout(pair, &state->layout, err);
    for (int i = 0; i < MHA_NUM_FIELDS; i++) {
        if (!names_field(pair, &mha_fields[i])) continue;
        const attune_status status = parse_field(state, i, pair, err);
        if (status) return status;
        found = true;
    }
    if (found) return ATTUNE_OK;
    const mha_suggestion suggestion = mha_suggest_field(pair);
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "'%.*s' is not a field of a problem%s",
                   pair->key_length > 80 ? 80 : pair->key_length, pair->key,
                   *suggestion.text ? suggestion.text : "; the names are those of attune_problem's members");
}

/* ---- values that depend on other fields ---- */

static attune_status apply_out_strides(parse_state *state, at_error *err) {
    const mha_field *field = state->out_field;
    if (!field) return ATTUNE_OK;
    const int rank = mha_field_rank(&state->problem, field);
    return parse_array(&state->out_strides, field, rank, mha_field_at(&state->problem, field), err);
}

static void apply_letters(parse_state *state) {
    int64_t full[4];
    mha_full_dims(&state->problem, full);
    for (int i = 0; i < MHA_NUM_FIELDS; i++) {
        if (!state->lettered[i]) continue;
        int64_t *dims = mha_field_at(&state->problem, &mha_fields[i]);
        for (int d = 0; d < 4; d++) dims[d] = dims[d] ? full[d] : 1;
    }
}

/* [batch, seq, heads, dim] in memory, described in the order batch, heads, seq, dim. Overflow shows up in
 * mha_canonicalize as a stride out of range, because the products are clamped here. */
static void set_bshd(int64_t *strides, int64_t heads, int64_t seq, int64_t dim) {
    const int64_t limit = INT64_C(1) << 62;
    int64_t row, all;
    if (__builtin_mul_overflow(heads, dim, &row)) row = limit;
    if (__builtin_mul_overflow(row, seq, &all)) all = limit;
    strides[0] = all;
    strides[1] = dim;
    strides[2] = row;
    strides[3] = 1;
}

/* Zeros where they mean this order already: bshd if the tensor holds the tokens of a ragged batch, else bhsd. */
static attune_status lay_out(layout order, bool tokens, int64_t heads, int64_t seq, int64_t dim, int64_t strides[4],
                             at_error *err) {
    memset(strides, 0, 4 * sizeof *strides);
    if (order == (tokens ? LAYOUT_BSHD : LAYOUT_BHSD)) return ATTUNE_OK;
    if (tokens || seq < 0)
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "layout=%s needs sizes that are known: leave it out and set strides when the kernel runs",
                       order == LAYOUT_BHSD ? "bhsd" : "bshd");
    set_bshd(strides, heads, seq, dim);
    return ATTUNE_OK;
}

/* Elements of a row of K or V, or bytes. */
static int64_t row_of(attune_dtype dtype, attune_scales scales, int64_t columns) {
    return mha_is_packed(dtype, scales) ? mha_row_bytes(dtype, scales, columns) : columns;
}

/* The last two dims of K or V. */
typedef struct rows {
    int64_t count, elements;
} rows;

static rows rows_of(attune_kv_layout kv_layout, int64_t tokens, int64_t elements) {
    if (kv_layout != ATTUNE_LAYOUT_PANELS || tokens < 0) return (rows){tokens, elements};
    return (rows){mha_panels(tokens), ATTUNE_PANEL_TOKENS * elements};
}

static attune_status apply_layout(parse_state *state, at_error *err) {
    attune_problem *p = &state->problem;
    const layout order = state->layout;
    if (order == LAYOUT_NONE) return ATTUNE_OK;
    if (p->embed_dim)
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "layout=%s is for q, k, v and out of attention alone, but embed_dim is %lld: set strides",
                       order == LAYOUT_BHSD ? "bhsd" : "bshd", (long long)p->embed_dim);
    const int64_t kv_heads = p->num_kv_heads ? p->num_kv_heads : p->num_heads;
    const int64_t tokens_kv = p->page_size ? p->page_size : p->seq_kv ? p->seq_kv : p->seq_q;
    const int64_t dim_v = p->head_dim_v ? p->head_dim_v : p->head_dim;
    const bool tokens = p->is_ragged, kv_tokens = p->is_ragged && !p->page_size;
    attune_status status = lay_out(order, tokens, p->num_heads, p->seq_q, p->head_dim, p->q_strides, err);
    const rows k = rows_of(p->k_layout, tokens_kv, row_of(p->k_dtype, p->k_scales, p->head_dim));
    const rows v = rows_of(p->v_layout, tokens_kv, row_of(p->v_dtype, p->v_scales, dim_v));
    if (!status) status = lay_out(order, kv_tokens, kv_heads, k.count, k.elements, p->k_strides, err);
    if (!status) status = lay_out(order, kv_tokens, kv_heads, v.count, v.elements, p->v_strides, err);
    if (!status) status = lay_out(order, tokens, p->num_heads, p->seq_q, dim_v, p->out_strides, err);
    return status;
}

attune_status mha_problem_parse(const char *text, attune_problem *problem, at_error *err) {
    parse_state state = {0};
    attune_status status = at_copy_in(&mha_problem_struct, problem, &state.problem, err);
    if (!status) status = mha_for_each_pair(text, ATTUNE_INVALID_PROBLEM, parse_pair, &state, err);
    if (status) return status;
    apply_letters(&state);
    status = apply_out_strides(&state, err);
    if (!status) status = apply_layout(&state, err);
    return status ? status : at_copy_back(&mha_problem_struct, &state.problem, problem, err);
}
