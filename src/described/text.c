/* Texts of descriptions, by the tables of their members. */
#include "described/desc_table.h"

#include "problem/fields_text.h"
#include "problem/problem_fields.h"
#include "problem/suggest.h"

#include <string.h>

enum { MOST_NAMES = 32 };

#define BLANKS " \t\r\n"

static const at_desc_table *const all[] = {&lin_table, &conv_table, &idx_table, &blk_table, &mla_table};
enum { NUM_OPERATORS = sizeof all / sizeof *all };

/* What follows a word and blanks, which may also be before it; NULL: the text begins with something else. */
static const char *after(const char *text, const char *word) {
    text += strspn(text, BLANKS);
    const size_t length = strlen(word);
    return strncmp(text, word, length) ? NULL : text + length + strspn(text + length, BLANKS);
}

const at_desc_table *at_desc_table_of(const char *text) {
    const char *const key = after(text, "op"), *const value = key ? after(key, "=") : NULL;
    for (int i = 0; value && i < NUM_OPERATORS; i++) {
        const char *const rest = after(value, all[i]->op);
        if (rest && (!*rest || *rest == ',')) return all[i];
    }
    return NULL;
}

static size_t bytes_of(const at_described_field *f) {
    return f->kind == AT_FIELD_SIZE ? sizeof(int64_t) : f->kind == AT_FIELD_NUMBER ? sizeof(double) : sizeof(int);
}

/* ---- Printing ---- */

static bool is_initial(const at_desc_table *of, const void *desc, const at_described_field *f) {
    static const char zeros[8];
    const char *const initial = of->desc.defaults ? (const char *)of->desc.defaults + f->offset : zeros;
    return !memcmp((const char *)desc + f->offset, initial, bytes_of(f));
}

static void print_field(mha_writer *w, const void *desc, const at_described_field *f) {
    int64_t size = 0;
    double number = 0;
    int value = 0;
    const char *const at = (const char *)desc + f->offset;
    mha_write(w, "%s=", f->name);
    switch (f->kind) {
    case AT_FIELD_SIZE: memcpy(&size, at, sizeof size), mha_write(w, "%lld", (long long)size); break;
    case AT_FIELD_NUMBER: memcpy(&number, at, sizeof number), mha_write_number(w, number); break;
    case AT_FIELD_FLAG: memcpy(&value, at, sizeof value), mha_write(w, "%d", value); break;
    case AT_FIELD_DTYPE:
        memcpy(&value, at, sizeof value), mha_write(w, "%s", mha_dtype_name((attune_dtype)value));
        break;
    case AT_FIELD_WORD: memcpy(&value, at, sizeof value), mha_write(w, "%s", f->words[value]); break;
    }
}

static void print(const at_desc_table *of, const void *desc, mha_writer *w) {
    mha_write(w, "op=%s", of->op);
    for (size_t i = 0; i < of->num_fields; i++)
        if (!is_initial(of, desc, &of->fields[i])) mha_write(w, ","), print_field(w, desc, &of->fields[i]);
}

void at_desc_print(const at_desc_table *of, const void *desc, char text[AT_DESCRIBED_TEXT]) {
    print(of, desc, &(mha_writer){.text = text, .capacity = AT_DESCRIBED_TEXT});
}

void at_described_print(const at_desc_table *of, const void *desc, uint32_t which, char text[AT_DESCRIBED_TEXT]) {
    at_any_desc narrow;
    mha_writer w = {.text = text, .capacity = AT_DESCRIBED_TEXT};
    memcpy(&narrow, desc, of->desc.bytes);
    if (of->narrow) of->narrow(&narrow, which);
    print(of, &narrow, &w);
    mha_write(&w, ",kernel=%s", of->kernels[which]);
}

/* ---- Reading ---- */

typedef struct reader {
    const at_desc_table *of;
    void *desc;
    int32_t which;
} reader;

static attune_status read_word(const mha_pair *pair, const char *const *words, int *value, at_error *err) {
    enum { LIST = 160 };
    char list[LIST] = "";
    mha_writer w = {.text = list, .capacity = LIST};
    int count = 0;
    for (; words[count]; count++) {
        if (!mha_value_is(pair, words[count])) continue;
        *value = count;
        return ATTUNE_OK;
    }
    for (int i = 0; i < count; i++) mha_write(&w, "%s%s", !i ? "" : i + 1 < count ? ", " : " or ", words[i]);
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "%.*s is '%.*s'; it must be %s", pair->key_length, pair->key,
                   pair->value_length > 80 ? 80 : pair->value_length, pair->value, list);
}

static attune_status read_dtype(const mha_pair *pair, int *value, at_error *err) {
    const char *words[ATTUNE_DTYPE_COUNT + 1] = {"default"};
    for (int i = 0; i < ATTUNE_DTYPE_COUNT; i++) {
        const char *const name = mha_dtype_name((attune_dtype)i);
        if (name) words[i] = name;
    }
    return read_word(pair, words, value, err);
}

static attune_status read_flag(const mha_pair *pair, int *value, at_error *err) {
    int64_t number;
    if (mha_value_int(pair, ATTUNE_INVALID_PROBLEM, &number, err)) return err->status;
    *value = (int)number;
    if (number == 0 || number == 1) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "%.*s is %lld; it must be 0 or 1", pair->key_length, pair->key,
                   (long long)number);
}

static attune_status read_field(const mha_pair *pair, const at_described_field *f, void *desc, at_error *err) {
    union {
        int64_t size;
        double number;
        int value;
    } read = {0};
    switch (f->kind) {
    case AT_FIELD_SIZE: mha_value_int(pair, ATTUNE_INVALID_PROBLEM, &read.size, err); break;
    case AT_FIELD_NUMBER: mha_value_double(pair, ATTUNE_INVALID_PROBLEM, &read.number, err); break;
    case AT_FIELD_FLAG: read_flag(pair, &read.value, err); break;
    case AT_FIELD_DTYPE: read_dtype(pair, &read.value, err); break;
    case AT_FIELD_WORD: read_word(pair, f->words, &read.value, err); break;
    }
    if (!err->status) memcpy((char *)desc + f->offset, &read, bytes_of(f));
    return err->status;
}

static attune_status refuse_name(const at_desc_table *of, const mha_pair *pair, at_error *err) {
    const char *names[MOST_NAMES] = {"op"};
    int count = 1;
    names[count++] = "kernel";
    for (size_t i = 0; i < of->num_fields; i++) names[count++] = of->fields[i].name;
    const mha_suggestion suggestion = mha_suggest_name(pair, names, count);
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "op=%s has no field '%.*s'%s", of->op,
                   pair->key_length > 80 ? 80 : pair->key_length, pair->key, suggestion.text);
}

static attune_status read_pair(void *user, const mha_pair *pair, at_error *err) {
    reader *const r = user;
    if (mha_key_is(pair, "op")) return ATTUNE_OK;
    if (mha_key_is(pair, "kernel")) {
        const char *words[AT_MOST_KERNELS + 1] = {NULL};
        memcpy(words, r->of->kernels, r->of->num_kernels * sizeof *words);
        return read_word(pair, words, &r->which, err);
    }
    for (size_t i = 0; i < r->of->num_fields; i++)
        if (mha_key_is(pair, r->of->fields[i].name)) return read_field(pair, &r->of->fields[i], r->desc, err);
    return refuse_name(r->of, pair, err);
}

attune_status at_desc_read(const at_desc_table *of, const char *text, void *desc, int32_t *which, at_error *err) {
    reader r = {of, desc, AT_ALL_KERNELS};
    if (of != at_desc_table_of(text))
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "'%.200s' does not begin with op=%s", text, of->op);
    memset(desc, 0, of->desc.bytes);
    if (of->desc.defaults) memcpy(desc, of->desc.defaults, of->desc.bytes);
    memcpy(desc, &of->desc.bytes, sizeof of->desc.bytes); /* its struct_size */
    const attune_status status = mha_for_each_pair(text, ATTUNE_INVALID_PROBLEM, read_pair, &r, err);
    *which = r.which;
    return status;
}

attune_status at_described_parse(const at_desc_table *of, const char *text, at_described_text *parsed, at_error *err) {
    int32_t only;
    parsed->of = of, parsed->count = 0;
    if (at_desc_read(of, text, &parsed->desc, &only, err) || of->settle(&parsed->desc, err)) return err->status;
    if (of->check_kernel && only != AT_ALL_KERNELS && of->check_kernel(&parsed->desc, (uint32_t)only, err))
        return err->status;
    for (uint32_t which = 0; which < of->num_kernels; which++)
        if (only == AT_ALL_KERNELS ? !of->has_kernel || of->has_kernel(&parsed->desc, which) : (uint32_t)only == which)
            parsed->kernels[parsed->count++] = which;
    return ATTUNE_OK;
}
