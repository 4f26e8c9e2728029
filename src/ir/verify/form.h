/* Linear forms with integer coefficients over numbered atoms, with which the bounds prover calculates. An atom is a
 * value that has no linear form of its own; here it is only a number. */
#ifndef ATTUNE_IR_FORM_H
#define ATTUNE_IR_FORM_H

#include <stdbool.h>
#include <stdint.h>

enum { IR_FORM_TERMS = 12 };

typedef struct ir_term {
    int64_t k; /* never 0 */
    uint32_t atom;
} ir_term;

/* c + the sum of k * atom; the terms are sorted by atom, each atom at most once. */
typedef struct ir_form {
    int64_t c;
    uint32_t n;
    ir_term terms[IR_FORM_TERMS];
} ir_form;

static inline void ir_form_const(ir_form *f, int64_t c) {
    f->c = c;
    f->n = 0;
}

static inline void ir_form_atom(ir_form *f, uint32_t atom) {
    f->c = 0;
    f->n = 1;
    f->terms[0] = (ir_term){1, atom};
}

void ir_form_copy(ir_form *to, const ir_form *from); /* only the terms that there are */
bool ir_form_equal(const ir_form *a, const ir_form *b);
uint64_t ir_form_hash(const ir_form *f, uint64_t seed); /* of the terms, without the constant */

/* The following return false, and leave *f unspecified, on overflow or when there are more terms than fit. */

bool ir_form_add(ir_form *f, const ir_form *g, int64_t k); /* f += k * g */
bool ir_form_add_const(ir_form *f, int64_t c);
bool ir_form_scale(ir_form *f, int64_t k);

/* The coefficient of `atom`, 0 if it does not occur. */
int64_t ir_form_coefficient(const ir_form *f, uint32_t atom);

/* Divides f >= 0 by the greatest common divisor of its coefficients. The constant is rounded down, which loses nothing,
 * as atoms are integers. */
void ir_form_tighten(ir_form *f);

/* Division that rounds down, m > 0. */
static inline int64_t ir_floor_div(int64_t a, int64_t m) { return a / m - (a % m < 0); }

uint64_t ir_gcd(uint64_t a, uint64_t b);

#endif
