/* Writes problems as text. */
#include "problem/problem.h"
#include "problem/problem_fields.h"
#include "problem/text.h"

#include <math.h>
#include <string.h>

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

/* As letters if each dim is 1 or full, and not all are 1. */
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

static void write_field(mha_writer *w, const attune_problem *p, const mha_field *field) {
    const void *value = mha_field_of(p, field);
    int small = 0;
    double number = 0;
    mha_write_key(w, field->name);
    switch (field->kind) {
    case MHA_FIELD_INT:
    case MHA_FIELD_SIZE: write_size(w, "", *(const int64_t *)value, field->kind == MHA_FIELD_SIZE); break;
    case MHA_FIELD_FLAG:
    case MHA_FIELD_WORD:
        memcpy(&small, value, sizeof small);
        if (field->kind == MHA_FIELD_WORD && small >= 0 && small < field->num_words && field->words[small])
            mha_write(w, "%s", field->words[small]);
        else
            mha_write(w, "%d", small);
        break;
    case MHA_FIELD_NUMBER:
        memcpy(&number, value, sizeof number);
        if (mha_is_left_to_calls(p, field))
            mha_write(w, "dynamic");
        else
            mha_write(w, "%.17g", number);
        break;
    case MHA_FIELD_DIMS: write_dims(w, p, field, value); break;
    case MHA_FIELD_STRIDES: write_array(w, p, field, value); break;
    }
}

static const attune_problem initial = ATTUNE_PROBLEM_INIT;

static void reset(attune_problem *p, const mha_field *field) {
    memcpy(mha_field_at(p, field), mha_field_of(&initial, field), mha_field_bytes(field));
    if (mha_is_scale(field)) p->has_softmax_scale = 0;
}

/* Text has no NaN: it stands for a default. */
static bool is_initial(const attune_problem *p, const mha_field *field) {
    const void *value = mha_field_of(p, field);
    if (mha_is_left_to_calls(p, field)) return false;
    if (field->kind == MHA_FIELD_NUMBER && isnan(*(const double *)value)) return true;
    return !memcmp(value, mha_field_of(&initial, field), mha_field_bytes(field));
}

/* Which fields can be left out: those without which the rest still gives this canonical problem. Tried from the last
 * on, because later fields get their defaults from earlier ones. */
static void find_needed(const attune_problem *canonical, bool needed[MHA_NUM_FIELDS]) {
    attune_problem rest = *canonical, result;
    for (int i = MHA_NUM_FIELDS - 1; i >= 0; i--) {
        const mha_field *field = &mha_fields[i];
        needed[i] = field->always;
        if (field->always || is_initial(&rest, field)) continue;
        attune_problem without = rest;
        reset(&without, field);
        needed[i] = mha_canonicalize(&without, &result, NULL) || memcmp(&result, canonical, sizeof result);
        if (!needed[i]) rest = without;
    }
}

/* What cannot be compiled is printed as it stands. */
static void find_set(const attune_problem *p, bool needed[MHA_NUM_FIELDS]) {
    for (int i = 0; i < MHA_NUM_FIELDS; i++) needed[i] = mha_fields[i].always || !is_initial(p, &mha_fields[i]);
}

size_t mha_problem_print(const attune_problem *problem, char *text, size_t capacity) {
    attune_problem p;
    bool needed[MHA_NUM_FIELDS];
    mha_writer w = {text, capacity, 0};
    if (capacity) *text = '\0';
    if (mha_canonicalize(problem, &p, NULL) == ATTUNE_OK)
        find_needed(&p, needed);
    else if (at_copy_in(&mha_problem_struct, problem, &p, NULL) == ATTUNE_OK)
        find_set(&p, needed);
    else
        return 0;
    for (int i = 0; i < MHA_NUM_FIELDS; i++)
        if (needed[i]) write_field(&w, &p, &mha_fields[i]);
    return w.length;
}
