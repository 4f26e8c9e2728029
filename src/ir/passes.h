/* From scheduled to lowered IR. Each pass builds a new kernel in the same arena. Its file begins with its contract:
 * what it needs, what it keeps, what holds after it. Every pass keeps the bits that the interpreter computes;
 * lower_math is what defines the HIGH operators. */
#ifndef ATTUNE_IR_PASSES_H
#define ATTUNE_IR_PASSES_H

#include "ir/ir.h"
#include "target/target.h"

/* Each returns the kernel it was given if there is nothing to do, and NULL with *err filled if it cannot be done. */
ir_kernel *ir_pass_lower_math(const ir_kernel *kernel, const at_target *target, at_error *err);
ir_kernel *ir_pass_lower_lets(const ir_kernel *kernel, const at_target *target, at_error *err);
ir_kernel *ir_pass_unroll(const ir_kernel *kernel, const at_target *target, at_error *err);
ir_kernel *ir_pass_legalize(const ir_kernel *kernel, const at_target *target, at_error *err);

typedef void ir_observe_fn(void *user, const char *pass, const ir_kernel *kernel);

/* The whole pipeline: verify(scheduled) → lower_math → lower_lets → legalize → unroll → verify(lowered). observe (may
 * be NULL) sees the kernel first as "scheduled" and then after each pass under the pass's name. */
ir_kernel *ir_lower(const ir_kernel *kernel, const at_target *target, ir_observe_fn *observe, void *user,
                    at_error *err);

#endif
