/* What the bounds prover knows: how expressions become linear forms, which facts hold at a place, and the questions
 * about both.
 *
 *     i = 0, 4, … while i < n     i is the form 4 c; the counter c knows c >= 0 and n - 1 - 4 c >= 0
 *     if (x < y)                  the fact y - x - 1 >= 0, released at the end of the branch
 *     a load                      a new atom: any value of its element */
#include "ir/verify/bounds_internal.h"

static void form_of(ir_bounds *b, const ir_expr *e, ir_form *out);

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
    case IR_NOT: condition_facts(b, e->args[0], !holds, sink, user); return;
    case IR_SPLAT: condition_facts(b, e->args[0], holds, sink, user); return;
    case IR_EQ:
    case IR_NE:
    case IR_LT:
    case IR_LE:
    case IR_GT:
    case IR_GE: compare_facts(b, e, holds ? e->op : negated(e->op), sink, user); return;
    default: return;
    }
}

/* Eliminates a fact's newest atom by that atom's own facts, and pushes the results, which are facts about older atoms:
 * (m + 3) / 4 >= 1 gives m >= 1. The search alone would not find these, as a goal about m does not mention the
 * quotient. */
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
    if (ir_bounds_min(b, &tight) >= 0) return;
    ir_bounds_push_fact(b, ir_bounds_keep(b, &tight));
    if (tight.n > 0) push_consequences(b, &tight, 2);
}

struct case_target {
    ir_atom *atom;
    int which;
};

static void case_sink(ir_bounds *b, void *user, const ir_form *fact) {
    const struct case_target *target = user;
    ir_atom_add_case_fact(b, target->atom, target->which, fact);
}

/* An inequality about a single atom narrows its range permanently. Any other becomes a fact that is never released. */
static void kernel_sink(ir_bounds *b, void *user, const ir_form *fact) {
    (void)user;
    const ir_term term = fact->n == 1 ? fact->terms[0] : (ir_term){0, 0};
    if (fact->n == 1 && b->atoms[term.atom]->kind != IR_ATOM_PRODUCT && fact->c != INT64_MIN && term.k != INT64_MIN) {
        if (term.k > 0)
            ir_atom_narrow(b, term.atom, -ir_floor_div(fact->c, term.k), IR_NO_MAX);
        else
            ir_atom_narrow(b, term.atom, IR_NO_MIN, ir_floor_div(fact->c, -term.k));
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
    const uint32_t id = ir_atom_intern(b, IR_SELECT, &x, &y, 0, e->args[0], &is_new);
    if (id == 0) return false;
    ir_form_atom(out, id);
    if (!is_new) return true;
    ir_atom_set_cases(b, id);
    for (int c = 0; c < 2; c++)
        condition_facts(b, e->args[0], c == 0, case_sink, &(struct case_target){b->atoms[id], c});
    /* Atoms that the facts have created must count as older than this one. */
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
    case IR_SUB: ir_form_copy(out, &x); return ir_form_add(out, &y, e->op == IR_ADD ? 1 : -1);
    case IR_MUL: return ir_bounds_multiply(b, out, &x, &y);
    case IR_DIV:
    case IR_MOD: return ir_bounds_divide(b, e->op, &x, &y, out);
    case IR_SHL:
    case IR_SHR:
        if (y.n > 0 || y.c < 0 || y.c > 30) return false;
        if (e->op == IR_SHR) return ir_bounds_divide_const(b, &x, (int64_t)1 << y.c, out);
        ir_form_copy(out, &x);
        return ir_form_scale(out, (int64_t)1 << y.c);
    case IR_AND: {
        const int64_t mask = x.n == 0 ? x.c : y.n == 0 ? y.c : -1;
        if (mask < 0) return false;
        ir_form_atom(out, ir_atom_new(b, 0, mask));
        return true;
    }
    default: return ir_bounds_min_or_max(b, e->op == IR_MIN, &x, &y, out);
    }
}

static bool try_form(ir_bounds *b, const ir_expr *e, ir_form *out) {
    ir_form x, y;
    switch (e->op) {
    case IR_CONST: ir_form_const(out, e->value.i); return true;
    case IR_VAR:
        if (!b->var_forms[e->value.var->id]) return false;
        ir_form_copy(out, b->var_forms[e->value.var->id]);
        return true;
    case IR_ADD:
    case IR_SUB:
    case IR_MUL:
    case IR_DIV:
    case IR_MOD:
    case IR_SHL:
    case IR_SHR:
    case IR_AND:
    case IR_MIN:
    case IR_MAX: return binary_of(b, e, out);
    case IR_NEG: form_of(b, e->args[0], out); return ir_form_scale(out, -1);
    case IR_ABS:
        form_of(b, e->args[0], &x);
        ir_form_copy(&y, &x);
        return ir_form_scale(&y, -1) && ir_bounds_min_or_max(b, false, &x, &y, out);
    case IR_SELECT: return select_of(b, e, out);
    case IR_CAST: return cast_of(b, e, out);
    case IR_SPLAT: form_of(b, e->args[0], out); return true;
    case IR_RAMP: return ramp_of(b, e, out);
    default: return false;
    }
}

/* The form of an integer expression. For a vector, it is the form of one lane, whose number is the lane atom. */
static void form_of(ir_bounds *b, const ir_expr *e, ir_form *out) {
    const ir_elem elem = e->type.elem;
    if (ir_elem_get(elem)->class != IR_CLASS_INT || !try_form(b, e, out)) {
        ir_bounds_unknown(b, elem, out);
        return;
    }
    /* A 32-bit result may wrap, unless its form is proved to fit. */
    if (elem == IR_I32 && e->op != IR_VAR && e->op != IR_CONST &&
        (ir_bounds_min(b, out) < INT32_MIN || ir_bounds_max(b, out) > INT32_MAX))
        ir_bounds_unknown(b, elem, out);
}

/* ---- Parameters, loops and lets ---- */

void ir_bounds_param(ir_bounds *b, const ir_var *var) {
    ir_form f;
    if (ir_elem_get(var->type.elem)->class != IR_CLASS_INT) return;
    ir_bounds_unknown(b, var->type.elem, &f);
    b->var_forms[var->id] = ir_bounds_keep(b, &f);
}

void ir_bounds_loop(ir_bounds *b, const ir_var *var, const ir_expr *lo, const ir_expr *hi, int64_t step, bool unroll) {
    ir_form first, end, last, value, counter;
    if (lo)
        form_of(b, lo, &first);
    else
        ir_form_const(&first, 0);
    form_of(b, hi, &end);
    const uint32_t id = ir_atom_new(b, 0, IR_NO_MAX);
    ir_form_atom(&counter, id);
    ir_form_copy(&value, &first);
    if (!ir_form_add(&value, &counter, step)) {
        ir_bounds_unknown(b, IR_IDX, &value);
        b->var_forms[var->id] = ir_bounds_keep(b, &value);
        return;
    }
    b->atoms[id]->is_static = unroll;
    b->var_forms[var->id] = ir_bounds_keep(b, &value);

    /* Facts of the body: it runs only if lo < hi, and the variable is below hi in every iteration. */
    ir_form_copy(&last, &end);
    if (!ir_form_add(&last, &first, -1) || !ir_form_add_const(&last, -1)) return;
    push_sink(b, NULL, &last);
    if (!ir_form_add(&last, &counter, -step)) return;
    ir_form_tighten(&last);
    ir_atom_add_fact(b, id, &last);
}

void ir_bounds_let(ir_bounds *b, const ir_var *var, const ir_expr *value) {
    ir_form f;
    b->var_values[var->id] = value;
    if (ir_elem_get(var->type.elem)->class != IR_CLASS_INT) return;
    form_of(b, value, &f);
    b->var_forms[var->id] = ir_bounds_keep(b, &f);
}

/* An unknown value, and two facts, which are released at the end of the block. */
void ir_bounds_let_in(ir_bounds *b, const ir_var *var, const ir_expr *lo, const ir_expr *hi) {
    ir_form value, above, below;
    form_of(b, lo, &above);
    form_of(b, hi, &below);
    ir_bounds_unknown(b, IR_IDX, &value);
    b->var_forms[var->id] = ir_bounds_keep(b, &value);
    if (ir_form_scale(&above, -1) && ir_form_add(&above, &value, 1)) push_sink(b, NULL, &above);
    if (ir_form_add(&below, &value, -1) && ir_form_add_const(&below, -1)) push_sink(b, NULL, &below);
}

bool ir_bounds_is_static(ir_bounds *b, const ir_expr *expr) {
    ir_form f;
    form_of(b, expr, &f);
    for (uint32_t i = 0; i < f.n; i++)
        if (!b->atoms[f.terms[i].atom]->is_static) return false;
    return true;
}

/* ---- Questions ---- */

/* Whether the facts that hold here contradict each other: then this place is unreachable, and every claim about it is
 * true. Tried after a proof has failed. */
static bool is_unreachable(ir_bounds *b) {
    for (uint32_t i = b->num_facts; i-- > 0;) {
        ir_form opposite;
        ir_form_copy(&opposite, b->facts[i]);
        if (ir_form_scale(&opposite, -1) && ir_bounds_prove(b, &opposite, -1)) return true;
    }
    return false;
}

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
            if (index->value.i < 0)
                verdict = IR_BOUNDS_BELOW;
            else if (index->value.i >= size->value.i)
                verdict = IR_BOUNDS_ABOVE;
            continue;
        }
        verdict = check_index(b, index, size, spread ? access->lanes : 1, spread && access->mask && access->lanes > 1);
    }
    if (verdict != IR_BOUNDS_OK && is_unreachable(b)) verdict = IR_BOUNDS_OK;
    ir_bounds_release(b, mark);
    return verdict;
}

bool ir_bounds_nonzero(ir_bounds *b, const ir_expr *expr) {
    ir_form f;
    form_of(b, expr, &f);
    if (ir_bounds_prove(b, &f, -1)) return true;
    return (ir_form_scale(&f, -1) && ir_bounds_prove(b, &f, -1)) || is_unreachable(b);
}
