/* The verifier's half about names, statements and kernels: one walk in program order. The walk keeps the prover
 * (bounds.h) up to date, so that the other half (verify_expr.c) can ask about every index where it occurs:
 *
 *     for, let         the variable comes into scope       end of block     it leaves scope
 *     if, assume       the condition is a fact             end of branch    the fact is released */
#include "ir/verify.h"
#include "ir/verify/verify_internal.h"

#include <string.h>

/* ---- Names and scopes ---- */

static bool add_name(ir_verifier *v, const char *name) {
    uint32_t hash = 0x811c9dc5u;
    if (!name || !*name) return ir_refuse(v, "something has no name");
    for (const char *c = name; *c; c++) hash = (hash ^ (uint8_t)*c) * 0x01000193u;
    uint32_t slot = hash & (v->num_slots - 1);
    for (; v->names[slot]; slot = (slot + 1) & (v->num_slots - 1))
        if (!strcmp(v->names[slot], name)) return ir_refuse(v, "the name '%.60s' is given twice", name);
    v->names[slot] = name;
    return true;
}

static bool enter_var(ir_verifier *v, const ir_var *var) {
    if (var->id >= v->kernel->num_vars || v->seen_vars[var->id])
        return ir_refuse(v, "variable '%.60s' has the id %u, which is %s", var->name, var->id,
                         var->id >= v->kernel->num_vars ? "too large" : "taken");
    if (!add_name(v, var->name)) return false;
    v->seen_vars[var->id] = 1;
    v->vars[var->id] = var;
    return true;
}

static bool enter_loop_var(ir_verifier *v, const ir_var *var) {
    if (!ir_type_eq(var->type, ir_type_of(IR_IDX, 1)))
        return ir_refuse(v, "loop variable '%.60s' is not idx", var->name);
    return enter_var(v, var);
}

static bool enter_buffer(ir_verifier *v, const ir_buffer *buffer) {
    if (buffer->id >= v->kernel->num_buffers || v->seen_buffers[buffer->id])
        return ir_refuse(v, "buffer '%.60s' has the id %u, which is %s", buffer->name, buffer->id,
                         buffer->id >= v->kernel->num_buffers ? "too large" : "taken");
    if (buffer->num_dims > IR_MAX_DIMS) return ir_refuse(v, "buffer '%.60s' has too many dimensions", buffer->name);
    if (!add_name(v, buffer->name)) return false;
    v->seen_buffers[buffer->id] = 1;
    v->buffers[buffer->id] = buffer;
    return true;
}

/* ---- Expressions in their places ---- */

static bool check_idx(ir_verifier *v, const ir_expr *e, const char *what, const char *name) {
    if (!ir_verify_expr(v, e, 0)) return false;
    return ir_type_eq(e->type, ir_type_of(IR_IDX, 1)) || ir_refuse(v, "%s of '%.60s' is not a scalar idx", what, name);
}

static bool check_condition(ir_verifier *v, const ir_expr *e, const char *what) {
    if (!ir_verify_expr(v, e, 0)) return false;
    return ir_type_eq(e->type, ir_type_of(IR_BOOL, 1)) ||
           ir_refuse(v, "%s %s is not a scalar bool", what, ir_expr_text(v, e).text);
}

/* Checks a size that the runtime computes before a run, from the scalars alone: it has no loads and no HIGH operators.
 */
static bool check_plain(ir_verifier *v, const ir_expr *e, const char *what) {
    const ir_op_info *info = ir_op_get(e->op);
    if (e->op == IR_LOAD || (info->traits & IR_TRAIT_HIGH))
        return ir_refuse(v, "%s %s is made of more than constants and scalar parameters", what,
                         ir_expr_text(v, e).text);
    for (int i = 0; i < info->arity; i++)
        if (!check_plain(v, e->args[i], what)) return false;
    return true;
}

/* ---- Statements ---- */

static bool check_block(ir_verifier *v, const ir_block *block, int depth);

static bool check_loop(ir_verifier *v, const ir_stmt *s, int depth) {
    const ir_var *var = s->u.loop.var;
    if (!check_idx(v, s->u.loop.lo, "the start", var->name) || !check_idx(v, s->u.loop.hi, "the end", var->name))
        return false;
    if (s->u.loop.step < 1) return ir_refuse(v, "loop '%.60s' has step %lld", var->name, (long long)s->u.loop.step);
    if (s->u.loop.unroll && v->level == IR_LOWERED)
        return ir_refuse(v, "loop '%.60s' is still to be unrolled in lowered IR", var->name);
    const bool ends_known = !s->u.loop.unroll || (ir_bounds_is_static(v->bounds, s->u.loop.lo) &&
                                                  ir_bounds_is_static(v->bounds, s->u.loop.hi));
    if (!ends_known)
        return ir_refuse(v, "loop '%.60s' is to be unrolled, but its trip count is not a constant", var->name);
    if (!enter_loop_var(v, var)) return false;
    const uint32_t mark = ir_bounds_mark(v->bounds);
    ir_bounds_loop(v->bounds, var, s->u.loop.lo, s->u.loop.hi, s->u.loop.step, s->u.loop.unroll);
    const bool ok = check_block(v, &s->u.loop.body, depth + 1);
    ir_bounds_release(v->bounds, mark);
    v->vars[var->id] = NULL;
    return ok;
}

static bool check_store(ir_verifier *v, const ir_stmt *s) {
    const ir_access *access = s->u.store.access;
    if (!ir_verify_expr(v, s->u.store.value, 0) || !ir_verify_used_access(v, access, IR_OUT, 0)) return false;
    if (access->buffer->space == IR_TILES)
        return ir_refuse(v, "%s is a tile and cannot be stored to", ir_access_text(v, access).text);
    return ir_type_eq(s->u.store.value->type, ir_type_of(access->buffer->type.elem, access->lanes)) ||
           ir_refuse(v, "store to %s: the value has another type", ir_access_text(v, access).text);
}

static bool check_branch(ir_verifier *v, const ir_stmt *s, int depth) {
    const ir_expr *condition = s->u.branch.condition;
    if (!check_condition(v, condition, "the condition")) return false;
    const uint32_t mark = ir_bounds_mark(v->bounds);
    ir_bounds_fact(v->bounds, condition, true);
    if (!check_block(v, &s->u.branch.then, depth + 1)) return false;
    ir_bounds_release(v->bounds, mark);
    ir_bounds_fact(v->bounds, condition, false);
    if (!check_block(v, &s->u.branch.otherwise, depth + 1)) return false;
    ir_bounds_release(v->bounds, mark);
    return true;
}

static bool check_alloc(ir_verifier *v, const ir_buffer *buffer) {
    if (buffer->space != IR_SCRATCH && buffer->space != IR_REG && buffer->space != IR_TILES)
        return ir_refuse(v, "'%.60s' is allocated in a block, but is neither scratch nor reg nor tiles", buffer->name);
    if (buffer->space == IR_TILES && buffer->type.elem != IR_F32 && buffer->type.elem != IR_BF16)
        return ir_refuse(v, "tiles '%.60s' are neither f32 nor bf16", buffer->name);
    if (!ir_verify_lanes(buffer->type.lanes) || (buffer->type.lanes > 1 && buffer->space != IR_REG))
        return ir_refuse(v, "'%.60s' has elements of %d lanes", buffer->name, buffer->type.lanes);
    int64_t size = buffer->type.lanes * ir_elem_get(buffer->type.elem)->bytes;
    if (buffer->space == IR_TILES) size = IR_TILE_ROWS * IR_TILE_ROW_BYTES;
    for (int d = 0; d < buffer->num_dims; d++) {
        const ir_expr *dim = buffer->dims[d];
        if (!dim || dim->op != IR_CONST || dim->type.elem != IR_IDX || dim->value.i < 1)
            return ir_refuse(v, "dimension %d of '%.60s' is not a constant above 0", d, buffer->name);
        if (__builtin_mul_overflow(size, dim->value.i, &size) || size > INT32_MAX)
            return ir_refuse(v, "'%.60s' is larger than 2 GiB", buffer->name);
    }
    return enter_buffer(v, buffer);
}

static bool check_let(ir_verifier *v, const ir_stmt *s) {
    const ir_var *var = s->u.let.var;
    if (!ir_verify_expr(v, s->u.let.value, 0)) return false;
    if (!ir_type_eq(var->type, s->u.let.value->type))
        return ir_refuse(v, "let '%.60s' has not its value's type", var->name);
    if (!s->u.let.lo) {
        if (!enter_var(v, var)) return false;
        ir_bounds_let(v->bounds, var, s->u.let.value);
        return true;
    }
    if (v->level == IR_LOWERED) return ir_refuse(v, "let '%.60s' has an interval in lowered IR", var->name);
    if (!check_idx(v, s->u.let.value, "the value", var->name) || !check_idx(v, s->u.let.lo, "the start", var->name) ||
        !check_idx(v, s->u.let.hi, "the end", var->name) || !enter_var(v, var))
        return false;
    ir_bounds_let_in(v->bounds, var, s->u.let.lo, s->u.let.hi);
    return true;
}

/* A prefetch may be out of bounds, as it accesses no memory. */
static bool check_prefetch(ir_verifier *v, const ir_access *access) {
    if (!ir_verify_access(v, access, 0, 0)) return false;
    return (access->buffer->space != IR_REG && access->buffer->space != IR_TILES) ||
           ir_refuse(v, "'%.60s' is in registers and cannot be prefetched", access->buffer->name);
}

/* An access of a tile, whose indices must be constants in lowered IR. */
static bool check_tile_arg(ir_verifier *v, const ir_access *access, int use) {
    if (!ir_verify_used_access(v, access, use, 0)) return false;
    if (access->buffer->space != IR_TILES)
        return ir_refuse(v, "%s is used as a tile, and is none", ir_access_text(v, access).text);
    for (int d = 0; d < access->buffer->num_dims && v->level == IR_LOWERED; d++)
        if (access->indices[d]->op != IR_CONST)
            return ir_refuse(v, "%s: an index into tiles must be a constant in lowered IR",
                             ir_access_text(v, access).text);
    return true;
}

static bool check_tile_row(ir_verifier *v, const ir_access *access, int use) {
    if (!access || !ir_verify_used_access(v, access, use, 0)) return access ? false : ir_refuse(v, "a tile lacks rows");
    const int bytes = access->lanes * ir_elem_get((ir_elem)access->buffer->type.elem)->bytes;
    const bool is_memory = access->buffer->space != IR_REG && access->buffer->space != IR_TILES;
    return (is_memory && bytes == IR_TILE_ROW_BYTES) ||
           ir_refuse(v, "%s is no row of a tile", ir_access_text(v, access).text);
}

static bool check_tile(ir_verifier *v, const ir_stmt *s) {
    if ((unsigned)s->u.tile.op >= IR_TILE_OP_COUNT) return ir_refuse(v, "a tile operation %d", (int)s->u.tile.op);
    const ir_tile_info *info = ir_tile_get(s->u.tile.op);
    if (v->level == IR_LOWERED && !(v->target->flags & AT_TARGET_TILES))
        return ir_refuse(v, "target %s has no instruction for '%s'", v->target->name, info->text);
    for (int i = 0; i < info->num_args; i++) {
        const ir_access *access = s->u.tile.args[i];
        const int use = i ? IR_IN : IR_OUT;
        if (!access) return ir_refuse(v, "'%s' lacks an operand", info->text);
        if (i != info->memory ? !check_tile_arg(v, access, use)
                              : !check_tile_row(v, access, use) || !check_tile_row(v, s->u.tile.last, use))
            return false;
    }
    return true;
}

static bool check_stmt(ir_verifier *v, const ir_stmt *s, int depth) {
    switch (s->kind) {
    case IR_FOR: return check_loop(v, s, depth);
    case IR_LET: return check_let(v, s);
    case IR_STORE: return check_store(v, s);
    case IR_IF: return check_branch(v, s, depth);
    case IR_ALLOC: return check_alloc(v, s->u.alloc);
    case IR_PREFETCH: return check_prefetch(v, s->u.store.access);
    case IR_TILE: return check_tile(v, s);
    case IR_ASSUME:
        if (!check_condition(v, s->u.assume, "the assumption")) return false;
        ir_bounds_fact(v->bounds, s->u.assume, true);
        return true;
    }
    return ir_refuse(v, "a statement of kind %d", s->kind);
}

/* Names of a block leave scope at its end. */
static void leave_block(ir_verifier *v, const ir_block *block) {
    for (const ir_stmt *s = block->first; s; s = s->next) {
        if (s->kind == IR_LET) v->vars[s->u.let.var->id] = NULL;
        if (s->kind == IR_ALLOC) v->buffers[s->u.alloc->id] = NULL;
    }
}

static bool check_block(ir_verifier *v, const ir_block *block, int depth) {
    if (depth > IR_MAX_DEPTH) return ir_refuse(v, "blocks are nested deeper than %d", IR_MAX_DEPTH);
    const uint32_t mark = ir_bounds_mark(v->bounds);
    for (const ir_stmt *s = block->first; s; s = s->next)
        if (!check_stmt(v, s, depth)) return false;
    ir_bounds_release(v->bounds, mark);
    leave_block(v, block);
    return true;
}

/* ---- Kernels ---- */

/* Dims and strides of a parameter or shared buffer. */
static bool check_shape(ir_verifier *v, const ir_buffer *buffer) {
    if (!ir_verify_lanes(buffer->type.lanes) || buffer->type.lanes != 1)
        return ir_refuse(v, "'%.60s' has elements of %d lanes", buffer->name, buffer->type.lanes);
    for (int d = 0; d < buffer->num_dims; d++) {
        if (!check_idx(v, buffer->dims[d], "a dimension", buffer->name) ||
            !check_plain(v, buffer->dims[d], "the dimension"))
            return false;
        if (buffer->strides[d] && (!check_idx(v, buffer->strides[d], "a stride", buffer->name) ||
                                   !check_plain(v, buffer->strides[d], "the stride")))
            return false;
        if (!buffer->strides[d] != !buffer->strides[0]) return ir_refuse(v, "'%.60s' lacks a stride", buffer->name);
        ir_bounds_dim(v->bounds, buffer->dims[d]);
    }
    return true;
}

static bool check_params(ir_verifier *v) {
    const ir_kernel *kernel = v->kernel;
    /* Scalars first, as a buffer's dims may use a scalar that comes after it. */
    for (uint32_t i = 0; i < kernel->num_params; i++) {
        const ir_var *var = kernel->params[i].var;
        if (!var == !kernel->params[i].buffer) return ir_refuse(v, "parameter %u is not one thing", i);
        if (!var) continue;
        if (var->type.lanes != 1 || !(ir_elem_get(var->type.elem)->class & (IR_CLASS_INT | IR_CLASS_FLOAT)))
            return ir_refuse(v, "parameter '%.60s' has a type that scalars cannot have", var->name);
        if (!enter_var(v, var)) return false;
        ir_bounds_param(v->bounds, var);
    }
    for (uint32_t i = 0; i < kernel->num_assumes; i++) {
        if (!check_condition(v, kernel->assumes[i], "the assumption") ||
            !check_plain(v, kernel->assumes[i], "the assumption"))
            return false;
        ir_bounds_kernel_fact(v->bounds, kernel->assumes[i]);
    }
    for (uint32_t i = 0; i < kernel->num_params + kernel->num_shared; i++) {
        const bool shared = i >= kernel->num_params;
        const ir_buffer *buffer = shared ? kernel->shared[i - kernel->num_params] : kernel->params[i].buffer;
        if (!buffer) continue;
        if (buffer->space != (shared ? IR_SHARED : IR_PARAM))
            return ir_refuse(v, "'%.60s' is in the wrong list", buffer->name);
        if (!shared && (buffer->access < IR_IN || buffer->access > (IR_IN | IR_OUT)))
            return ir_refuse(v, "'%.60s' is neither read nor written", buffer->name);
        if (!enter_buffer(v, buffer) || !check_shape(v, buffer)) return false;
    }
    return true;
}

static bool check_phase(ir_verifier *v, const ir_phase *phase) {
    if (phase->num_loops < 1 || phase->num_loops > IR_MAX_LOOPS)
        return ir_refuse(v, "a phase has %d parallel loops", phase->num_loops);
    const uint32_t mark = ir_bounds_mark(v->bounds);
    /* All ends are checked before the first variable comes into scope: they may use scalar params only. */
    for (int i = 0; i < phase->num_loops; i++) {
        const ir_expr *hi = phase->loops[i].hi;
        if (!check_idx(v, hi, "the end", phase->loops[i].var->name) || !check_plain(v, hi, "the end")) return false;
    }
    for (int i = 0; i < phase->num_loops; i++) {
        const ir_var *var = phase->loops[i].var;
        if (!enter_loop_var(v, var)) return false;
        ir_bounds_loop(v->bounds, var, NULL, phase->loops[i].hi, 1, false);
    }
    if (!check_block(v, &phase->body, 0)) return false;
    ir_bounds_release(v->bounds, mark);
    for (int i = 0; i < phase->num_loops; i++) v->vars[phase->loops[i].var->id] = NULL;
    return true;
}

static bool check_kernel(ir_verifier *v) {
    if (!check_params(v)) return false;
    uint32_t count = 0;
    for (const ir_phase *phase = v->kernel->phases; phase; phase = phase->next, count++)
        if (!check_phase(v, phase)) return false;
    if (count == 0 || count != v->kernel->num_phases)
        return ir_refuse(v, "it has %u phases and says %u", count, v->kernel->num_phases);
    return true;
}

/* Zeroed tables by id and the name table, half full at most. */
static bool make_tables(ir_verifier *v) {
    const uint32_t vars = v->kernel->num_vars, buffers = v->kernel->num_buffers;
    v->num_slots = 64;
    while (v->num_slots < 2 * (vars + buffers)) v->num_slots *= 2;
    v->vars = at_arena_alloc(&v->arena, (vars + 1) * sizeof *v->vars);
    v->buffers = at_arena_alloc(&v->arena, (buffers + 1) * sizeof *v->buffers);
    v->seen_vars = at_arena_alloc(&v->arena, vars + 1);
    v->seen_buffers = at_arena_alloc(&v->arena, buffers + 1);
    v->names = at_arena_alloc(&v->arena, v->num_slots * sizeof *v->names);
    v->bounds = ir_bounds_new(&v->arena, vars);
    return !v->arena.failed;
}

attune_status ir_verify(const ir_kernel *kernel, ir_level level, const at_target *target, at_error *err) {
    if (level == IR_LOWERED && !target) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "lowered IR needs a target");
    at_error found = {.status = ATTUNE_OK};
    ir_verifier v = {.kernel = kernel, .level = level, .target = target, .err = &found};
    at_arena_init(&v.arena, kernel->arena->allocator);
    if (make_tables(&v)) check_kernel(&v);
    /* If memory has run out, no answer of the prover counts. */
    const attune_status status = v.arena.failed ? at_fail_memory(err, sizeof(ir_expr))
                                 : found.status ? at_fail(err, found.status, "%s", found.message)
                                                : ATTUNE_OK;
    at_arena_free(&v.arena);
    return status;
}
