/* What the parser's files share. Each function that builds a node returns its number, or -1 after a failure.
 * parser->err has the first failure. */
#ifndef ATTUNE_EXPR_EXPR_PARSE_H
#define ATTUNE_EXPR_EXPR_PARSE_H

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

/* Kinds of open frames. The first three are signs before an operand. */
typedef enum ex_frame_kind {
    EX_AFTER_MINUS,
    EX_AFTER_NOT,
    EX_AFTER_TILDE,
    EX_AFTER_INFIX, /* nodes[0] is the left side */
    EX_IN_PARENTHESES,
    EX_IN_CALL,
    EX_IN_LOAD,
    EX_IN_CLAMP /* the clamp(…) of an index */
} ex_frame_kind;

typedef struct ex_frame {
    uint8_t kind, which; /* ex_frame_kind; the ex_op, or the tensor's number */
    uint8_t clamps;      /* as in ex_make_load */
    int16_t column, count;
    int16_t nodes[EX_MAX_RANK], columns[EX_MAX_RANK]; /* of the operands so far */
} ex_frame;

/* Canonical text of nodes that are EX_MAX_DEPTH deep has at most two frames for each of them: an operator and
 * parentheses, or a tensor and a clamp. */
enum { EX_MAX_FRAMES = 2 * EX_MAX_DEPTH + 2 };

typedef struct ex_parser {
    ex_program *program;
    const char *name; /* of the function, for messages */
    const char *text;
    ex_token token;   /* the next one */
    ex_frame *frames; /* EX_MAX_FRAMES of them */
    int num_frames;
    ex_var operand; /* the function's operand, EX_V_SCORE or EX_V_PROB; EX_NUM_VARS: none, for a mask */
    attune_status status;
    at_error *err;
} ex_parser;

/* expr_lex.c: reads the token after `token`. */
void ex_next(ex_parser *p);
bool ex_token_is(const ex_token *token, const char *text);

/* Fails with a message that begins with the function's name and the column. Returns -1. */
int ex_fail(ex_parser *p, int column, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* expr_build.c: typed nodes. Operands are converted; `column` is that of the operator. */
int ex_make_int(ex_parser *p, int column, int64_t value);
int ex_make_float(ex_parser *p, int column, double value);
int ex_make_bool(ex_parser *p, int column, bool value);
int ex_make_var(ex_parser *p, int column, ex_var var);
int ex_make(ex_parser *p, int column, ex_op op, const int *args, int num_args);
/* clamped: bits of the indices that were written as clamp(…). columns: those of the indices. */
int ex_make_load(ex_parser *p, int column, int tensor, const int *indices, const int *columns, unsigned clamped);

/* range.c: computes the range of an integer node. */
void ex_find_range(const ex_program *program, ex_node *node);
/* Whether an integer is known not to be zero. */
bool ex_is_nonzero(const ex_node *node);
/* A lower bound of a dim. */
int64_t ex_dim_least(const ex_scope *scope, int64_t dim);
bool ex_is_below(const ex_scope *scope, const ex_node *index, int64_t dim);

#endif
