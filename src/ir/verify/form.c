/* Arithmetic on linear forms c + k1 * atom1 + k2 * atom2 + …: merging two sorted lists of terms, with every overflow
 * noticed. */
#include "ir/verify/form.h"

#include <string.h>

void ir_form_copy(ir_form *to, const ir_form *from) {
    to->c = from->c;
    to->n = from->n;
    for (uint32_t i = 0; i < from->n; i++) to->terms[i] = from->terms[i];
}

static bool same_terms(const ir_form *a, const ir_form *b) {
    if (a->n != b->n) return false;
    for (uint32_t i = 0; i < a->n; i++)
        if (a->terms[i].atom != b->terms[i].atom || a->terms[i].k != b->terms[i].k) return false;
    return true;
}

bool ir_form_equal(const ir_form *a, const ir_form *b) { return a->c == b->c && same_terms(a, b); }

uint64_t ir_form_hash(const ir_form *f, uint64_t seed) {
    uint64_t hash = seed ^ f->n;
    for (uint32_t i = 0; i < f->n; i++) {
        hash = (hash ^ f->terms[i].atom) * 0x9e3779b97f4a7c15u;
        hash = (hash ^ (uint64_t)f->terms[i].k) * 0xc2b2ae3d27d4eb4fu;
        hash ^= hash >> 29;
    }
    return hash;
}

bool ir_form_add_const(ir_form *f, int64_t c) { return !__builtin_add_overflow(f->c, c, &f->c); }

bool ir_form_scale(ir_form *f, int64_t k) {
    if (k == 0) {
        ir_form_const(f, 0);
        return true;
    }
    bool overflow = __builtin_mul_overflow(f->c, k, &f->c);
    for (uint32_t i = 0; i < f->n; i++) overflow |= __builtin_mul_overflow(f->terms[i].k, k, &f->terms[i].k);
    return !overflow;
}

bool ir_form_add(ir_form *f, const ir_form *g, int64_t k) {
    int64_t scaled;
    if (__builtin_mul_overflow(g->c, k, &scaled) || !ir_form_add_const(f, scaled)) return false;
    if (g->n == 0 || k == 0) return true;

    ir_term merged[2 * IR_FORM_TERMS];
    uint32_t n = 0, i = 0, j = 0;
    while (i < f->n || j < g->n) {
        if (j == g->n || (i < f->n && f->terms[i].atom < g->terms[j].atom)) {
            merged[n++] = f->terms[i++];
            continue;
        }
        ir_term term = g->terms[j++];
        if (__builtin_mul_overflow(term.k, k, &term.k)) return false;
        if (i < f->n && f->terms[i].atom == term.atom && __builtin_add_overflow(term.k, f->terms[i++].k, &term.k))
            return false;
        if (term.k != 0) merged[n++] = term;
    }
    if (n > IR_FORM_TERMS) return false;
    memcpy(f->terms, merged, n * sizeof merged[0]);
    f->n = n;
    return true;
}

int64_t ir_form_coefficient(const ir_form *f, uint32_t atom) {
    for (uint32_t i = 0; i < f->n; i++)
        if (f->terms[i].atom == atom) return f->terms[i].k;
    return 0;
}

uint64_t ir_gcd(uint64_t a, uint64_t b) {
    while (b != 0) {
        const uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

void ir_form_tighten(ir_form *f) {
    uint64_t divisor = 0;
    for (uint32_t i = 0; i < f->n && divisor != 1; i++) {
        const int64_t k = f->terms[i].k;
        divisor = ir_gcd(k < 0 ? 0 - (uint64_t)k : (uint64_t)k, divisor);
    }
    if (divisor <= 1 || divisor > INT64_MAX) return;
    f->c = ir_floor_div(f->c, (int64_t)divisor);
    for (uint32_t i = 0; i < f->n; i++) f->terms[i].k /= (int64_t)divisor;
}
