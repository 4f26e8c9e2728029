/* fields.def as an array, and access to a member of a problem by its row. */
#include "problem_fields.h"

#include <math.h>
#include <string.h>

/* ---- The words ---- */

#define WORDS(name, count, ...) static const char *const name##_names[count] = {__VA_ARGS__};
#include "fields.def"
#define WORDS(name, count, ...) static const mha_words name##_words = {"attune_" #name, name##_names, count};
#include "fields.def"

/* ---- The table ---- */

#define BIT(value) (1U << (value))
enum {
    BLOCK = BIT(ATTUNE_MHA),
    ROTARY = BIT(ATTUNE_ROTARY),
    MERGE = BIT(ATTUNE_MERGE),
    ATTENTION = BIT(ATTUNE_ATTENTION),
    VALUES = ATTENTION | BLOCK,
    KEYS = VALUES | BIT(ATTUNE_WEIGHTS),
    ANY = BIT(ATTUNE_OP_COUNT) - 1
};
enum {
    PRECISIONS = BIT(ATTUNE_F32) | BIT(ATTUNE_F64),
    FACTORS = BIT(ATTUNE_F32) | BIT(ATTUNE_BF16),
    FLOATS = PRECISIONS | BIT(ATTUNE_F16) | BIT(ATTUNE_BF16),
    CODES = BIT(ATTUNE_I8) | BIT(ATTUNE_F8) | BIT(ATTUNE_I4),
    W_CODES = BIT(ATTUNE_I8) | BIT(ATTUNE_I4)
};
enum { NO_KEY = MHA_NO_KEY };

#define AT(name)   offsetof(attune_problem, name)
#define ID(name)   MHA_ID_##name
#define RANK(name) (int)(sizeof(((attune_problem *)NULL)->name) / (sizeof(int64_t)))
#define FIELD(kind_, member_, operators_, key_, ...)                                                                   \
    {.kind = MHA_FIELD_##kind_,                                                                                        \
     .name = #member_,                                                                                                 \
     .offset = AT(member_),                                                                                            \
     .operators = (operators_),                                                                                        \
     .key = (key_),                                                                                                    \
     .rank = RANK(member_),                                                                                            \
     __VA_ARGS__},
const mha_field mha_fields[MHA_NUM_FIELDS] = {
#include "fields.def"
};

static const attune_problem initial = ATTUNE_PROBLEM_INIT;

const mha_field *mha_field_named(const char *name) {
    for (int i = 0; i < MHA_NUM_FIELDS; i++)
        if (!strcmp(mha_fields[i].name, name)) return &mha_fields[i];
    return NULL;
}

/* ---- Values ---- */

size_t mha_field_bytes(const mha_field *field) {
    switch (field->kind) {
    case MHA_FIELD_FLAG:
    case MHA_FIELD_WORD: return sizeof(int);
    case MHA_FIELD_NUMBER: return sizeof(double);
    case MHA_FIELD_DIMS:
    case MHA_FIELD_STRIDES: return (size_t)field->rank * sizeof(int64_t);
    case MHA_FIELD_TEXT: return ATTUNE_FUNCTION_BYTES;
    case MHA_FIELD_TENSORS: return ATTUNE_MAX_USER_TENSORS * sizeof(attune_user_tensor);
    default: return sizeof(int64_t);
    }
}

int64_t mha_field_value(const attune_problem *p, const mha_field *field) {
    int small;
    int64_t wide;
    if (mha_field_bytes(field) == sizeof small) {
        memcpy(&small, mha_field_of(p, field), sizeof small);
        return small;
    }
    memcpy(&wide, mha_field_of(p, field), sizeof wide);
    return wide;
}

double mha_field_number(const attune_problem *p, const mha_field *field) {
    double number;
    memcpy(&number, mha_field_of(p, field), sizeof number);
    return number;
}

int mha_field_open(const attune_problem *p, const mha_field *field) {
    int value = 0;
    if (field->open) memcpy(&value, (const char *)p + field->open, sizeof value);
    return value;
}

/* Numbers by value: a NaN is like another, and -0 is 0. */
bool mha_field_is_initial(const attune_problem *p, const mha_field *field) {
    if (mha_field_open(p, field)) return false;
    if (field->kind != MHA_FIELD_NUMBER)
        return !memcmp(mha_field_of(p, field), mha_field_of(&initial, field), mha_field_bytes(field));
    const double number = mha_field_number(p, field), usual = mha_field_number(&initial, field);
    return number == usual || (isnan(number) && isnan(usual));
}

void mha_field_reset(attune_problem *p, const mha_field *field) {
    const int none = 0;
    memcpy(mha_field_at(p, field), mha_field_of(&initial, field), mha_field_bytes(field));
    if (field->open) memcpy((char *)p + field->open, &none, sizeof none);
}

bool mha_field_counts(const attune_problem *p, const mha_field *field) {
    if (!(field->operators >> p->op & 1)) return false;
    return !field->part_of || !mha_field_is_initial(p, &mha_fields[field->part_of]);
}

const char *mha_field_word(const mha_field *field, int64_t value) {
    return value >= 0 && value < field->words->count ? field->words->names[value] : NULL;
}

const char *mha_field_choice(const mha_field *field, int64_t value) {
    const char *const word = mha_field_word(field, value);
    return word && (!field->values || field->values >> value & 1) ? word : NULL;
}

const char *mha_op_name(attune_op op) { return op_names[op]; }
const char *mha_dtype_name(attune_dtype dtype) { return dtype_names[dtype]; }
