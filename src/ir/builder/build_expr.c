/* Expressions. Every constructor checks the types of its operands, then folds (build_fold.c), and makes a node only if
 * nothing folded. So every expression of every kernel has right types, whoever built it: parser, passes or builders. */
#include "ir/builder/build_internal.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- checks ---- */

ir_type_text ir_type_describe(ir_type type) {
    ir_type_text out;
    const char *elem = ir_elem_get(type.elem)->name;
    if (type.lanes == 1)
        snprintf(out.text, sizeof out.text, "%s", elem);
    else
        snprintf(out.text, sizeof out.text, "%sx%d", elem, type.lanes);
    return out;
}

/* A missing operand follows from an earlier failure; without one, it is the caller's mistake. */
static bool present(ir_builder *b, const ir_expr *x, const char *what) {
    if (!x) ir_build_fail(b, "%s has no value", what);
    return x && !ir_failed(b);
}

static bool check_type(ir_builder *b, const ir_expr *expr, ir_type type, const char *what) {
    if (!present(b, expr, what)) return false;
    if (ir_type_eq(expr->type, type)) return true;
    ir_build_fail(b, "%s must be %s, not %s", what, ir_type_describe(type).text, ir_type_describe(expr->type).text);
    return false;
}

bool ir_check_idx(ir_builder *b, const ir_expr *expr, const char *what) {
    return check_type(b, expr, ir_type_of(IR_IDX, 1), what);
}

bool ir_check_condition(ir_builder *b, const ir_expr *expr, const char *what) {
    return check_type(b, expr, ir_type_of(IR_BOOL, 1), what);
}

static bool check_lanes(ir_builder *b, int lanes) {
    if (lanes >= 1 && lanes <= IR_MAX_LANES && (lanes & (lanes - 1)) == 0) return true;
    ir_build_fail(b, "%d lanes: must be a power of two, at most %d", lanes, IR_MAX_LANES);
    return false;
}

static bool has_class(const ir_expr *x, unsigned set) { return ir_elem_get(x->type.elem)->class & set; }

/* ---- leaves and nodes ---- */

static uint8_t max_depth(uint8_t depth, const ir_expr *x) { return x && x->depth > depth ? x->depth : depth; }

/* Depth is bounded, because printing, parsing, verifying and running recurse over expressions. */
static bool check_depth(ir_builder *b, int operands) {
    if (operands < IR_MAX_DEPTH) return true;
    ir_build_fail(b, "an expression is nested more than %d deep", IR_MAX_DEPTH);
    return false;
}

const ir_expr *ir_build_node(ir_builder *b, ir_op op, ir_type type, const ir_expr *x, const ir_expr *y,
                             const ir_expr *z) {
    const uint8_t depth = max_depth(max_depth(max_depth(0, x), y), z);
    ir_expr *expr = check_depth(b, depth) ? ir_build_alloc(b, sizeof *expr) : NULL;
    if (expr) *expr = (ir_expr){.op = op, .type = type, .depth = depth + 1, .args = {x, y, z}};
    return expr;
}

static ir_expr *new_leaf(ir_builder *b, ir_op op, ir_type type) {
    ir_expr *expr = ir_build_alloc(b, sizeof *expr);
    if (expr) *expr = (ir_expr){.op = op, .type = type, .depth = 1};
    return expr;
}

const ir_expr *ir_int(ir_builder *b, ir_elem elem, int64_t value) {
    const unsigned class = ir_elem_get(elem)->class;
    if (!(class & (IR_CLASS_INT | IR_CLASS_BOOL))) {
        ir_build_fail(b, "an integer constant cannot be %s", ir_elem_get(elem)->name);
        return NULL;
    }
    if ((class == IR_CLASS_BOOL && (value < 0 || value > 1)) || (elem == IR_I32 && value != (int32_t)value)) {
        ir_build_fail(b, "%lld is out of range for %s", (long long)value, ir_elem_get(elem)->name);
        return NULL;
    }
    ir_expr *expr = new_leaf(b, IR_CONST, ir_type_of(elem, 1));
    if (expr) expr->value.i = value;
    return expr;
}

const ir_expr *ir_idx(ir_builder *b, int64_t value) { return ir_int(b, IR_IDX, value); }

const ir_expr *ir_build_float(ir_builder *b, ir_elem elem, double value) {
    ir_expr *expr = new_leaf(b, IR_CONST, ir_type_of(elem, 1));
    if (expr) expr->value.f = isnan(value) ? (double)NAN : value;
    return expr;
}

const ir_expr *ir_float(ir_builder *b, ir_elem elem, double value) {
    if (elem != IR_F32 && elem != IR_F64) {
        ir_build_fail(b, "a floating-point constant cannot be %s", ir_elem_get(elem)->name);
        return NULL;
    }
    if (elem == IR_F32) value = (float)value;
    return ir_build_float(b, elem, value);
}

const ir_expr *ir_const_like(ir_builder *b, const ir_expr *like, double value) {
    if (!present(b, like, "the model of a constant")) return NULL;
    const ir_elem elem = like->type.elem;
    const bool is_float = has_class(like, IR_CLASS_FLOAT);
    const ir_expr *scalar = is_float ? ir_float(b, elem, value) : ir_int(b, elem, (int64_t)value);
    return ir_splat(b, scalar, like->type.lanes);
}

const ir_expr *ir_var_ref(ir_builder *b, const ir_var *var) {
    ir_expr *expr = var ? new_leaf(b, IR_VAR, var->type) : NULL;
    if (expr) expr->value.var = var;
    return expr;
}

/* ---- operators ---- */

static bool check_select(ir_builder *b, const ir_expr *c, const ir_expr *x, const ir_expr *y) {
    if (!present(b, x, "'select'") || !present(b, y, "'select'")) return false;
    if (!check_type(b, c, ir_type_of(IR_BOOL, x->type.lanes), "the condition of 'select'")) return false;
    return check_type(b, y, x->type, "the third operand of 'select'");
}

static bool check_same(ir_builder *b, ir_op op, const ir_expr *const args[3]) {
    const ir_op_info *info = ir_op_get(op);
    if (info->result == IR_RESULT_SPECIAL) {
        ir_build_fail(b, "'%s' has a function of its own", info->text);
        return false;
    }
    for (int i = 0; i < info->arity; i++) {
        if (!present(b, args[i], info->text)) return false;
        if (!has_class(args[i], info->accepts)) {
            ir_build_fail(b, "'%s' does not take %s", info->text, ir_type_describe(args[i]->type).text);
            return false;
        }
        if (!ir_type_eq(args[i]->type, args[0]->type)) {
            ir_build_fail(b, "'%s' needs operands of one type, not %s and %s", info->text,
                          ir_type_describe(args[0]->type).text, ir_type_describe(args[i]->type).text);
            return false;
        }
    }
    return true;
}

const ir_expr *ir_apply(ir_builder *b, ir_op op, const ir_expr *x, const ir_expr *y, const ir_expr *z) {
    const ir_expr *const args[3] = {x, y, z};
    if (!(op == IR_SELECT ? check_select(b, x, y, z) : check_same(b, op, args))) return NULL;
    const int arity = ir_op_get(op)->arity;
    if (arity < 3) z = NULL;
    if (arity < 2) y = NULL;
    const ir_expr *folded = ir_build_fold(b, op, x, y, z);
    if (folded || ir_failed(b)) return folded;
    ir_type type = op == IR_SELECT ? y->type : x->type;
    if (ir_op_get(op)->result == IR_RESULT_CMP) type.elem = IR_BOOL;
    return ir_build_node(b, op, type, x, y, z);
}

const ir_expr *ir_neg(ir_builder *b, const ir_expr *x) { return ir_apply(b, IR_NEG, x, NULL, NULL); }
const ir_expr *ir_add(ir_builder *b, const ir_expr *x, const ir_expr *y) { return ir_apply(b, IR_ADD, x, y, NULL); }
const ir_expr *ir_sub(ir_builder *b, const ir_expr *x, const ir_expr *y) { return ir_apply(b, IR_SUB, x, y, NULL); }
const ir_expr *ir_mul(ir_builder *b, const ir_expr *x, const ir_expr *y) { return ir_apply(b, IR_MUL, x, y, NULL); }
const ir_expr *ir_div(ir_builder *b, const ir_expr *x, const ir_expr *y) { return ir_apply(b, IR_DIV, x, y, NULL); }
const ir_expr *ir_mod(ir_builder *b, const ir_expr *x, const ir_expr *y) { return ir_apply(b, IR_MOD, x, y, NULL); }
const ir_expr *ir_min(ir_builder *b, const ir_expr *x, const ir_expr *y) { return ir_apply(b, IR_MIN, x, y, NULL); }
const ir_expr *ir_max(ir_builder *b, const ir_expr *x, const ir_expr *y) { return ir_apply(b, IR_MAX, x, y, NULL); }

const ir_expr *ir_fma(ir_builder *b, const ir_expr *x, const ir_expr *y, const ir_expr *z) {
    return ir_apply(b, IR_FMA, x, y, z);
}

const ir_expr *ir_select(ir_builder *b, const ir_expr *c, const ir_expr *x, const ir_expr *y) {
    return ir_apply(b, IR_SELECT, c, x, y);
}

/* Which casts exist: f32 and f64 to and from all numbers; integers to and from each other; storage types only to and
 * from the type in which they are computed; bool only to integers. */
static bool cast_exists(ir_elem from, ir_elem to) {
    const unsigned a = ir_elem_get(from)->class, c = ir_elem_get(to)->class;
    if (a == IR_CLASS_BOOL) return c == IR_CLASS_INT;
    if (a == IR_CLASS_STORAGE) return to == (from == IR_I8 ? IR_I32 : IR_F32);
    if (c == IR_CLASS_STORAGE) return from == (to == IR_I8 ? IR_I32 : IR_F32);
    return c != IR_CLASS_BOOL;
}

const ir_expr *ir_cast(ir_builder *b, ir_elem elem, const ir_expr *x) {
    if (!present(b, x, "'cast'")) return NULL;
    if (x->type.elem == elem) return x;
    if (!cast_exists(x->type.elem, elem)) {
        ir_build_fail(b, "'cast' does not go from %s to %s", ir_elem_get(x->type.elem)->name, ir_elem_get(elem)->name);
        return NULL;
    }
    const ir_expr *folded = ir_build_fold_cast(b, elem, x);
    if (folded || ir_failed(b)) return folded;
    return ir_build_node(b, IR_CAST, ir_type_of(elem, x->type.lanes), x, NULL, NULL);
}

/* A bitcast between an element and several narrower ones: i32 and two bf16, or four f8 or i8; f16 and two i8. NULL for
 * any other bitcast. */
static const ir_expr *bitcast_parts(ir_builder *b, ir_elem elem, const ir_expr *x) {
    static const uint8_t parts[IR_ELEM_COUNT][IR_ELEM_COUNT] = {
        [IR_I32] = {[IR_BF16] = 2, [IR_F8] = 4, [IR_I8] = 4}, [IR_F16] = {[IR_I8] = 2}};
    const ir_type type = x->type;
    const int joined = parts[elem][type.elem], split = parts[type.elem][elem];
    if (joined && type.lanes % joined == 0)
        return ir_build_node(b, IR_BITCAST, ir_type_of(elem, type.lanes / joined), x, NULL, NULL);
    if (split && type.lanes * split <= IR_MAX_LANES)
        return ir_build_node(b, IR_BITCAST, ir_type_of(elem, type.lanes * split), x, NULL, NULL);
    return NULL;
}

const ir_expr *ir_bitcast(ir_builder *b, ir_elem elem, const ir_expr *x) {
    if (!present(b, x, "'bitcast'")) return NULL;
    const ir_expr *parts = bitcast_parts(b, elem, x);
    if (parts || ir_failed(b)) return parts;
    const ir_elem from = x->type.elem;
    const ir_elem partner[IR_ELEM_COUNT] = {[IR_F32] = IR_I32, [IR_I32] = IR_F32, [IR_F64] = IR_I64, [IR_I64] = IR_F64};
    if (!has_class(x, IR_CLASS_FLOAT | IR_CLASS_INT) || from == IR_IDX || partner[from] != elem) {
        ir_build_fail(
            b,
            "'bitcast' goes between f32 and i32, f64 and i64, bf16x2n, f8x4n or i8x4n and i32xn, i8x2n and f16xn, "
            "not from %s to %s",
            ir_type_describe(x->type).text, ir_elem_get(elem)->name);
        return NULL;
    }
    const ir_expr *folded = ir_build_fold_bitcast(b, elem, x);
    if (folded || ir_failed(b)) return folded;
    return ir_build_node(b, IR_BITCAST, ir_type_of(elem, x->type.lanes), x, NULL, NULL);
}

const ir_expr *ir_splat(ir_builder *b, const ir_expr *x, int lanes) {
    if (!present(b, x, "'splat'") || !check_lanes(b, lanes)) return NULL;
    if (x->type.lanes != 1) {
        ir_build_fail(b, "'splat' takes a scalar, not %s", ir_type_describe(x->type).text);
        return NULL;
    }
    return lanes == 1 ? x : ir_build_node(b, IR_SPLAT, ir_type_of(x->type.elem, lanes), x, NULL, NULL);
}

const ir_expr *ir_ramp(ir_builder *b, const ir_expr *base, const ir_expr *step, int lanes) {
    if (!present(b, base, "'ramp'") || !present(b, step, "'ramp'") || !check_lanes(b, lanes)) return NULL;
    if (base->type.lanes != 1 || !has_class(base, IR_CLASS_INT) || !ir_type_eq(base->type, step->type)) {
        ir_build_fail(b, "'ramp' takes two scalar integers of one type, not %s and %s",
                      ir_type_describe(base->type).text, ir_type_describe(step->type).text);
        return NULL;
    }
    return lanes == 1 ? base : ir_build_node(b, IR_RAMP, ir_type_of(base->type.elem, lanes), base, step, NULL);
}

const ir_expr *ir_shuffle(ir_builder *b, const ir_expr *x, const ir_expr *y, int lanes, const uint8_t *pick) {
    if (!present(b, x, "'shuffle'") || !present(b, y, "'shuffle'") || !check_lanes(b, lanes)) return NULL;
    if (!ir_type_eq(x->type, y->type)) {
        ir_build_fail(b, "'shuffle' needs operands of one type, not %s and %s", ir_type_describe(x->type).text,
                      ir_type_describe(y->type).text);
        return NULL;
    }
    for (int l = 0; l < lanes; l++) {
        if (pick[l] < 2 * x->type.lanes) continue;
        ir_build_fail(b, "'shuffle' picks lane %d of %d", pick[l], 2 * x->type.lanes);
        return NULL;
    }
    uint8_t *copy = ir_build_alloc(b, (size_t)lanes);
    const uint8_t depth = max_depth(x->depth, y);
    ir_expr *expr = copy && check_depth(b, depth) ? new_leaf(b, IR_SHUFFLE, ir_type_of(x->type.elem, lanes)) : NULL;
    if (!expr) return NULL;
    memcpy(copy, pick, (size_t)lanes);
    expr->depth = depth + 1;
    expr->args[0] = x;
    expr->args[1] = y;
    expr->value.pick = copy;
    return expr;
}

const ir_expr *ir_dot2(ir_builder *b, const ir_expr *x, const ir_expr *y, const ir_expr *acc) {
    if (!present(b, x, "'dot2'") || !present(b, y, "'dot2'") || !present(b, acc, "'dot2'")) return NULL;
    const ir_type pairs = ir_type_of(IR_BF16, acc->type.lanes * 2);
    if (acc->type.elem != IR_F32 || !ir_type_eq(x->type, pairs) || !ir_type_eq(y->type, pairs)) {
        ir_build_fail(b, "'dot2' takes bf16x2n, bf16x2n and f32xn, not %s, %s and %s", ir_type_describe(x->type).text,
                      ir_type_describe(y->type).text, ir_type_describe(acc->type).text);
        return NULL;
    }
    return ir_build_node(b, IR_DOT2, acc->type, x, y, acc);
}

const ir_expr *ir_pack2(ir_builder *b, const ir_expr *even, const ir_expr *odd) {
    if (!present(b, even, "'pack2'") || !present(b, odd, "'pack2'")) return NULL;
    const int lanes = even->type.lanes;
    if (even->type.elem != IR_F32 || !ir_type_eq(even->type, odd->type) || lanes > IR_MAX_LANES / 2) {
        ir_build_fail(b, "'pack2' takes two f32xn, n at most %d, not %s and %s", IR_MAX_LANES / 2,
                      ir_type_describe(even->type).text, ir_type_describe(odd->type).text);
        return NULL;
    }
    return ir_build_node(b, IR_PACK2, ir_type_of(IR_BF16, lanes * 2), even, odd, NULL);
}

const ir_expr *ir_dot4(ir_builder *b, const ir_expr *x, const ir_expr *y, const ir_expr *acc) {
    if (!present(b, x, "'dot4'") || !present(b, y, "'dot4'") || !present(b, acc, "'dot4'")) return NULL;
    const int lanes = acc->type.lanes;
    if (acc->type.elem != IR_I32 || x->type.elem != IR_I8 || x->type.lanes != 4 * lanes ||
        !ir_type_eq(x->type, y->type)) {
        ir_build_fail(b, "'dot4' takes i8x4n, i8x4n and i32xn, not %s, %s and %s", ir_type_describe(x->type).text,
                      ir_type_describe(y->type).text, ir_type_describe(acc->type).text);
        return NULL;
    }
    return ir_build_node(b, IR_DOT4, acc->type, x, y, acc);
}

const ir_expr *ir_lookup(ir_builder *b, const ir_expr *low, const ir_expr *high, const ir_expr *index) {
    if (!present(b, low, "'lookup'") || !present(b, high, "'lookup'") || !present(b, index, "'lookup'")) return NULL;
    if (!ir_type_eq(low->type, high->type) || !ir_is_lookup(low->type, index->type)) {
        ir_build_fail(b,
                      "'lookup' takes i8xn, i8xn and i8xn, n being 16 or more, or f32xn, f32xn and i32xn, n being 4, 8 "
                      "or 16, not %s, %s and %s",
                      ir_type_describe(low->type).text, ir_type_describe(high->type).text,
                      ir_type_describe(index->type).text);
        return NULL;
    }
    return ir_build_node(b, IR_LOOKUP, low->type, low, high, index);
}

/* ---- accesses ---- */

static bool check_index(ir_builder *b, const ir_expr *index, int lanes, bool *gather) {
    if (!present(b, index, "an index")) return false;
    if (index->type.elem == IR_IDX && index->type.lanes == 1) return true;
    *gather = true;
    if (index->type.elem == IR_IDX && index->type.lanes == lanes) return true;
    ir_build_fail(b, "an index must be idx or, to gather, idxx%d, not %s", lanes, ir_type_describe(index->type).text);
    return false;
}

/* The element of a reg buffer may be a vector and is always accessed as a whole. */
static bool check_lanes_of(ir_builder *b, const ir_buffer *buffer, int lanes, int axis, const ir_expr *mask) {
    if (!check_lanes(b, lanes)) return false;
    if ((buffer->space == IR_REG || buffer->space == IR_TILES) && (lanes != buffer->type.lanes || mask)) {
        ir_build_fail(b, "an element of '%s' is %s and is accessed whole and without a mask", buffer->name,
                      ir_type_describe(buffer->type).text);
    } else if (buffer->space != IR_REG && lanes > 1 && buffer->num_dims == 0) {
        ir_build_fail(b, "'%s' is a single element and cannot be accessed as x%d", buffer->name, lanes);
    } else if (axis >= (buffer->num_dims ? buffer->num_dims : 1)) {
        ir_build_fail(b, "'%s' has no dimension %d to run lanes along", buffer->name, axis);
    } else if (mask) {
        return check_type(b, mask, ir_type_of(IR_BOOL, lanes), "a mask");
    }
    return !ir_failed(b);
}

const ir_access *ir_access_make(ir_builder *b, const ir_buffer *buffer, int lanes, int axis, int num,
                                const ir_expr *const *indices, const ir_expr *mask) {
    if (!buffer) ir_build_fail(b, "an access has no buffer");
    if (ir_failed(b)) return NULL;
    if (num != buffer->num_dims) {
        ir_build_fail(b, "'%s' takes %d indices, not %d", buffer->name, buffer->num_dims, num);
        return NULL;
    }
    if (!check_lanes_of(b, buffer, lanes, axis, mask)) return NULL;
    ir_access *access = ir_build_alloc(b, sizeof *access);
    if (!access) return NULL;
    bool gather = false;
    for (int d = 0; d < num; d++) {
        if (!check_index(b, indices[d], lanes, &gather)) return NULL;
        access->indices[d] = indices[d];
    }
    if (gather && (buffer->space == IR_REG || buffer->space == IR_TILES))
        ir_build_fail(b, "'%s' is in registers and cannot be gathered from", buffer->name);
    /* If no lanes run along a dimension, the axis has no meaning. It gets one fixed value, so that equal accesses
     * compare equal. */
    const bool has_axis = axis >= 0 && lanes > 1 && !gather && buffer->space != IR_REG;
    const int last = num ? num - 1 : 0;
    access->buffer = buffer;
    access->lanes = (uint8_t)lanes;
    access->axis = (uint8_t)(has_axis ? axis : last);
    access->mask = mask;
    return ir_failed(b) ? NULL : access;
}

const ir_access *ir_at(ir_builder *b, const ir_buffer *buffer, int lanes, int num, ...) {
    const ir_expr *indices[IR_MAX_DIMS] = {0};
    va_list args;
    va_start(args, num);
    for (int d = 0; d < num && d < IR_MAX_DIMS; d++) indices[d] = va_arg(args, const ir_expr *);
    va_end(args);
    return ir_access_make(b, buffer, lanes, -1, num, indices, NULL);
}

const ir_expr *ir_load(ir_builder *b, const ir_access *access) {
    if (!access) ir_build_fail(b, "a load has no access");
    if (ir_failed(b) || !ir_build_no_tile(b, access)) return NULL;
    uint8_t depth = max_depth(0, access->mask);
    for (int d = 0; d < access->buffer->num_dims; d++) depth = max_depth(depth, access->indices[d]);
    if (!check_depth(b, depth)) return NULL;
    ir_expr *expr = new_leaf(b, IR_LOAD, ir_type_of(access->buffer->type.elem, access->lanes));
    if (!expr) return NULL;
    expr->depth = depth + 1;
    expr->value.access = access;
    return expr;
}
