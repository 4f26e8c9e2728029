/* Scalars of idx and i64, and addresses. Both are computed at the outermost level that knows their operands, and once,
 * as the code generator does it (codegen/emit_index.c). */
#include "vm/translate.h"

#include <string.h>

/* ---- A table of values that were computed already ---- */

typedef struct memo_entry {
    uint32_t op, level, serial;
    int32_t x, y, result; /* places of operands; op 0: a free entry, as IR_CONST is never in the table */
    int64_t factor;
} memo_entry;

struct vm_memo {
    memo_entry *slots;
    uint32_t capacity, used;
};

enum { MEMO_MULTIPLY_ADD = IR_OP_COUNT, MEMO_FIRST_SLOTS = 1024 };

static memo_entry *memo_slot(const vm_memo *memo, const memo_entry *key) {
    uint64_t h = ((uint64_t)(uint32_t)key->x << 32 | (uint32_t)key->y) * UINT64_C(0x9e3779b97f4a7c15);
    h = (h ^ (uint64_t)key->factor ^ key->op) * UINT64_C(0xc2b2ae3d27d4eb4f) >> 20;
    for (uint64_t i = h;; i++) {
        memo_entry *slot = &memo->slots[i & (memo->capacity - 1)];
        if (!slot->op) return slot;
        if (slot->op == key->op && slot->x == key->x && slot->y == key->y && slot->factor == key->factor) return slot;
    }
}

static bool is_open(const vm_translator *t, const memo_entry *entry) {
    return entry->level <= t->level && t->levels[entry->level].serial == entry->serial;
}

static bool memo_reserve(vm_translator *t) {
    vm_memo *memo = t->memo;
    if (memo && memo->used < memo->capacity / 2) return true;
    const uint32_t capacity = memo ? memo->capacity * 2 : MEMO_FIRST_SLOTS;
    vm_memo *grown = at_arena_alloc(t->arena, sizeof *grown);
    memo_entry *slots = at_arena_alloc(t->arena, capacity * sizeof *slots);
    if (!grown || !slots) {
        at_fail_memory(t->err, capacity * sizeof *slots);
        return false;
    }
    memset(slots, 0, capacity * sizeof *slots);
    *grown = (vm_memo){.slots = slots, .capacity = capacity};
    for (uint32_t i = 0; memo && i < memo->capacity; i++) {
        if (!memo->slots[i].op || !is_open(t, &memo->slots[i])) continue;
        *memo_slot(grown, &memo->slots[i]) = memo->slots[i];
        grown->used++;
    }
    t->memo = grown;
    return true;
}

static bool memo_find(const vm_translator *t, const memo_entry *key, int32_t *result) {
    if (!t->memo) return false;
    const memo_entry *slot = memo_slot(t->memo, key);
    if (!slot->op || !is_open(t, slot)) return false;
    *result = slot->result;
    return true;
}

static void memo_keep(vm_translator *t, memo_entry key, uint32_t level, int32_t result) {
    if (!memo_reserve(t)) return;
    memo_entry *slot = memo_slot(t->memo, &key);
    if (!slot->op) t->memo->used++;
    key.level = level;
    key.serial = t->levels[level].serial;
    key.result = result;
    *slot = key;
}

/* ---- Arithmetic ---- */

static int64_t wrap_mul(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }
static int64_t wrap_add(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }

vm_int vm_int_const(vm_translator *t, int64_t value) {
    return (vm_int){.at = vm_constant_of(t, &value, sizeof value), .is_const = true, .value = value};
}

static vm_fn *function_of(ir_op op) {
    return op == IR_ADD ? vm_int_add : op == IR_SUB ? vm_int_sub : op == IR_MUL ? vm_int_mul : vm_int_eval;
}

static bool is_neutral(ir_op op, vm_int x, vm_int y, vm_int *result) {
    *result = x;
    if (y.is_const && y.value == 0 && (op == IR_ADD || op == IR_SUB)) return true;
    if (y.is_const && y.value == 1 && (op == IR_MUL || op == IR_DIV)) return true;
    *result = y;
    return x.is_const && ((x.value == 0 && op == IR_ADD) || (x.value == 1 && op == IR_MUL));
}

/* Division by zero gives 0, so every operation may be hoisted. */
vm_int vm_int_op2(vm_translator *t, ir_op op, vm_int x, vm_int y) {
    ir_eval_fn *eval = ir_eval_get(op, IR_I64);
    int64_t value;
    vm_int same;
    if (x.is_const && y.is_const) {
        eval(&value, &x.value, &y.value, NULL, 1);
        return vm_int_const(t, value);
    }
    if (is_neutral(op, x, y, &same)) return same;
    const uint32_t level = x.level > y.level ? x.level : y.level;
    const memo_entry key = {.op = op, .x = x.at, .y = y.at};
    int32_t at;
    if (!memo_find(t, &key, &at)) {
        at = vm_new_int(t);
        vm_op code = {.fn = function_of(op), .out = at, .a = x.at, .b = y.at};
        code.u.eval = eval;
        vm_emit_at(t, level, code);
        memo_keep(t, key, level, at);
    }
    return (vm_int){.at = at, .level = level};
}

/* x + y * factor */
static vm_int multiply_add(vm_translator *t, vm_int x, vm_int y, int64_t factor, uint32_t level) {
    const memo_entry key = {.op = MEMO_MULTIPLY_ADD, .x = x.at, .y = y.at, .factor = factor};
    int32_t at;
    if (!memo_find(t, &key, &at)) {
        at = vm_new_int(t);
        vm_op code = {.fn = factor == 1 ? vm_int_add : vm_int_multiply_add, .out = at, .a = x.at, .b = y.at};
        code.u.imm = factor;
        vm_emit_at(t, level, code);
        memo_keep(t, key, level, at);
    }
    return (vm_int){.at = at, .level = level};
}

/* A value in a place that others may overwrite. */
static vm_int copy_of(vm_translator *t, int32_t place) {
    const int32_t at = vm_new_int(t);
    vm_copy_int(t, place, at);
    return (vm_int){.at = at, .level = t->level};
}

static vm_int load_int(vm_translator *t, const ir_expr *x) {
    const ir_buffer *buffer = x->value.access->buffer;
    if (buffer->space == IR_REG && t->storage[buffer->id].forward) return vm_int_of(t, t->storage[buffer->id].forward);
    const vm_place place = vm_load_of(t, x, VM_NOWHERE);
    return place.is_own ? (vm_int){.at = place.at, .level = t->level} : copy_of(t, place.at);
}

/* Computes the value by an evaluator, in this place. A bitcast stays where its operand is. */
static vm_int apply(vm_translator *t, const ir_expr *x) {
    const vm_place value = vm_value_of(t, x, VM_NOWHERE);
    return value.is_own ? (vm_int){.at = value.at, .level = t->level} : copy_of(t, value.at);
}

static vm_int var_of(vm_translator *t, const ir_var *name) {
    vm_var *var = &t->vars[name->id];
    if (var->as && !var->is_computed) {
        var->number = vm_int_of(t, var->as);
        var->is_computed = true;
    }
    return var->number;
}

vm_int vm_int_of(vm_translator *t, const ir_expr *x) {
    const ir_op_info *info = ir_op_get((ir_op)x->op);
    if (x->op == IR_CONST) return vm_int_const(t, x->value.i);
    if (x->op == IR_VAR) return var_of(t, x->value.var);
    if (x->op == IR_LOAD) return load_int(t, x);
    if (x->op == IR_CAST && vm_is_int(x->args[0]->type)) return vm_int_of(t, x->args[0]);
    if (x->op == IR_NEG) return vm_int_op2(t, IR_SUB, vm_int_const(t, 0), vm_int_of(t, x->args[0]));
    if (info->arity == 2 && info->result == IR_RESULT_SAME) {
        const vm_int left = vm_int_of(t, x->args[0]);
        return vm_int_op2(t, (ir_op)x->op, left, vm_int_of(t, x->args[1]));
    }
    return apply(t, x);
}

/* ---- Sums ---- */

void vm_sum_term(vm_translator *t, vm_sum *sum, vm_int index, int64_t factor) {
    if (index.is_const) {
        sum->constant = wrap_add(sum->constant, wrap_mul(index.value, factor));
        return;
    }
    for (uint32_t i = 0; i < sum->count; i++)
        if (sum->terms[i].index.at == index.at) {
            sum->terms[i].factor = wrap_add(sum->terms[i].factor, factor);
            return;
        }
    if (sum->count == VM_MAX_TERMS) { /* two become one */
        const vm_int last = vm_int_op2(t, IR_MUL, sum->terms[VM_MAX_TERMS - 1].index,
                                       vm_int_const(t, sum->terms[VM_MAX_TERMS - 1].factor));
        index = vm_int_op2(t, IR_ADD, last, vm_int_op2(t, IR_MUL, index, vm_int_const(t, factor)));
        factor = 1;
        sum->count--;
    }
    sum->terms[sum->count].index = index;
    sum->terms[sum->count++].factor = factor;
}

static bool is_const(const ir_expr *x) { return x->op == IR_CONST; }

/* Replaces a `let` in a sum by its value, whose parts can be computed at outer levels; at most 16 times. */
static const ir_expr *unfold(const vm_translator *t, vm_sum *sum, const ir_expr *x) {
    enum { MOST = 16 };
    while (x->op == IR_VAR && t->vars[x->value.var->id].as && sum->unfolded < MOST) {
        x = t->vars[x->value.var->id].as;
        sum->unfolded++;
    }
    return x;
}

/* Whether a value depends on the counter of the sum's loop. */
static bool has_counter(const vm_translator *t, const vm_sum *sum, const ir_expr *x) {
    if (!sum->counter) return false;
    if (x->op == IR_VAR && x->value.var == sum->counter) return true;
    if (x->op == IR_VAR) return t->vars[x->value.var->id].as && has_counter(t, sum, t->vars[x->value.var->id].as);
    if (x->op == IR_LOAD) return true; /* it may */
    for (int i = 0; i < ir_op_get((ir_op)x->op)->arity; i++)
        if (has_counter(t, sum, x->args[i])) return true;
    return false;
}

static void add_count(vm_sum *sum, vm_int stride, int64_t factor) {
    if (sum->num_counts == VM_MAX_TERMS)
        sum->is_wrong = true;
    else {
        sum->counts[sum->num_counts].stride = stride;
        sum->counts[sum->num_counts++].factor = factor;
    }
}

void vm_sum_add(vm_translator *t, vm_sum *sum, const ir_expr *x, vm_int stride, int64_t factor) {
    x = unfold(t, sum, x);
    const ir_expr *left = x->args[0], *right = x->args[1];
    if (stride.is_const) {
        factor = wrap_mul(factor, stride.value);
        stride = vm_int_const(t, 1);
    }
    if (x->op == IR_CONST) {
        vm_sum_term(t, sum, stride, wrap_mul(factor, x->value.i));
    } else if (x->op == IR_ADD || x->op == IR_SUB) {
        vm_sum_add(t, sum, left, stride, factor);
        vm_sum_add(t, sum, right, stride, x->op == IR_ADD ? factor : wrap_mul(factor, -1));
    } else if (x->op == IR_NEG) {
        vm_sum_add(t, sum, left, stride, wrap_mul(factor, -1));
    } else if (x->op == IR_MUL && is_const(right)) {
        vm_sum_add(t, sum, left, stride, wrap_mul(factor, right->value.i));
    } else if (x->op == IR_MUL && is_const(left)) {
        vm_sum_add(t, sum, right, stride, wrap_mul(factor, left->value.i));
    } else if (x->op == IR_VAR && x->value.var == sum->counter) {
        add_count(sum, stride, factor);
    } else if (has_counter(t, sum, x)) {
        sum->is_wrong = true;
    } else {
        const vm_int value = vm_int_of(t, x);
        vm_sum_term(t, sum, stride.is_const ? value : vm_int_op2(t, IR_MUL, value, stride), factor);
    }
}

/* The term that the access's own operation adds: the last one of the current level, if there is one. */
static uint32_t own_term(const vm_translator *t, const vm_sum *sum) {
    uint32_t own = VM_MAX_TERMS;
    for (uint32_t i = 0; i < sum->count; i++) {
        const int64_t factor = sum->terms[i].factor;
        if (factor && factor == (int32_t)factor && sum->terms[i].index.level == t->level) own = i;
    }
    return own;
}

void vm_sum_address(vm_translator *t, int32_t base, const vm_sum *sum, vm_op *op) {
    vm_int pointer = {.at = base};
    const uint32_t own = own_term(t, sum);
    for (uint32_t level = 0; level <= t->level; level++)
        for (uint32_t i = 0; i < sum->count; i++)
            if (i != own && sum->terms[i].factor && sum->terms[i].index.level == level)
                pointer = multiply_add(t, pointer, sum->terms[i].index, sum->terms[i].factor, level);
    op->a = pointer.at;
    op->b = own < sum->count ? sum->terms[own].index.at : vm_int_const(t, 0).at;
    op->d = own < sum->count ? (int32_t)sum->terms[own].factor : 0;
    op->u.imm = sum->constant;
}
