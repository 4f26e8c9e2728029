/* Statements. A loop tests at its bottom, and before it only if it may not run at all:
 *
 *     before: [ lo < hi ? ] -> body: [ i; statements; i + step < hi ? ] -> after
 *                                 ^-------------------------/ */
#include "codegen/emit_build.h"
#include "target/kernel_abi.h"

#include <inttypes.h>

static bool constant_of(LLVMValueRef x, int64_t *value) {
    if (!LLVMIsAConstantInt(x)) return false;
    *value = LLVMConstIntGetSExtValue(x);
    return true;
}

static void bind(cg_emit *e, const ir_var *var, LLVMValueRef value, uint32_t level) {
    e->vars[var->id] = (cg_index){value, level};
}

static bool has_loop(const ir_block *block) {
    for (const ir_stmt *stmt = block->first; stmt; stmt = stmt->next) {
        if (stmt->kind == IR_FOR) return true;
        if (stmt->kind == IR_IF && (has_loop(&stmt->u.branch.then) || has_loop(&stmt->u.branch.otherwise))) return true;
    }
    return false;
}

/* Advances all counters of the loop, the loop variable last; returns its next value. */
static LLVMValueRef advance_loop(cg_emit *e, LLVMValueRef counter, int64_t step) {
    const cg_level *loop = &e->levels[e->level];
    LLVMBasicBlockRef last = LLVMGetInsertBlock(e->b);
    for (uint32_t i = 0; i < loop->num_derived; i++) {
        LLVMValueRef next = cg_advance(e, loop->derived[i].phi, loop->derived[i].step);
        LLVMAddIncoming(loop->derived[i].phi, &next, &last, 1);
    }
    LLVMValueRef next = cg_advance(e, counter, cg_i64(e, step));
    LLVMAddIncoming(counter, &next, &last, 1);
    return next;
}

/* A loop with its test at the bottom, and another one before it if the body may not run at all. */
static void emit_loop(cg_emit *e, const ir_stmt *stmt, cg_index lo, LLVMValueRef hi, bool runs) {
    LLVMBasicBlockRef before = LLVMGetInsertBlock(e->b), body = cg_block(e, stmt->u.loop.var->name);
    LLVMBasicBlockRef after = cg_block(e, "after");
    cg_level_enter(e, runs ? LLVMBuildBr(e->b, body)
                           : LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, lo.value, hi, ""), body, after));
    LLVMPositionBuilderAtEnd(e->b, body);
    LLVMValueRef counter = LLVMBuildPhi(e->b, e->i64, stmt->u.loop.var->name);
    LLVMAddIncoming(counter, &lo.value, &before, 1);
    bind(e, stmt->u.loop.var, counter, e->level);
    if (!has_loop(&stmt->u.loop.body)) {
        cg_level *level = &e->levels[e->level];
        level->counter = counter;
        level->before = before;
        level->lo = lo;
        level->step = stmt->u.loop.step;
    }
    cg_emit_block(e, &stmt->u.loop.body);

    LLVMValueRef next = advance_loop(e, counter, stmt->u.loop.step);
    LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, next, hi, ""), body, after);
    cg_level_leave(e);
    LLVMPositionBuilderAtEnd(e->b, after);
}

static void emit_for(cg_emit *e, const ir_stmt *stmt) {
    const cg_index lo = cg_emit_index(e, stmt->u.loop.lo), hi = cg_emit_index(e, stmt->u.loop.hi);
    int64_t first, end;
    const bool known = constant_of(lo.value, &first) && constant_of(hi.value, &end);
    if (known && first >= end) return;
    if (known && end - first <= stmt->u.loop.step) { /* one turn is no loop */
        bind(e, stmt->u.loop.var, lo.value, 0);
        cg_emit_block(e, &stmt->u.loop.body);
        return;
    }
    emit_loop(e, stmt, lo, hi.value, known);
}

static void emit_branch(cg_emit *e, LLVMValueRef entry, LLVMBasicBlockRef block, const ir_block *body,
                        LLVMBasicBlockRef after) {
    cg_level_enter(e, entry);
    LLVMPositionBuilderAtEnd(e->b, block);
    cg_emit_block(e, body);
    LLVMBuildBr(e->b, after);
    cg_level_leave(e);
}

static void emit_if(cg_emit *e, const ir_stmt *stmt) {
    LLVMValueRef condition = cg_emit_expr(e, stmt->u.branch.condition);
    LLVMBasicBlockRef then = cg_block(e, "then"), after = cg_block(e, "after");
    LLVMBasicBlockRef otherwise = stmt->u.branch.otherwise.first ? cg_block(e, "else") : after;
    LLVMValueRef entry = LLVMBuildCondBr(e->b, condition, then, otherwise);
    emit_branch(e, entry, then, &stmt->u.branch.then, after);
    if (otherwise != after) emit_branch(e, entry, otherwise, &stmt->u.branch.otherwise, after);
    LLVMPositionBuilderAtEnd(e->b, after);
}

static bool reads_memory(const ir_expr *x) {
    if (x->op == IR_LOAD) return true;
    for (int i = 0; i < 3; i++)
        if (x->args[i] && reads_memory(x->args[i])) return true;
    return false;
}

static void emit_let(cg_emit *e, const ir_stmt *stmt) {
    const ir_expr *value = stmt->u.let.value;
    if (value->type.lanes > 1 || ir_elem_get((ir_elem)value->type.elem)->class != IR_CLASS_INT) {
        bind(e, stmt->u.let.var, cg_emit_expr(e, value), e->level);
        return;
    }
    const cg_index bound = cg_emit_index(e, value);
    bind(e, stmt->u.let.var, bound.value, bound.level);
    if (!reads_memory(value)) e->lets[stmt->u.let.var->id] = value;
}

/* ---- alloc ---- */

static void alloc_registers(cg_emit *e, const ir_buffer *buffer, cg_storage *storage, uint64_t count) {
    enum { MAX_ELEMENTS = 4096 };
    if (count > MAX_ELEMENTS) {
        at_fail(e->err, ATTUNE_INVALID_IR, "kernel @%s: reg buffer %s has %" PRIu64 " elements, more than %d",
                e->kernel->name, buffer->name, count, MAX_ELEMENTS);
        return;
    }
    storage->elements = at_arena_alloc(e->arena, count * sizeof *storage->elements);
    if (!storage->elements) {
        at_fail_memory(e->err, count * sizeof *storage->elements);
        return;
    }
    for (uint64_t i = 0; i < count; i++) storage->elements[i] = cg_stack_slot(e, cg_type(e, buffer->type));
}

static void emit_alloc(cg_emit *e, const ir_buffer *buffer) {
    uint64_t count;
    if (buffer->space == IR_SCRATCH || !cg_count_elements(e->kernel, buffer, &count, e->err)) return;
    if (buffer->space == IR_TILES)
        cg_tiles_alloc(e, buffer, count);
    else
        alloc_registers(e, buffer, &e->storage[buffer->id], count);
}

/* ---- All of them ---- */

static void emit_stmt(cg_emit *e, const ir_stmt *stmt) {
    switch (stmt->kind) {
    case IR_FOR: emit_for(e, stmt); break;
    case IR_LET: emit_let(e, stmt); break;
    case IR_STORE: cg_emit_store(e, stmt->u.store.access, stmt->u.store.value); break;
    case IR_IF: emit_if(e, stmt); break;
    case IR_ALLOC: emit_alloc(e, stmt->u.alloc); break;
    case IR_PREFETCH: cg_emit_prefetch(e, stmt->u.store.access, stmt->u.store.is_far); break;
    case IR_ASSUME: break;
    case IR_TILE: cg_emit_tile(e, stmt); break;
    }
}

const ir_stmt *cg_emit_next(cg_emit *e, const ir_stmt *stmt) {
    const cg_nest *nest = cg_cut_at(e->cut, stmt);
    if (nest && nest != e->nest) {
        cg_emit_call(e, nest);
        return nest->end;
    }
    emit_stmt(e, stmt);
    return stmt->next;
}

void cg_emit_block(cg_emit *e, const ir_block *block) {
    if (e->level + 2 >= CG_MAX_LEVELS) {
        at_fail(e->err, ATTUNE_INVALID_IR, "kernel @%s: blocks are nested too deeply", e->kernel->name);
        return;
    }
    const uint32_t tiles = e->tiles_used;
    for (const ir_stmt *stmt = block->first; stmt && e->err->status == ATTUNE_OK;) stmt = cg_emit_next(e, stmt);
    e->tiles_used = tiles;
}
