/* Statements. Each is translated when it is reached, once all uses of variables have been counted, from the end of the
 * phase to its beginning. So a variable's place is freed at its last use, and a let without uses is skipped. */
#include "vm/translate.h"

/* ---- Uses of variables: they decide when places are freed, and which lets are dead ---- */

static void count_expr(vm_translator *t, const ir_expr *x);

static void count_access(vm_translator *t, const ir_access *access) {
    for (int d = 0; d < access->buffer->num_dims; d++) count_expr(t, access->indices[d]);
    if (access->mask) count_expr(t, access->mask);
}

static void count_expr(vm_translator *t, const ir_expr *x) {
    if (x->op == IR_VAR) t->vars[x->value.var->id].uses++;
    if (x->op == IR_LOAD) count_access(t, x->value.access);
    for (int i = 0; i < ir_op_get((ir_op)x->op)->arity; i++) count_expr(t, x->args[i]);
}

static void count_stmt(vm_translator *t, const ir_stmt *stmt) {
    switch (stmt->kind) {
    case IR_FOR:
        vm_count_uses(t, &stmt->u.loop.body);
        count_expr(t, stmt->u.loop.lo);
        count_expr(t, stmt->u.loop.hi);
        break;
    case IR_LET:
        if (t->vars[stmt->u.let.var->id].uses) count_expr(t, stmt->u.let.value);
        break;
    case IR_STORE:
        t->storage[stmt->u.store.access->buffer->id].stores++;
        count_access(t, stmt->u.store.access);
        count_expr(t, stmt->u.store.value);
        break;
    case IR_IF:
        vm_count_uses(t, &stmt->u.branch.then);
        vm_count_uses(t, &stmt->u.branch.otherwise);
        count_expr(t, stmt->u.branch.condition);
        break;
    case IR_TILE:
        for (int i = 0; i < ir_tile_get(stmt->u.tile.op)->num_args; i++) count_access(t, stmt->u.tile.args[i]);
        break;
    case IR_ALLOC:
    case IR_PREFETCH:
    case IR_ASSUME: break;
    }
}

/* From the last statement to the first, because uses come after the let. */
void vm_count_uses(vm_translator *t, const ir_block *block) {
    uint32_t count = 0, n = 0;
    for (const ir_stmt *stmt = block->first; stmt; stmt = stmt->next) count++;
    const ir_stmt **all = at_arena_alloc(t->arena, (count + 1) * sizeof *all);
    if (!all) {
        at_fail_memory(t->err, count * sizeof *all);
        return;
    }
    for (const ir_stmt *stmt = block->first; stmt; stmt = stmt->next) all[n++] = stmt;
    while (n) count_stmt(t, all[--n]);
}

/* ---- Loops and branches ---- */

static void emit_loop(vm_translator *t, const ir_stmt *stmt, vm_int lo, vm_int hi) {
    vm_var *var = &t->vars[stmt->u.loop.var->id];
    if (!vm_open(t)) return;
    var->number = (vm_int){.at = vm_new_int(t), .level = t->level};
    vm_block(t, &stmt->u.loop.body);
    const vm_code body = vm_close(t);
    const int32_t length = (int32_t)body.count;
    vm_emit(t, (vm_op){.fn = vm_loop_begin, .out = var->number.at, .a = lo.at, .b = hi.at, .e = length + 2});
    vm_append(t, &body);
    vm_op next = {.fn = vm_loop_next, .out = var->number.at, .b = hi.at, .e = length};
    next.u.imm = stmt->u.loop.step;
    vm_emit(t, next);
}

static void for_of(vm_translator *t, const ir_stmt *stmt) {
    const vm_int lo = vm_int_of(t, stmt->u.loop.lo), hi = vm_int_of(t, stmt->u.loop.hi);
    const bool known = lo.is_const && hi.is_const;
    if (known && lo.value >= hi.value) return;
    if (known && (uint64_t)hi.value - (uint64_t)lo.value <= (uint64_t)stmt->u.loop.step) { /* one turn is no loop */
        t->vars[stmt->u.loop.var->id].number = lo;
        vm_block(t, &stmt->u.loop.body);
        return;
    }
    if (vm_tile_loop(t, stmt, lo, hi)) return;
    emit_loop(t, stmt, lo, hi);
}

/* The code of a branch, copied, as another branch is translated before the copy is used. */
static vm_code branch_of(vm_translator *t, const ir_block *block) {
    if (!block->first || !vm_open(t)) return (vm_code){0};
    vm_block(t, block);
    const vm_code code = vm_close(t);
    t->levels[t->level + 1].code = (vm_code){0};
    return code;
}

static void if_of(vm_translator *t, const ir_stmt *stmt) {
    const vm_place condition = vm_value_of(t, stmt->u.branch.condition, VM_NOWHERE);
    const vm_code then = branch_of(t, &stmt->u.branch.then), otherwise = branch_of(t, &stmt->u.branch.otherwise);
    const int32_t skip = (int32_t)then.count + (otherwise.count ? 2 : 1);
    vm_emit(t, (vm_op){.fn = vm_branch, .a = condition.at, .e = skip});
    vm_append(t, &then);
    if (otherwise.count) vm_emit(t, (vm_op){.fn = vm_jump, .e = (int32_t)otherwise.count + 1});
    vm_append(t, &otherwise);
    vm_free(t, condition);
}

/* ---- Lets ---- */

/* Whether a value is index arithmetic, which reads nothing that can change. */
static bool is_index_arithmetic(const ir_expr *x) {
    const ir_op_info *info = ir_op_get((ir_op)x->op);
    if (!vm_is_int(x->type)) return false;
    if (x->op == IR_CONST || x->op == IR_VAR) return true;
    if (x->op == IR_NEG) return is_index_arithmetic(x->args[0]);
    if (info->arity != 2 || info->result != IR_RESULT_SAME) return false;
    return is_index_arithmetic(x->args[0]) && is_index_arithmetic(x->args[1]);
}

/* The value of a load of a register of idx, if it is known. */
static const ir_expr *forwarded(const vm_translator *t, const ir_expr *x) {
    const ir_buffer *buffer = x->op == IR_LOAD ? x->value.access->buffer : NULL;
    return buffer && buffer->space == IR_REG && t->storage[buffer->id].forward ? t->storage[buffer->id].forward : x;
}

bool vm_define_index(vm_translator *t, const ir_var *var, const ir_expr *value) {
    value = forwarded(t, value);
    if (!is_index_arithmetic(value)) return false;
    t->vars[var->id].as = value;
    t->vars[var->id].is_computed = false;
    return true;
}

/* A register that is written once, in the block that allocates it, is a name for that value. */
bool vm_forward_index(vm_translator *t, const ir_access *access, const ir_expr *value) {
    vm_storage *storage = &t->storage[access->buffer->id];
    if (access->buffer->space != IR_REG || access->buffer->num_dims || !vm_is_int(access->buffer->type)) return false;
    value = forwarded(t, value);
    if (storage->stores != 1 || storage->block != t->block || !is_index_arithmetic(value)) return false;
    storage->forward = value;
    return true;
}

static void keep_let(vm_translator *t, vm_var *var) {
    vm_var **lets = vm_grow(t, t->lets, t->num_lets, &t->room_for_lets, sizeof *lets);
    if (!lets) return;
    t->lets = lets;
    t->lets[t->num_lets++] = var;
    var->is_own = true;
    var->level = t->level;
}

static void let_of(vm_translator *t, const ir_stmt *stmt) {
    const ir_expr *value = stmt->u.let.value;
    vm_var *var = &t->vars[stmt->u.let.var->id];
    if (!var->uses) return;
    if (vm_define_index(t, stmt->u.let.var, value)) return;
    if (vm_is_int(value->type)) {
        var->number = vm_int_of(t, value);
        return;
    }
    vm_place place = vm_value_of(t, value, VM_NOWHERE);
    if (!place.is_own &&
        place.at >=
            0) { /* copied, unless it is a constant: a register may change, and another variable's place may be freed */
        const int32_t own = vm_new_place(t, vm_bytes(value->type));
        vm_copy(t, place.at, own, vm_bytes(value->type));
        place = (vm_place){.at = own, .is_own = true};
    }
    var->number.at = place.at;
    if (place.is_own) keep_let(t, var);
}

/* A loop of one iteration has no level, so a level may have several blocks. */
static void end_lets(vm_translator *t, uint32_t first) {
    while (t->num_lets > first) {
        vm_var *var = t->lets[--t->num_lets];
        if (var->is_own) vm_free_place(t, var->number.at);
        var->is_own = false;
    }
}

/* ---- Others ---- */

static uint64_t count_of(const ir_buffer *buffer) {
    uint64_t count = 1;
    for (int d = 0; d < buffer->num_dims; d++) count *= (uint64_t)buffer->dims[d]->value.i;
    return count;
}

void vm_alloc(vm_translator *t, const ir_buffer *buffer) {
    const uint64_t count = count_of(buffer);
    vm_storage *storage = &t->storage[buffer->id];
    if (buffer->space == IR_SCRATCH) {
        storage->offset = (int64_t)t->scratch;
        const uint64_t bytes = count * ir_elem_get((ir_elem)buffer->type.elem)->bytes;
        t->scratch += (bytes + VM_SLOT_BYTES - 1) / VM_SLOT_BYTES * VM_SLOT_BYTES;
        if (t->scratch > t->most_scratch) t->most_scratch = t->scratch;
        return;
    }
    const uint64_t bytes = buffer->space == IR_TILES ? IR_TILE_ROWS * IR_TILE_ROW_BYTES : vm_bytes(buffer->type);
    storage->block = t->block;
    storage->base = vm_new_place(t, count * ((bytes + VM_SLOT_BYTES - 1) / VM_SLOT_BYTES) * VM_SLOT_BYTES);
}

/* The distance between rows in memory, in bytes. */
static int32_t distance_of_rows(vm_translator *t, const ir_access *access) {
    const ir_buffer *buffer = access->buffer;
    const int64_t bytes = ir_elem_get((ir_elem)buffer->type.elem)->bytes;
    const int num = buffer->num_dims;
    const vm_int distance = num > 1 ? vm_storage_of(t, buffer)->strides[num - 2] : vm_int_const(t, access->lanes);
    return vm_int_op2(t, IR_MUL, distance, vm_int_const(t, bytes)).at;
}

static void tile_of(vm_translator *t, const ir_stmt *stmt) {
    const ir_tile_op kind = stmt->u.tile.op;
    const ir_access *const *args = stmt->u.tile.args;
    const int memory = ir_tile_get(kind)->memory;
    vm_op op = {.fn = kind == IR_TILE_ZERO ? vm_tile_zero : kind == IR_TILE_DOT2 ? vm_tile_dot2 : vm_tile_load};
    op.out = vm_register_of(t, args[memory == 0]);
    if (kind == IR_TILE_DOT2) {
        op.a = vm_register_of(t, args[1]);
        op.b = vm_register_of(t, args[2]);
    }
    if (memory >= 0) {
        if (memory == 0) op.fn = vm_tile_store;
        vm_address_of(t, args[memory], &op);
        op.c = distance_of_rows(t, args[memory]);
    }
    vm_emit(t, op);
}

void vm_stmt(vm_translator *t, const ir_stmt *stmt) {
    switch (stmt->kind) {
    case IR_FOR: for_of(t, stmt); break;
    case IR_LET: let_of(t, stmt); break;
    case IR_STORE:
        if (!vm_forward_index(t, stmt->u.store.access, stmt->u.store.value))
            vm_store_to(t, stmt->u.store.access, stmt->u.store.value);
        break;
    case IR_IF: if_of(t, stmt); break;
    case IR_ALLOC: vm_alloc(t, stmt->u.alloc); break;
    case IR_TILE: tile_of(t, stmt); break;
    case IR_PREFETCH: /* costs more than it gains */
    case IR_ASSUME: break;
    }
}

void vm_block(vm_translator *t, const ir_block *block) {
    const uint64_t scratch = t->scratch;
    const uint32_t lets = t->num_lets;
    const uint32_t outer = t->block;
    t->block = t->next_block++;
    for (const ir_stmt *stmt = block->first; stmt && !t->err->status;) {
        if (vm_tile_run(t, stmt, &stmt)) continue;
        vm_stmt(t, stmt);
        stmt = stmt->next;
    }
    t->block = outer;
    t->scratch = scratch;
    end_lets(t, lets);
}
