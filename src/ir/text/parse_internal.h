/* Shared by the two halves of the parser: parse.c reads kernels and statements, parse_expr.c expressions. */
#ifndef ATTUNE_IR_PARSE_INTERNAL_H
#define ATTUNE_IR_PARSE_INTERNAL_H

#include "ir/builder/build_internal.h"
#include "ir/text/lex.h"

typedef struct ir_parser {
    ir_builder *b;
    ir_lexer lexer;
    const char *text;
    ir_token token; /* the next one */
    int depth;      /* of expressions */
    bool failed;    /* an error was reported; the token stays IR_TOKEN_END, which ends every loop */
    at_error *err;
} ir_parser;

void ir_parse_next(ir_parser *p);

/* Fails at a place in the text. Returns false, so that a check can end with it. */
bool ir_parse_fail(ir_parser *p, const char *where, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* "expected `what`, found …" at the next token. */
bool ir_parse_expected(ir_parser *p, const char *what);

/* true if the builder has not failed; otherwise its message becomes the parser's, at `where`. */
bool ir_parse_built(ir_parser *p, const char *where);

bool ir_parse_accept(ir_parser *p, int kind);
bool ir_parse_expect(ir_parser *p, int kind); /* a character */
bool ir_parse_accept_word(ir_parser *p, enum ir_word word);
bool ir_parse_expect_word(ir_parser *p, enum ir_word word, const char *text);

/* Integers of the grammar, not expressions: steps, dims, picks, axes. */
bool ir_parse_int(ir_parser *p, int64_t *value);

/* "x16" in [start, end): 16, or 0 if it is not that. */
int ir_parse_lanes_text(const char *start, const char *end);
/* "f32" or, with lanes, "f32x8" in [start, end). */
bool ir_parse_type_text(const ir_parser *p, const char *start, const char *end, ir_type *type);

/* NULL when failed. An access begins at the name of its buffer. */
const ir_expr *ir_parse_expr(ir_parser *p);
const ir_access *ir_parse_access(ir_parser *p);

#endif
