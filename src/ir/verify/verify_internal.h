/* What the two halves of the verifier share: its state, and messages. */
#ifndef ATTUNE_IR_VERIFY_INTERNAL_H
#define ATTUNE_IR_VERIFY_INTERNAL_H

#include "ir/verify/bounds.h"
#include "ir/verify.h"

enum { IR_VERIFY_TEXT = 120 };

typedef struct ir_verifier {
    const ir_kernel *kernel;
    ir_level level;
    const at_target *target;
    at_error *err;
    at_arena arena;
    ir_bounds *bounds;
    const ir_var **vars; /* by id: in scope, or NULL */
    const ir_buffer **buffers;
    uint8_t *seen_vars, *seen_buffers;
    const char **names; /* open addressing; a power of two of slots */
    uint32_t num_slots;
} ir_verifier;

typedef struct ir_short_text {
    char text[IR_VERIFY_TEXT];
} ir_short_text;

/* Fills the error with a sentence that starts with the kernel's name; false, so that checks can return it. */
bool ir_refuse(ir_verifier *v, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* For messages: printed, and shortened if necessary. */
ir_short_text ir_expr_text(const ir_verifier *v, const ir_expr *e);
ir_short_text ir_access_text(const ir_verifier *v, const ir_access *access);

bool ir_verify_lanes(int lanes);
bool ir_verify_expr(ir_verifier *v, const ir_expr *e, int depth);

/* Checks everything about an access except its bounds. use: IR_IN for loads, IR_OUT for stores, 0 for neither. */
bool ir_verify_access(ir_verifier *v, const ir_access *access, int use, int depth);
bool ir_verify_used_access(ir_verifier *v, const ir_access *access, int use, int depth); /* and its bounds */

#endif
