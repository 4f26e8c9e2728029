/* lower_lets: a `let` with an interval becomes a load from a register and two assumptions about it.
 *
 * Needs: nothing. Keeps: the order of all statements, and so the bits. The prover knows nothing of a load but the
 * assumptions, just as it knew only the interval of the `let`. After it: no `let` has an interval. The code generator
 * emits the value at this place. */
#include "ir/passes.h"
#include "ir/passes/rewrite.h"

static bool has_interval(const ir_stmt *s) { return s->kind == IR_LET && s->u.let.lo; }

static bool lower_let(ir_rewriter *r, const ir_stmt *s) {
    if (!has_interval(s)) return false;
    ir_builder *b = r->b;
    const char *name = s->u.let.var->name;
    const ir_expr *lo = ir_rewrite_expr(r, s->u.let.lo), *hi = ir_rewrite_expr(r, s->u.let.hi);
    const ir_expr *value = ir_rewrite_expr(r, s->u.let.value);
    const ir_access *at = ir_at(b, ir_registers(b, name, IR_IDX, 1, 0, NULL), 1, 0);
    ir_store(b, at, value);
    const ir_expr *var = ir_let(b, name, ir_load(b, at));
    ir_assume(b, ir_le(b, lo, var));
    ir_assume(b, ir_le(b, var, ir_plus(b, hi, -1)));
    r->vars[s->u.let.var->id] = var;
    return true;
}

ir_kernel *ir_pass_lower_lets(const ir_kernel *kernel, const at_target *target, at_error *err) {
    (void)target;
    if (!ir_kernel_has(kernel, NULL, has_interval, NULL)) return (ir_kernel *)kernel;
    return ir_rewrite_kernel(kernel, &(ir_rewriter){.on_stmt = lower_let}, err);
}
