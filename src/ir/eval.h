/* Defines every operator on values. The builder folds with it, the interpreter computes with it, and the emitter must
 * agree with it bit for bit. Compiled with -ffp-contract=off, and called in the default floating-point environment
 * (base/fpenv.h). */
#ifndef ATTUNE_IR_EVAL_H
#define ATTUNE_IR_EVAL_H

#include "ir/ir.h"

/* Lanes of one value: an array of the element's C type, 64-byte aligned; idx and i64 are int64_t, bool is uint8_t
 * (0 or 1), f16/bf16 are uint16_t, f8/i8 uint8_t/int8_t. */
typedef void ir_eval_fn(void *restrict out, const void *x, const void *y, const void *z, int lanes);

/* The evaluator of an operator on operands of element `elem`, or NULL if it does not exist: all SAME and CMP
 * operators (CMP writes bool), SELECT (x is bool), DOT2 and PACK2 (of IR_F32, `lanes` being those of the result) DOT4
 * (of IR_I32) and LOOKUP (of IR_I8 and IR_F32); the HIGH operators have none. The functions are chosen for this CPU
 * (fused multiply-add in hardware), but their results are not. */
ir_eval_fn *ir_eval_get(ir_op op, ir_elem elem);
ir_eval_fn *ir_eval_cast(ir_elem from, ir_elem to);

/* tile_dot2 on its three tiles: sum += left * right, pairs of bf16. */
void ir_eval_tile_dot2(float sum[IR_TILE_ROWS][16], const uint16_t left[IR_TILE_ROWS][32],
                       const uint16_t right[IR_TILE_ROWS][32]);

#endif
