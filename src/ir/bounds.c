/* The bounds prover's knowledge: atoms, how expressions become forms over them, and which facts hold. */
#include "ir/bounds_internal.h"

#include <string.h>

static void form_of(ir_bounds *b, const ir_expr *e, ir_form *out);

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

static uint32_t new_atom(ir_bounds *b, int64_t min, int64_t max) {
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
    new_atom(b, IR_NO_MIN, IR_NO_MAX);
    for (int i = 0; i < 8; i++) b->lane_atoms[i] = new_atom(b, 0, ((int64_t)1 << i) - 1);
    return arena->failed ? NULL : b;
}

static void keep_range(ir_bounds *b, uint32_t id, int64_t min, int64_t max) {
    ir_atom *atom = b->atoms[id];
    if (id == 0) return;
    if (min > atom->min) atom->min = min;
    if (max < atom->max) atom->max = max;
}

/* Tells an atom an inequality about itself, and takes from it what constant range follows. */
static void add_atom_fact(ir_bounds *b, uint32_t id, const ir_form *fact) {
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
    if (h > 0) keep_range(b, id, -ir_floor_div(most, h), IR_NO_MAX);
    else keep_range(b, id, IR_NO_MIN, ir_floor_div(most, -h));
}

/* ---- Forms made of forms ---- */

static void unknown(ir_bounds *b, ir_elem elem, ir_form *out) {
    int64_t min = IR_NO_MIN, max = IR_NO_MAX;
    if (elem == IR_I32) min = INT32_MIN, max = INT32_MAX;
    if (elem == IR_BOOL) min = 0, max = 1;
    ir_form_atom(out, new_atom(b, min, max));
}

/* The product of two atoms, itself an atom; 0 if it has too many factors. */
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
        if (atom->kind == IR_ATOM_PRODUCT && atom->num_factors == n && !memcmp(atom->factors, factors, n * sizeof *factors))
            return id;
    }
    const uint32_t id = new_atom(b, IR_NO_MIN, IR_NO_MAX);
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

/* The atom for op(x, y), or for op(x, m) when y is NULL: the one there is, or a new one (*is_new). */
static uint32_t intern(ir_bounds *b, int op, const ir_form *x, const ir_form *y, int64_t m, const void *extra,
                       bool *is_new) {
    uint64_t hash = ir_form_hash(x, (uint64_t)op * 31 + (uint64_t)m) ^ (uint64_t)x->c ^ ((uintptr_t)extra >> 4);
    if (y) hash = ir_form_hash(y, hash) ^ (uint64_t)y->c;
    hash *= 0x9e3779b97f4a7c15u;
    uint32_t *slot = &b->slots[(hash >> 40) % IR_INTERN_SLOTS];
    *is_new = false;
    for (uint32_t id = *slot; id; id = b->atoms[id]->next) {
        const struct ir_atom_key *key = &b->atoms[id]->key;
        if (b->atoms[id]->key_hash == hash && key->op == op && key->m == m && key->extra == extra &&
            !key->y == !y && ir_form_equal(key->x, x) && (!y || ir_form_equal(key->y, y)))
            return id;
    }
    const ir_form *kept_x = ir_bounds_keep(b, x), *kept_y = y ? ir_bounds_keep(b, y) : NULL;
    const uint32_t id = kept_x && (kept_y || !y) ? new_atom(b, IR_NO_MIN, IR_NO_MAX) : 0;
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

/* fact = a * x + c * q + k, told to q. */
static void tell(ir_bounds *b, uint32_t q, int64_t c, const ir_form *x, int64_t a, int64_t k) {
    ir_form fact, self;
    ir_form_atom(&self, q);
    ir_form_const(&fact, k);
    if (ir_form_add(&fact, x, a) && ir_form_add(&fact, &self, c)) add_atom_fact(b, q, &fact);
}

/* out = x / m rounded down, m > 0. What m divides is taken out: (8 i + j) / 8 is i + j / 8. */
static bool divide_const(ir_bounds *b, const ir_form *x, int64_t m, ir_form *out) {
    ir_form rest;
    ir_form_const(out, ir_floor_div(x->c, m));
    ir_form_const(&rest, x->c - out->c * m);
    for (uint32_t i = 0; i < x->n; i++) {
        const ir_term term = x->terms[i];
        if (term.k % m == 0) out->terms[out->n++] = (ir_term){term.k / m, term.atom};
        else rest.terms[rest.n++] = term;
    }
    if (ir_bounds_min(b, &rest) >= 0 && ir_bounds_max(b, &rest) < m) return true;
    bool is_new;
    const uint32_t q = intern(b, IR_DIV, &rest, NULL, m, NULL, &is_new);
    if (q == 0) return false;
    if (is_new) {
        tell(b, q, -m, &rest, 1, 0);
        tell(b, q, m, &rest, -1, m - 1);
    }
    ir_form quotient;
    ir_form_atom(&quotient, q);
    return ir_form_add(out, &quotient, 1);
}

/* Division and remainder by a form; only what is sure of them when the divisor is positive. */
static bool divide_form(ir_bounds *b, int op, const ir_form *x, const ir_form *y, ir_form *out) {
    bool is_new;
    const bool positive = ir_bounds_prove(b, y, -1), above_zero = ir_bounds_prove(b, x, 0);
    const uint32_t q = intern(b, op, x, y, positive + 2 * above_zero, NULL, &is_new);
    if (q == 0) return false;
    ir_form_atom(out, q);
    if (!is_new || !positive) return true;
    if (op == IR_MOD) {
        keep_range(b, q, 0, IR_NO_MAX);
        tell(b, q, -1, y, 1, -1);
        if (above_zero) tell(b, q, -1, x, 1, 0);
        return true;
    }
    ir_form product, fact;
    if (above_zero) {
        keep_range(b, q, 0, IR_NO_MAX);
        tell(b, q, -1, x, 1, 0);
    }
    ir_form_copy(&fact, x);
    if (b->atoms[q]->num_facts < IR_ATOM_FACTS && ir_bounds_multiply(b, &product, out, y) &&
        ir_form_add(&fact, &product, -1)) {
        const ir_form *kept = ir_bounds_keep(b, &fact);
        if (kept) b->atoms[q]->facts[b->atoms[q]->num_facts++] = kept;
    }
    return true;
}

static bool divide(ir_bounds *b, int op, const ir_form *x, const ir_form *y, ir_form *out) {
    if (y->n > 0 || y->c <= 0) return divide_form(b, op, x, y, out);
    if (op == IR_DIV) return divide_const(b, x, y->c, out);
    ir_form quotient;
    if (!divide_const(b, x, y->c, &quotient)) return false;
    ir_form_copy(out, x);
    return ir_form_add(out, &quotient, -y->c);
}

/* An atom that is x or y. */
static void set_cases(ir_bounds *b, uint32_t id) {
    ir_atom *atom = b->atoms[id];
    atom->kind = IR_ATOM_CASES;
    atom->cases[0] = atom->key.x;
    atom->cases[1] = atom->key.y;
    const int64_t min_x = ir_bounds_min(b, atom->key.x), min_y = ir_bounds_min(b, atom->key.y);
    const int64_t max_x = ir_bounds_max(b, atom->key.x), max_y = ir_bounds_max(b, atom->key.y);
    keep_range(b, id, min_x < min_y ? min_x : min_y, max_x > max_y ? max_x : max_y);
}

static void add_case_fact(ir_bounds *b, ir_atom *atom, int which, const ir_form *fact) {
    const ir_form *kept = atom->num_case_facts[which] < IR_CASE_FACTS ? ir_bounds_keep(b, fact) : NULL;
    if (kept) atom->case_facts[which][atom->num_case_facts[which]++] = kept;
}

static bool min_or_max(ir_bounds *b, bool is_min, const ir_form *x, const ir_form *y, ir_form *out) {
    ir_form more; /* >= 0 where the result is x */
    ir_form_copy(&more, is_min ? y : x);
    if (!ir_form_add(&more, is_min ? x : y, -1)) return false;
    const bool is_x = ir_bounds_min(b, &more) >= 0;
    if (is_x || ir_bounds_max(b, &more) <= 0) {
        ir_form_copy(out, is_x ? x : y);
        return true;
    }
    bool is_new;
    const uint32_t id = intern(b, is_min ? IR_MIN : IR_MAX, x, y, 0, NULL, &is_new);
    if (id == 0) return false;
    ir_form_atom(out, id);
    if (!is_new) return true;
    const int64_t sign = is_min ? 1 : -1;
    set_cases(b, id);
    tell(b, id, -sign, x, sign, 0);
    tell(b, id, -sign, y, sign, 0);
    add_case_fact(b, b->atoms[id], 0, &more);
    if (ir_form_scale(&more, -1)) add_case_fact(b, b->atoms[id], 1, &more);
    return true;
}

/* ---- Facts from conditions ---- */

typedef void sink_fn(ir_bounds *b, void *user, const ir_form *fact);

static ir_op negated(ir_op op) {
    switch (op) {
    case IR_LT: return IR_GE;
    case IR_LE: return IR_GT;
    case IR_GT: return IR_LE;
    case IR_GE: return IR_LT;
    case IR_EQ: return IR_NE;
    default: return IR_EQ;
    }
}

static void compare_facts(ir_bounds *b, const ir_expr *e, ir_op op, sink_fn *sink, void *user) {
    ir_form x, y, fact;
    if (op == IR_NE || ir_elem_get(e->args[0]->type.elem)->class != IR_CLASS_INT) return;
    form_of(b, e->args[0], &x);
    form_of(b, e->args[1], &y);
    const bool strict = op == IR_LT || op == IR_GT;
    if (op == IR_GT || op == IR_GE || op == IR_EQ) {
        ir_form_copy(&fact, &x);
        if (ir_form_add(&fact, &y, -1) && ir_form_add_const(&fact, strict ? -1 : 0)) sink(b, user, &fact);
    }
    if (op == IR_LT || op == IR_LE || op == IR_EQ) {
        ir_form_copy(&fact, &y);
        if (ir_form_add(&fact, &x, -1) && ir_form_add_const(&fact, strict ? -1 : 0)) sink(b, user, &fact);
    }
}

static void condition_facts(ir_bounds *b, const ir_expr *e, bool holds, sink_fn *sink, void *user) {
    switch (e->op) {
    case IR_VAR:
        if (b->var_values[e->value.var->id]) condition_facts(b, b->var_values[e->value.var->id], holds, sink, user);
        return;
    case IR_AND:
    case IR_OR:
        if ((e->op == IR_AND) != holds) return;
        condition_facts(b, e->args[0], holds, sink, user);
        condition_facts(b, e->args[1], holds, sink, user);
        return;
    case IR_NOT:
        condition_facts(b, e->args[0], !holds, sink, user);
        return;
    case IR_SPLAT:
        condition_facts(b, e->args[0], holds, sink, user);
        return;
    case IR_EQ: case IR_NE: case IR_LT: case IR_LE: case IR_GT: case IR_GE:
        compare_facts(b, e, holds ? e->op : negated(e->op), sink, user);
        return;
    default:
        return;
    }
}

/* Pushes what a fact says about older atoms once its newest atom is eliminated with what that atom knows of itself:
 * (m + 3) / 4 >= 1 says m >= 1. The search alone would not find it, as a goal about m does not mention the quotient. */
static void push_consequences(ir_bounds *b, const ir_form *fact, int levels) {
    const ir_term newest = ir_bounds_newest(b, fact);
    const ir_atom *atom = b->atoms[newest.atom];
    for (int i = 0; i < atom->num_facts; i++) {
        const ir_form *own = atom->facts[i];
        const int64_t h = ir_form_coefficient(own, newest.atom), k = newest.k;
        ir_form sum;
        ir_form_copy(&sum, fact);
        if (h == 0 || (h > 0) == (k > 0) || h == INT64_MIN || k == INT64_MIN) continue;
        if (!ir_form_scale(&sum, h < 0 ? -h : h) || !ir_form_add(&sum, own, k < 0 ? -k : k)) continue;
        ir_form_tighten(&sum);
        if (sum.n == 0 || ir_bounds_min(b, &sum) >= 0) continue;
        ir_bounds_push_fact(b, ir_bounds_keep(b, &sum));
        if (levels > 1) push_consequences(b, &sum, levels - 1);
    }
}

static void push_sink(ir_bounds *b, void *user, const ir_form *fact) {
    (void)user;
    ir_form tight;
    ir_form_copy(&tight, fact);
    ir_form_tighten(&tight);
    if (tight.n == 0 || ir_bounds_min(b, &tight) >= 0) return;
    ir_bounds_push_fact(b, ir_bounds_keep(b, &tight));
    push_consequences(b, &tight, 2);
}

struct case_target {
    ir_atom *atom;
    int which;
};

static void case_sink(ir_bounds *b, void *user, const ir_form *fact) {
    const struct case_target *target = user;
    add_case_fact(b, target->atom, target->which, fact);
}

/* What only mentions one atom narrows its range for good; the rest becomes a fact that is never released. */
static void kernel_sink(ir_bounds *b, void *user, const ir_form *fact) {
    (void)user;
    const ir_term term = fact->n == 1 ? fact->terms[0] : (ir_term){0, 0};
    if (fact->n == 1 && b->atoms[term.atom]->kind != IR_ATOM_PRODUCT && fact->c != INT64_MIN && term.k != INT64_MIN) {
        if (term.k > 0) keep_range(b, term.atom, -ir_floor_div(fact->c, term.k), IR_NO_MAX);
        else keep_range(b, term.atom, IR_NO_MIN, ir_floor_div(fact->c, -term.k));
    }
    push_sink(b, NULL, fact);
}

uint32_t ir_bounds_mark(const ir_bounds *b) { return b->num_facts; }

void ir_bounds_release(ir_bounds *b, uint32_t mark) {
    if (b->num_facts > mark) b->epoch++;
    b->num_facts = mark;
}

void ir_bounds_fact(ir_bounds *b, const ir_expr *condition, bool holds) {
    condition_facts(b, condition, holds, push_sink, NULL);
}

void ir_bounds_kernel_fact(ir_bounds *b, const ir_expr *condition) {
    condition_facts(b, condition, true, kernel_sink, NULL);
}

void ir_bounds_dim(ir_bounds *b, const ir_expr *dim) {
    ir_form f;
    form_of(b, dim, &f);
    kernel_sink(b, NULL, &f);
}

/* ---- Forms from expressions ---- */

static bool select_of(ir_bounds *b, const ir_expr *e, ir_form *out) {
    ir_form x, y;
    bool is_new;
    form_of(b, e->args[1], &x);
    form_of(b, e->args[2], &y);
    const uint32_t id = intern(b, IR_SELECT, &x, &y, 0, e->args[0], &is_new);
    if (id == 0) return false;
    ir_form_atom(out, id);
    if (!is_new) return true;
    set_cases(b, id);
    for (int c = 0; c < 2; c++)
        condition_facts(b, e->args[0], c == 0, case_sink, &(struct case_target){b->atoms[id], c});
    /* The facts may have made atoms of their own, which must count as older. */
    b->atoms[id]->rank = b->num_atoms;
    return true;
}

static uint32_t lane_atom(const ir_bounds *b, int lanes) { return b->lane_atoms[__builtin_ctz((unsigned)lanes | 128)]; }

static bool ramp_of(ir_bounds *b, const ir_expr *e, ir_form *out) {
    ir_form base, step, lane, offset;
    form_of(b, e->args[0], &base);
    form_of(b, e->args[1], &step);
    ir_form_atom(&lane, lane_atom(b, e->type.lanes));
    if (!ir_bounds_multiply(b, &offset, &step, &lane)) return false;
    ir_form_copy(out, &base);
    return ir_form_add(out, &offset, 1);
}

static bool cast_of(ir_bounds *b, const ir_expr *e, ir_form *out) {
    const ir_expr *x = e->args[0];
    if (ir_elem_get(x->type.elem)->class != IR_CLASS_INT) return false;
    form_of(b, x, out);
    return true;
}

static bool binary_of(ir_bounds *b, const ir_expr *e, ir_form *out) {
    ir_form x, y;
    form_of(b, e->args[0], &x);
    form_of(b, e->args[1], &y);
    switch (e->op) {
    case IR_ADD:
    case IR_SUB:
        ir_form_copy(out, &x);
        return ir_form_add(out, &y, e->op == IR_ADD ? 1 : -1);
    case IR_MUL:
        return ir_bounds_multiply(b, out, &x, &y);
    case IR_DIV:
    case IR_MOD:
        return divide(b, e->op, &x, &y, out);
    case IR_SHL:
    case IR_SHR:
        if (y.n > 0 || y.c < 0 || y.c > 30) return false;
        if (e->op == IR_SHR) return divide_const(b, &x, (int64_t)1 << y.c, out);
        ir_form_copy(out, &x);
        return ir_form_scale(out, (int64_t)1 << y.c);
    case IR_AND: {
        const int64_t mask = x.n == 0 ? x.c : y.n == 0 ? y.c : -1;
        if (mask < 0) return false;
        ir_form_atom(out, new_atom(b, 0, mask));
        return true;
    }
    default:
        return min_or_max(b, e->op == IR_MIN, &x, &y, out);
    }
}

static bool try_form(ir_bounds *b, const ir_expr *e, ir_form *out) {
    ir_form x, y;
    switch (e->op) {
    case IR_CONST:
        ir_form_const(out, e->value.i);
        return true;
    case IR_VAR:
        if (!b->var_forms[e->value.var->id]) return false;
        ir_form_copy(out, b->var_forms[e->value.var->id]);
        return true;
    case IR_ADD: case IR_SUB: case IR_MUL: case IR_DIV: case IR_MOD: case IR_SHL: case IR_SHR: case IR_AND:
    case IR_MIN: case IR_MAX:
        return binary_of(b, e, out);
    case IR_NEG:
        form_of(b, e->args[0], out);
        return ir_form_scale(out, -1);
    case IR_ABS:
        form_of(b, e->args[0], &x);
        ir_form_copy(&y, &x);
        return ir_form_scale(&y, -1) && min_or_max(b, false, &x, &y, out);
    case IR_SELECT: return select_of(b, e, out);
    case IR_CAST: return cast_of(b, e, out);
    case IR_SPLAT:
        form_of(b, e->args[0], out);
        return true;
    case IR_RAMP: return ramp_of(b, e, out);
    default: return false;
    }
}

/* The form of an integer expression, of the lane that the lane atom numbers if it is a vector. */
static void form_of(ir_bounds *b, const ir_expr *e, ir_form *out) {
    const ir_elem elem = e->type.elem;
    if (ir_elem_get(elem)->class != IR_CLASS_INT || !try_form(b, e, out)) {
        unknown(b, elem, out);
        return;
    }
    /* 32-bit results wrap where no one has proved that they don't. */
    if (elem == IR_I32 && e->op != IR_VAR && e->op != IR_CONST &&
        (ir_bounds_min(b, out) < INT32_MIN || ir_bounds_max(b, out) > INT32_MAX))
        unknown(b, elem, out);
}

/* ---- What there is ---- */

void ir_bounds_param(ir_bounds *b, const ir_var *var) {
    ir_form f;
    if (ir_elem_get(var->type.elem)->class != IR_CLASS_INT) return;
    unknown(b, var->type.elem, &f);
    b->var_forms[var->id] = ir_bounds_keep(b, &f);
}

void ir_bounds_loop(ir_bounds *b, const ir_var *var, const ir_expr *lo, const ir_expr *hi, int64_t step,
                    bool unroll) {
    ir_form first, end, last, value, counter;
    if (lo) form_of(b, lo, &first);
    else ir_form_const(&first, 0);
    form_of(b, hi, &end);
    const uint32_t id = new_atom(b, 0, IR_NO_MAX);
    ir_form_atom(&counter, id);
    ir_form_copy(&value, &first);
    if (!ir_form_add(&value, &counter, step)) {
        unknown(b, IR_IDX, &value);
        b->var_forms[var->id] = ir_bounds_keep(b, &value);
        return;
    }
    b->atoms[id]->is_static = unroll;
    b->var_forms[var->id] = ir_bounds_keep(b, &value);

    /* The body runs only if there is a first round, and in each the variable is below the end. */
    ir_form_copy(&last, &end);
    if (!ir_form_add(&last, &first, -1) || !ir_form_add_const(&last, -1)) return;
    if (last.n > 0) push_sink(b, NULL, &last);
    if (!ir_form_add(&last, &counter, -step)) return;
    ir_form_tighten(&last);
    add_atom_fact(b, id, &last);
}

void ir_bounds_let(ir_bounds *b, const ir_var *var, const ir_expr *value) {
    ir_form f;
    b->var_values[var->id] = value;
    if (ir_elem_get(var->type.elem)->class != IR_CLASS_INT) return;
    form_of(b, value, &f);
    b->var_forms[var->id] = ir_bounds_keep(b, &f);
}

bool ir_bounds_is_static(ir_bounds *b, const ir_expr *expr) {
    ir_form f;
    form_of(b, expr, &f);
    for (uint32_t i = 0; i < f.n; i++)
        if (!b->atoms[f.terms[i].atom]->is_static) return false;
    return true;
}

/* ---- Questions ---- */

static ir_bounds_verdict check_index(ir_bounds *b, const ir_expr *index, const ir_expr *dim, int lanes, bool masked) {
    ir_form f, size;
    int64_t reach = lanes - 1;
    form_of(b, index, &f);
    if (masked) { /* The mask speaks of lanes. */
        ir_form lane;
        ir_form_atom(&lane, lane_atom(b, lanes));
        if (!ir_form_add(&f, &lane, 1)) return IR_BOUNDS_BELOW;
        reach = 0;
    }
    if (!ir_bounds_prove(b, &f, 0)) return IR_BOUNDS_BELOW;
    form_of(b, dim, &size);
    return ir_form_add(&size, &f, -1) && ir_bounds_prove(b, &size, -1 - reach) ? IR_BOUNDS_OK : IR_BOUNDS_ABOVE;
}

ir_bounds_verdict ir_bounds_access(ir_bounds *b, const ir_access *access, int *dim) {
    const ir_buffer *buffer = access->buffer;
    const uint32_t mark = ir_bounds_mark(b);
    bool gather = false;
    if (access->mask) ir_bounds_fact(b, access->mask, true);
    for (int d = 0; d < buffer->num_dims; d++) gather |= access->indices[d]->type.lanes > 1;
    ir_bounds_verdict verdict = IR_BOUNDS_OK;
    for (int d = 0; d < buffer->num_dims && verdict == IR_BOUNDS_OK; d++) {
        const ir_expr *index = access->indices[d], *size = buffer->dims[d];
        const bool spread = buffer->space != IR_REG && !gather && d == access->axis;
        *dim = d;
        if (index->op == IR_CONST && size->op == IR_CONST && !spread) {
            if (index->value.i < 0) verdict = IR_BOUNDS_BELOW;
            else if (index->value.i >= size->value.i) verdict = IR_BOUNDS_ABOVE;
            continue;
        }
        verdict = check_index(b, index, size, spread ? access->lanes : 1, spread && access->mask && access->lanes > 1);
    }
    ir_bounds_release(b, mark);
    return verdict;
}

bool ir_bounds_nonzero(ir_bounds *b, const ir_expr *expr) {
    ir_form f;
    form_of(b, expr, &f);
    if (ir_bounds_prove(b, &f, -1)) return true;
    return ir_form_scale(&f, -1) && ir_bounds_prove(b, &f, -1);
}
