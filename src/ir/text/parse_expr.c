/* Expressions by precedence climbing. An operand is one of a few forms, told apart by its first token:
 *
 *     2, 2.5:f64, -1     a literal                  fma(x, y, z), cast.f32(x), …     a call
 *     i                  a variable                 k[i, j]:x8 ? m                   a load
 *     (x + y)            an expression */
#include "ir/text/parse_internal.h"

#include <math.h>

static int precedence(ir_op op) {
    switch (op) {
    case IR_MUL:
    case IR_DIV:
    case IR_MOD: return 8;
    case IR_ADD:
    case IR_SUB: return 7;
    case IR_SHL:
    case IR_SHR: return 6;
    case IR_LT:
    case IR_LE:
    case IR_GT:
    case IR_GE: return 5;
    case IR_EQ:
    case IR_NE: return 4;
    case IR_AND: return 3;
    case IR_XOR: return 2;
    default: return 1;
    }
}

/* ---- numbers ---- */

static const ir_expr *parse_int_literal(ir_parser *p, bool negative) {
    const ir_token number = p->token;
    ir_type type = ir_type_of(IR_IDX, 1);
    ir_parse_next(p);
    if (ir_parse_accept(p, ':')) {
        const bool known = p->token.kind == IR_TOKEN_NAME && ir_parse_type_text(p, p->token.start, p->token.end, &type);
        if (!known || type.lanes != 1 || ir_elem_get(type.elem)->class != IR_CLASS_INT) {
            ir_parse_expected(p, "idx, i32 or i64");
            return NULL;
        }
        ir_parse_next(p);
    }
    if (!negative && number.integer > INT64_MAX) {
        ir_parse_fail(p, number.start, "the integer is out of range");
        return NULL;
    }
    const uint64_t bits = negative ? 0 - number.integer : number.integer;
    const ir_expr *expr = ir_int(p->b, type.elem, (int64_t)bits);
    return ir_parse_built(p, number.start) ? expr : NULL;
}

/* f32 unless ":f64" follows. */
static ir_elem parse_float_suffix(ir_parser *p) {
    if (!ir_parse_accept(p, ':')) return IR_F32;
    const int word = p->token.kind == IR_TOKEN_NAME && p->token.symbol ? p->token.symbol->word : IR_WORD_NONE;
    if (word != IR_WORD_ELEM + IR_F32 && word != IR_WORD_ELEM + IR_F64) {
        ir_parse_expected(p, "f32 or f64");
        return IR_F32;
    }
    ir_parse_next(p);
    return (ir_elem)(word - IR_WORD_ELEM);
}

static const ir_expr *parse_float_literal(ir_parser *p, bool negative) {
    const ir_token number = p->token;
    ir_parse_next(p);
    const ir_elem elem = parse_float_suffix(p);
    if (p->failed) return NULL;
    const bool nan = number.kind == IR_TOKEN_NAME && number.symbol->word == IR_WORD_NAN;
    double value = nan ? (double)NAN : (double)INFINITY;
    const char *problem = number.kind == IR_TOKEN_FLOAT ? ir_lex_float(&number, elem, &value) : NULL;
    if (problem) {
        ir_parse_fail(p, number.start, "%s", problem);
        return NULL;
    }
    const ir_expr *expr = ir_build_float(p->b, elem, negative ? -value : value);
    return ir_parse_built(p, number.start) ? expr : NULL;
}

/* A minus sign directly before digits or `inf`. Other negations are calls of neg. */
static const ir_expr *parse_negative(ir_parser *p) {
    const ir_token minus = p->token;
    const char *after = minus.end;
    const bool digits = after < p->lexer.end && *after >= '0' && *after <= '9';
    const bool name = after < p->lexer.end && *after == 'i';
    if (digits || name) ir_parse_next(p);
    if (p->token.kind == IR_TOKEN_INT) return parse_int_literal(p, true);
    const bool inf = name && p->token.kind == IR_TOKEN_NAME && p->token.symbol && p->token.symbol->word == IR_WORD_INF;
    if (p->token.kind == IR_TOKEN_FLOAT || inf) return parse_float_literal(p, true);
    if (!p->failed)
        ir_parse_fail(p, minus.start,
                      "expected an operand, found '-' (negation is neg(…), a negative number has no "
                      "space)");
    return NULL;
}

/* ---- calls ---- */

static int parse_args(ir_parser *p, const ir_expr *args[3], int arity) {
    if (!ir_parse_expect(p, '(')) return 0;
    for (int i = 0; i < arity; i++) {
        if (i && !ir_parse_expect(p, ',')) return 0;
        args[i] = ir_parse_expr(p);
    }
    return !p->failed;
}

static int parse_pick(ir_parser *p, uint8_t pick[IR_MAX_LANES]) {
    if (!ir_parse_expect(p, ',') || !ir_parse_expect(p, '[')) return 0;
    for (int lanes = 0;;) {
        const char *where = p->token.start;
        int64_t value;
        if (!ir_parse_int(p, &value)) return 0;
        if (value > 2 * IR_MAX_LANES || lanes == IR_MAX_LANES) {
            ir_parse_fail(p, where,
                          lanes == IR_MAX_LANES ? "'shuffle' picks more than %d lanes"
                                                : "'shuffle' picks a lane above %d",
                          IR_MAX_LANES);
            return 0;
        }
        pick[lanes++] = (uint8_t)value;
        if (ir_parse_accept(p, ',')) continue;
        return ir_parse_expect(p, ']') ? lanes : 0;
    }
}

static const ir_expr *parse_shuffle(ir_parser *p) {
    const ir_expr *args[3] = {0};
    uint8_t pick[IR_MAX_LANES];
    const int lanes = parse_args(p, args, 2) ? parse_pick(p, pick) : 0;
    if (!lanes || !ir_parse_expect(p, ')')) return NULL;
    return ir_shuffle(p->b, args[0], args[1], lanes, pick);
}

static const ir_expr *parse_call(ir_parser *p, ir_op op) {
    const char *where = p->token.start;
    const ir_expr *args[3] = {0}, *expr;
    ir_parse_next(p);
    if (op == IR_CAST || op == IR_BITCAST || op == IR_SPLAT || op == IR_RAMP) {
        const bool lanes = op == IR_SPLAT || op == IR_RAMP;
        ir_parse_fail(p, where, "'%s' needs %s after a dot, as in %s", ir_op_get(op)->text,
                      lanes ? "its lanes" : "the element", lanes ? "splat.x8(…)" : "cast.f32(…)");
        return NULL;
    }
    if (op == IR_SHUFFLE) {
        expr = parse_shuffle(p);
    } else {
        if (!parse_args(p, args, ir_op_get(op)->arity) || !ir_parse_expect(p, ')')) return NULL;
        expr = op == IR_DOT2     ? ir_dot2(p->b, args[0], args[1], args[2])
               : op == IR_DOT4   ? ir_dot4(p->b, args[0], args[1], args[2])
               : op == IR_LOOKUP ? ir_lookup(p->b, args[0], args[1], args[2])
               : op == IR_PACK2  ? ir_pack2(p->b, args[0], args[1])
                                 : ir_apply(p->b, op, args[0], args[1], args[2]);
    }
    return !p->failed && ir_parse_built(p, where) ? expr : NULL;
}

static const ir_expr *parse_dotted(ir_parser *p) {
    const ir_token token = p->token;
    const bool by_lanes = token.op == IR_SPLAT || token.op == IR_RAMP;
    const int lanes = by_lanes ? ir_parse_lanes_text(token.suffix, token.end) : 1;
    ir_type type = ir_type_of(IR_IDX, 1);
    if (lanes == 0 || (!by_lanes && (!ir_parse_type_text(p, token.suffix, token.end, &type) || type.lanes != 1))) {
        const char *what = by_lanes ? "lanes such as x8" : "an element such as f32";
        const int n = (int)(token.end - token.suffix);
        ir_parse_fail(p, token.suffix, "expected %s, found '%.*s'", what, n, token.suffix);
        return NULL;
    }
    ir_parse_next(p);
    const ir_expr *args[3] = {0}, *expr = NULL;
    if (!parse_args(p, args, ir_op_get(token.op)->arity) || !ir_parse_expect(p, ')')) return NULL;
    switch (token.op) {
    case IR_CAST: expr = ir_cast(p->b, type.elem, args[0]); break;
    case IR_BITCAST: expr = ir_bitcast(p->b, type.elem, args[0]); break;
    case IR_SPLAT: expr = ir_splat(p->b, args[0], lanes); break;
    default: expr = ir_ramp(p->b, args[0], args[1], lanes); break;
    }
    return ir_parse_built(p, token.start) ? expr : NULL;
}

/* ---- names ---- */

/* The visible variable or buffer that the next token names, or NULL after an error message. */
static const ir_symbol *parse_symbol(ir_parser *p) {
    const ir_token *t = &p->token;
    const int n = (int)(t->end - t->start);
    if (!t->symbol || !t->symbol->defined)
        ir_parse_fail(p, t->start, "'%.*s' is not defined", n, t->start);
    else if (!t->symbol->visible)
        ir_parse_fail(p, t->start, "'%.*s' is not visible here: its block has ended", n, t->start);
    return p->failed ? NULL : t->symbol;
}

/* [":" "x" INT ["@" INT]]; lanes 0 if the text leaves them out. */
static void parse_lanes(ir_parser *p, int *lanes, int *axis) {
    *lanes = 0;
    *axis = -1;
    if (!ir_parse_accept(p, ':')) return;
    *lanes = p->token.kind == IR_TOKEN_NAME ? ir_parse_lanes_text(p->token.start, p->token.end) : 0;
    if (*lanes == 0) {
        ir_parse_expected(p, "lanes such as x8");
        return;
    }
    ir_parse_next(p);
    int64_t value;
    if (ir_parse_accept(p, '@') && ir_parse_int(p, &value)) *axis = value < IR_MAX_DIMS ? (int)value : IR_MAX_DIMS;
}

const ir_access *ir_parse_access(ir_parser *p) {
    const char *where = p->token.start;
    const ir_symbol *symbol = p->token.kind == IR_TOKEN_NAME ? parse_symbol(p) : NULL;
    if (!symbol || !symbol->buffer) {
        ir_parse_expected(p, "a buffer");
        return NULL;
    }
    ir_parse_next(p);
    const ir_expr *indices[IR_MAX_DIMS], *mask = NULL;
    int num = 0, lanes, axis;
    if (!ir_parse_expect(p, '[')) return NULL;
    while (p->token.kind != ']' && !p->failed) {
        if (num && !ir_parse_expect(p, ',')) return NULL;
        if (num == IR_MAX_DIMS) return ir_parse_fail(p, p->token.start, "more than %d indices", IR_MAX_DIMS), NULL;
        indices[num++] = ir_parse_expr(p);
    }
    if (!ir_parse_expect(p, ']')) return NULL;
    parse_lanes(p, &lanes, &axis);
    if (ir_parse_accept(p, '?')) {
        if (!ir_parse_expect(p, '(')) return NULL;
        mask = ir_parse_expr(p);
        if (!ir_parse_expect(p, ')')) return NULL;
    }
    if (p->failed) return NULL;
    if (lanes == 0) lanes = symbol->buffer->space == IR_REG ? symbol->buffer->type.lanes : 1;
    const ir_access *access = ir_access_make(p->b, symbol->buffer, lanes, axis, num, indices, mask);
    return ir_parse_built(p, where) ? access : NULL;
}

static const ir_expr *parse_name(ir_parser *p) {
    const ir_token token = p->token;
    const int word = token.symbol ? token.symbol->word : IR_WORD_NONE;
    if (word >= IR_WORD_OP) return parse_call(p, (ir_op)(word - IR_WORD_OP));
    if (word == IR_WORD_INF || word == IR_WORD_NAN) return parse_float_literal(p, false);
    const ir_expr *expr = NULL;
    if (word == IR_WORD_TRUE || word == IR_WORD_FALSE) {
        ir_parse_next(p);
        expr = ir_int(p->b, IR_BOOL, word == IR_WORD_TRUE);
    } else if (word != IR_WORD_NONE) {
        ir_parse_expected(p, "an operand");
    } else {
        const ir_symbol *symbol = parse_symbol(p);
        if (symbol && symbol->buffer) {
            expr = ir_load(p->b, ir_parse_access(p));
        } else if (symbol) {
            ir_parse_next(p);
            expr = ir_var_ref(p->b, symbol->var);
        }
    }
    return !p->failed && ir_parse_built(p, token.start) ? expr : NULL;
}

/* ---- the climb ---- */

static const ir_expr *parse_operand(ir_parser *p) {
    switch (p->token.kind) {
    case IR_TOKEN_NAME: return parse_name(p);
    case IR_TOKEN_DOTTED: return parse_dotted(p);
    case IR_TOKEN_INT: return parse_int_literal(p, false);
    case IR_TOKEN_FLOAT: return parse_float_literal(p, false);
    case IR_TOKEN_OP:
        if (p->token.op == IR_SUB) return parse_negative(p);
        break;
    case '(': {
        ir_parse_next(p);
        const ir_expr *expr = ir_parse_expr(p);
        return ir_parse_expect(p, ')') ? expr : NULL;
    }
    default: break;
    }
    ir_parse_expected(p, "an operand");
    return NULL;
}

static const ir_expr *parse_infix(ir_parser *p, int least) {
    const ir_expr *left = parse_operand(p);
    while (!p->failed && p->token.kind == IR_TOKEN_OP && precedence(p->token.op) >= least) {
        const ir_token token = p->token;
        ir_parse_next(p);
        const ir_expr *right = parse_infix(p, precedence(token.op) + 1);
        if (p->failed) return NULL;
        left = ir_apply(p->b, token.op, left, right, NULL);
        if (!ir_parse_built(p, token.start)) return NULL;
    }
    return p->failed ? NULL : left;
}

const ir_expr *ir_parse_expr(ir_parser *p) {
    if (p->failed) return NULL;
    if (p->depth == IR_MAX_DEPTH) {
        ir_parse_fail(p, p->token.start, "an expression is nested more than %d deep", IR_MAX_DEPTH);
        return NULL;
    }
    p->depth++;
    const ir_expr *expr = parse_infix(p, 1);
    p->depth--;
    return expr;
}
