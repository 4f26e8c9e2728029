/* For tests of the text form. Both fail the running test when something is wrong. */
#ifndef TESTS_IR_TEXT_HELPERS_H
#define TESTS_IR_TEXT_HELPERS_H

#include "ir/ir.h"

/* Printing and parsing gives an equal kernel, and printing that one equal text. */
void assert_round_trip(const ir_kernel *kernel);

/* A file of less than 1 MiB, with a NUL after it; free() it. */
char *read_whole_text(const char *path, size_t *length);

#endif
