/* Finds sums of products, sum[r][c] += row[r] * column[c], which one operation computes with all sums in registers: in
 * a loop that does nothing else, and in runs of such statements. This file finds the products of a statement and their
 * operands:
 *
 *     acc[0] = fma(x, y, fma(u, v, acc[0]))     ->     sum acc[0]; products u * v, x * y */
#include "vm/translate_tile.h"

#include <string.h>

struct vm_tile *vm_tile_new(vm_translator *t) {
    if (!t->tile) t->tile = at_arena_alloc(t->arena, sizeof *t->tile);
    if (!t->tile) at_fail_memory(t->err, sizeof *t->tile);
    if (t->tile) {
        t->tile->num_operands = t->tile->num_products = t->tile->num_borrowed = 0;
        t->tile->loop = NULL;
        t->tile->depth = 0;
        t->tile->sums = NULL;
    }
    return t->tile;
}

/* ---- Products of a statement ---- */

static bool is_same(const ir_expr *a, const ir_expr *b) {
    if (a->op != b->op || !ir_type_eq(a->type, b->type)) return false;
    if (a->op == IR_CONST) return a->value.i == b->value.i;
    if (a->op == IR_VAR) return a->value.var == b->value.var;
    if (a->op == IR_LOAD || a->op == IR_SHUFFLE) return false;
    for (int i = 0; i < ir_op_get((ir_op)a->op)->arity; i++)
        if (!is_same(a->args[i], b->args[i])) return false;
    return true;
}

static bool is_load_of(const ir_expr *x, const ir_access *access) {
    if (x->op != IR_LOAD || x->value.access->buffer != access->buffer || x->value.access->mask) return false;
    for (int d = 0; d < access->buffer->num_dims; d++)
        if (!is_same(x->value.access->indices[d], access->indices[d])) return false;
    return x->value.access->lanes == access->lanes && x->value.access->axis == access->axis;
}

/* Takes one product from x; *rest is what it is added to. */
static bool take_product(const vm_translator *t, const ir_expr *x, vm_factors *f, const ir_expr **rest) {
    const ir_expr *const *args = x->args;
    const bool fuses = t->target->flags & AT_TARGET_FMA;
    if (x->op == IR_ADD && !fuses && x->type.elem == IR_F32) {
        const bool is_second = args[0]->op != IR_MUL;
        if (args[is_second]->op != IR_MUL) return false;
        f->products[f->count++] = (vm_factor_pair){args[is_second]->args[0], args[is_second]->args[1]};
        *rest = args[!is_second];
        return f->kind == VM_MULTIPLY_ADD || f->count == 1;
    }
    if (x->op != IR_FMA && x->op != IR_DOT2 && x->op != IR_DOT4) return false;
    const vm_products kind = x->op == IR_FMA ? VM_MULTIPLY_ADD : x->op == IR_DOT2 ? VM_DOT2 : VM_DOT4;
    if (f->count && f->kind != kind) return false;
    f->kind = kind;
    f->products[f->count++] = (vm_factor_pair){args[0], args[1]};
    *rest = args[2];
    return true;
}

/* In a chain, the innermost product is added first. */
bool vm_factors_of(vm_translator *t, const ir_stmt *stmt, vm_factors *f) {
    if (stmt->kind != IR_STORE) return false;
    const ir_expr *x = stmt->u.store.value;
    const ir_access *to = stmt->u.store.access;
    if (vm_bytes(x->type) != t->isa->vector_bytes || (x->type.elem != IR_F32 && x->type.elem != IR_I32)) return false;
    *f = (vm_factors){.sum = to, .is_memory = to->buffer->space == IR_SCRATCH};
    while (f->count < MOST_CHAIN && take_product(t, x, f, &x)) {
    }
    if (!f->count || !is_load_of(x, to)) return false;
    if (!f->is_memory && to->buffer->space != IR_REG) return false;
    if (f->is_memory && !vm_is_plain(t, to)) return false;
    return t->isa->tile[f->kind][0][0][0] != NULL;
}

/* ---- Operands of a loop ---- */

const ir_expr *vm_without_casts_of_bits(const ir_expr *x) {
    while (x->op == IR_BITCAST) x = x->args[0];
    return x;
}

int32_t vm_add_operand(struct vm_tile *tile, vm_operand o) {
    if (tile->num_operands == MOST_OPERANDS) return -1;
    tile->operands[tile->num_operands] = o;
    return (int32_t)tile->num_operands++;
}

/* An i8 is cast to i32 first, which does not change its value. */
static const ir_expr *without_i32(const ir_expr *cast) {
    const ir_expr *inner = cast->args[0];
    const bool is_step = cast->type.elem == IR_F32 && inner->op == IR_CAST && inner->type.elem == IR_I32;
    return is_step && inner->args[0]->type.elem == IR_I8 ? inner : cast;
}

/* The address of an access in `loop`, without the counter's terms. */
static vm_sum address_with_counter(vm_translator *t, const ir_access *access, const ir_stmt *loop) {
    const ir_buffer *buffer = access->buffer;
    const vm_storage *storage = vm_storage_of(t, buffer);
    vm_sum sum = {.constant = storage->offset, .counter = loop->u.loop.var};
    for (int d = 0; d < buffer->num_dims; d++)
        vm_sum_add(t, &sum, access->indices[d], storage->strides[d], ir_elem_get((ir_elem)buffer->type.elem)->bytes);
    return sum;
}

/* Sets the address of an operand in the first iteration, and its stride from iteration to iteration. */
static bool address_in_loop(vm_translator *t, const struct vm_tile *tile, vm_operand *o) {
    vm_sum sum = address_with_counter(t, o->access, tile->loop);
    vm_int distance = vm_int_const(t, 0);
    if (sum.is_wrong) return false;
    for (uint32_t i = 0; i < sum.num_counts; i++) {
        const vm_int one = vm_int_op2(t, IR_MUL, sum.counts[i].stride, vm_int_const(t, sum.counts[i].factor));
        distance = vm_int_op2(t, IR_ADD, distance, one);
    }
    vm_sum_term(t, &sum, vm_int_op2(t, IR_MUL, tile->lo, distance), 1);
    o->address = (vm_op){.fn = vm_exit};
    vm_sum_address(t, vm_storage_of(t, o->access->buffer)->base, &sum, &o->address);
    o->step = vm_int_op2(t, IR_MUL, distance, vm_int_const(t, tile->loop->u.loop.step)).at;
    return true;
}

/* Adds an operand from memory; -1: it is not possible. */
int32_t vm_read_operand(vm_translator *t, struct vm_tile *tile, const ir_expr *x) {
    const ir_type type = x->type;
    bool is_number = false;
    ir_elem elem = IR_F32;
    x = vm_without_casts_of_bits(x);
    if (x->op == IR_CAST && x->type.elem == IR_F32 && t->isa->load_widened[without_i32(x)->args[0]->type.elem]) {
        x = without_i32(x)->args[0];
        elem = (ir_elem)x->type.elem;
    } else if (x->op == IR_SPLAT) {
        x = vm_without_casts_of_bits(x->args[0]);
        is_number = true;
    }
    if (x->op != IR_LOAD || !vm_is_plain(t, x->value.access) || vm_bytes(type) != t->isa->vector_bytes) return -1;
    if (vm_bytes(x->type) != (is_number ? 4 : t->isa->vector_bytes / 4 * ir_elem_get(elem)->bytes)) return -1;
    vm_operand o = {.access = x->value.access, .reg = VM_NOWHERE, .is_number = is_number, .elem = elem};
    if (tile->loop && !address_in_loop(t, tile, &o)) return -1;
    return vm_add_operand(tile, o);
}

static int32_t operand_of(vm_translator *t, struct vm_tile *tile, const ir_expr *x) {
    x = vm_without_casts_of_bits(x);
    if (x->op == IR_VAR) {
        for (uint32_t i = tile->num_operands; i-- > 0;)
            if (tile->operands[i].var == x->value.var) return (int32_t)i;
        return -1;
    }
    if (x->op == IR_LOAD && x->value.access->buffer->space == IR_REG) {
        const int32_t at = vm_register_of(t, x->value.access);
        for (uint32_t i = tile->num_operands; i-- > 0;)
            if (tile->operands[i].reg == at) return (int32_t)i;
        return -1;
    }
    return vm_read_operand(t, tile, x);
}

/* Finds the place for a sum in memory. False: its address changes from iteration to iteration, or it may overlap
 * another sum. */
static bool borrow_for_loop(vm_translator *t, struct vm_tile *tile, const ir_access *access, int32_t *place) {
    if (tile->num_products && tile->sums != access->buffer) return false;
    tile->sums = access->buffer;
    const vm_sum sum = address_with_counter(t, access, tile->loop);
    vm_op op = {.fn = t->isa->load};
    if (sum.is_wrong || sum.num_counts) return false;
    vm_sum_address(t, vm_storage_of(t, access->buffer)->base, &sum, &op);
    for (uint32_t i = 0; i < tile->num_borrowed; i++) {
        const vm_op *other = &tile->borrowed[i];
        const int64_t distance = op.u.imm - other->u.imm;
        *place = other->out;
        if (op.a != other->a || op.b != other->b || op.d != other->d) return false;
        if (!distance) return true;
        if (distance < t->isa->vector_bytes && -distance < t->isa->vector_bytes) return false;
    }
    if (tile->num_borrowed == MOST_SUMS) return false;
    if (!t->borrowed) t->borrowed = vm_new_place(t, MOST_SUMS * VM_SLOT_BYTES);
    *place = op.out = t->borrowed + (int32_t)tile->num_borrowed * VM_SLOT_BYTES;
    tile->borrowed[tile->num_borrowed++] = op;
    return true;
}

static bool sum_in_loop(vm_translator *t, struct vm_tile *tile, const vm_factors *f, int32_t *place) {
    if (f->is_memory) return borrow_for_loop(t, tile, f->sum, place);
    *place = vm_register_of(t, f->sum);
    return !tile->sums;
}

/* The first operand with the same address, as iterations of inner loops load the same element. */
static uint32_t first_like(const struct vm_tile *tile, int32_t number) {
    const vm_operand *o = &tile->operands[number];
    uint32_t i = 0;
    for (; i < (uint32_t)number; i++) {
        const vm_operand *other = &tile->operands[i];
        const vm_op *x = &o->address, *y = &other->address;
        if (x->a == y->a && x->b == y->b && x->d == y->d && x->u.imm == y->u.imm && o->step == other->step &&
            o->is_number == other->is_number && o->elem == other->elem)
            break;
    }
    return i;
}

static bool add_products(vm_translator *t, struct vm_tile *tile, const vm_factors *f) {
    int32_t sum;
    if (tile->num_products + f->count > MOST_PRODUCTS) return false;
    if (tile->num_products && f->kind != tile->kind) return false;
    if (!sum_in_loop(t, tile, f, &sum)) return false;
    tile->kind = f->kind;
    for (uint32_t i = f->count; i-- > 0;) {
        const int32_t x = operand_of(t, tile, f->products[i].x);
        const int32_t y = x < 0 ? -1 : operand_of(t, tile, f->products[i].y);
        if (x < 0 || y < 0) return false;
        const vm_operand *row = &tile->operands[x], *column = &tile->operands[y];
        const bool turned = column->is_number || (row->elem != IR_F32 && !row->is_number);
        tile->products[tile->num_products++] =
            (vm_product){sum, first_like(tile, turned ? y : x), first_like(tile, turned ? x : y), 0};
    }
    return true;
}

/* ---- The body of a loop ---- */

static bool scan_let(vm_translator *t, struct vm_tile *tile, const ir_stmt *stmt) {
    const ir_expr *value = stmt->u.let.value;
    vm_var *var = &t->vars[stmt->u.let.var->id];
    if (!var->uses || vm_define_index(t, stmt->u.let.var, value)) return true;
    if (vm_is_int(value->type)) return false;
    const int32_t number = vm_read_operand(t, tile, value);
    if (number >= 0) tile->operands[number].var = stmt->u.let.var;
    return number >= 0;
}

static bool is_inside(const ir_block *body, const ir_buffer *buffer) {
    for (const ir_stmt *stmt = body->first; stmt; stmt = stmt->next)
        if (stmt->kind == IR_ALLOC && stmt->u.alloc == buffer) return true;
    return false;
}

static bool scan_store(vm_translator *t, struct vm_tile *tile, const ir_block *body, const ir_stmt *stmt) {
    const ir_access *access = stmt->u.store.access;
    vm_factors f;
    if (access->buffer->space == IR_SCRATCH) return vm_factors_of(t, stmt, &f) && add_products(t, tile, &f);
    if (access->buffer->space != IR_REG) return false;
    if (vm_forward_index(t, access, stmt->u.store.value)) return true;
    const bool inside = is_inside(body, access->buffer);
    if (vm_factors_of(t, stmt, &f)) return !inside && add_products(t, tile, &f);
    if (!inside) return false;
    const int32_t number = vm_read_operand(t, tile, stmt->u.store.value);
    if (number >= 0) tile->operands[number].reg = vm_register_of(t, access);
    return number >= 0;
}

/* Inner loops of few iterations are unrolled into the products. The order of each sum's products stays. */
static bool scan_inner(vm_translator *t, struct vm_tile *tile, const ir_stmt *loop) {
    const vm_int lo = vm_int_of(t, loop->u.loop.lo), hi = vm_int_of(t, loop->u.loop.hi);
    bool is_ok = lo.is_const && hi.is_const && hi.value - lo.value <= MOST_TURNS * loop->u.loop.step;
    tile->depth++;
    for (int64_t turn = lo.value; is_ok && turn < hi.value; turn += loop->u.loop.step) {
        t->vars[loop->u.loop.var->id].number = vm_int_const(t, turn);
        is_ok = vm_scan_body(t, tile, &loop->u.loop.body);
    }
    tile->depth--;
    return is_ok;
}

bool vm_scan_body(vm_translator *t, struct vm_tile *tile, const ir_block *body) {
    for (const ir_stmt *stmt = body->first; stmt; stmt = stmt->next) {
        switch (stmt->kind) {
        case IR_ALLOC:
            if (stmt->u.alloc->space != IR_REG || tile->depth) return false;
            vm_alloc(t, stmt->u.alloc);
            break;
        case IR_LET:
            if (!scan_let(t, tile, stmt)) return false;
            break;
        case IR_STORE:
            if (!scan_store(t, tile, body, stmt)) return false;
            break;
        case IR_FOR:
            if (!scan_inner(t, tile, stmt)) return false;
            break;
        case IR_PREFETCH:
        case IR_ASSUME: break;
        default: return false;
        }
    }
    return tile->num_products > 0;
}
