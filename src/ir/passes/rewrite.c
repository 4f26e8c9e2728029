/* The walk that all passes share. Old variables and buffers map to new ones, and each node is built anew:
 *
 *     old kernel -> for each statement: the pass's own hook, or a copy -> builder (folds) -> new kernel */
#include "ir/passes/rewrite.h"

/* ---- Expressions ---- */

const ir_access *ir_rewrite_access(ir_rewriter *r, const ir_access *old) {
    const ir_expr *indices[IR_MAX_DIMS];
    const ir_buffer *buffer = r->buffers[old->buffer->id];
    for (int d = 0; d < old->buffer->num_dims; d++) indices[d] = ir_rewrite_expr(r, old->indices[d]);
    const ir_expr *mask = old->mask ? ir_rewrite_expr(r, old->mask) : NULL;
    if (ir_failed(r->b)) return NULL;
    return ir_access_make(r->b, buffer, old->lanes, old->axis, old->buffer->num_dims, indices, mask);
}

static const ir_expr *copy_expr(ir_rewriter *r, const ir_expr *old, const ir_expr *const *args) {
    switch (old->op) {
    case IR_CAST: return ir_cast(r->b, old->type.elem, args[0]);
    case IR_BITCAST: return ir_bitcast(r->b, old->type.elem, args[0]);
    case IR_SPLAT: return ir_splat(r->b, args[0], old->type.lanes);
    case IR_RAMP: return ir_ramp(r->b, args[0], args[1], old->type.lanes);
    case IR_SHUFFLE: return ir_shuffle(r->b, args[0], args[1], old->type.lanes, old->value.pick);
    case IR_DOT2: return ir_dot2(r->b, args[0], args[1], args[2]);
    case IR_PACK2: return ir_pack2(r->b, args[0], args[1]);
    case IR_DOT4: return ir_dot4(r->b, args[0], args[1], args[2]);
    case IR_LOOKUP: return ir_lookup(r->b, args[0], args[1], args[2]);
    default: return ir_apply(r->b, old->op, args[0], args[1], args[2]);
    }
}

const ir_expr *ir_rewrite_expr(ir_rewriter *r, const ir_expr *old) {
    if (ir_failed(r->b)) return NULL;
    switch (old->op) {
    case IR_CONST: return old;
    case IR_VAR: return r->vars[old->value.var->id];
    case IR_LOAD: return ir_load(r->b, ir_rewrite_access(r, old->value.access));
    default: break;
    }
    const ir_expr *args[3] = {0};
    for (int i = 0; i < ir_op_get(old->op)->arity; i++) args[i] = ir_rewrite_expr(r, old->args[i]);
    if (ir_failed(r->b)) return NULL;
    const ir_expr *own = r->on_expr ? r->on_expr(r, old, args) : NULL;
    return own ? own : copy_expr(r, old, args);
}

/* ---- Statements ---- */

static void copy_loop(ir_rewriter *r, const ir_stmt *old) {
    const ir_expr *lo = ir_rewrite_expr(r, old->u.loop.lo), *hi = ir_rewrite_expr(r, old->u.loop.hi);
    r->vars[old->u.loop.var->id] =
        ir_for_begin(r->b, old->u.loop.var->name, lo, hi, old->u.loop.step, old->u.loop.unroll);
    ir_rewrite_block(r, &old->u.loop.body);
    ir_for_end(r->b);
}

static void copy_branch(ir_rewriter *r, const ir_stmt *old) {
    ir_if_begin(r->b, ir_rewrite_expr(r, old->u.branch.condition));
    ir_rewrite_block(r, &old->u.branch.then);
    if (old->u.branch.otherwise.first) {
        ir_if_else(r->b);
        ir_rewrite_block(r, &old->u.branch.otherwise);
    }
    ir_if_end(r->b);
}

static void copy_alloc(ir_rewriter *r, const ir_buffer *old) {
    int64_t dims[IR_MAX_DIMS];
    for (int d = 0; d < old->num_dims; d++) dims[d] = old->dims[d]->value.i;
    r->buffers[old->id] = ir_alloc(r->b, old->name, old->space, old->type, old->num_dims, dims);
}

static void copy_tile(ir_rewriter *r, const ir_stmt *old) {
    const ir_access *args[3] = {0};
    for (int i = 0; i < ir_tile_get(old->u.tile.op)->num_args; i++) args[i] = ir_rewrite_access(r, old->u.tile.args[i]);
    ir_tile(r->b, old->u.tile.op, args[0], args[1], args[2]);
}

static void copy_let(ir_rewriter *r, const ir_stmt *old) {
    const char *name = old->u.let.var->name;
    const ir_expr *value = ir_rewrite_expr(r, old->u.let.value);
    if (!old->u.let.lo) {
        r->vars[old->u.let.var->id] = ir_let(r->b, name, value);
        return;
    }
    const ir_expr *lo = ir_rewrite_expr(r, old->u.let.lo), *hi = ir_rewrite_expr(r, old->u.let.hi);
    r->vars[old->u.let.var->id] = ir_let_in(r->b, name, lo, hi, value);
}

static void copy_stmt(ir_rewriter *r, const ir_stmt *old) {
    switch (old->kind) {
    case IR_FOR: copy_loop(r, old); break;
    case IR_LET: copy_let(r, old); break;
    case IR_STORE: {
        const ir_expr *value = ir_rewrite_expr(r, old->u.store.value);
        ir_store(r->b, ir_rewrite_access(r, old->u.store.access), value);
        break;
    }
    case IR_IF: copy_branch(r, old); break;
    case IR_ALLOC: copy_alloc(r, old->u.alloc); break;
    case IR_PREFETCH:
        (old->u.store.is_far ? ir_prefetch_far : ir_prefetch)(r->b, ir_rewrite_access(r, old->u.store.access));
        break;
    case IR_ASSUME: ir_assume(r->b, ir_rewrite_expr(r, old->u.assume)); break;
    case IR_TILE: copy_tile(r, old); break;
    }
}

void ir_rewrite_block(ir_rewriter *r, const ir_block *old) {
    for (const ir_stmt *s = old->first; s; s = s->next)
        if (!r->on_stmt || !r->on_stmt(r, s)) copy_stmt(r, s);
}

/* ---- Kernels ---- */

static void copy_phase(ir_rewriter *r, const ir_phase *old) {
    ir_phase_begin(r->b);
    for (int i = 0; i < old->num_loops; i++)
        r->vars[old->loops[i].var->id] = ir_parallel(r->b, old->loops[i].var->name, old->loops[i].hi);
    ir_rewrite_block(r, &old->body);
    ir_phase_end(r->b);
}

static bool make_tables(ir_rewriter *r, const ir_kernel *old) {
    r->b = ir_builder_like(old->arena, old);
    r->vars = at_arena_alloc(old->arena, (old->num_vars + 1) * sizeof *r->vars);
    r->buffers = at_arena_alloc(old->arena, (old->num_buffers + 1) * sizeof *r->buffers);
    if (!r->b || !r->vars || !r->buffers) return false;
    for (uint32_t i = 0; i < old->num_params; i++) {
        const ir_param param = old->params[i];
        if (param.var)
            r->vars[param.var->id] = ir_var_ref(r->b, param.var);
        else
            r->buffers[param.buffer->id] = param.buffer;
    }
    for (uint32_t i = 0; i < old->num_shared; i++) r->buffers[old->shared[i]->id] = old->shared[i];
    return true;
}

typedef struct copying {
    ir_rewriter *r;
    const ir_kernel *old;
} copying;

static void copy_phases(void *user) {
    const copying *c = user;
    for (const ir_phase *phase = c->old->phases; phase; phase = phase->next) copy_phase(c->r, phase);
}

ir_kernel *ir_rewrite_kernel(const ir_kernel *old, const ir_rewriter *hooks, at_error *err) {
    ir_rewriter r = {.on_expr = hooks->on_expr, .on_stmt = hooks->on_stmt, .user = hooks->user};
    if (!make_tables(&r, old)) {
        at_fail_memory(err, sizeof r);
        return NULL;
    }
    ir_builder_run(r.b, copy_phases, &(copying){&r, old});
    return ir_builder_finish(r.b, err);
}

/* ---- Searching ---- */

typedef struct search {
    bool (*expr)(const ir_expr *expr, const void *user);
    bool (*stmt)(const ir_stmt *stmt);
    const void *user;
} search;

static bool in_expr(const search *s, const ir_expr *e);

static bool in_access(const search *s, const ir_access *access) {
    for (int d = 0; d < access->buffer->num_dims; d++)
        if (in_expr(s, access->indices[d])) return true;
    return access->mask && in_expr(s, access->mask);
}

static bool in_expr(const search *s, const ir_expr *e) {
    if (!s->expr) return false;
    if (s->expr(e, s->user)) return true;
    if (e->op == IR_LOAD) return in_access(s, e->value.access);
    for (int i = 0; i < ir_op_get(e->op)->arity; i++)
        if (in_expr(s, e->args[i])) return true;
    return false;
}

static bool in_block(const search *s, const ir_block *block);

static bool in_stmt(const search *s, const ir_stmt *stmt) {
    if (s->stmt && s->stmt(stmt)) return true;
    switch (stmt->kind) {
    case IR_FOR: return in_expr(s, stmt->u.loop.lo) || in_expr(s, stmt->u.loop.hi) || in_block(s, &stmt->u.loop.body);
    case IR_LET:
        return in_expr(s, stmt->u.let.value) ||
               (stmt->u.let.lo && (in_expr(s, stmt->u.let.lo) || in_expr(s, stmt->u.let.hi)));
    case IR_STORE: return in_access(s, stmt->u.store.access) || in_expr(s, stmt->u.store.value);
    case IR_IF:
        return in_expr(s, stmt->u.branch.condition) || in_block(s, &stmt->u.branch.then) ||
               in_block(s, &stmt->u.branch.otherwise);
    case IR_PREFETCH: return in_access(s, stmt->u.store.access);
    case IR_ASSUME: return in_expr(s, stmt->u.assume);
    case IR_TILE:
        for (int i = 0; i < ir_tile_get(stmt->u.tile.op)->num_args; i++)
            if (in_access(s, stmt->u.tile.args[i])) return true;
        return false;
    case IR_ALLOC: return false;
    }
    return false;
}

static bool in_block(const search *s, const ir_block *block) {
    for (const ir_stmt *stmt = block->first; stmt; stmt = stmt->next)
        if (in_stmt(s, stmt)) return true;
    return false;
}

bool ir_kernel_has(const ir_kernel *kernel, bool (*expr)(const ir_expr *expr, const void *user),
                   bool (*stmt)(const ir_stmt *stmt), const void *user) {
    const search s = {expr, stmt, user};
    for (const ir_phase *phase = kernel->phases; phase; phase = phase->next)
        if (in_block(&s, &phase->body)) return true;
    return false;
}
