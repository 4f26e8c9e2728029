/* Resolves statements: each ir_stmt becomes an interp_action, which has the function that runs it (interp_exec.c) and
 * its resolved operands. A variable has an address from its definition to the end of its block. */
#include "ir/interp/interp_internal.h"

static void compile_for(interp *run, const ir_stmt *s, interp_action *action) {
    action->perform = interp_run_for;
    action->u.loop.lo = interp_compile_affine(run, s->u.loop.lo);
    action->u.loop.hi = interp_compile_affine(run, s->u.loop.hi);
    if (s->u.loop.step <= 0)
        interp_fail(run, ATTUNE_INVALID_IR, "the loop over %s in @%s steps by %lld", s->u.loop.var->name,
                    run->kernel->name, (long long)s->u.loop.step);
    action->u.loop.var = run->vars[s->u.loop.var->id] = interp_new(run, sizeof(int64_t));
    action->u.loop.body = interp_compile_block(run, &s->u.loop.body);
    run->vars[s->u.loop.var->id] = NULL;
}

static void compile_let(interp *run, const ir_stmt *s, interp_action *action) {
    action->perform = interp_run_let;
    action->u.let.value = interp_compile_value(run, s->u.let.value);
    action->u.let.bytes = interp_bytes(s->u.let.var->type);
    if (s->u.let.lo) {
        action->perform = interp_run_let_in;
        action->u.let.lo = interp_compile_affine(run, s->u.let.lo);
        action->u.let.hi = interp_compile_affine(run, s->u.let.hi);
    }
    action->u.let.var = run->vars[s->u.let.var->id] = interp_new(run, action->u.let.bytes);
}

static void compile_store(interp *run, const ir_stmt *s, interp_action *action) {
    const ir_buffer *buffer = s->u.store.access->buffer;
    if (buffer->space == IR_PARAM && !(buffer->access & IR_OUT))
        interp_fail(run, ATTUNE_INVALID_IR, "%s is an input of @%s and is written", buffer->name, run->kernel->name);
    action->u.store.value = interp_compile_value(run, s->u.store.value);
    action->u.store.access = interp_compile_access(run, s->u.store.access);
    action->u.store.bytes = interp_bytes(s->u.store.value->type);
    if (action->u.store.access->gather)
        interp_fail(run, ATTUNE_INVALID_IR, "@%s stores to %s by a vector of indices", run->kernel->name, buffer->name);
    action->perform = interp_choose_store(action->u.store.access);
}

static void compile_if(interp *run, const ir_stmt *s, interp_action *action) {
    action->perform = interp_run_if;
    action->u.branch.condition = interp_compile_value(run, s->u.branch.condition);
    action->u.branch.then = interp_compile_block(run, &s->u.branch.then);
    action->u.branch.otherwise = interp_compile_block(run, &s->u.branch.otherwise);
}

static void compile_tile(interp *run, const ir_stmt *s, interp_action *action) {
    const ir_tile_info *info = ir_tile_get(s->u.tile.op);
    for (int i = 0; i < info->num_args; i++) action->u.tile.args[i] = interp_compile_access(run, s->u.tile.args[i]);
    if (s->u.tile.last) {
        const ir_access *row = s->u.tile.last;
        const int num = row->buffer->num_dims;
        if (info->memory == 0 && row->buffer->space == IR_PARAM && !(row->buffer->access & IR_OUT))
            interp_fail(run, ATTUNE_INVALID_IR, "%s is an input of @%s and is written", row->buffer->name,
                        run->kernel->name);
        action->u.tile.last = interp_compile_access(run, row);
        action->u.tile.distance = num > 1 ? run->memories[row->buffer->id].strides[num - 2] : row->lanes;
    }
    action->perform = interp_run_tile;
}

static void compile_stmt(interp *run, const ir_stmt *s, interp_action *action) {
    switch (s->kind) {
    case IR_FOR: compile_for(run, s, action); break;
    case IR_LET: compile_let(run, s, action); break;
    case IR_STORE: compile_store(run, s, action); break;
    case IR_IF: compile_if(run, s, action); break;
    case IR_ALLOC:
        interp_allocate(run, s->u.alloc);
        action->u.alloc = &run->memories[s->u.alloc->id];
        action->perform = interp_run_alloc;
        break;
    case IR_PREFETCH:
        action->u.prefetch = interp_compile_access(run, s->u.store.access);
        action->perform = interp_run_prefetch;
        break;
    case IR_ASSUME:
        action->u.assume = interp_compile_value(run, s->u.assume);
        action->perform = interp_run_assume;
        break;
    case IR_TILE: compile_tile(run, s, action); break;
    }
}

static void leave_scope(interp *run, const ir_block *block) {
    for (const ir_stmt *s = block->first; s; s = s->next) {
        if (s->kind == IR_LET) run->vars[s->u.let.var->id] = NULL;
        if (s->kind == IR_ALLOC) run->memories[s->u.alloc->id].in_scope = false;
    }
}

const interp_action *interp_compile_block(interp *run, const ir_block *block) {
    const interp_action *parent = run->parent, *first = NULL, **link = &first;
    if (++run->depth > IR_MAX_DEPTH) interp_fail(run, ATTUNE_INVALID_IR, "@%s is nested too deeply", run->kernel->name);
    for (const ir_stmt *s = block->first; s; s = s->next) {
        interp_action *action = interp_new(run, sizeof *action);
        *action = (interp_action){.parent = parent, .source = s, .run = run};
        run->parent = action;
        compile_stmt(run, s, action);
        *link = action;
        link = &action->next;
    }
    leave_scope(run, block);
    run->parent = parent;
    run->depth--;
    return first;
}
