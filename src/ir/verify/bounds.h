/* The bounds prover: does an index stay inside its dimension, is a divisor never zero?
 *
 * Integer expressions become linear forms (form.h) over atoms: scalar params, the trip counters of loops, the values of
 * loads, and one atom for each division, minimum, selection, … that is not linear. An atom knows inequalities about
 * itself in terms of older atoms (a loop's counter: its bounds; x / m: rounding down; min(a, b): it is at most a and at
 * most b, and equal to one of them). To prove `form >= 0` the newest atom is eliminated with one of its inequalities or
 * with a fact that holds at that place, and so on until a constant is left. The search is bounded. What it does not
 * find counts as not proved.
 *
 * Arithmetic is assumed to be exact: the kernel's caller guarantees that no 64-bit index overflows. The prover is fed
 * in program order: whoever walks the kernel reports parameters, loops and lets as they come into scope, and facts as
 * they start and cease to hold. */
#ifndef ATTUNE_IR_BOUNDS_H
#define ATTUNE_IR_BOUNDS_H

#include "ir/ir.h"

typedef struct ir_bounds ir_bounds;

/* A prover for a kernel of `num_vars` variables, in `arena`. If the arena has failed at the end, the caller must ignore
 * all answers. NULL when the arena refuses. */
ir_bounds *ir_bounds_new(at_arena *arena, uint32_t num_vars);

/* ---- What there is ---- */

void ir_bounds_param(ir_bounds *b, const ir_var *var);
void ir_bounds_dim(ir_bounds *b, const ir_expr *dim); /* of a parameter or shared buffer: never negative */
void ir_bounds_loop(ir_bounds *b, const ir_var *var, const ir_expr *lo, const ir_expr *hi, int64_t step,
                    bool unroll); /* lo NULL: 0 */
void ir_bounds_let(ir_bounds *b, const ir_var *var, const ir_expr *value);
void ir_bounds_let_in(ir_bounds *b, const ir_var *var, const ir_expr *lo, const ir_expr *hi);

/* Whether the value is known when the kernel is lowered: a function of constants and variables of unrolled loops. */
bool ir_bounds_is_static(ir_bounds *b, const ir_expr *expr);

/* ---- Facts, as a stack ---- */

uint32_t ir_bounds_mark(const ir_bounds *b);
void ir_bounds_release(ir_bounds *b, uint32_t mark);
void ir_bounds_fact(ir_bounds *b, const ir_expr *condition, bool holds);
void ir_bounds_kernel_fact(ir_bounds *b, const ir_expr *condition); /* a fact about scalar params; permanent */

/* ---- Questions ---- */

typedef enum ir_bounds_verdict { IR_BOUNDS_OK, IR_BOUNDS_BELOW, IR_BOUNDS_ABOVE } ir_bounds_verdict;

/* Whether every active lane is inside the buffer. If not, *dim is the dimension whose lower (BELOW) or upper (ABOVE)
 * bound could not be proved. */
ir_bounds_verdict ir_bounds_access(ir_bounds *b, const ir_access *access, int *dim);

/* Whether an integer expression is never zero, in any lane. */
bool ir_bounds_nonzero(ir_bounds *b, const ir_expr *expr);

#endif
