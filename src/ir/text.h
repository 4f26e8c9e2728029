/* The text form of the loop IR. parse(print(k)) equals k, and print(parse(print(k))) is the same text. */
#ifndef ATTUNE_IR_TEXT_H
#define ATTUNE_IR_TEXT_H

#include "ir/ir.h"

void ir_print(const ir_kernel *kernel, at_string *out);

/* The parameters alone, as they stand between the kernel's parentheses: equal texts take equal calls. */
void ir_print_params(const ir_kernel *kernel, at_string *out);

/* One expression, for messages. */
void ir_print_expr(const ir_expr *expr, at_string *out);

/* Parses one kernel from `text` (length bytes, no NUL needed). NULL with ATTUNE_INVALID_IR and "line:column: …" in
 * *err. The result has right types (the builder's checks), but is not verified. */
ir_kernel *ir_parse(at_arena *arena, const char *text, size_t length, at_error *err);

#endif
