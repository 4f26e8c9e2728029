/* Writes problems as text. */
#include "expr/expr.h"
#include "problem/problem.h"

#include <math.h>
#include <string.h>

int mha_field_rank(const attune_problem *p, const mha_field *field) {
    return field == &mha_fields[MHA_ID_out_strides] && p->embed_dim && !p->no_out_projection ? 3 : field->rank;
}

void mha_write_choices(mha_writer *w, const mha_field *field) {
    const char *last = NULL;
    int count = 0;
    for (int i = 0; i < field->words->count; i++) {
        const char *const word = mha_field_choice(field, i);
        if (!word) continue;
        if (last) mha_write(w, "%s%s", count++ ? ", " : "", last);
        last = word;
    }
    if (last) mha_write(w, "%s%s", count ? " or " : "", last);
}

static void write_size(mha_writer *w, const char *before, int64_t size, bool may_be_dynamic) {
    if (may_be_dynamic && size == ATTUNE_DYNAMIC)
        mha_write(w, "%sdynamic", before);
    else
        mha_write(w, "%s%lld", before, (long long)size);
}

static void write_array(mha_writer *w, const attune_problem *p, const mha_field *field, const int64_t *values) {
    const int rank = mha_field_rank(p, field);
    for (int i = 0; i < rank; i++) write_size(w, i ? ":" : "", values[i], field->kind == MHA_FIELD_DIMS);
}

/* Prints letters if each dim is 1 or full, and not all are 1. */
static void write_dims(mha_writer *w, const attune_problem *p, const mha_field *field, const int64_t dims[4]) {
    int64_t full[4];
    char letters[5];
    int count = 0;
    mha_full_dims(p, full);
    for (int i = 0; i < 4; i++) {
        if (dims[i] != 1 && dims[i] != full[i]) {
            write_array(w, p, field, dims);
            return;
        }
        if (dims[i] != 1) letters[count++] = mha_dim_letters[i];
    }
    if (count)
        mha_write(w, "%.*s", count, letters);
    else
        write_array(w, p, field, dims);
}

static void write_tensors(mha_writer *w, const attune_problem *p) {
    char text[MHA_PROBLEM_TEXT];
    ex_print_tensors(p->tensors, text, sizeof text);
    mha_write(w, "\"%s\"", text);
}

static void write_field(mha_writer *w, const attune_problem *p, const mha_field *field) {
    const void *array = mha_field_of(p, field);
    const char *word = NULL;
    mha_write_key(w, field->name);
    switch (field->kind) {
    case MHA_FIELD_SIZE: write_size(w, "", mha_field_value(p, field), true); break;
    case MHA_FIELD_WORD: word = mha_field_word(field, mha_field_value(p, field)); /* fall through */
    case MHA_FIELD_INT:
    case MHA_FIELD_FLAG:
        if (word)
            mha_write(w, "%s", word);
        else
            write_size(w, "", mha_field_value(p, field), false);
        break;
    case MHA_FIELD_NUMBER:
        if (mha_field_open(p, field))
            mha_write(w, "dynamic");
        else
            mha_write_number(w, mha_field_number(p, field));
        break;
    case MHA_FIELD_DIMS: write_dims(w, p, field, array); break;
    case MHA_FIELD_STRIDES: write_array(w, p, field, array); break;
    case MHA_FIELD_TEXT: mha_write(w, "\"%.*s\"", ATTUNE_FUNCTION_BYTES, (const char *)array); break;
    case MHA_FIELD_TENSORS: write_tensors(w, p); break;
    }
}

/* Text has no NaN. */
static bool is_absent(const attune_problem *p, const mha_field *field) {
    if (mha_field_is_initial(p, field)) return true;
    return field->kind == MHA_FIELD_NUMBER && !mha_field_open(p, field) && isnan(mha_field_number(p, field));
}

/* Whether the problem without this field has the same canonical form. */
static bool is_without(const attune_problem *rest, const mha_field *field, const attune_problem *canonical) {
    attune_problem without = *rest;
    mha_field_reset(&without, field);
    return !mha_make_canonical(&without, NULL) && !memcmp(&without, canonical, sizeof without);
}

/* Omits fields as long as the remaining ones give the same canonical problem. Fields are tried from the last one on,
 * because later fields get their defaults from earlier ones. */
static void find_needed(const attune_problem *canonical, bool needed[MHA_NUM_FIELDS]) {
    attune_problem rest = *canonical;
    for (int i = MHA_NUM_FIELDS - 1; i >= 0; i--) {
        const mha_field *field = &mha_fields[i];
        needed[i] = field->always;
        if (field->always || is_absent(&rest, field)) continue;
        needed[i] = !is_without(&rest, field, canonical);
        if (!needed[i]) mha_field_reset(&rest, field);
    }
}

/* A problem that is not valid is printed with all fields that it sets. */
static void find_set(const attune_problem *p, bool needed[MHA_NUM_FIELDS]) {
    for (int i = 0; i < MHA_NUM_FIELDS; i++) needed[i] = mha_fields[i].always || !is_absent(p, &mha_fields[i]);
}

static size_t print_fields(const attune_problem *p, const bool needed[MHA_NUM_FIELDS], char *text, size_t capacity) {
    mha_writer w = {text, capacity, 0};
    if (capacity) *text = '\0';
    for (int i = 0; i < MHA_NUM_FIELDS; i++)
        if (needed[i]) write_field(&w, p, &mha_fields[i]);
    return w.length;
}

size_t mha_canonical_print(const attune_problem *canonical, char *text, size_t capacity) {
    bool needed[MHA_NUM_FIELDS];
    find_needed(canonical, needed);
    return print_fields(canonical, needed, text, capacity);
}

size_t mha_problem_print(const attune_problem *problem, char *text, size_t capacity) {
    attune_problem p;
    bool needed[MHA_NUM_FIELDS];
    if (capacity) *text = '\0';
    if (mha_canonicalize(problem, &p, NULL) == ATTUNE_OK) return mha_canonical_print(&p, text, capacity);
    if (at_copy_in(&mha_problem_struct, problem, &p, NULL)) return 0;
    find_set(&p, needed);
    return print_fields(&p, needed, text, capacity);
}
