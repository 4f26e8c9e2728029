/* The verifier's half about expressions and accesses: types of operands, operators that the level allows, divisors that
 * are not 0, and indices within their dims (by the prover of bounds.h). */
#include "ir/verify/verify_internal.h"

#include "base/plain_text.h"
#include "ir/text.h"

#include <stdarg.h>
#include <stdio.h>

/* ---- Messages ---- */

bool ir_refuse(ir_verifier *v, const char *format, ...) {
    char message[ATTUNE_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    at_vprint(message, sizeof message, format, args);
    va_end(args);
    at_fail(v->err, ATTUNE_INVALID_IR, "kernel '%.60s': %s", v->kernel->name, message);
    return false;
}

ir_short_text ir_expr_text(const ir_verifier *v, const ir_expr *e) {
    ir_short_text out;
    at_string text;
    at_string_init(&text, v->kernel->arena->allocator);
    ir_print_expr(e, &text);
    const bool fits = text.length < sizeof out.text;
    snprintf(out.text, sizeof out.text, "%.*s%s", (int)(fits ? text.length : sizeof out.text - 4),
             text.failed || !text.data ? "?" : text.data, fits ? "" : "...");
    at_string_free(&text);
    return out;
}

/* For messages: an access prints as a load of it. */
ir_short_text ir_access_text(const ir_verifier *v, const ir_access *access) {
    ir_expr load = {.op = IR_LOAD, .type = ir_type_of(access->buffer->type.elem, access->lanes)};
    load.value.access = access;
    return ir_expr_text(v, &load);
}

/* ---- Expressions ---- */

bool ir_verify_lanes(int lanes) { return lanes >= 1 && lanes <= IR_MAX_LANES && (lanes & (lanes - 1)) == 0; }

static bool is_gather(const ir_access *access) {
    for (int d = 0; d < access->buffer->num_dims; d++)
        if (access->indices[d]->type.lanes > 1) return true;
    return false;
}

static bool check_index(ir_verifier *v, const ir_access *access, const ir_expr *index) {
    if (index->type.elem != IR_IDX)
        return ir_refuse(v, "%s: the index %s is not of type idx", ir_access_text(v, access).text,
                         ir_expr_text(v, index).text);
    if (index->type.lanes != 1 && index->type.lanes != access->lanes)
        return ir_refuse(v, "%s: an index has %d lanes, the access %d", ir_access_text(v, access).text,
                         index->type.lanes, access->lanes);
    return true;
}

/* Checks the expressions of an access first, as messages print it. */
static bool check_access_parts(ir_verifier *v, const ir_access *access, int depth) {
    const ir_buffer *buffer = access->buffer;
    if (!buffer || buffer->id >= v->kernel->num_buffers || v->buffers[buffer->id] != buffer)
        return ir_refuse(v, "buffer '%.60s' is used outside of its scope", buffer ? buffer->name : "?");
    if (!ir_verify_lanes(access->lanes))
        return ir_refuse(v, "an access to '%s' has %d lanes", buffer->name, access->lanes);
    for (int d = 0; d < buffer->num_dims; d++) {
        if (!access->indices[d]) return ir_refuse(v, "an access to '%s' lacks an index", buffer->name);
        if (!ir_verify_expr(v, access->indices[d], depth)) return false;
    }
    return !access->mask || ir_verify_expr(v, access->mask, depth);
}

static bool check_reg_access(ir_verifier *v, const ir_access *access) {
    const ir_buffer *buffer = access->buffer;
    if (access->lanes != buffer->type.lanes || access->mask || is_gather(access))
        return ir_refuse(v,
                         "%s: '%s' is in registers, so it is read and written in whole elements of %d lanes, unmasked",
                         ir_access_text(v, access).text, buffer->name, buffer->type.lanes);
    for (int d = 0; d < buffer->num_dims && v->level == IR_LOWERED; d++)
        if (access->indices[d]->op != IR_CONST)
            return ir_refuse(v, "%s: an index into registers must be a constant in lowered IR",
                             ir_access_text(v, access).text);
    return true;
}

static bool check_bounds(ir_verifier *v, const ir_access *access) {
    int dim = 0;
    const ir_bounds_verdict verdict = ir_bounds_access(v->bounds, access, &dim);
    if (verdict == IR_BOUNDS_OK) return true;
    const ir_buffer *buffer = access->buffer;
    const bool spread = buffer->space != IR_REG && dim == access->axis && access->lanes > 1 && !is_gather(access);
    const ir_short_text index = ir_expr_text(v, access->indices[dim]), size = ir_expr_text(v, buffer->dims[dim]);
    if (verdict == IR_BOUNDS_BELOW)
        return ir_refuse(v, "%s: cannot prove 0 <= %s (dimension %d)", ir_access_text(v, access).text, index.text, dim);
    char reach[16] = "";
    if (spread) snprintf(reach, sizeof reach, " + %d", access->lanes - 1);
    return ir_refuse(v, "%s: cannot prove %s%s <= %s - 1 (dimension %d)", ir_access_text(v, access).text, index.text,
                     reach, size.text, dim);
}

bool ir_verify_access(ir_verifier *v, const ir_access *access, int use, int depth) {
    if (!check_access_parts(v, access, depth)) return false;
    const ir_buffer *buffer = access->buffer;
    for (int d = 0; d < buffer->num_dims; d++)
        if (!check_index(v, access, access->indices[d])) return false;
    if (buffer->space == IR_PARAM && use && !(buffer->access & use))
        return ir_refuse(v, "%s: '%s' is only %s", ir_access_text(v, access).text, buffer->name,
                         use == IR_IN ? "written (out), so it cannot be read" : "read (in), so it cannot be written");
    if (access->mask && !ir_type_eq(access->mask->type, ir_type_of(IR_BOOL, access->lanes)))
        return ir_refuse(v, "%s: the mask is not bool of %d lanes", ir_access_text(v, access).text, access->lanes);
    if (buffer->space == IR_REG) return check_reg_access(v, access);
    const bool gather = is_gather(access);
    if (gather && use == IR_OUT) return ir_refuse(v, "%s: stores cannot scatter", ir_access_text(v, access).text);
    if (!gather && access->lanes > 1 && access->axis >= buffer->num_dims)
        return ir_refuse(v, "an access to '%s' runs along dimension %d of %d", buffer->name, access->axis,
                         buffer->num_dims);
    return true;
}

/* Loads and stores. */
bool ir_verify_used_access(ir_verifier *v, const ir_access *access, int use, int depth) {
    return ir_verify_access(v, access, use, depth) && check_bounds(v, access);
}

static bool wrong_type(ir_verifier *v, const ir_expr *e) {
    return ir_refuse(v, "%s: wrong type of an operand or of the result", ir_expr_text(v, e).text);
}

static bool check_const(ir_verifier *v, const ir_expr *e) {
    const int class = ir_elem_get(e->type.elem)->class;
    if (class == IR_CLASS_STORAGE || e->type.lanes != 1) return wrong_type(v, e);
    if (e->type.elem == IR_BOOL && (e->value.i & ~(int64_t)1))
        return ir_refuse(v, "a bool constant is neither 0 nor 1");
    if (e->type.elem == IR_I32 && e->value.i != (int32_t)e->value.i)
        return ir_refuse(v, "the constant %lld does not fit i32", (long long)e->value.i);
    if (e->type.elem == IR_F32 && e->value.f == e->value.f && (double)(float)e->value.f != e->value.f)
        return ir_refuse(v, "the constant %a does not fit f32", e->value.f);
    return true;
}

static bool check_var(ir_verifier *v, const ir_expr *e) {
    const ir_var *var = e->value.var;
    if (!var || var->id >= v->kernel->num_vars || v->vars[var->id] != var)
        return ir_refuse(v, "variable '%.60s' is used outside of its scope", var ? var->name : "?");
    return ir_type_eq(e->type, var->type) || wrong_type(v, e);
}

static bool check_load(ir_verifier *v, const ir_expr *e, int depth) {
    const ir_access *access = e->value.access;
    return ir_verify_used_access(v, access, IR_IN, depth) &&
           (access->buffer->space != IR_TILES ||
            ir_refuse(v, "%s is a tile and cannot be loaded", ir_access_text(v, access).text)) &&
           (ir_type_eq(e->type, ir_type_of(access->buffer->type.elem, access->lanes)) || wrong_type(v, e));
}

static bool check_shuffle(ir_verifier *v, const ir_expr *e) {
    const ir_type type = e->args[0]->type;
    if (!ir_type_eq(type, e->args[1]->type) || e->type.elem != type.elem || !e->value.pick) return wrong_type(v, e);
    for (int l = 0; l < e->type.lanes; l++)
        if (e->value.pick[l] >= 2 * type.lanes)
            return ir_refuse(v, "%s: pick %d is beyond the %d lanes of the operands", ir_expr_text(v, e).text,
                             e->value.pick[l], 2 * type.lanes);
    return true;
}

static bool are_parts(ir_type parts, ir_type words) {
    if (words.elem == IR_F16) return parts.elem == IR_I8;
    return (parts.elem == IR_BF16 || parts.elem == IR_F8 || parts.elem == IR_I8) && words.elem == IR_I32;
}

/* Checks the types of the SPECIAL operators. */
static bool check_special(ir_verifier *v, const ir_expr *e) {
    const ir_type type = e->type, x = e->args[0]->type;
    bool ok = false;
    switch (e->op) {
    case IR_SELECT:
        ok = ir_type_eq(x, ir_type_of(IR_BOOL, type.lanes)) && ir_type_eq(e->args[1]->type, type) &&
             ir_type_eq(e->args[2]->type, type);
        break;
    case IR_CAST: ok = x.lanes == type.lanes; break;
    case IR_BITCAST:
        ok = x.lanes * ir_elem_get(x.elem)->bytes == type.lanes * ir_elem_get(type.elem)->bytes &&
             (x.lanes == type.lanes ? x.elem != IR_BOOL && type.elem != IR_BOOL
                                    : are_parts(x, type) || are_parts(type, x));
        break;
    case IR_SPLAT: ok = x.lanes == 1 && x.elem == type.elem && type.lanes > 1; break;
    case IR_RAMP:
        ok = ir_elem_get(x.elem)->class == IR_CLASS_INT && x.lanes == 1 && ir_type_eq(x, e->args[1]->type) &&
             x.elem == type.elem && type.lanes > 1;
        break;
    case IR_SHUFFLE: return check_shuffle(v, e);
    case IR_DOT2:
        ok = type.elem == IR_F32 && ir_type_eq(e->args[2]->type, type) && x.elem == IR_BF16 &&
             x.lanes == 2 * type.lanes && ir_type_eq(x, e->args[1]->type);
        break;
    case IR_PACK2:
        ok = type.elem == IR_BF16 && x.elem == IR_F32 && type.lanes == 2 * x.lanes && ir_type_eq(x, e->args[1]->type);
        break;
    case IR_DOT4:
        ok = type.elem == IR_I32 && ir_type_eq(e->args[2]->type, type) && x.elem == IR_I8 &&
             x.lanes == 4 * type.lanes && ir_type_eq(x, e->args[1]->type);
        break;
    case IR_LOOKUP:
        ok = ir_type_eq(x, type) && ir_type_eq(e->args[1]->type, type) && ir_is_lookup(type, e->args[2]->type);
        break;
    default: break;
    }
    return ok || wrong_type(v, e);
}

static bool check_uniform(ir_verifier *v, const ir_expr *e, const ir_op_info *info) {
    const ir_type type = e->args[0]->type;
    for (int i = 1; i < info->arity; i++)
        if (!ir_type_eq(e->args[i]->type, type)) return wrong_type(v, e);
    if (!(ir_elem_get(type.elem)->class & info->accepts))
        return ir_refuse(v, "%s: '%s' does not work on %s", ir_expr_text(v, e).text, info->text,
                         ir_elem_get(type.elem)->name);
    const ir_type result = info->result == IR_RESULT_CMP ? ir_type_of(IR_BOOL, type.lanes) : type;
    if (!ir_type_eq(e->type, result)) return wrong_type(v, e);
    if ((e->op == IR_DIV || e->op == IR_MOD) && ir_elem_get(type.elem)->class == IR_CLASS_INT &&
        !ir_bounds_nonzero(v->bounds, e->args[1]))
        return ir_refuse(v, "%s: cannot prove that the divisor %s is not zero", ir_expr_text(v, e).text,
                         ir_expr_text(v, e->args[1]).text);
    return true;
}

/* Whether lowered IR may hold the operator. */
static bool check_lowered_op(ir_verifier *v, const ir_expr *e, unsigned traits) {
    static const struct {
        unsigned trait, flag;
        const char *what;
    } needs[] = {
        {IR_TRAIT_NEEDS_FMA, AT_TARGET_FMA, "fused multiply-add"},
        {IR_TRAIT_NEEDS_ROUND, AT_TARGET_ROUND, "rounding to an integer"},
        {IR_TRAIT_NEEDS_SCALEF, AT_TARGET_SCALEF, "scaling by a power of two"},
        {IR_TRAIT_NEEDS_DOT2, AT_TARGET_BF16_DOT, "bf16 dot products"},
        {IR_TRAIT_NEEDS_LOOKUP, AT_TARGET_LOOKUP, "tables of bytes"},
    };
    if (traits & IR_TRAIT_HIGH)
        return ir_refuse(v, "%s: '%s' must not be left in lowered IR", ir_expr_text(v, e).text, ir_op_get(e->op)->text);
    for (size_t i = 0; i < sizeof needs / sizeof needs[0]; i++)
        if ((traits & needs[i].trait) && !(v->target->flags & needs[i].flag))
            return ir_refuse(v, "%s: target %s has no instruction for %s", ir_expr_text(v, e).text, v->target->name,
                             needs[i].what);
    return true;
}

/* Checks an expression after its operands. Never inlined: error texts would take some 1 KB of stack in each level of
 * the recursion. */
__attribute__((noinline)) static bool check_node(ir_verifier *v, const ir_expr *e, const ir_op_info *info, int depth) {
    if (info->traits && v->level == IR_LOWERED && !check_lowered_op(v, e, info->traits)) return false;
    switch (e->op) {
    case IR_CONST: return check_const(v, e);
    case IR_VAR: return check_var(v, e);
    case IR_LOAD: return check_load(v, e, depth + 1);
    default: return info->result == IR_RESULT_SPECIAL ? check_special(v, e) : check_uniform(v, e, info);
    }
}

bool ir_verify_expr(ir_verifier *v, const ir_expr *e, int depth) {
    if (!e) return ir_refuse(v, "an expression is missing");
    if (depth > IR_MAX_DEPTH) return ir_refuse(v, "an expression is nested deeper than %d", IR_MAX_DEPTH);
    if (e->op >= IR_OP_COUNT || e->type.elem >= IR_ELEM_COUNT || !ir_verify_lanes(e->type.lanes))
        return ir_refuse(v, "an expression has operator %u, element %u and %u lanes, which is not all valid", e->op,
                         e->type.elem, e->type.lanes);
    const ir_op_info *info = ir_op_get(e->op);
    for (int i = 0; i < info->arity; i++)
        if (!ir_verify_expr(v, e->args[i], depth + 1)) return false;
    return check_node(v, e, info, depth);
}
