/* The tokens of a function. */
#define _GNU_SOURCE
#include "expr/expr_parse.h"

#include "base/plain_text.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DIGITS = 63 };

int ex_fail(ex_parser *p, int column, const char *format, ...) {
    char message[400];
    va_list args;
    if (p->status) return -1;
    va_start(args, format);
    at_vprint(message, sizeof message, format, args);
    va_end(args);
    p->status = at_fail(p->err, ATTUNE_INVALID_PROBLEM, "%s, column %d: %s", p->name, column, message);
    return -1;
}

bool ex_token_is(const ex_token *token, const char *text) {
    return token->length > 0 && (size_t)token->length == strlen(text) &&
           !memcmp(token->text, text, (size_t)token->length);
}

/* <ctype.h> would depend on the caller's locale. */
static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

/* Digits, perhaps with a point and an exponent. */
static int number_length(const char *text, bool *is_real) {
    int n = 0;
    *is_real = false;
    while (is_digit(text[n])) n++;
    if (text[n] == '.') {
        *is_real = true;
        for (n++; is_digit(text[n]);) n++;
    }
    if (text[n] == 'e' || text[n] == 'E') {
        const int sign = text[n + 1] == '+' || text[n + 1] == '-';
        if (!is_digit(text[n + 1 + sign])) return n;
        *is_real = true;
        for (n += 1 + sign; is_digit(text[n]);) n++;
    }
    return n;
}

static void take_number(ex_parser *p, ex_token *t) {
    char digits[MOST_DIGITS + 1];
    bool is_real;
    t->length = number_length(t->text, &is_real);
    t->kind = EX_BAD;
    if (t->length > MOST_DIGITS) {
        ex_fail(p, t->column, "a number of %d characters is too long", t->length);
        return;
    }
    memcpy(digits, t->text, (size_t)t->length);
    digits[t->length] = '\0';
    t->kind = is_real ? EX_REAL : EX_INTEGER;
    if (is_real) t->value.f = at_read_double(digits, NULL);
    if (is_real && !isfinite(t->value.f)) ex_fail(p, t->column, "%s is too large for a number", digits);
    if (is_real) return;
    errno = 0;
    t->value.i = strtoll(digits, NULL, 10);
    if (errno) ex_fail(p, t->column, "%s does not fit an integer of 64 bits", digits);
}

static void take_sign(ex_parser *p, ex_token *t) {
    static const char *const twos[] = {"//", "==", "!=", "<=", ">=", "&&", "||", "<<", ">>", "**"};
    t->kind = EX_SIGN;
    t->length = 1;
    for (size_t i = 0; i < sizeof twos / sizeof *twos; i++)
        if (!strncmp(t->text, twos[i], 2)) t->length = 2;
    if (t->length == 2 || strchr("+-*/%<>&|^!~()[],", *t->text)) return;
    t->kind = EX_BAD;
    if (*t->text >= ' ' && *t->text < 127)
        ex_fail(p, t->column, "'%c' has no meaning here", *t->text);
    else
        ex_fail(p, t->column, "the byte %d has no meaning here", (unsigned char)*t->text);
}

void ex_next(ex_parser *p) {
    ex_token *t = &p->token;
    const char *at = t->text + t->length;
    while (*at == ' ' || *at == '\t' || *at == '\r' || *at == '\n') at++;
    *t = (ex_token){.kind = EX_END, .text = at, .column = (int)(at - p->text) + 1};
    if (p->status || !*at) return;
    if (is_digit(*at) || (*at == '.' && is_digit(at[1]))) {
        take_number(p, t);
    } else if (is_letter(*at)) {
        t->kind = EX_NAME;
        while (is_letter(t->text[t->length]) || is_digit(t->text[t->length])) t->length++;
    } else {
        take_sign(p, t);
    }
}
