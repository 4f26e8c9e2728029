/* Checks that a kernel is well formed. Two levels: scheduled IR may hold unroll loops and HIGH operators, lowered IR
 * holds only operations that code generation turns into instructions of the target. At both, every access is proved in
 * bounds (interval arithmetic over linear forms of the scalar params, with the kernel's assumes, `assume` statements
 * and the conditions of enclosing ifs as facts); an access that is not proved is refused, as are a division whose
 * divisor may be zero and a gather store. */
#ifndef ATTUNE_IR_VERIFY_H
#define ATTUNE_IR_VERIFY_H

#include "ir/ir.h"
#include "target/target.h"

typedef enum ir_level { IR_SCHEDULED, IR_LOWERED } ir_level;

/* ATTUNE_OK, or ATTUNE_INVALID_IR with a sentence that names the statement. target: needed for IR_LOWERED. */
attune_status ir_verify(const ir_kernel *kernel, ir_level level, const at_target *target, at_error *err);

#endif
