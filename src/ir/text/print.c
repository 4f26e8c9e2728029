/* Prints the text form, in which kernels go to the code generator. It does not use printf, because a lowered kernel has
 * some hundred kilobytes. Every infix operator that is an operand of another one gets parentheses, so printing needs no
 * precedences. */
#include "ir/text.h"

#include <math.h>
#include <string.h>

static void put(at_string *out, const char *text) { at_string_append(out, text, strlen(text)); }
static void put_char(at_string *out, char c) { at_string_append(out, &c, 1); }

static void put_uint(at_string *out, uint64_t value) {
    char digits[20];
    size_t n = sizeof digits;
    do digits[--n] = (char)('0' + value % 10);
    while (value /= 10);
    at_string_append(out, digits + n, sizeof digits - n);
}

static void put_int(at_string *out, int64_t value) {
    if (value < 0) put_char(out, '-');
    put_uint(out, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

/* Hexadecimal, normalised, as C's %a, but independent of the locale; exact for every double. */
static void put_float(at_string *out, double value) {
    if (isnan(value)) {
        put(out, "nan");
        return;
    }
    if (signbit(value)) put_char(out, '-');
    if (isinf(value)) {
        put(out, "inf");
        return;
    }
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint64_t fraction = bits << 12;
    int exponent = (int)(bits >> 52 & 0x7ff) - 1023;
    const bool normal = exponent != -1023;
    if (!normal && fraction) { /* denormal: shift the leading one out of the fraction */
        const int shift = __builtin_clzll(fraction) + 1;
        fraction = shift == 64 ? 0 : fraction << shift;
        exponent = -1022 - shift;
    } else if (!normal) {
        put(out, "0x0p+0");
        return;
    }
    put(out, fraction ? "0x1." : "0x1");
    for (; fraction; fraction <<= 4) put_char(out, "0123456789abcdef"[fraction >> 60]);
    put_char(out, 'p');
    if (exponent >= 0) put_char(out, '+');
    put_int(out, exponent);
}

static void put_elem(at_string *out, int elem) { put(out, ir_elem_get((ir_elem)elem)->name); }

static void put_lanes(at_string *out, int lanes) {
    put_char(out, 'x');
    put_uint(out, (uint64_t)lanes);
}

/* ---- expressions ---- */

static void print_operand(const ir_expr *expr, at_string *out);

static void print_const(const ir_expr *expr, at_string *out) {
    switch ((ir_elem)expr->type.elem) {
    case IR_BOOL: put(out, expr->value.i ? "true" : "false"); break;
    case IR_F32: put_float(out, expr->value.f); break;
    case IR_IDX: put_int(out, expr->value.i); break;
    case IR_F64:
        put_float(out, expr->value.f);
        put(out, ":f64");
        break;
    default:
        put_int(out, expr->value.i);
        put_char(out, ':');
        put_elem(out, expr->type.elem);
    }
}

static void print_list(const ir_expr *const *exprs, int n, at_string *out) {
    for (int i = 0; i < n; i++) {
        if (i) put(out, ", ");
        ir_print_expr(exprs[i], out);
    }
}

static bool is_gather(const ir_access *access) {
    for (int d = 0; d < access->buffer->num_dims; d++)
        if (access->indices[d]->type.lanes > 1) return true;
    return false;
}

static void print_access(const ir_access *access, at_string *out) {
    const ir_buffer *buffer = access->buffer;
    put(out, buffer->name);
    put_char(out, '[');
    print_list(access->indices, buffer->num_dims, out);
    put_char(out, ']');
    if (access->lanes > 1 && buffer->space != IR_REG) {
        put_char(out, ':');
        put_lanes(out, access->lanes);
        if (access->axis + 1 != buffer->num_dims && !is_gather(access)) {
            put(out, " @");
            put_uint(out, access->axis);
        }
    }
    if (access->mask) {
        put(out, " ? (");
        ir_print_expr(access->mask, out);
        put_char(out, ')');
    }
}

static void print_pick(const ir_expr *expr, at_string *out) {
    put(out, ", [");
    for (int l = 0; l < expr->type.lanes; l++) {
        if (l) put(out, ", ");
        put_uint(out, expr->value.pick[l]);
    }
    put_char(out, ']');
}

static void print_call(const ir_expr *expr, const ir_op_info *info, at_string *out) {
    put(out, info->text);
    if (expr->op == IR_CAST || expr->op == IR_BITCAST) {
        put_char(out, '.');
        put_elem(out, expr->type.elem);
    } else if (expr->op == IR_SPLAT || expr->op == IR_RAMP) {
        put_char(out, '.');
        put_lanes(out, expr->type.lanes);
    }
    put_char(out, '(');
    print_list(expr->args, info->arity, out);
    if (expr->op == IR_SHUFFLE) print_pick(expr, out);
    put_char(out, ')');
}

void ir_print_expr(const ir_expr *expr, at_string *out) {
    const ir_op_info *info = ir_op_get(expr->op);
    if (expr->op == IR_CONST) {
        print_const(expr, out);
    } else if (expr->op == IR_VAR) {
        put(out, expr->value.var->name);
    } else if (expr->op == IR_LOAD) {
        print_access(expr->value.access, out);
    } else if (info->traits & IR_TRAIT_INFIX) {
        print_operand(expr->args[0], out);
        put_char(out, ' ');
        put(out, info->text);
        put_char(out, ' ');
        print_operand(expr->args[1], out);
    } else {
        print_call(expr, info, out);
    }
}

static void print_operand(const ir_expr *expr, at_string *out) {
    const bool infix = ir_op_get(expr->op)->traits & IR_TRAIT_INFIX;
    if (infix) put_char(out, '(');
    ir_print_expr(expr, out);
    if (infix) put_char(out, ')');
}

/* ---- statements ---- */

static void print_block(const ir_block *block, int indent, at_string *out);

static void put_indent(at_string *out, int indent) {
    for (int i = 0; i < indent; i++) put(out, "  ");
}

static void print_dims(const ir_buffer *buffer, const ir_expr *const *dims, at_string *out) {
    put_char(out, '[');
    print_list(dims, buffer->num_dims, out);
    put_char(out, ']');
}

static void print_alloc(const ir_buffer *buffer, at_string *out) {
    static const char *const words[] = {
        [IR_SHARED] = " shared", [IR_SCRATCH] = " scratch", [IR_REG] = " reg", [IR_TILES] = " tiles"};
    put(out, "alloc ");
    put(out, buffer->name);
    put(out, ": ");
    put_elem(out, buffer->type.elem);
    if (buffer->type.lanes > 1) put_lanes(out, buffer->type.lanes);
    print_dims(buffer, buffer->dims, out);
    put(out, words[buffer->space]);
}

static void print_for(const ir_stmt *stmt, int indent, at_string *out) {
    put(out, "for ");
    put(out, stmt->u.loop.var->name);
    put(out, " in ");
    ir_print_expr(stmt->u.loop.lo, out);
    put(out, "..");
    ir_print_expr(stmt->u.loop.hi, out);
    if (stmt->u.loop.step != 1) {
        put(out, " by ");
        put_int(out, stmt->u.loop.step);
    }
    put(out, stmt->u.loop.unroll ? " unroll {\n" : " {\n");
    print_block(&stmt->u.loop.body, indent, out);
}

static void print_if(const ir_stmt *stmt, int indent, at_string *out) {
    put(out, "if ");
    ir_print_expr(stmt->u.branch.condition, out);
    put(out, " {\n");
    print_block(&stmt->u.branch.then, indent, out);
    if (!stmt->u.branch.otherwise.first) return;
    put(out, " else {\n");
    print_block(&stmt->u.branch.otherwise, indent, out);
}

static void print_stmt(const ir_stmt *stmt, int indent, at_string *out) {
    switch (stmt->kind) {
    case IR_FOR: print_for(stmt, indent, out); break;
    case IR_IF: print_if(stmt, indent, out); break;
    case IR_ALLOC: print_alloc(stmt->u.alloc, out); break;
    case IR_LET:
        put(out, "let ");
        put(out, stmt->u.let.var->name);
        if (stmt->u.let.lo) {
            put(out, " in ");
            ir_print_expr(stmt->u.let.lo, out);
            put(out, "..");
            ir_print_expr(stmt->u.let.hi, out);
        }
        put(out, " = ");
        ir_print_expr(stmt->u.let.value, out);
        break;
    case IR_STORE:
        print_access(stmt->u.store.access, out);
        put(out, " = ");
        ir_print_expr(stmt->u.store.value, out);
        break;
    case IR_PREFETCH:
        put(out, stmt->u.store.is_far ? "prefetch.far " : "prefetch ");
        print_access(stmt->u.store.access, out);
        break;
    case IR_ASSUME:
        put(out, "assume ");
        ir_print_expr(stmt->u.assume, out);
        break;
    case IR_TILE:
        put(out, ir_tile_get(stmt->u.tile.op)->text);
        for (int i = 0; i < ir_tile_get(stmt->u.tile.op)->num_args; i++) {
            put(out, i ? ", " : " ");
            print_access(stmt->u.tile.args[i], out);
        }
        break;
    }
}

/* The statements, indented one step more than `indent`, and the closing brace. */
static void print_block(const ir_block *block, int indent, at_string *out) {
    for (const ir_stmt *stmt = block->first; stmt; stmt = stmt->next) {
        put_indent(out, indent + 1);
        print_stmt(stmt, indent + 1, out);
        put_char(out, '\n');
    }
    put_indent(out, indent);
    put_char(out, '}');
}

/* ---- kernels ---- */

static void print_param(const ir_param *param, at_string *out) {
    static const char *const access[] = {[IR_IN] = " in", [IR_OUT] = " out", [IR_IN | IR_OUT] = " inout"};
    const ir_buffer *buffer = param->buffer;
    put(out, buffer ? buffer->name : param->var->name);
    put(out, ": ");
    put_elem(out, buffer ? buffer->type.elem : param->var->type.elem);
    if (!buffer) return;
    print_dims(buffer, buffer->dims, out);
    if (buffer->num_dims && buffer->strides[0]) {
        put(out, " strides ");
        print_dims(buffer, buffer->strides, out);
    }
    put(out, access[buffer->access]);
}

static void print_phase(const ir_phase *phase, at_string *out) {
    put(out, "  parallel for ");
    for (int i = 0; i < phase->num_loops; i++) {
        if (i) put(out, ", ");
        put(out, phase->loops[i].var->name);
        put(out, " in 0..");
        ir_print_expr(phase->loops[i].hi, out);
    }
    put(out, " {\n");
    print_block(&phase->body, 1, out);
    put_char(out, '\n');
}

void ir_print_params(const ir_kernel *kernel, at_string *out) {
    const bool long_list = kernel->num_params > 4;
    for (uint32_t i = 0; i < kernel->num_params; i++) {
        if (i) put(out, long_list ? "," : ", ");
        if (long_list) put(out, "\n    ");
        print_param(&kernel->params[i], out);
    }
}

void ir_print(const ir_kernel *kernel, at_string *out) {
    put(out, "kernel @");
    put(out, kernel->name);
    put(out, " (");
    ir_print_params(kernel, out);
    put(out, ") {\n");
    for (uint32_t i = 0; i < kernel->num_assumes; i++) {
        put(out, "  assume ");
        ir_print_expr(kernel->assumes[i], out);
        put_char(out, '\n');
    }
    for (uint32_t i = 0; i < kernel->num_shared; i++) {
        put(out, "  ");
        print_alloc(kernel->shared[i], out);
        put_char(out, '\n');
    }
    for (const ir_phase *phase = kernel->phases; phase; phase = phase->next) print_phase(phase, out);
    put(out, "}\n");
}
