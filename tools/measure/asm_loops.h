/* The innermost loops of a kernel's assembly, and the kinds of their instructions. */
#ifndef ATTUNE_TOOLS_ASM_LOOPS_H
#define ATTUNE_TOOLS_ASM_LOOPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum asm_class {
    ASM_MULTIPLY,  /* fused multiply-adds, dot products, multiplications */
    ASM_LOAD,      /* vectors from memory, except spills; operands of other instructions count in both classes */
    ASM_STORE,     /* vectors to memory, except spills */
    ASM_BROADCAST, /* one element into all lanes, from memory or a register */
    ASM_SHUFFLE,   /* lanes that change places */
    ASM_CONVERT,   /* between elements */
    ASM_VECTOR,    /* other instructions on vectors */
    ASM_SCALAR,    /* counters, addresses, branches, prefetches */
    ASM_SPILL,     /* vectors to and from the stack */
    ASM_CLASSES
} asm_class;

typedef struct asm_loop {
    char function[32];
    const char *name; /* "scores", "softmax", "values", ...; "" if it is none of those. Static storage */
    size_t instructions;
    size_t count[ASM_CLASSES];
    size_t accumulators; /* registers that fused multiply-adds and dot products write; 0 if there are none of those */
    uint64_t written;    /* which ones, as bits */
    bool sums_lanes;     /* adds the lanes of one register */
} asm_loop;

/* "multiply" and so on. */
const char *asm_class_name(asm_class class);

/* Finds up to `capacity` loops, those with most multiplications first. The text, from attune_emit for x86-64 or
 * AArch64, is changed; its comments tell the names of the loops in the IR. */
size_t asm_find_loops(char *text, asm_loop *loops, size_t capacity);

#endif
