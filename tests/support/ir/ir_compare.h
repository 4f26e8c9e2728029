/* Structural equality of kernels, for tests. */
#ifndef TESTS_IR_COMPARE_H
#define TESTS_IR_COMPARE_H

#include "ir/ir.h"

/* NULL if the two are equal node by node (names and ids included), else a word for the first thing that differs. */
const char *ir_kernel_difference(const ir_kernel *a, const ir_kernel *b);

#endif
