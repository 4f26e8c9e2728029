/* unroll: every loop marked `unroll` becomes copies of its body.
 *
 * Needs: ends of the marked loops that are constants once the loops round them are unrolled. Keeps: the order of all
 * statements, and so the bits. A copy has its own lets and allocations, under fresh names. After it: no marked loops.
 * Their variables are constants and folded, so indices into registers are constants. */
#include "ir/passes.h"
#include "ir/passes/rewrite.h"

/* A larger kernel is a mistake, and would take minutes to compile. */
enum { MAX_COPIES = 1 << 17 };

static bool is_marked(const ir_stmt *s) { return s->kind == IR_FOR && s->u.loop.unroll; }

static bool unroll_loop(ir_rewriter *r, const ir_stmt *s) {
    if (!is_marked(s)) return false;
    int64_t *copies = r->user;
    const ir_expr *lo = ir_rewrite_expr(r, s->u.loop.lo), *hi = ir_rewrite_expr(r, s->u.loop.hi);
    if (ir_failed(r->b)) return true;
    const char *name = s->u.loop.var->name;
    if (lo->op != IR_CONST || hi->op != IR_CONST) {
        ir_build_fail(r->b, "loop '%s' is to be unrolled, but its ends are not constants", name);
        return true;
    }
    for (int64_t i = lo->value.i; i < hi->value.i && !ir_failed(r->b);) {
        if (++*copies > MAX_COPIES) ir_build_fail(r->b, "unrolling '%s' gives more than %d copies", name, MAX_COPIES);
        r->vars[s->u.loop.var->id] = ir_idx(r->b, i);
        ir_rewrite_block(r, &s->u.loop.body);
        if (__builtin_add_overflow(i, s->u.loop.step, &i)) break;
    }
    return true;
}

ir_kernel *ir_pass_unroll(const ir_kernel *kernel, const at_target *target, at_error *err) {
    (void)target;
    if (!ir_kernel_has(kernel, NULL, is_marked, NULL)) return (ir_kernel *)kernel;
    int64_t copies = 0;
    return ir_rewrite_kernel(kernel, &(ir_rewriter){.on_stmt = unroll_loop, .user = &copies}, err);
}
