/* Text to tokens, one at a time: "x = fma(a, 2.5, b)" -> NAME x, '=', NAME fma, '(', NAME a, ',', FLOAT 2.5, … A number
 * stays text until the parser knows its type, so that it is rounded once. */
#include "ir/text/lex.h"

#include "base/plain_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static int hex_digit(char c) {
    if (is_digit(c)) return c - '0';
    const char lower = (char)(c | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

/* The character at p; NUL at the end of the text, which needs no NUL. */
static char at(const ir_lexer *lexer, const char *p) { return p < lexer->end ? *p : '\0'; }

static void skip_space(ir_lexer *lexer) {
    const char *p = lexer->cursor;
    for (; p < lexer->end; p++) {
        if (*p == '#') {
            while (p < lexer->end && *p != '\n') p++;
            if (p == lexer->end) break;
        } else if (*p != ' ' && *p != '\n' && *p != '\t' && *p != '\r') {
            break;
        }
    }
    lexer->cursor = p;
}

/* ---- names ---- */

static bool is_dotted(const ir_symbol *head) {
    if (!head || head->word < IR_WORD_OP) return false;
    const int op = head->word - IR_WORD_OP;
    return op == IR_CAST || op == IR_BITCAST || op == IR_SPLAT || op == IR_RAMP;
}

static void lex_name(const ir_lexer *lexer, ir_token *token) {
    uint32_t hash = IR_HASH_SEED, head_hash = 0;
    const char *const start = lexer->cursor, *p = start, *dot = NULL;
    for (;; p++) {
        const char c = at(lexer, p);
        if (!ir_name_goes_on(c)) {
            if (c != '.' || !ir_name_goes_on(at(lexer, p + 1))) break; /* a dot belongs to a name only inside it */
            if (!dot) {
                dot = p;
                head_hash = hash;
            }
        }
        hash = ir_hash_byte(hash, c);
    }
    token->kind = IR_TOKEN_NAME;
    token->end = p;
    token->symbol = ir_symbols_find(lexer->symbols, start, (size_t)(p - start), hash);
    if (token->symbol || !dot) return;
    const ir_symbol *head = ir_symbols_find(lexer->symbols, start, (size_t)(dot - start), head_hash);
    if (!is_dotted(head)) return;
    token->kind = IR_TOKEN_DOTTED;
    token->op = (ir_op)(head->word - IR_WORD_OP);
    token->suffix = dot + 1;
}

/* ---- numbers ---- */

static const char *skip_digits(const ir_lexer *lexer, const char *p) {
    while (is_digit(at(lexer, p))) p++;
    return p;
}

static const char *skip_hex(const ir_lexer *lexer, const char *p) {
    while (hex_digit(at(lexer, p)) >= 0) p++;
    return p;
}

/* Past an exponent after its letter, or NULL if there are no digits. */
static const char *skip_exponent(const ir_lexer *lexer, const char *p) {
    if (at(lexer, p) == '+' || at(lexer, p) == '-') p++;
    const char *digits = p;
    p = skip_digits(lexer, p);
    return p > digits ? p : NULL;
}

static void set_bad(ir_token *token, const char *end, const char *problem) {
    token->kind = IR_TOKEN_BAD;
    token->end = end;
    token->problem = problem;
}

static void lex_hex(const ir_lexer *lexer, ir_token *token) {
    const char *digits = lexer->cursor + 2, *p = skip_hex(lexer, digits);
    bool any = p > digits;
    if (at(lexer, p) == '.') {
        const char *fraction = p + 1;
        p = skip_hex(lexer, fraction);
        any = any || p > fraction;
    }
    token->kind = IR_TOKEN_FLOAT;
    token->end = any && (at(lexer, p) | 0x20) == 'p' ? skip_exponent(lexer, p + 1) : NULL;
    if (!token->end) set_bad(token, p, "a hexadecimal number is a float and needs digits and an exponent 'p…'");
}

static void lex_decimal(const ir_lexer *lexer, ir_token *token) {
    const char *p = lexer->cursor;
    uint64_t integer = 0;
    bool overflow = false;
    for (; is_digit(at(lexer, p)); p++)
        overflow |= __builtin_mul_overflow(integer, 10u, &integer) ||
                    __builtin_add_overflow(integer, (uint64_t)(*p - '0'), &integer);
    token->kind = IR_TOKEN_INT;
    token->integer = integer;
    if (at(lexer, p) == '.' && is_digit(at(lexer, p + 1))) {
        token->kind = IR_TOKEN_FLOAT;
        p = skip_digits(lexer, p + 1);
    }
    if ((at(lexer, p) | 0x20) == 'e') {
        token->kind = IR_TOKEN_FLOAT;
        const char *end = skip_exponent(lexer, p + 1);
        if (!end) {
            set_bad(token, p + 1, "an exponent needs digits");
            return;
        }
        p = end;
    }
    token->end = p;
    if (token->kind == IR_TOKEN_INT && (overflow || integer > (uint64_t)INT64_MAX + 1))
        set_bad(token, p, "the integer is out of range");
}

static void lex_number(const ir_lexer *lexer, ir_token *token) {
    const char *p = lexer->cursor;
    if (*p == '0' && (at(lexer, p + 1) | 0x20) == 'x')
        lex_hex(lexer, token);
    else
        lex_decimal(lexer, token);
    if (token->kind != IR_TOKEN_BAD && ir_name_goes_on(at(lexer, token->end)))
        set_bad(token, token->end + 1, "a number runs into a name");
}

/* Hexadecimal literals have a parser of their own: a lowered kernel has thousands, and each must be exact. */
static const char *hex_value(const ir_token *token, double *value) {
    uint64_t mantissa = 0;
    int64_t exponent = 0;
    bool fraction = false;
    const char *p = token->start + 2;
    for (; (*p | 0x20) != 'p'; p++) {
        if (*p == '.') {
            fraction = true;
            continue;
        }
        if (mantissa >> 60) return "the literal has too many digits";
        mantissa = mantissa << 4 | (uint64_t)hex_digit(*p);
        if (fraction) exponent -= 4;
    }
    const bool negative = *++p == '-';
    if (*p == '-' || *p == '+') p++;
    int64_t written = 0;
    for (; p < token->end; p++)
        if (written < 1000000) written = written * 10 + (*p - '0');
    exponent += negative ? -written : written;
    *value = 0;
    if (mantissa == 0) return NULL;
    const int zeros = __builtin_ctzll(mantissa);
    mantissa >>= zeros;
    exponent += zeros;
    if (exponent > 1100 || exponent < -1100) return "the literal is out of range";
    *value = ldexp((double)mantissa, (int)exponent);
    if (isinf(*value)) return "the literal is out of range";
    if (mantissa >> 53 || ldexp(*value, (int)-exponent) != (double)mantissa) return "the literal is not exact in f64";
    return NULL;
}

/* Decimal: the C library's conversion. */
static const char *decimal_value(const ir_token *token, ir_elem elem, double *value) {
    char copy[128];
    const size_t length = (size_t)(token->end - token->start);
    bool zero = true, in_exponent = false;
    if (length >= sizeof copy) return "the literal has too many digits";
    for (const char *p = token->start; p < token->end; p++) {
        in_exponent |= (*p | 0x20) == 'e';
        zero &= in_exponent || *p == '0' || *p == '.';
    }
    memcpy(copy, token->start, length);
    copy[length] = '\0';
    *value = elem == IR_F32 ? (double)at_read_float(copy, NULL) : at_read_double(copy, NULL);
    return isinf(*value) || (*value == 0 && !zero) ? "the literal is out of range" : NULL;
}

const char *ir_lex_float(const ir_token *token, ir_elem elem, double *value) {
    const bool hex = token->end - token->start > 2 && (token->start[1] | 0x20) == 'x';
    if (!hex) return decimal_value(token, elem, value);
    const char *problem = hex_value(token, value);
    if (problem || elem != IR_F32) return problem;
    const float single = (float)*value;
    if (isinf(single)) return "the literal is out of range";
    return (double)single == *value ? NULL : "the literal is not exact in f32";
}

/* ---- operators and punctuation ---- */

static void set_op(ir_token *token, int length, ir_op op) {
    token->kind = IR_TOKEN_OP;
    token->op = op;
    token->end = token->start + length;
}

/* '<' and '>' stand alone, doubled or before '='. */
static void lex_order(ir_token *token, char next, ir_op alone, ir_op doubled, ir_op or_equal) {
    if (next == *token->start)
        set_op(token, 2, doubled);
    else if (next == '=')
        set_op(token, 2, or_equal);
    else
        set_op(token, 1, alone);
}

static void lex_sign(const ir_lexer *lexer, ir_token *token) {
    const char *p = lexer->cursor;
    const char next = at(lexer, p + 1);
    switch (*p) {
    case '(':
    case ')':
    case '{':
    case '}':
    case '[':
    case ']':
    case ',':
    case ':':
    case '@':
    case '?':
        token->kind = *p;
        token->end = p + 1;
        return;
    case '=':
        if (next == '=') {
            set_op(token, 2, IR_EQ);
            return;
        }
        token->kind = '=';
        token->end = p + 1;
        return;
    case '.':
        token->kind = IR_TOKEN_DOTDOT;
        token->end = p + 2;
        if (next != '.') set_bad(token, p + 1, "'.' is only part of '..', names and numbers");
        return;
    case '!':
        set_op(token, 2, IR_NE);
        if (next != '=') set_bad(token, p + 1, "'!' is only part of '!='");
        return;
    case '<': lex_order(token, next, IR_LT, IR_SHL, IR_LE); return;
    case '>': lex_order(token, next, IR_GT, IR_SHR, IR_GE); return;
    case '+': set_op(token, 1, IR_ADD); return;
    case '-': set_op(token, 1, IR_SUB); return;
    case '*': set_op(token, 1, IR_MUL); return;
    case '/': set_op(token, 1, IR_DIV); return;
    case '%': set_op(token, 1, IR_MOD); return;
    case '&': set_op(token, 1, IR_AND); return;
    case '|': set_op(token, 1, IR_OR); return;
    case '^': set_op(token, 1, IR_XOR); return;
    default: set_bad(token, p + 1, "a character that means nothing here"); return;
    }
}

void ir_lex(ir_lexer *lexer, ir_token *token) {
    skip_space(lexer);
    const char c = at(lexer, lexer->cursor);
    token->start = lexer->cursor;
    token->symbol = NULL;
    if (lexer->cursor == lexer->end) {
        token->kind = IR_TOKEN_END;
        token->end = lexer->end;
    } else if (ir_name_starts(c)) {
        lex_name(lexer, token);
    } else if (is_digit(c)) {
        lex_number(lexer, token);
    } else {
        lex_sign(lexer, token);
    }
    lexer->cursor = token->end;
}
