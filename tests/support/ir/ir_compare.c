#include "support/ir/ir_compare.h"

#include <string.h>

static bool same_expr(const ir_expr *a, const ir_expr *b);

static bool same_var(const ir_var *a, const ir_var *b) {
    if (!a || !b) return a == b;
    return !strcmp(a->name, b->name) && ir_type_eq(a->type, b->type) && a->id == b->id;
}

static bool same_buffer(const ir_buffer *a, const ir_buffer *b) {
    if (!a || !b) return a == b;
    if (strcmp(a->name, b->name) || !ir_type_eq(a->type, b->type) || a->space != b->space || a->access != b->access ||
        a->num_dims != b->num_dims || a->id != b->id)
        return false;
    for (int d = 0; d < a->num_dims; d++)
        if (!same_expr(a->dims[d], b->dims[d]) || !same_expr(a->strides[d], b->strides[d])) return false;
    return true;
}

static bool same_access(const ir_access *a, const ir_access *b) {
    if (!a || !b) return a == b;
    if (!same_buffer(a->buffer, b->buffer) || a->lanes != b->lanes || a->axis != b->axis) return false;
    for (int d = 0; d < a->buffer->num_dims; d++)
        if (!same_expr(a->indices[d], b->indices[d])) return false;
    return same_expr(a->mask, b->mask);
}

static bool same_const(const ir_expr *a, const ir_expr *b) {
    if (ir_elem_get(a->type.elem)->class == IR_CLASS_FLOAT) return !memcmp(&a->value.f, &b->value.f, sizeof a->value.f);
    return a->value.i == b->value.i;
}

static bool same_expr(const ir_expr *a, const ir_expr *b) {
    if (!a || !b) return a == b;
    if (a->op != b->op || !ir_type_eq(a->type, b->type) || a->depth != b->depth) return false;
    for (int i = 0; i < 3; i++)
        if (!same_expr(a->args[i], b->args[i])) return false;
    switch ((ir_op)a->op) {
    case IR_CONST: return same_const(a, b);
    case IR_VAR: return same_var(a->value.var, b->value.var);
    case IR_LOAD: return same_access(a->value.access, b->value.access);
    case IR_SHUFFLE: return !memcmp(a->value.pick, b->value.pick, a->type.lanes);
    default: return true;
    }
}

static bool same_block(const ir_block *a, const ir_block *b);

static bool same_stmt(const ir_stmt *a, const ir_stmt *b) {
    if (a->kind != b->kind) return false;
    switch (a->kind) {
    case IR_FOR:
        return same_var(a->u.loop.var, b->u.loop.var) && same_expr(a->u.loop.lo, b->u.loop.lo) &&
               same_expr(a->u.loop.hi, b->u.loop.hi) && a->u.loop.step == b->u.loop.step &&
               a->u.loop.unroll == b->u.loop.unroll && same_block(&a->u.loop.body, &b->u.loop.body);
    case IR_LET:
        return same_var(a->u.let.var, b->u.let.var) && same_expr(a->u.let.value, b->u.let.value) &&
               !a->u.let.lo == !b->u.let.lo &&
               (!a->u.let.lo || (same_expr(a->u.let.lo, b->u.let.lo) && same_expr(a->u.let.hi, b->u.let.hi)));
    case IR_STORE:
    case IR_PREFETCH:
        return same_access(a->u.store.access, b->u.store.access) && same_expr(a->u.store.value, b->u.store.value) &&
               a->u.store.is_far == b->u.store.is_far;
    case IR_IF:
        return same_expr(a->u.branch.condition, b->u.branch.condition) &&
               same_block(&a->u.branch.then, &b->u.branch.then) &&
               same_block(&a->u.branch.otherwise, &b->u.branch.otherwise);
    case IR_ALLOC: return same_buffer(a->u.alloc, b->u.alloc);
    case IR_ASSUME: return same_expr(a->u.assume, b->u.assume);
    case IR_TILE:
        for (int i = 0; i < ir_tile_get(a->u.tile.op)->num_args; i++)
            if (!same_access(a->u.tile.args[i], b->u.tile.args[i])) return false;
        return a->u.tile.op == b->u.tile.op && same_access(a->u.tile.last, b->u.tile.last);
    }
    return false;
}

static bool same_block(const ir_block *a, const ir_block *b) {
    const ir_stmt *x = a->first, *y = b->first;
    for (; x && y; x = x->next, y = y->next)
        if (!same_stmt(x, y)) return false;
    return !x && !y;
}

static bool same_phase(const ir_phase *a, const ir_phase *b) {
    if (a->num_loops != b->num_loops) return false;
    for (int i = 0; i < a->num_loops; i++)
        if (!same_var(a->loops[i].var, b->loops[i].var) || !same_expr(a->loops[i].hi, b->loops[i].hi)) return false;
    return same_block(&a->body, &b->body);
}

const char *ir_kernel_difference(const ir_kernel *a, const ir_kernel *b) {
    if (strcmp(a->name, b->name)) return "name";
    if (a->num_params != b->num_params || a->num_shared != b->num_shared || a->num_assumes != b->num_assumes ||
        a->num_phases != b->num_phases || a->num_vars != b->num_vars || a->num_buffers != b->num_buffers)
        return "counts";
    for (uint32_t i = 0; i < a->num_params; i++)
        if (!same_var(a->params[i].var, b->params[i].var) || !same_buffer(a->params[i].buffer, b->params[i].buffer))
            return "parameter";
    for (uint32_t i = 0; i < a->num_shared; i++)
        if (!same_buffer(a->shared[i], b->shared[i])) return "shared buffer";
    for (uint32_t i = 0; i < a->num_assumes; i++)
        if (!same_expr(a->assumes[i], b->assumes[i])) return "assumption";
    const ir_phase *x = a->phases, *y = b->phases;
    for (; x && y; x = x->next, y = y->next)
        if (!same_phase(x, y)) return "phase";
    return NULL;
}
