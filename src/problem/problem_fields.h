/* The fields of attune_problem as a table, made of fields.def. Parsing, printing, canonicalisation, checks and the key
 * go by it. It depends on attune.h alone, so the command links it, too. */
#ifndef ATTUNE_PROBLEM_PROBLEM_FIELDS_H
#define ATTUNE_PROBLEM_PROBLEM_FIELDS_H

#include <attune.h>
#include <stdbool.h>

enum {
    MHA_MAX_SIZE = INT32_MAX,
    MHA_MAX_IDS = 1 << 20,   /* of a list of keys */
    MHA_MAX_WIDTH = 1 << 18, /* columns of an input or output of a projection */
    MHA_MAX_HEAD_DIM = 8192,
    MHA_MAX_PARTS = 65536,
    MHA_MAX_GROUP = 128 /* numbers with one scale: inputs of weights, columns of caches */
};

/* Of numbers that scores are multiplied or divided by: times log2(e) they are still an f32. */
#define MHA_MAX_SCALE 1e38
#define MHA_MIN_CAP   1e-30
/* Of a mean of squares: what is smaller is lost beside rows of f16. */
#define MHA_MIN_EPS 1e-12

/* By the members' names: mha_fields[MHA_ID_seq_q]. */
typedef enum mha_field_id {
#define FIELD(kind, member, ...) MHA_ID_##member,
#include "fields.def"
    MHA_NUM_FIELDS
} mha_field_id;

typedef enum mha_field_kind {
    MHA_FIELD_INT,
    MHA_FIELD_SIZE, /* an integer or "dynamic" */
    MHA_FIELD_FLAG,
    MHA_FIELD_WORD, /* an enum */
    MHA_FIELD_NUMBER,
    MHA_FIELD_DIMS, /* of a mask */
    MHA_FIELD_STRIDES,
    MHA_FIELD_TEXT,   /* a function, in quotation marks */
    MHA_FIELD_TENSORS /* declarations of the tensors that functions read */
} mha_field_kind;

typedef struct mha_words {
    const char *type;         /* "attune_op" */
    const char *const *names; /* by value; NULL where text has no word: the field's own default */
    int count;
} mha_words;

/* How `attune-lab check` draws a field that depends on no other. */
enum { MHA_AS_FEATURE = -1 };
typedef struct mha_draw {
    int percent;           /* how often it is not its default; MHA_AS_FEATURE: as often as any feature; 0: not so */
    double from, to, step; /* of a number: multiples of `step` */
    double usual;          /* the value in half of the cases; 0: none */
} mha_draw;

enum { MHA_NO_KEY = -1 };

typedef struct mha_field {
    mha_field_kind kind;
    const char *name; /* of the member, and in text */
    size_t offset;
    unsigned operators; /* bits by attune_op: for which it means something */
    int key;            /* its word in the key, or MHA_NO_KEY */
    int rank;           /* of dims and strides */

    bool always;              /* printed even where it would be filled in */
    const mha_words *words;   /* of an enum */
    unsigned values;          /* bits: the words that the field may have; 0: all */
    double least, most;       /* of an integer or a number. Its default is legal beside them */
    mha_field_id part_of;     /* without that field this one means nothing; 0: none */
    size_t open;              /* offset of the flag that leaves a number to each call, "dynamic" in text; 0: none */
    attune_weights_mode step; /* the first content of the weights output that depends on it; 0: all */
    bool is_order;            /* depends on which key it is; refused with low_rank */
    const char *both;         /* the name in text that stands for this field and another one */
    const char *also;         /* names of other libraries and slips, for "did you mean" */
    mha_draw draw;
} mha_field;

extern const mha_field mha_fields[MHA_NUM_FIELDS];

/* The members together: struct_size, the fields, and the flag of softmax_scale. */
enum {
#define FIELD(kind, member, ...) +sizeof(((attune_problem *)NULL)->member)
    MHA_PROBLEM_BYTES = sizeof(size_t) + sizeof(int)
#include "fields.def"
};

/* How many words of a key are fields. */
enum {
#define FIELD(kind, member, operators, key, ...) +((key) < 0 ? 0 : MHA_FIELD_##kind == MHA_FIELD_DIMS ? 2 : 1)
#define NO_KEY                                   MHA_NO_KEY
    MHA_FIELD_KEYS = 0
#include "fields.def"
#undef NO_KEY
};

const mha_field *mha_field_named(const char *name); /* NULL: there is none */
size_t mha_field_bytes(const mha_field *field);

static inline void *mha_field_at(attune_problem *p, const mha_field *field) { return (char *)p + field->offset; }
static inline const void *mha_field_of(const attune_problem *p, const mha_field *field) {
    return (const char *)p + field->offset;
}

/* The value of an integer, a flag or a word. */
int64_t mha_field_value(const attune_problem *p, const mha_field *field);
double mha_field_number(const attune_problem *p, const mha_field *field);

/* Whether the field has the value of ATTUNE_PROBLEM_INIT, and gives it that value. */
bool mha_field_is_initial(const attune_problem *p, const mha_field *field);
void mha_field_reset(attune_problem *p, const mha_field *field);

/* Whether the field means something: for the operator, and with the field that it is a part of. */
bool mha_field_counts(const attune_problem *p, const mha_field *field);

/* The flag that leaves a number to each call: softmax_scale=dynamic. 0 for other fields. */
int mha_field_open(const attune_problem *p, const mha_field *field);

/* The word of a value of the field's enum, and of one that the field may have; NULL: there is none. */
const char *mha_field_word(const mha_field *field, int64_t value);
const char *mha_field_choice(const mha_field *field, int64_t value);

const char *mha_op_name(attune_op op);
const char *mha_dtype_name(attune_dtype dtype);

#endif
