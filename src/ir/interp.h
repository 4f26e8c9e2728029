/* The interpreter, which defines the meaning of a kernel. Runs scheduled IR without HIGH operators, and lowered IR.
 * Checks every access against the dims, every read of scratch, shared and reg for having been written, every `assume`,
 * and runs the tasks of a phase in a shuffled order. */
#ifndef ATTUNE_IR_INTERP_H
#define ATTUNE_IR_INTERP_H

#include "ir/ir.h"

/* Runs one task of one phase. The caller's shared buffers, row-major and aligned as params must be, have the results of
 * earlier phases; reads of unwritten elements of them are not detected. */
typedef struct ir_interp_task {
    uint32_t phase;
    int64_t task;
    void *const *shared; /* one for each shared buffer */
} ir_interp_task;

typedef struct ir_interp_options {
    uint64_t shuffle_seed;             /* order of the tasks of a phase; 0: ascending */
    const attune_allocator *allocator; /* NULL: default */
    const ir_interp_task *only;        /* NULL: the whole kernel */
} ir_interp_options;

/* buffers[]: the buffer params in order; scalars[]: the scalar params in order, integers as they are, f32 as its
 * bits in the low half, f64 as its bits. ATTUNE_CHECK_FAILED with the statement named when a check fails. */
attune_status ir_interpret(const ir_kernel *kernel, void *const *buffers, const int64_t *scalars,
                           const ir_interp_options *options, at_error *err);

/* The value of an idx expression over scalar params only (dims, strides, loop ends of phases). */
attune_status ir_eval_scalar(const ir_kernel *kernel, const ir_expr *expr, const int64_t *scalars, int64_t *out,
                             at_error *err);

#endif
