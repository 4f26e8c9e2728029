/* Scalar integer arithmetic and addresses.
 *
 * Both are emitted at the outermost level that knows their operands, and cached. So unrolled copies of an access share
 * row pointers, and an inner loop adds only the part that changes. An address is a linear form:
 *
 *     base + stride * row    + 4 * j             + 64
 *     outer level, once      index register      displacement of the instruction */
#include "codegen/emit_build.h"

#include <string.h>

/* ---- Remembered values ---- */

typedef struct memo_entry {
    uint32_t op, level, serial;
    LLVMValueRef x, y, result; /* result NULL: a free slot */
    int64_t factor;
} memo_entry;

struct cg_memo {
    memo_entry *slots;
    uint32_t capacity, used; /* capacity is a power of two */
};

enum { MEMO_MIN_SLOTS = 1024, MEMO_POINTER_ADD = IR_OP_COUNT };

void cg_memo_reset(cg_emit *e) { e->memo = NULL; }

static uint64_t memo_hash(const memo_entry *key) {
    uint64_t h = (uint64_t)(uintptr_t)key->x * UINT64_C(0x9e3779b97f4a7c15);
    h = (h ^ (uint64_t)(uintptr_t)key->y) * UINT64_C(0xc2b2ae3d27d4eb4f);
    h = (h ^ (uint64_t)key->factor) * UINT64_C(0x9e3779b97f4a7c15);
    return (h ^ key->op) * UINT64_C(0xc2b2ae3d27d4eb4f) >> 20;
}

static memo_entry *memo_slot(const cg_memo *memo, const memo_entry *key) {
    for (uint64_t i = memo_hash(key);; i++) {
        memo_entry *slot = &memo->slots[i & (memo->capacity - 1)];
        if (!slot->result) return slot;
        if (slot->op == key->op && slot->x == key->x && slot->y == key->y && slot->factor == key->factor) return slot;
    }
}

/* Makes room for one more entry, and drops the values of closed blocks. */
static bool memo_reserve(cg_emit *e) {
    cg_memo *memo = e->memo;
    if (memo && memo->used < memo->capacity / 2) return true;
    cg_memo *grown = at_arena_alloc(e->arena, sizeof *grown);
    uint32_t capacity = memo ? memo->capacity * 2 : MEMO_MIN_SLOTS;
    memo_entry *slots = at_arena_alloc(e->arena, capacity * sizeof *slots);
    if (!grown || !slots) return false;
    *grown = (cg_memo){.slots = slots, .capacity = capacity};
    for (uint32_t i = 0; memo && i < memo->capacity; i++) {
        const memo_entry *old = &memo->slots[i];
        if (!old->result || old->level > e->level || e->levels[old->level].serial != old->serial) continue;
        *memo_slot(grown, old) = *old;
        grown->used++;
    }
    e->memo = grown;
    return true;
}

/* One that code of `level` can use. */
static LLVMValueRef memo_find(const cg_emit *e, const memo_entry *key, uint32_t level) {
    if (!e->memo) return NULL;
    const memo_entry *slot = memo_slot(e->memo, key);
    bool open = slot->result && slot->level <= level && e->levels[slot->level].serial == slot->serial;
    return open ? slot->result : NULL;
}

static LLVMValueRef memo_keep(cg_emit *e, memo_entry key, uint32_t level, LLVMValueRef result) {
    if (!memo_reserve(e)) return result;
    memo_entry *slot = memo_slot(e->memo, &key);
    if (!slot->result) e->memo->used++;
    key.level = level;
    key.serial = e->levels[level].serial;
    key.result = result;
    *slot = key;
    return result;
}

/* Moves the builder to the point at which code can still be added to `level`. Returns the block to return to. */
static LLVMBasicBlockRef enter_outer(cg_emit *e, uint32_t level) {
    LLVMBasicBlockRef here = LLVMGetInsertBlock(e->b);
    if (level < e->level) LLVMPositionBuilderBefore(e->b, e->levels[level].branch);
    return here;
}

/* ---- Scalar integers ---- */

cg_index cg_index_const(cg_emit *e, int64_t value) { return (cg_index){cg_i64(e, value), 0}; }

static uint32_t outer_level(cg_index x, cg_index y) { return x.level > y.level ? x.level : y.level; }

/* counter × y in an innermost loop, for a y that is known outside of it: a second counter of the loop. */
static LLVMValueRef derive(cg_emit *e, cg_index counter, cg_index y) {
    cg_level *loop = &e->levels[counter.level];
    if (!counter.level || loop->counter != counter.value || y.level >= counter.level) return NULL;
    if (loop->num_derived == CG_MAX_DERIVED) return NULL;
    const cg_index first = cg_index_op(e, IR_MUL, loop->lo, y);
    const cg_index step = cg_index_op(e, IR_MUL, cg_index_const(e, loop->step), y);
    LLVMBasicBlockRef here = LLVMGetInsertBlock(e->b);
    LLVMPositionBuilderBefore(e->b, loop->counter);
    LLVMValueRef phi = LLVMBuildPhi(e->b, e->i64, "");
    LLVMAddIncoming(phi, (LLVMValueRef[]){first.value}, &loop->before, 1);
    LLVMPositionBuilderAtEnd(e->b, here);
    loop->derived[loop->num_derived++] = (cg_derived){phi, step.value};
    return phi;
}

cg_index cg_index_op(cg_emit *e, ir_op op, cg_index x, cg_index y) {
    memo_entry key = {.op = (uint32_t)op, .x = x.value, .y = y.value};
    /* A division must not move outwards: a branch around it may be what proves its divisor not to be 0. That of a size
     * may: the plan has divided before. */
    bool fixed = (op == IR_DIV || op == IR_MOD) && !LLVMIsConstant(y.value) && !e->is_size;
    uint32_t level = fixed ? e->level : outer_level(x, y);
    LLVMValueRef result = memo_find(e, &key, level);
    if (result) return (cg_index){result, level};
    if (op == IR_MUL && ((result = derive(e, x, y)) || (result = derive(e, y, x))))
        return (cg_index){memo_keep(e, key, level, result), level};
    LLVMBasicBlockRef here = enter_outer(e, level);
    result = cg_apply(e, op, x.value, y.value, NULL);
    LLVMPositionBuilderAtEnd(e->b, here);
    return (cg_index){memo_keep(e, key, level, result), level};
}

cg_index cg_emit_index(cg_emit *e, const ir_expr *x) {
    const ir_op_info *info = ir_op_get((ir_op)x->op);
    if (x->op == IR_CONST)
        return (cg_index){LLVMConstInt(cg_elem_type(e, x->type.elem), (uint64_t)x->value.i, true), 0};
    if (x->op == IR_VAR) return e->vars[x->value.var->id];
    if (info->arity == 2 && info->result == IR_RESULT_SAME) {
        cg_index left = cg_emit_index(e, x->args[0]);
        return cg_index_op(e, (ir_op)x->op, left, cg_emit_index(e, x->args[1]));
    }
    return (cg_index){cg_emit_expr(e, x), e->level};
}

/* ---- Linear forms ---- */

static int64_t wrap_mul(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }
static int64_t wrap_add(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }

static cg_index scaled(cg_emit *e, cg_index x, int64_t factor) {
    return factor == 1 ? x : cg_index_op(e, IR_MUL, x, cg_index_const(e, factor));
}

void cg_linear_term(cg_emit *e, cg_linear *sum, cg_index index, int64_t factor) {
    if (LLVMIsAConstantInt(index.value)) {
        sum->constant = wrap_add(sum->constant, wrap_mul(LLVMConstIntGetSExtValue(index.value), factor));
        return;
    }
    for (unsigned t = 0; t < sum->count; t++)
        if (sum->terms[t].index.value == index.value) {
            sum->terms[t].factor = wrap_add(sum->terms[t].factor, factor);
            return;
        }
    if (sum->count == CG_MAX_TERMS) {
        cg_index last = scaled(e, sum->terms[CG_MAX_TERMS - 1].index, sum->terms[CG_MAX_TERMS - 1].factor);
        index = cg_index_op(e, IR_ADD, last, scaled(e, index, factor));
        factor = 1;
        sum->count--;
    }
    sum->terms[sum->count].index = index;
    sum->terms[sum->count++].factor = factor;
}

static bool is_const(const ir_expr *x) { return x->op == IR_CONST; }

/* Replaces a `let` in the sum by its expression, whose parts can be hoisted one by one. There is a limit, because a
 * chain of lets can expand to an exponentially large sum. */
static const ir_expr *unfold(cg_emit *e, cg_linear *sum, const ir_expr *x) {
    enum { MAX_UNFOLDED = 16 };
    const ir_expr *meaning = x->op == IR_VAR ? e->lets[x->value.var->id] : NULL;
    if (!meaning || sum->unfolded == MAX_UNFOLDED) return x;
    const bool is_sum = meaning->op == IR_ADD || meaning->op == IR_SUB;
    if (!is_sum && !(meaning->op == IR_MUL && (is_const(meaning->args[0]) || is_const(meaning->args[1])))) return x;
    sum->unfolded++;
    return meaning;
}

void cg_linear_add(cg_emit *e, cg_linear *sum, const ir_expr *x, cg_index stride, int64_t factor) {
    x = unfold(e, sum, x);
    const ir_expr *left = x->args[0], *right = x->args[1];
    if (LLVMIsAConstantInt(stride.value)) {
        factor = wrap_mul(factor, LLVMConstIntGetSExtValue(stride.value));
        stride = cg_index_const(e, 1);
    }
    if (x->op == IR_CONST) {
        cg_linear_term(e, sum, stride, wrap_mul(factor, x->value.i));
    } else if (x->op == IR_ADD || x->op == IR_SUB) {
        cg_linear_add(e, sum, left, stride, factor);
        cg_linear_add(e, sum, right, stride, x->op == IR_ADD ? factor : wrap_mul(factor, -1));
    } else if (x->op == IR_NEG) {
        cg_linear_add(e, sum, left, stride, wrap_mul(factor, -1));
    } else if (x->op == IR_MUL && is_const(right)) {
        cg_linear_add(e, sum, left, stride, wrap_mul(factor, right->value.i));
    } else if (x->op == IR_MUL && is_const(left)) {
        cg_linear_add(e, sum, right, stride, wrap_mul(factor, left->value.i));
    } else {
        cg_index value = cg_emit_index(e, x);
        bool unit = LLVMIsAConstantInt(stride.value);
        cg_linear_term(e, sum, unit ? value : cg_index_op(e, IR_MUL, value, stride), factor);
    }
}

static LLVMTypeRef scaled_type(const cg_emit *e, int64_t factor) {
    return factor == 1 ? e->i8 : factor == 2 ? e->i16 : factor == 4 ? e->i32 : factor == 8 ? e->i64 : NULL;
}

/* pointer + factor × index at `level`. The multiple continues from a neighbour's, so that each row of a tile costs one
 * addition, and only the stride is kept in a register. */
static LLVMValueRef pointer_add(cg_emit *e, LLVMValueRef pointer, cg_index index, int64_t factor, int64_t step,
                                uint32_t level) {
    memo_entry key = {.op = MEMO_POINTER_ADD, .x = pointer, .y = index.value, .factor = factor};
    LLVMValueRef result = memo_find(e, &key, e->level);
    if (result) return result;
    memo_entry neighbour = key;
    neighbour.factor = wrap_add(factor, -step);
    LLVMValueRef from = memo_find(e, &neighbour, e->level);
    if (from) {
        pointer = from;
        factor = step;
    }
    LLVMTypeRef unit = scaled_type(e, factor);
    LLVMValueRef offset = (unit ? index : scaled(e, index, factor)).value;
    LLVMBasicBlockRef here = enter_outer(e, level);
    result = LLVMBuildGEP2(e->b, unit ? unit : e->i8, pointer, &offset, 1, "");
    LLVMPositionBuilderAtEnd(e->b, here);
    return memo_keep(e, key, level, result);
}

static LLVMValueRef add_level(cg_emit *e, LLVMValueRef pointer, const cg_linear *sum, uint32_t terms_of, uint32_t at) {
    for (unsigned t = 0; t < sum->count; t++) {
        const int64_t factor = sum->terms[t].factor;
        if (sum->terms[t].index.level != terms_of || factor == 0) continue;
        pointer = pointer_add(e, pointer, sum->terms[t].index, factor, sum->step, at);
    }
    return pointer;
}

/* The level at which multiples of scalar parameters (the strides of a tile's rows) are added. Early sums occupy
 * registers, so it is the innermost level at which adding is free: just outside an innermost loop that the address runs
 * along. */
static uint32_t level_of_rows(const cg_emit *e, const cg_linear *sum) {
    uint32_t deepest = 0, second = 0;
    for (unsigned t = 0; t < sum->count; t++) {
        const uint32_t level = sum->terms[t].index.level;
        if (level > deepest)
            second = deepest, deepest = level;
        else if (level < deepest && level > second)
            second = level;
    }
    return e->levels[deepest].counter ? second : deepest;
}

LLVMValueRef cg_pointer(cg_emit *e, LLVMValueRef base, const cg_linear *sum) {
    const uint32_t rows = level_of_rows(e, sum);
    LLVMValueRef pointer = base;
    for (uint32_t level = 0; level <= e->level; level++) {
        if (level > 0) pointer = add_level(e, pointer, sum, level, level);
        if (level == rows) pointer = add_level(e, pointer, sum, 0, level);
    }
    if (sum->constant == 0) return pointer;
    LLVMValueRef offset = cg_i64(e, sum->constant);
    return LLVMBuildGEP2(e->b, e->i8, pointer, &offset, 1, "");
}
