/* The fields of attune_problem as their text form names them: one table behind parsing and printing. */
#ifndef ATTUNE_MHA_PROBLEM_FIELDS_H
#define ATTUNE_MHA_PROBLEM_FIELDS_H

#include "problem/mha.h"

typedef enum mha_field_kind {
    MHA_FIELD_INT,
    MHA_FIELD_SIZE, /* an integer or "dynamic" */
    MHA_FIELD_FLAG,
    MHA_FIELD_WORD, /* an enum */
    MHA_FIELD_NUMBER,
    MHA_FIELD_DIMS, /* of a mask */
    MHA_FIELD_STRIDES
} mha_field_kind;

typedef struct mha_field {
    const char *name;
    mha_field_kind kind;
    size_t offset;
    bool always;              /* printed even where it would be filled in */
    int rank;                 /* of strides */
    const char *const *words; /* of an enum, by value; NULL where text has no word for it */
    int num_words;
} mha_field;

enum { MHA_NUM_FIELDS = 72 };
extern const mha_field mha_fields[MHA_NUM_FIELDS];

size_t mha_field_bytes(const mha_field *field);

/* How many strides this problem's tensor has, or dims a mask: field->rank but for `out` of a block. */
int mha_field_rank(const attune_problem *p, const mha_field *field);

/* softmax_scale=dynamic is a flag of its own in the struct. */
static inline bool mha_is_scale(const mha_field *field) {
    return field->offset == offsetof(attune_problem, softmax_scale);
}
static inline bool mha_is_left_to_calls(const attune_problem *p, const mha_field *field) {
    return mha_is_scale(field) && p->has_softmax_scale;
}

static inline void *mha_field_at(attune_problem *p, const mha_field *field) { return (char *)p + field->offset; }
static inline const void *mha_field_of(const attune_problem *p, const mha_field *field) {
    return (const char *)p + field->offset;
}

/* The letters that name the dims of a mask in its short form, and the sizes that they stand for. */
extern const char mha_dim_letters[5];
void mha_full_dims(const attune_problem *p, int64_t dims[4]);

#endif
