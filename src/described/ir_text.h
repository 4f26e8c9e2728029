/* What builders that write loop IR as text share. */
#ifndef ATTUNE_DESCRIBED_IR_TEXT_H
#define ATTUNE_DESCRIBED_IR_TEXT_H

#include <attune.h>

#include <string.h>

/* The vector registers of an instruction set. */
static inline int at_registers_of(const char *isa) { return strcmp(isa, "avx2") && strcmp(isa, "x86-64") ? 32 : 16; }

/* The expression a b + c. */
static inline void at_put_madd(attune_ir_writer *w, int has_fma, const char *a, const char *b, const char *c) {
    attune_ir_print(w, has_fma ? "fma(%s, %s, %s)" : "(%s * %s) + %s", a, b, c);
}

#endif
