/* The search of the bounds prover: is a form never negative? It eliminates the newest atom of the goal with a fact in
 * which that atom has the same sign, until constant ranges decide:
 *
 *     goal             n - 1 - (i + 3) >= 0         with i = 4 c:  n - 4 - 4 c >= 0
 *     fact of c        n - 4 - 4 c >= 0             from the loop's condition
 *     goal - fact      0 >= 0                       proved
 *
 * Facts only mention older atoms, so each step makes the newest atom older, and the search ends. An atom has a few
 * facts of its own; facts of `if` and `assume` are tried after these, and case distinctions of min, max and select. */
#include "ir/verify/bounds_internal.h"

enum { PROOF_STEPS = 512, SCOPED_FACTS_IN_A_PROOF = 3 };

/* ---- Constant ranges ---- */

/* a * b of two values that are not negative, where IR_NO_MAX means unbounded. */
static int64_t multiply_up(int64_t a, int64_t b) {
    int64_t product;
    if (a == 0 || b == 0) return 0;
    return __builtin_mul_overflow(a, b, &product) ? IR_NO_MAX : product;
}

static bool product_positive(const ir_bounds *b, const ir_atom *atom) {
    for (int i = 0; i < atom->num_factors; i++)
        if (b->atoms[atom->factors[i]]->min < 0) return false;
    return true;
}

int64_t ir_atom_min(const ir_bounds *b, uint32_t id) {
    const ir_atom *atom = b->atoms[id];
    if (atom->kind != IR_ATOM_PRODUCT) return atom->min;
    if (!product_positive(b, atom)) return IR_NO_MIN;
    int64_t min = 1;
    for (int i = 0; i < atom->num_factors; i++) min = multiply_up(min, b->atoms[atom->factors[i]]->min);
    return min;
}

int64_t ir_atom_max(const ir_bounds *b, uint32_t id) {
    const ir_atom *atom = b->atoms[id];
    if (atom->kind != IR_ATOM_PRODUCT) return atom->max;
    if (!product_positive(b, atom)) return IR_NO_MAX;
    int64_t max = 1;
    for (int i = 0; i < atom->num_factors; i++) max = multiply_up(max, b->atoms[atom->factors[i]]->max);
    return max;
}

int64_t ir_bounds_min(const ir_bounds *b, const ir_form *f) {
    int64_t sum = f->c, part;
    for (uint32_t i = 0; i < f->n; i++) {
        const ir_term term = f->terms[i];
        const int64_t end = term.k > 0 ? ir_atom_min(b, term.atom) : ir_atom_max(b, term.atom);
        if (end == IR_NO_MIN || end == IR_NO_MAX || __builtin_mul_overflow(term.k, end, &part) ||
            __builtin_add_overflow(sum, part, &sum))
            return IR_NO_MIN;
    }
    return sum;
}

int64_t ir_bounds_max(const ir_bounds *b, const ir_form *f) {
    int64_t sum = f->c, part;
    for (uint32_t i = 0; i < f->n; i++) {
        const ir_term term = f->terms[i];
        const int64_t end = term.k > 0 ? ir_atom_max(b, term.atom) : ir_atom_min(b, term.atom);
        if (end == IR_NO_MIN || end == IR_NO_MAX || __builtin_mul_overflow(term.k, end, &part) ||
            __builtin_add_overflow(sum, part, &sum))
            return IR_NO_MAX;
    }
    return sum;
}

/* ---- Eliminating a term ---- */

static bool same_sign(int64_t a, int64_t b) { return (a > 0) == (b > 0); }

/* The product atom without one `factor`, as a form; false if one of the other factors may be negative, as an inequality
 * must not be multiplied by it then. */
static bool other_factors(ir_bounds *b, const ir_atom *product, uint32_t factor, ir_form *rest) {
    ir_form_const(rest, 1);
    bool skipped = false;
    for (int i = 0; i < product->num_factors; i++) {
        const uint32_t id = product->factors[i];
        if (id == factor && !skipped) {
            skipped = true;
            continue;
        }
        ir_form one, so_far;
        if (b->atoms[id]->min < 0) return false;
        ir_form_atom(&one, id);
        ir_form_copy(&so_far, rest);
        if (!ir_bounds_multiply(b, rest, &so_far, &one)) return false;
    }
    return skipped;
}

/* The newest factor of atom `id`. */
static uint32_t newest_factor(const ir_bounds *b, uint32_t id) {
    const ir_atom *atom = b->atoms[id];
    return atom->kind == IR_ATOM_PRODUCT ? atom->factors[atom->num_factors - 1] : id;
}

/* Eliminates `term` from goal by fact >= 0: next >= 0 implies goal >= 0. */
static bool reduce(ir_bounds *b, const ir_form *goal, ir_term term, const ir_form *fact, ir_form *next) {
    int64_t h = ir_form_coefficient(fact, term.atom);
    const ir_atom *atom = b->atoms[term.atom];
    ir_form rest, multiplied;
    if (h == 0 && atom->kind == IR_ATOM_PRODUCT) {
        const uint32_t factor = newest_factor(b, term.atom);
        h = ir_form_coefficient(fact, factor);
        if (h == 0 || !same_sign(h, term.k) || !other_factors(b, atom, factor, &rest) ||
            !ir_bounds_multiply(b, &multiplied, fact, &rest))
            return false;
        fact = &multiplied;
        h = ir_form_coefficient(fact, term.atom);
    }
    if (h == 0 || !same_sign(h, term.k)) return false;
    if (h == INT64_MIN || term.k == INT64_MIN) return false;
    const int64_t abs_h = h < 0 ? -h : h, abs_k = term.k < 0 ? -term.k : term.k;
    const int64_t divisor = (int64_t)ir_gcd((uint64_t)abs_h, (uint64_t)abs_k);
    const int64_t scale = abs_h / divisor;
    ir_form_copy(next, goal);
    /* For integers, scale * goal > -scale suffices for goal >= 0. */
    return ir_form_scale(next, scale) && ir_form_add(next, fact, -(abs_k / divisor)) &&
           ir_form_add_const(next, scale - 1);
}

/* next = goal with one `factor` of `term` replaced by the form `value`. */
static bool substitute(ir_bounds *b, const ir_form *goal, ir_term term, uint32_t factor, const ir_form *value,
                       ir_form *next) {
    const ir_atom *atom = b->atoms[term.atom];
    ir_form old, rest, replaced;
    ir_form_atom(&old, term.atom);
    ir_form_copy(next, goal);
    if (!ir_form_add(next, &old, -term.k)) return false;
    if (atom->kind != IR_ATOM_PRODUCT) return ir_form_add(next, value, term.k);
    return other_factors(b, atom, factor, &rest) && ir_bounds_multiply(b, &replaced, value, &rest) &&
           ir_form_add(next, &replaced, term.k);
}

/* ---- The search ---- */

ir_term ir_bounds_newest(const ir_bounds *b, const ir_form *f) {
    ir_term newest = f->terms[0];
    for (uint32_t i = 1; i < f->n; i++)
        if (b->atoms[f->terms[i].atom]->rank >= b->atoms[newest.atom]->rank) newest = f->terms[i];
    return newest;
}

static bool prove(ir_bounds *b, ir_form *goal, int facts_left);

/* The atom is one of two forms: the goal must hold for both, each with the facts of its case. */
static bool prove_cases(ir_bounds *b, const ir_form *goal, ir_term term, uint32_t factor, int facts_left) {
    const ir_atom *atom = b->atoms[factor];
    for (int c = 0; c < 2; c++) {
        ir_form next;
        if (!substitute(b, goal, term, factor, atom->cases[c], &next)) return false;
        const uint32_t mark = b->num_facts;
        for (int i = 0; i < atom->num_case_facts[c]; i++) ir_bounds_push_fact(b, atom->case_facts[c][i]);
        const bool proved = prove(b, &next, facts_left);
        b->num_facts = mark;
        if (!proved) return false;
    }
    return true;
}

/* Replaces the atom by the constant end of its range. */
static bool prove_at_end(ir_bounds *b, const ir_form *goal, ir_term term, uint32_t factor, int facts_left) {
    const int64_t end = term.k > 0 ? b->atoms[factor]->min : b->atoms[factor]->max;
    ir_form value, next;
    if (end == IR_NO_MIN || end == IR_NO_MAX) return false;
    ir_form_const(&value, end);
    return substitute(b, goal, term, factor, &value, &next) && prove(b, &next, facts_left);
}

static bool prove_by_facts(ir_bounds *b, const ir_form *goal, ir_term term, int facts_left) {
    ir_form next;
    if (facts_left == 0) return false;
    for (uint32_t i = b->num_facts; i-- > 0;)
        if (reduce(b, goal, term, b->facts[i], &next) && prove(b, &next, facts_left - 1)) return true;
    return false;
}

static bool prove(ir_bounds *b, ir_form *goal, int facts_left) {
    ir_form_tighten(goal);
    if (ir_bounds_min(b, goal) >= 0) return true;
    if (goal->n == 0 || ir_bounds_max(b, goal) < 0 || b->budget-- <= 0) return false;

    const ir_term term = ir_bounds_newest(b, goal);
    const uint32_t factor = newest_factor(b, term.atom);
    const ir_atom *atom = b->atoms[factor];
    ir_form next;
    for (int i = 0; i < atom->num_facts; i++)
        if (reduce(b, goal, term, atom->facts[i], &next) && prove(b, &next, facts_left)) return true;
    if (prove_at_end(b, goal, term, factor, facts_left)) return true;
    if (b->facts_first && prove_by_facts(b, goal, term, facts_left)) return true;
    if (atom->kind == IR_ATOM_CASES && prove_cases(b, goal, term, factor, facts_left)) return true;
    return !b->facts_first && prove_by_facts(b, goal, term, facts_left);
}

/* Iterative deepening over the number of facts of `if` and `assume`: most proofs need none, and a proof that needs few
 * is found sooner if proofs with fewer were tried first. */
static bool deepen(ir_bounds *b, const ir_form *goal) {
    bool proved = false;
    for (int facts = 0; facts <= SCOPED_FACTS_IN_A_PROOF && !proved; facts++) {
        ir_form same;
        ir_form_copy(&same, goal);
        b->budget = PROOF_STEPS;
        proved = prove(b, &same, facts);
    }
    return proved;
}

bool ir_bounds_prove(ir_bounds *b, const ir_form *f, int64_t c) {
    ir_form goal;
    ir_form_copy(&goal, f);
    if (!ir_form_add_const(&goal, c)) return false;
    const int64_t min = ir_bounds_min(b, &goal);
    if (min >= 0) return true;
    if (goal.n == 0) return false;

    /* Unrolled code has goals that differ in the constant alone: a proof for one holds for all larger constants. */
    ir_proof *proof = &b->proofs[ir_form_hash(&goal, 0) % IR_PROOF_CACHE];
    ir_form same;
    ir_form_copy(&same, &goal);
    same.c = proof->form.c;
    if (proof->epoch == b->epoch && goal.c >= same.c && ir_form_equal(&same, &proof->form)) return true;

    /* Nested cases can use up the budget before the search reaches the fact that decides, so a second search tries
     * facts first. */
    b->facts_first = false;
    bool proved = deepen(b, &goal);
    if (!proved) {
        b->facts_first = true;
        proved = deepen(b, &goal);
    }
    if (!proved) return false;
    ir_form_copy(&proof->form, &goal);
    proof->epoch = b->epoch;
    return true;
}
