/* Checks that a kernel is well formed, at one of two levels: scheduled IR may have unroll loops and HIGH operators;
 * lowered IR has only operations that are instructions of the target.
 *
 * At both levels, every access must be proved to be in bounds, and every divisor not to be zero (bounds.h). Facts for
 * the proofs are the kernel's assumes, `assume` statements and the conditions of enclosing ifs. Scatters (stores by
 * vectors of indices) do not exist. */
#ifndef ATTUNE_IR_VERIFY_H
#define ATTUNE_IR_VERIFY_H

#include "ir/ir.h"
#include "target/target.h"

typedef enum ir_level { IR_SCHEDULED, IR_LOWERED } ir_level;

/* ATTUNE_OK, or ATTUNE_INVALID_IR with a sentence that names the statement. target: needed for IR_LOWERED. */
attune_status ir_verify(const ir_kernel *kernel, ir_level level, const at_target *target, at_error *err);

#endif
