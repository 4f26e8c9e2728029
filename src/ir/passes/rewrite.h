/* A helper for passes: walks an old kernel and builds a new one through the builder, which folds. A pass gives hooks
 * for what it changes; everything else is copied.
 *
 * A statement's expressions are rewritten before the statement is appended. So a hook that calls ir_let puts the `let`
 * right before that statement, or before the loop or branch whose head has the expression. */
#ifndef ATTUNE_IR_REWRITE_H
#define ATTUNE_IR_REWRITE_H

#include "ir/build.h"

typedef struct ir_rewriter ir_rewriter;

/* The replacement of `old`, whose rewritten operands are args[]; NULL: a copy. */
typedef const ir_expr *ir_rewrite_expr_fn(ir_rewriter *r, const ir_expr *old, const ir_expr *const *args);
/* true if the hook has built the replacement of `old`; false: a copy. */
typedef bool ir_rewrite_stmt_fn(ir_rewriter *r, const ir_stmt *old);

struct ir_rewriter {
    ir_builder *b;
    const ir_expr **vars;        /* by the old id: the new expression for the variable */
    const ir_buffer **buffers;   /* by the old id */
    ir_rewrite_expr_fn *on_expr; /* may be NULL; not called for constants, variables and loads */
    ir_rewrite_stmt_fn *on_stmt; /* may be NULL */
    void *user;
};

/* The new kernel, in the arena of the old one; parameters and shared buffers are the same objects. Heads of phases are
 * copied without hooks. Of `hooks`, on_expr, on_stmt and user are read. */
ir_kernel *ir_rewrite_kernel(const ir_kernel *old, const ir_rewriter *hooks, at_error *err);

/* The parts, for hooks. */
const ir_expr *ir_rewrite_expr(ir_rewriter *r, const ir_expr *old);
const ir_access *ir_rewrite_access(ir_rewriter *r, const ir_access *old);
void ir_rewrite_block(ir_rewriter *r, const ir_block *old);

/* Whether a predicate holds for any expression or statement of the kernel's blocks. A predicate may be NULL. A pass
 * calls this first, and returns the kernel itself if it has nothing to do. */
bool ir_kernel_has(const ir_kernel *kernel, bool (*expr)(const ir_expr *expr, const void *user),
                   bool (*stmt)(const ir_stmt *stmt), const void *user);

#endif
