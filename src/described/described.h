/* What attune's described operators share: src/linear, src/index, src/blocks and src/mla.
 *
 *     description, a struct of the API  →  texts of its kernels (desc_table.h)  →  loop IR, by the operator's own file
 *     step, another one                 →  buffers and scalars of a kernel       →  run
 */
#ifndef ATTUNE_DESCRIBED_DESCRIBED_H
#define ATTUNE_DESCRIBED_DESCRIBED_H

#include "described/desc_table.h"
#include "engine/own_operator.h"

typedef struct at_described at_described;

typedef struct at_described_op {
    const at_desc_table *table;
    at_struct step;
    size_t bytes, desc_at; /* of the object: its size, and where its description is */
    attune_operator_options options;
    /* Checks and runs a caller's step. NULL: the operator has functions of its own for steps. */
    attune_status (*run)(at_described *object, const void *step, bool is_interpreted, at_error *err);
} at_described_op;

/* The members of an at_described_op that follow from its name. `least`: the size of a step in the first version. */
#define AT_DESCRIBED_OP(op, OP, its_table, least)                                                                      \
    .table = its_table, .bytes = sizeof(attune_##op), .desc_at = offsetof(attune_##op, desc),                          \
    .step = {"attune_" #op "_step", "start from ATTUNE_" #OP "_STEP_INIT", sizeof(attune_##op##_step), NULL, least}

/* What an object begins with. */
struct at_described {
    const at_described_op *of;
    attune_context *context;
    attune_operator *op;
    at_kept_kernel kernels[AT_MOST_KERNELS];
};

/* ---- The functions of an operator: they report their status ---- */

attune_status at_described_init(const at_struct *type, void *object, size_t struct_size);
attune_status at_described_create(const at_described_op *of, attune_context *context, const void *desc, void *place,
                                  at_described **object);
void at_described_destroy(at_described *object);
attune_status at_described_prepare(const at_described_op *of, at_described *object); /* all its kernels */
attune_status at_described_run(const at_described_op *of, at_described *object, const void *step, bool is_interpreted);

/* Defines attune_OP_desc_init, _step_init, _create, _destroy, _run and _run_interpreted. */
#define AT_DESCRIBED_FUNCTIONS(op, description)                                                                        \
    attune_status attune_##op##_desc_init(attune_##op##_desc *desc, size_t struct_size) {                              \
        return at_described_init(&description.table->desc, desc, struct_size);                                         \
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

/* Defines attune_OP_prepare, which gets all kernels. */
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

/* A kernel, made at the first call. The object keeps it. */
attune_status at_described_kernel(at_described *object, uint32_t which, attune_kernel **kernel, at_error *err);

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

attune_status at_described_execute(at_described *object, uint32_t which, const at_described_call *call,
                                   const at_described_step *step, at_error *err);
/* The same with a kernel that at_described_kernel gave; the next one that it gives may be another. */
attune_status at_described_execute_by(at_described *object, const attune_kernel *kernel, const at_described_call *call,
                                      const at_described_step *step, at_error *err);

/* Reads the text of a kernel, in its builder. desc: memory for the struct. false: the text is something else. */
bool at_described_read(const at_described_op *of, const char *text, void *desc, uint32_t *which);

/* ---- The operators ---- */

extern const at_described_op lin_described, conv_described, idx_described, blk_described, mla_described;

/* The operator that a text names first, by op=; NULL: none of these. */
const at_described_op *at_described_op_of(const char *text);

#endif
