/* Between the files of the parser. Each function that makes a node gives its number, or -1 after a failure, which is
 * kept in parser->err: the first one counts. */
#ifndef ATTUNE_EXPR_PARSE_INTERNAL_H
#define ATTUNE_EXPR_PARSE_INTERNAL_H

#include "expr/expr.h"

typedef enum ex_token_kind { EX_END, EX_NAME, EX_INTEGER, EX_REAL, EX_SIGN, EX_BAD } ex_token_kind;

typedef struct ex_token {
    ex_token_kind kind;
    const char *text;
    int length, column; /* the first column is 1 */
    union {
        int64_t i;
        double f;
    } value;
} ex_token;

typedef struct ex_parser {
    ex_program *program;
    const char *name; /* of the function, for messages */
    const char *text;
    ex_token token; /* the next one */
    int depth;      /* of what is being parsed */
    ex_var operand; /* EX_V_SCORE or EX_V_PROB, which the function is given; EX_NUM_VARS: neither, as of a mask */
    attune_status status;
    at_error *err;
} ex_parser;

/* lex.c: reads the token after `token`. */
void ex_next(ex_parser *p);
bool ex_token_is(const ex_token *token, const char *text);

/* Fails with the function's name and the column before the message. Gives -1. */
int ex_fail(ex_parser *p, int column, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* build.c: typed nodes. Operands are converted; `column` is that of the operator. */
int ex_make_int(ex_parser *p, int column, int64_t value);
int ex_make_float(ex_parser *p, int column, double value);
int ex_make_bool(ex_parser *p, int column, bool value);
int ex_make_var(ex_parser *p, int column, ex_var var);
int ex_make(ex_parser *p, int column, ex_op op, const int *args, int num_args);
/* clamped: bits of the indices that were written as clamp(…). columns: those of the indices. */
int ex_make_load(ex_parser *p, int column, int tensor, const int *indices, const int *columns, unsigned clamped);

/* range.c: fills in what is known of an integer's values. */
void ex_find_range(const ex_program *program, ex_node *node);
/* Whether an integer is known not to be zero. */
bool ex_is_nonzero(const ex_node *node);
/* How many indices a dim is known to have at least. */
int64_t ex_dim_least(const ex_scope *scope, int64_t dim);
bool ex_is_below(const ex_scope *scope, const ex_node *index, int64_t dim);

#endif
