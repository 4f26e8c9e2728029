/* The bounds prover's atoms. A non-linear operation on forms becomes an atom with facts about itself; equal operations
 * share one atom:
 *
 *     q = x / m         x - m q >= 0,  m q + m - 1 - x >= 0          x % m is x - m q
 *     r = min(x, y)     x - r >= 0,  y - r >= 0;  r is x or y
 *     p = a * b         a list of factors; their ranges give the range of p */
#include "ir/verify/bounds_internal.h"

#include <string.h>

/* ---- Storage ---- */

const ir_form *ir_bounds_keep(ir_bounds *b, const ir_form *f) {
    ir_form *kept = at_arena_alloc(b->arena, offsetof(ir_form, terms) + f->n * sizeof f->terms[0]);
    if (kept) ir_form_copy(kept, f);
    return kept;
}

/* Makes room for one more; false when the arena refuses. */
static bool grow(ir_bounds *b, void *array, uint32_t count, uint32_t *capacity) {
    if (count < *capacity) return true;
    void *old;
    memcpy(&old, array, sizeof old);
    void *items = at_arena_alloc(b->arena, (size_t)*capacity * 2 * sizeof(void *));
    if (!items) return false;
    memcpy(items, old, count * sizeof(void *));
    memcpy(array, &items, sizeof items);
    *capacity *= 2;
    return true;
}

uint32_t ir_atom_new(ir_bounds *b, int64_t min, int64_t max) {
    ir_atom *atom = grow(b, &b->atoms, b->num_atoms, &b->atom_capacity) ? at_arena_alloc(b->arena, sizeof *atom) : NULL;
    if (!atom) return 0;
    atom->min = min;
    atom->max = max;
    atom->rank = b->num_atoms;
    b->atoms[b->num_atoms] = atom;
    return b->num_atoms++;
}

void ir_bounds_push_fact(ir_bounds *b, const ir_form *f) {
    if (f && grow(b, &b->facts, b->num_facts, &b->fact_capacity)) b->facts[b->num_facts++] = f;
}

ir_bounds *ir_bounds_new(at_arena *arena, uint32_t num_vars) {
    ir_bounds *b = at_arena_alloc(arena, sizeof *b);
    if (!b) return NULL;
    b->arena = arena;
    b->num_vars = num_vars;
    b->atom_capacity = 128;
    b->fact_capacity = 32;
    b->epoch = 1;
    b->atoms = at_arena_alloc(arena, b->atom_capacity * sizeof *b->atoms);
    b->facts = at_arena_alloc(arena, b->fact_capacity * sizeof *b->facts);
    b->var_forms = at_arena_alloc(arena, (num_vars + 1) * sizeof *b->var_forms);
    b->var_values = at_arena_alloc(arena, (num_vars + 1) * sizeof *b->var_values);
    if (!b->atoms || !b->facts || !b->var_forms || !b->var_values) return NULL;
    ir_atom_new(b, IR_NO_MIN, IR_NO_MAX);
    for (int i = 0; i < 8; i++) b->lane_atoms[i] = ir_atom_new(b, 0, ((int64_t)1 << i) - 1);
    return arena->failed ? NULL : b;
}

void ir_atom_narrow(ir_bounds *b, uint32_t id, int64_t min, int64_t max) {
    ir_atom *atom = b->atoms[id];
    if (id == 0) return;
    if (min > atom->min) atom->min = min;
    if (max < atom->max) atom->max = max;
}

void ir_atom_add_fact(ir_bounds *b, uint32_t id, const ir_form *fact) {
    ir_atom *atom = b->atoms[id];
    const int64_t h = ir_form_coefficient(fact, id);
    if (id == 0 || h == 0 || h == INT64_MIN || atom->num_facts == IR_ATOM_FACTS) return;
    const ir_form *kept = ir_bounds_keep(b, fact);
    if (!kept) return;
    atom->facts[atom->num_facts++] = kept;
    ir_form rest, self;
    ir_form_copy(&rest, fact);
    ir_form_atom(&self, id);
    if (!ir_form_add(&rest, &self, -h)) return;
    const int64_t most = ir_bounds_max(b, &rest); /* h * x >= -rest >= -most */
    if (most == IR_NO_MAX || most == INT64_MIN) return;
    if (h > 0)
        ir_atom_narrow(b, id, -ir_floor_div(most, h), IR_NO_MAX);
    else
        ir_atom_narrow(b, id, IR_NO_MIN, ir_floor_div(most, -h));
}

/* ---- Forms made of forms ---- */

void ir_bounds_unknown(ir_bounds *b, ir_elem elem, ir_form *out) {
    int64_t min = IR_NO_MIN, max = IR_NO_MAX;
    if (elem == IR_I32) min = INT32_MIN, max = INT32_MAX;
    if (elem == IR_BOOL) min = 0, max = 1;
    ir_form_atom(out, ir_atom_new(b, min, max));
}

/* The atom for the product of two atoms; 0 if it has too many factors. */
static uint32_t product_atom(ir_bounds *b, uint32_t x, uint32_t y) {
    uint32_t factors[2 * IR_ATOM_FACTORS], n = 0;
    const uint32_t ids[2] = {x, y};
    uint64_t hash = 0;
    for (int k = 0; k < 2; k++) {
        const ir_atom *atom = b->atoms[ids[k]];
        const bool product = atom->kind == IR_ATOM_PRODUCT;
        for (uint32_t i = 0; i < (product ? atom->num_factors : 1u); i++) {
            const uint32_t factor = product ? atom->factors[i] : ids[k];
            uint32_t at = n++;
            for (; at > 0 && factors[at - 1] > factor; at--) factors[at] = factors[at - 1];
            factors[at] = factor;
        }
    }
    if (n > IR_ATOM_FACTORS) return 0;
    for (uint32_t i = 0; i < n; i++) hash = (hash ^ factors[i]) * 0x9e3779b97f4a7c15u;
    uint32_t *slot = &b->slots[(hash >> 40) % IR_INTERN_SLOTS];
    for (uint32_t id = *slot; id; id = b->atoms[id]->next) {
        const ir_atom *atom = b->atoms[id];
        if (atom->kind == IR_ATOM_PRODUCT && atom->num_factors == n &&
            !memcmp(atom->factors, factors, n * sizeof *factors))
            return id;
    }
    const uint32_t id = ir_atom_new(b, IR_NO_MIN, IR_NO_MAX);
    if (id == 0) return 0;
    ir_atom *atom = b->atoms[id];
    atom->kind = IR_ATOM_PRODUCT;
    atom->num_factors = (uint8_t)n;
    memcpy(atom->factors, factors, n * sizeof *factors);
    atom->rank = b->atoms[factors[n - 1]]->rank;
    atom->is_static = b->atoms[x]->is_static && b->atoms[y]->is_static;
    atom->next = *slot;
    return *slot = id;
}

bool ir_bounds_multiply(ir_bounds *b, ir_form *out, const ir_form *f, const ir_form *g) {
    if (f->n == 0 || g->n == 0) {
        ir_form_copy(out, f->n == 0 ? g : f);
        return ir_form_scale(out, f->n == 0 ? f->c : g->c);
    }
    ir_form part;
    ir_form_const(out, 0);
    if (!ir_form_add(out, f, g->c)) return false;
    ir_form_copy(&part, g);
    part.c = 0;
    if (!ir_form_add(out, &part, f->c)) return false;
    for (uint32_t i = 0; i < f->n; i++) {
        for (uint32_t j = 0; j < g->n; j++) {
            const uint32_t id = product_atom(b, f->terms[i].atom, g->terms[j].atom);
            int64_t k;
            if (id == 0 || __builtin_mul_overflow(f->terms[i].k, g->terms[j].k, &k)) return false;
            ir_form_atom(&part, id);
            if (!ir_form_add(out, &part, k)) return false;
        }
    }
    return true;
}

uint32_t ir_atom_intern(ir_bounds *b, int op, const ir_form *x, const ir_form *y, int64_t m, const void *extra,
                        bool *is_new) {
    uint64_t hash = ir_form_hash(x, (uint64_t)op * 31 + (uint64_t)m) ^ (uint64_t)x->c ^ ((uintptr_t)extra >> 4);
    if (y) hash = ir_form_hash(y, hash) ^ (uint64_t)y->c;
    hash *= 0x9e3779b97f4a7c15u;
    uint32_t *slot = &b->slots[(hash >> 40) % IR_INTERN_SLOTS];
    *is_new = false;
    for (uint32_t id = *slot; id; id = b->atoms[id]->next) {
        const struct ir_atom_key *key = &b->atoms[id]->key;
        if (b->atoms[id]->key_hash == hash && key->op == op && key->m == m && key->extra == extra && !key->y == !y &&
            ir_form_equal(key->x, x) && (!y || ir_form_equal(key->y, y)))
            return id;
    }
    const ir_form *kept_x = ir_bounds_keep(b, x), *kept_y = y ? ir_bounds_keep(b, y) : NULL;
    const uint32_t id = kept_x && (kept_y || !y) ? ir_atom_new(b, IR_NO_MIN, IR_NO_MAX) : 0;
    if (id == 0) return 0;
    ir_atom *atom = b->atoms[id];
    atom->key = (struct ir_atom_key){op, extra, m, kept_x, kept_y};
    atom->key_hash = hash;
    atom->next = *slot;
    atom->is_static = true;
    for (uint32_t i = 0; i < x->n; i++) atom->is_static &= b->atoms[x->terms[i].atom]->is_static;
    for (uint32_t i = 0; y && i < y->n; i++) atom->is_static &= b->atoms[y->terms[i].atom]->is_static;
    if (extra) atom->is_static = false;
    *is_new = true;
    return *slot = id;
}

/* Adds the fact a * x + c * q + k >= 0 to atom q. */
static void add_fact(ir_bounds *b, uint32_t q, int64_t c, const ir_form *x, int64_t a, int64_t k) {
    ir_form fact, self;
    ir_form_atom(&self, q);
    ir_form_const(&fact, k);
    if (ir_form_add(&fact, x, a) && ir_form_add(&fact, &self, c)) ir_atom_add_fact(b, q, &fact);
}

bool ir_bounds_divide_const(ir_bounds *b, const ir_form *x, int64_t m, ir_form *out) {
    ir_form rest;
    ir_form_const(out, ir_floor_div(x->c, m));
    ir_form_const(&rest, x->c - out->c * m);
    for (uint32_t i = 0; i < x->n; i++) {
        const ir_term term = x->terms[i];
        if (term.k % m == 0)
            out->terms[out->n++] = (ir_term){term.k / m, term.atom};
        else
            rest.terms[rest.n++] = term;
    }
    if (ir_bounds_min(b, &rest) >= 0 && ir_bounds_max(b, &rest) < m) return true;
    bool is_new;
    const uint32_t q = ir_atom_intern(b, IR_DIV, &rest, NULL, m, NULL, &is_new);
    if (q == 0) return false;
    if (is_new) {
        add_fact(b, q, -m, &rest, 1, 0);
        add_fact(b, q, m, &rest, -1, m - 1);
    }
    ir_form quotient;
    ir_form_atom(&quotient, q);
    return ir_form_add(out, &quotient, 1);
}

/* Division and remainder by a form. Facts are those that hold for every positive divisor. */
static bool divide_form(ir_bounds *b, int op, const ir_form *x, const ir_form *y, ir_form *out) {
    bool is_new;
    const bool positive = ir_bounds_prove(b, y, -1), above_zero = ir_bounds_prove(b, x, 0);
    const uint32_t q = ir_atom_intern(b, op, x, y, positive + 2 * above_zero, NULL, &is_new);
    if (q == 0) return false;
    ir_form_atom(out, q);
    if (!is_new || !positive) return true;
    if (op == IR_MOD) {
        ir_atom_narrow(b, q, 0, IR_NO_MAX);
        add_fact(b, q, -1, y, 1, -1);
        if (above_zero) add_fact(b, q, -1, x, 1, 0);
        return true;
    }
    ir_form product, fact;
    if (above_zero) {
        ir_atom_narrow(b, q, 0, IR_NO_MAX);
        add_fact(b, q, -1, x, 1, 0);
    }
    ir_form_copy(&fact, x);
    if (b->atoms[q]->num_facts < IR_ATOM_FACTS && ir_bounds_multiply(b, &product, out, y) &&
        ir_form_add(&fact, &product, -1)) {
        const ir_form *kept = ir_bounds_keep(b, &fact);
        if (kept) b->atoms[q]->facts[b->atoms[q]->num_facts++] = kept;
    }
    return true;
}

bool ir_bounds_divide(ir_bounds *b, int op, const ir_form *x, const ir_form *y, ir_form *out) {
    if (y->n > 0 || y->c <= 0) return divide_form(b, op, x, y, out);
    if (op == IR_DIV) return ir_bounds_divide_const(b, x, y->c, out);
    ir_form quotient;
    if (!ir_bounds_divide_const(b, x, y->c, &quotient)) return false;
    ir_form_copy(out, x);
    return ir_form_add(out, &quotient, -y->c);
}

void ir_atom_set_cases(ir_bounds *b, uint32_t id) {
    ir_atom *atom = b->atoms[id];
    atom->kind = IR_ATOM_CASES;
    atom->cases[0] = atom->key.x;
    atom->cases[1] = atom->key.y;
    const int64_t min_x = ir_bounds_min(b, atom->key.x), min_y = ir_bounds_min(b, atom->key.y);
    const int64_t max_x = ir_bounds_max(b, atom->key.x), max_y = ir_bounds_max(b, atom->key.y);
    ir_atom_narrow(b, id, min_x < min_y ? min_x : min_y, max_x > max_y ? max_x : max_y);
}

void ir_atom_add_case_fact(ir_bounds *b, ir_atom *atom, int which, const ir_form *fact) {
    const ir_form *kept = atom->num_case_facts[which] < IR_CASE_FACTS ? ir_bounds_keep(b, fact) : NULL;
    if (kept) atom->case_facts[which][atom->num_case_facts[which]++] = kept;
}

bool ir_bounds_min_or_max(ir_bounds *b, bool is_min, const ir_form *x, const ir_form *y, ir_form *out) {
    ir_form more; /* >= 0 where the result is x */
    ir_form_copy(&more, is_min ? y : x);
    if (!ir_form_add(&more, is_min ? x : y, -1)) return false;
    const bool is_x = ir_bounds_min(b, &more) >= 0;
    if (is_x || ir_bounds_max(b, &more) <= 0) {
        ir_form_copy(out, is_x ? x : y);
        return true;
    }
    bool is_new;
    const uint32_t id = ir_atom_intern(b, is_min ? IR_MIN : IR_MAX, x, y, 0, NULL, &is_new);
    if (id == 0) return false;
    ir_form_atom(out, id);
    if (!is_new) return true;
    const int64_t sign = is_min ? 1 : -1;
    ir_atom_set_cases(b, id);
    add_fact(b, id, -sign, x, sign, 0);
    add_fact(b, id, -sign, y, sign, 0);
    ir_atom_add_case_fact(b, b->atoms[id], 0, &more);
    if (ir_form_scale(&more, -1)) ir_atom_add_case_fact(b, b->atoms[id], 1, &more);
    return true;
}
