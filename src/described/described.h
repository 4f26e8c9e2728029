/* What attune's described operators share: src/linear, src/index, src/blocks and src/mla.
 *
 *     description, a struct of the API  →  settled  →  texts of its kernels  →  loop IR, by the operator's own file
 *     step, another one                 →  buffers and scalars of a kernel   →  run
 *
 * An operator has a table (at_described_op): the members of its struct, which kernels a description has ("forms"), and
 * what of the struct a form depends on. A kernel's problem is a text of those members:
 *
 *     op=conv,channels=1,taps=4,dtype=bf16,kernel=channels
 *
 * The text names the kernel in caches, bundles, manifests and records, and its builder reads the struct back from it.
 */
#ifndef ATTUNE_DESCRIBED_DESCRIBED_H
#define ATTUNE_DESCRIBED_DESCRIBED_H

#include "base/struct.h"
#include "engine/own_operator.h"

typedef enum at_field_kind {
    AT_FIELD_SIZE,
    AT_FIELD_FLAG,
    AT_FIELD_NUMBER,
    AT_FIELD_DTYPE,
    AT_FIELD_WORD
} at_field_kind;

typedef struct at_described_field {
    const char *name; /* of the member, and in text */
    size_t offset;
    at_field_kind kind;       /* int64_t, int, double, attune_dtype, another enum */
    const char *const *words; /* of an enum, by value, and NULL after the last */
} at_described_field;

/* Fields of the struct `DESC`, which a file defines. */
#define AT_FIELD(member, its_kind) {.name = #member, .offset = offsetof(DESC, member), .kind = its_kind}
#define AT_SIZE(member)            AT_FIELD(member, AT_FIELD_SIZE)
#define AT_FLAG(member)            AT_FIELD(member, AT_FIELD_FLAG)
#define AT_NUMBER(member)          AT_FIELD(member, AT_FIELD_NUMBER)
#define AT_DTYPE(member)           AT_FIELD(member, AT_FIELD_DTYPE)
#define AT_WORD(member, its_words)                                                                                     \
    {.name = #member, .offset = offsetof(DESC, member), .kind = AT_FIELD_WORD, .words = its_words}

enum { AT_MOST_FORMS = 20 };

typedef struct at_described at_described;

typedef struct at_described_op {
    const char *op;   /* in text: "linear"; also of the functions: attune_linear_create */
    const char *what; /* in messages: "linear attention" */
    at_struct desc, step;
    const at_described_field *fields;
    size_t num_fields;
    size_t bytes, desc_at; /* of the object: its size, and where its description is */
    attune_operator_options options;
    const char *const
        *forms; /* words of `kernel` in text, by number; NULL: there is one form, which text does not name */
    uint32_t num_forms;

    /* Checks a description, and fills in its defaults. */
    attune_status (*settle)(void *desc, at_error *err);
    /* Whether steps use a form. NULL: all of them. */
    bool (*has_form)(const void *desc, uint32_t form);
    /* Sets members that the form's kernel does not depend on to a fixed value, so that such descriptions share it.
     * NULL: it depends on all. */
    void (*narrow)(void *desc, uint32_t form);
    /* Checks and runs a caller's step. NULL: the operator has functions of its own for steps. */
    attune_status (*run)(at_described *object, const void *step, bool is_interpreted, at_error *err);
} at_described_op;

/* The members of an at_described_op that follow from its name. `least`: sizes of the structs in the first version. */
#define AT_DESCRIBED_OP(op_, OP, initial, least_desc, least_step)                                                      \
    .op = #op_, .bytes = sizeof(attune_##op_), .desc_at = offsetof(attune_##op_, desc),                                \
    .desc = {"attune_" #op_ "_desc", "start from ATTUNE_" #OP "_DESC_INIT", sizeof(attune_##op_##_desc), initial,      \
             least_desc},                                                                                              \
    .step = {"attune_" #op_ "_step", "start from ATTUNE_" #OP "_STEP_INIT", sizeof(attune_##op_##_step), NULL,         \
             least_step},                                                                                              \
    .fields = fields, .num_fields = sizeof fields / sizeof *fields

/* What an object begins with. */
struct at_described {
    const at_described_op *of;
    attune_context *context;
    attune_operator *op;
    _Atomic(attune_kernel *) kernels[AT_MOST_FORMS]; /* NULL: not needed so far */
};

/* ---- The functions of an operator: they report their status ---- */

attune_status at_described_init(const at_struct *type, void *object, size_t struct_size);
attune_status at_described_create(const at_described_op *of, attune_context *context, const void *desc, void *place,
                                  at_described **object);
void at_described_destroy(at_described *object);
attune_status at_described_prepare(const at_described_op *of, at_described *object); /* the kernels of all its forms */
attune_status at_described_run(const at_described_op *of, at_described *object, const void *step, bool is_interpreted);

/* Defines attune_OP_desc_init, _step_init, _create, _destroy, _run and _run_interpreted. */
#define AT_DESCRIBED_FUNCTIONS(op, description)                                                                        \
    attune_status attune_##op##_desc_init(attune_##op##_desc *desc, size_t struct_size) {                              \
        return at_described_init(&description.desc, desc, struct_size);                                                \
    }                                                                                                                  \
    attune_status attune_##op##_step_init(attune_##op##_step *step, size_t struct_size) {                              \
        return at_described_init(&description.step, step, struct_size);                                                \
    }                                                                                                                  \
    attune_status attune_##op##_create(attune_context *context, const attune_##op##_desc *desc, attune_##op **place) { \
        at_described *made;                                                                                            \
        const attune_status status = at_described_create(&description, context, desc, place, &made);                   \
        if (place) *place = (attune_##op *)made;                                                                       \
        return status;                                                                                                 \
    }                                                                                                                  \
    void attune_##op##_destroy(attune_##op *object) { at_described_destroy((at_described *)object); }                  \
    attune_status attune_##op##_run(attune_##op *object, const attune_##op##_step *step) {                             \
        return at_described_run(&description, (at_described *)object, step, false);                                    \
    }                                                                                                                  \
    attune_status attune_##op##_run_interpreted(attune_##op *object, const attune_##op##_step *step) {                 \
        return at_described_run(&description, (at_described *)object, step, true);                                     \
    }

/* Defines attune_OP_prepare, which gets the kernels of all forms. */
#define AT_DESCRIBED_PREPARE(op, description)                                                                          \
    attune_status attune_##op##_prepare(attune_##op *object) {                                                         \
        return at_described_prepare(&description, (at_described *)object);                                             \
    }

/* ---- Their parts ---- */

/* The operator in a context, which knows it from then on. */
attune_status at_described_operator(const at_described_op *of, attune_context *context, attune_operator **op,
                                    at_error *err);

/* The context, or the shared one where a caller gave none, and the operator in it. */
attune_status at_described_open(at_described *object, const at_described_op *of, attune_context *context,
                                at_error *err);
void at_described_release(at_described *object);

/* The kernel of a form, made at the first call. The object keeps it. */
attune_status at_described_kernel(at_described *object, uint32_t form, attune_kernel **kernel, at_error *err);

/* Who works on a step, and what may end it. */
typedef struct at_described_step {
    const attune_runner *runner;
    uint32_t max_threads;
    const int *cancel;
    bool is_interpreted;
} at_described_step;

/* The arguments of a kernel, in the order of its parameters, and its multiplications and additions. */
typedef struct at_described_call {
    void *const *buffers;
    size_t num_buffers;
    const int64_t *scalars;
    double flops;
} at_described_call;

attune_status at_described_execute(at_described *object, uint32_t form, const at_described_call *call,
                                   const at_described_step *step, at_error *err);

/* ---- Text: text.c ---- */

/* Memory for the description of any operator. */
typedef union at_any_desc {
    attune_linear_desc linear;
    attune_conv_desc conv;
    attune_index_desc index;
    attune_blocks_desc blocks;
    attune_mla_desc mla;
} at_any_desc;

enum { AT_DESCRIBED_TEXT = AT_OWN_PROBLEM_CHARS + 1 };

/* The text of a kernel, from a settled description. */
void at_described_print(const at_described_op *of, const void *desc, uint32_t form, char text[AT_DESCRIBED_TEXT]);

/* Reads what at_described_print wrote, in a builder. desc: memory for the struct. false: the text is something else. */
bool at_described_read(const at_described_op *of, const char *text, void *desc, uint32_t *form);

/* The kernels of a caller's text: of the form that it names, else of all forms that its description has. */
typedef struct at_described_text {
    const at_described_op *of;
    at_any_desc desc; /* settled */
    uint32_t forms[AT_MOST_FORMS], count;
} at_described_text;
attune_status at_described_parse(const at_described_op *of, const char *text, at_described_text *parsed, at_error *err);

/* ---- The operators ---- */

extern const at_described_op lin_described, conv_described, idx_described, blk_described, mla_described;

/* The operator that a text names first, by op=; NULL: none of these. */
const at_described_op *at_described_op_of(const char *text);

#endif
