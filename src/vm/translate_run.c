/* Runs of sums of products among other statements become one operation. Sums in memory are loaded before it and stored
 * after it. */
#include "vm/translate_tile.h"

#include <string.h>

/* ---- Runs of statements ---- */

static bool reads_register(const ir_expr *x, const ir_buffer *buffer);

static bool indices_read(const ir_access *access, const ir_buffer *buffer) {
    for (int d = 0; d < access->buffer->num_dims; d++)
        if (reads_register(access->indices[d], buffer)) return true;
    return access->mask && reads_register(access->mask, buffer);
}

static bool reads_register(const ir_expr *x, const ir_buffer *buffer) {
    if (x->op == IR_LOAD && (x->value.access->buffer == buffer || indices_read(x->value.access, buffer))) return true;
    for (int i = 0; i < ir_op_get((ir_op)x->op)->arity; i++)
        if (reads_register(x->args[i], buffer)) return true;
    return false;
}

/* A factor of a product: a value in a place, which stays there until the products are emitted; or in memory, if the run
 * has not loaded it. */
static int32_t hold(vm_translator *t, struct vm_tile *tile, const ir_expr *x, vm_place *held, uint32_t *num_held) {
    for (uint32_t i = 0; x->op == IR_VAR && i < tile->num_operands; i++) {
        if (tile->operands[i].var != x->value.var) continue;
        t->vars[x->value.var->id].uses--;
        return (int32_t)i;
    }
    const vm_place place = vm_value_of(t, x, VM_NOWHERE);
    if (place.is_own) held[(*num_held)++] = place;
    for (uint32_t i = 0; i < tile->num_operands; i++)
        if (!tile->operands[i].access && tile->operands[i].at == place.at) return (int32_t)i;
    return vm_add_operand(tile, (vm_operand){.at = place.at, .reg = VM_NOWHERE, .elem = IR_F32});
}

/* A single product, by the operation for a tile of one row and one column. */
static void emit_product(vm_translator *t, vm_products kind, int32_t sum, const vm_op pointers[2]) {
    if (!t->single) t->single = at_arena_alloc(t->arena, sizeof *t->single);
    if (!t->single) {
        at_fail_memory(t->err, sizeof *t->single);
        return;
    }
    struct vm_tile *const one = t->single;
    const int32_t none = vm_int_const(t, 0).at;
    one->kind = kind;
    one->parts = one->rows = one->columns = 1;
    one->first_sum = sum;
    vm_emit_tile(t, one, pointers, &(vm_turns){vm_int_const(t, 0), vm_int_const(t, 1), 1, none, none});
}

static void emit_products(vm_translator *t, const struct vm_tile *tile) {
    for (uint32_t i = 0; i < tile->num_products; i++) {
        const vm_product *p = &tile->products[i];
        vm_fn *const plain = tile->kind == VM_MULTIPLY_ADD ? t->isa->by_op[VM_F32][IR_FMA]
                             : tile->kind == VM_DOT2       ? t->isa->dot2
                                                           : t->isa->dot4;
        const vm_op pointers[2] = {{.fn = vm_exit, .a = tile->operands[p->row].at, .e = 1},
                                   {.fn = vm_exit, .a = tile->operands[p->column].at, .e = 1}};
        if (plain) {
            vm_emit(t, (vm_op){.fn = plain, .out = p->sum, .a = pointers[0].a, .b = pointers[1].a, .c = p->sum});
            continue;
        }
        emit_product(t, tile->kind, p->sum, pointers);
    }
}

static void load_operands(vm_translator *t, struct vm_tile *tile) {
    for (uint32_t i = 0; i < tile->num_operands; i++) {
        vm_operand *o = &tile->operands[i];
        if (!o->access) continue;
        vm_op op = {.fn = o->elem == IR_F32 ? t->isa->load : t->isa->load_widened[o->elem], .out = t->loaded[i]};
        if (!t->loaded[i]) op.out = t->loaded[i] = vm_new_place(t, VM_SLOT_BYTES);
        vm_address_of(t, o->access, &op);
        vm_emit(t, op);
        *o = (vm_operand){.at = op.out, .reg = VM_NOWHERE, .elem = IR_F32};
    }
}

static void emit_run(vm_translator *t, struct vm_tile *tile) {
    vm_op *const pointers = tile->pointers;
    if (tile->num_products == 1 || !vm_find_shape(t, tile)) {
        load_operands(t, tile);
        emit_products(t, tile);
        return;
    }
    const uint32_t count = tile->parts * (tile->rows + tile->columns);
    for (uint32_t i = 0; i < count; i++) {
        const vm_operand *o = &tile->operands[tile->order[i]];
        pointers[i] = (vm_op){.fn = vm_exit, .a = o->at, .e = 1};
        if (!o->access) continue;
        pointers[i].e = 0;
        vm_address_of(t, o->access, &pointers[i]);
    }
    const int32_t none = vm_int_const(t, 0).at;
    vm_emit_tile(t, tile, pointers, &(vm_turns){vm_int_const(t, 0), vm_int_const(t, 1), 1, none, none});
}

/* ---- Sums in memory, which are in registers during the products ---- */

typedef struct vm_run {
    struct vm_tile *tile;
    const ir_buffer *sums;
    vm_place held[MOST_OPERANDS];
    uint32_t num_held, num_stores;
    vm_op stores[MOST_SUMS];
    const ir_access *accesses[MOST_SUMS];
    uint32_t num_put_off;
    const ir_stmt *put_off[MOST_OPERANDS];
} run;

/* The translator's only run, which is too large for the stack; NULL: out of memory. */
static run *new_run(vm_translator *t, const ir_buffer *sums) {
    if (!t->run) t->run = at_arena_alloc(t->arena, sizeof *t->run);
    if (!t->run) at_fail_memory(t->err, sizeof *t->run);
    run *const r = t->run;
    struct vm_tile *const tile = r ? vm_tile_new(t) : NULL;
    if (!tile) return NULL;
    r->tile = tile;
    r->sums = sums;
    r->num_held = r->num_stores = r->num_put_off = 0;
    return r;
}

/* Whether two accesses are certainly disjoint: a constant index differs. */
static bool are_apart(const ir_access *a, const ir_access *b) {
    for (int d = 0; d < a->buffer->num_dims; d++) {
        const ir_expr *x = a->indices[d], *y = b->indices[d];
        if (x->op == IR_CONST && y->op == IR_CONST && x->value.i != y->value.i && d != a->axis) return true;
    }
    return false;
}

/* Loads a sum, and notes that it is stored after the products. False: it may overlap another sum. */
static bool borrow(vm_translator *t, run *r, const ir_access *access, int32_t *sum) {
    for (uint32_t i = 0; i < r->num_stores; i++)
        if (!are_apart(r->accesses[i], access)) return false;
    if (r->num_stores == MOST_SUMS) return false;
    if (!t->borrowed) t->borrowed = vm_new_place(t, MOST_SUMS * VM_SLOT_BYTES);
    *sum = t->borrowed + (int32_t)r->num_stores * VM_SLOT_BYTES;
    vm_op op = {.fn = t->isa->load, .out = *sum, .e = (int32_t)t->isa->vector_bytes};
    vm_address_of(t, access, &op);
    vm_emit(t, op);
    op.fn = t->isa->store;
    r->accesses[r->num_stores] = access;
    r->stores[r->num_stores++] = op;
    return true;
}

/* Whether `stmt` may run before the products so far, as it neither reads nor writes their sums. */
static bool may_come_first(const vm_translator *t, const ir_stmt *stmt, const ir_buffer *sums) {
    if (stmt->kind == IR_PREFETCH || stmt->kind == IR_ASSUME) return true;
    if (stmt->kind != IR_LET) return false;
    return !t->vars[stmt->u.let.var->id].uses || !reads_register(stmt->u.let.value, sums);
}

/* Skips a let that only loads a register for the products, which then load it themselves. */
static bool put_off(vm_translator *t, run *r, const ir_stmt *stmt) {
    struct vm_tile *tile = r->tile;
    if (stmt->kind != IR_LET || !t->vars[stmt->u.let.var->id].uses || vm_is_int(stmt->u.let.value->type)) return false;
    const ir_expr *value = vm_without_casts_of_bits(stmt->u.let.value);
    if ((value->op != IR_LOAD && value->op != IR_CAST) || tile->num_operands + 2 > MOST_OPERANDS) return false;
    const int32_t number = vm_read_operand(t, tile, value);
    if (number < 0) return false;
    tile->operands[number].var = stmt->u.let.var;
    t->vars[stmt->u.let.var->id].is_put_off = true;
    r->put_off[r->num_put_off++] = stmt;
    return true;
}

/* Whether a value uses a let that has no place. */
static bool needs_put_off(const vm_translator *t, const ir_expr *x) {
    if (x->op == IR_VAR) return t->vars[x->value.var->id].is_put_off;
    if (x->op == IR_LOAD) {
        const ir_access *access = x->value.access;
        if (access->mask && needs_put_off(t, access->mask)) return true;
        for (int d = 0; d < access->buffer->num_dims; d++)
            if (needs_put_off(t, access->indices[d])) return true;
    }
    for (int i = 0; i < ir_op_get((ir_op)x->op)->arity; i++)
        if (needs_put_off(t, x->args[i])) return true;
    return false;
}

static bool factors_need(const vm_translator *t, const vm_factors *f) {
    for (uint32_t i = 0; i < f->count; i++) {
        const ir_expr *x = f->products[i].x, *y = f->products[i].y;
        if ((x->op != IR_VAR && needs_put_off(t, x)) || (y->op != IR_VAR && needs_put_off(t, y))) return true;
    }
    return false;
}

static bool factors_read(const vm_factors *f, const ir_buffer *sums) {
    for (uint32_t i = 0; i < f->count; i++)
        if (reads_register(f->products[i].x, sums) || reads_register(f->products[i].y, sums)) return true;
    return indices_read(f->sum, sums);
}

static bool take_statement(vm_translator *t, run *r, const ir_stmt *stmt) {
    struct vm_tile *tile = r->tile;
    vm_factors f;
    int32_t sum;
    if (!vm_factors_of(t, stmt, &f) || f.sum->buffer != r->sums || (tile->num_products && f.kind != tile->kind))
        return false;
    if (factors_need(t, &f) || factors_read(&f, r->sums) || tile->num_products + f.count > MOST_PRODUCTS) return false;
    if (tile->num_operands + 2 * f.count > MOST_OPERANDS || r->num_held + 2 * f.count > MOST_OPERANDS) return false;
    if (!f.is_memory)
        sum = vm_register_of(t, f.sum);
    else if (!borrow(t, r, f.sum, &sum))
        return false;
    tile->kind = f.kind;
    for (uint32_t i = f.count; i-- > 0;) {
        const int32_t x = hold(t, tile, f.products[i].x, r->held, &r->num_held);
        const int32_t y = hold(t, tile, f.products[i].y, r->held, &r->num_held);
        const bool turned = tile->operands[x].elem != IR_F32;
        tile->products[tile->num_products++] =
            (vm_product){sum, (uint32_t)(turned ? y : x), (uint32_t)(turned ? x : y), 0};
    }
    return true;
}

/* Translates lets between the products right away, and the products together afterwards. */
bool vm_tile_run(vm_translator *t, const ir_stmt *stmt, const ir_stmt **after) {
    vm_factors f;
    if (!vm_factors_of(t, stmt, &f) || factors_read(&f, f.sum->buffer)) return false;
    run *const r = new_run(t, f.sum->buffer);
    if (!r) return false;
    t->keeps_places = true; /* a let may be the last use of a value that an earlier product reads */
    for (; stmt && !t->err->status; stmt = stmt->next) {
        if (may_come_first(t, stmt, r->sums)) {
            if (put_off(t, r, stmt)) continue;
            if (stmt->kind == IR_LET && needs_put_off(t, stmt->u.let.value)) break;
            vm_stmt(t, stmt);
        } else if (!take_statement(t, r, stmt))
            break;
    }
    emit_run(t, r->tile);
    for (uint32_t i = 0; i < r->num_put_off; i++) {
        vm_var *var = &t->vars[r->put_off[i]->u.let.var->id];
        var->is_put_off = false;
        if (var->uses) vm_stmt(t, r->put_off[i]); /* needed later, too */
    }
    for (uint32_t i = 0; i < r->num_stores; i++) vm_emit(t, r->stores[i]);
    for (uint32_t i = 0; i < r->num_held; i++) vm_free(t, r->held[i]);
    t->keeps_places = false;
    t->num_kept = 0;
    *after = stmt;
    return true;
}
