/* Random programs in loop IR, as text, for tests. */
#ifndef ATTUNE_TESTS_RANDOM_IR_H
#define ATTUNE_TESTS_RANDOM_IR_H

#include <stddef.h>
#include <stdint.h>

typedef struct random_ir {
    uint64_t state; /* of the generator; any value */
    int careful;    /* per cent: how many indices are clamped so that they can be proved in bounds */
    int arithmetic; /* 0: indices only; 1: floats of several lanes, registers and unrolled loops too */
    int fma;        /* whether fma may be used */
    char text[16384];
    /* private */
    size_t length;
    int num_vars, num_names, depth, budget, assumption;
    char vars[64][12];
} random_ir;

/* Fills r->text with a kernel of these parameters, in order:
 *   x: f32[n] inout, y: f32[n, m] inout, t: f32[RANDOM_IR_T] inout, n: idx, m: idx, p: idx
 * Divisors are checked by `assume d != 0`, which tells the verifier nothing. */
enum { RANDOM_IR_T = 64 };
void random_ir_kernel(random_ir *r);

/* Values of n, m and p that keep what the last kernel assumes of them. */
void random_ir_arguments(random_ir *r, int64_t arguments[3]);

uint64_t random_ir_bits(random_ir *r);
int random_ir_below(random_ir *r, int n);

#endif
