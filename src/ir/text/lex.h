/* Tokens of the text form. A name is hashed while it is read, so its symbol comes with the token. */
#ifndef ATTUNE_IR_LEX_H
#define ATTUNE_IR_LEX_H

#include "ir/symbols.h"

/* Punctuation is its own character: ( ) { } [ ] , : = @ ? */
enum {
    IR_TOKEN_END = 256,
    IR_TOKEN_BAD,    /* problem says why */
    IR_TOKEN_NAME,   /* symbol, or NULL if nothing has this name */
    IR_TOKEN_DOTTED, /* cast.f32, splat.x8: op, and suffix up to end */
    IR_TOKEN_INT,    /* integer */
    IR_TOKEN_FLOAT,  /* still text, as its type may follow */
    IR_TOKEN_DOTDOT,
    IR_TOKEN_OP /* an infix operator: op */
};

typedef struct ir_token {
    int kind;
    ir_op op; /* of OP and DOTTED */
    const char *start, *end;
    union { /* members of the other kinds; NULL or 0 if a token has none */
        ir_symbol *symbol;
        const char *suffix;
        const char *problem;
        uint64_t integer; /* at most 2^63, so that a sign can still be put before it */
    };
} ir_token;

typedef struct ir_lexer {
    const char *cursor, *end;
    const ir_symbols *symbols;
} ir_lexer;

/* Written in place, field by field, because tokens take most of the parser's time. */
void ir_lex(ir_lexer *lexer, ir_token *token);

/* Converts the text of a FLOAT token. Returns NULL, or the defect. *value is exact in `elem` (f32 or f64): decimals
 * are rounded to it, hexadecimal literals must be exact. */
const char *ir_lex_float(const ir_token *token, ir_elem elem, double *value);

#endif
