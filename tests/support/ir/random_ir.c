#include "support/ir/random_ir.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

uint64_t random_ir_bits(random_ir *r) { /* splitmix64 */
    uint64_t z = (r->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int random_ir_below(random_ir *r, int n) { return (int)(random_ir_bits(r) % (uint64_t)n); }

static int chance(random_ir *r, int percent) { return random_ir_below(r, 100) < percent; }

static void put(random_ir *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put(random_ir *r, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(r->text + r->length, sizeof r->text - r->length, format, args);
    va_end(args);
    r->length += (size_t)n;
    if (r->length >= sizeof r->text) r->length = sizeof r->text - 1;
}

/* ---- Indices and conditions; divisors are lets that were put out before ---- */

static void put_index(random_ir *r, int depth);

static void put_condition(random_ir *r, int depth) {
    static const char *const compare[] = {"<", "<=", ">", ">=", "==", "!="};
    switch (depth > 0 ? random_ir_below(r, 6) : 5) {
    case 0:
    case 1:
        put(r, "(");
        put_condition(r, depth - 1);
        put(r, random_ir_below(r, 3) ? " & " : " | ");
        put_condition(r, depth - 1);
        put(r, ")");
        return;
    case 2:
        put(r, "not(");
        put_condition(r, depth - 1);
        put(r, ")");
        return;
    default:
        put(r, "(");
        put_index(r, 1);
        put(r, " %s ", compare[random_ir_below(r, 6)]);
        put_index(r, 1);
        put(r, ")");
    }
}

static void put_leaf(random_ir *r) {
    static const char *const scalars[] = {"n", "m", "p"};
    const int kind = random_ir_below(r, 8);
    if (kind < 2)
        put(r, "%d", random_ir_below(r, 20) - 3);
    else if (kind < 4 || r->num_vars == 0)
        put(r, "%s", scalars[random_ir_below(r, 3)]);
    else
        put(r, "%s", r->vars[random_ir_below(r, r->num_vars)]);
}

static void put_call(random_ir *r, const char *name, int depth) {
    put(r, "%s(", name);
    put_index(r, depth - 1);
    put(r, ", ");
    put_index(r, depth - 1);
    put(r, ")");
}

static void put_index(random_ir *r, int depth) {
    static const int divisors[] = {1, 2, 3, 4, 7, 8, 16};
    const int kind = depth > 0 ? random_ir_below(r, 14) : 0;
    if (kind < 4) {
        put_leaf(r);
        return;
    }
    if (kind < 6) {
        put_call(r, kind == 4 ? "min" : "max", depth);
        return;
    }
    if (kind == 6) {
        put(r, "select(");
        put_condition(r, 1);
        put(r, ", ");
        put_index(r, depth - 1);
        put(r, ", ");
        put_index(r, depth - 1);
        put(r, ")");
        return;
    }
    put(r, "(");
    put_index(r, depth - 1);
    if (kind < 9)
        put(r, " * %d", random_ir_below(r, 5));
    else if (kind < 11)
        put(r, " %c %d", random_ir_below(r, 2) ? '/' : '%', divisors[random_ir_below(r, 7)]);
    else {
        put(r, random_ir_below(r, 2) ? " + " : " - ");
        put_index(r, depth - 1);
    }
    put(r, ")");
}

/* An index into a dimension, of an access that is `lanes` wide along it. */
static void put_bounded(random_ir *r, const char *dim, int lanes) {
    if (!chance(r, r->careful)) {
        put_index(r, 2);
        return;
    }
    const int first = random_ir_below(r, 2); /* Both orders are right if there is room at all. */
    put(r, first ? "max(0, min(%s - %d, " : "min(%s - %d, max(0, ", dim, lanes);
    put_index(r, 2);
    put(r, "))");
}

/* ---- Values ---- */

/* Only t is certain to have room for a vector. */
static void put_load(random_ir *r, int lanes) {
    const int which = r->careful == 100 ? 2 : random_ir_below(r, 3);
    put(r, which == 0 ? "x[" : which == 1 ? "y[" : "t[");
    if (which == 1) {
        put_bounded(r, "n", 1);
        put(r, ", ");
    }
    put_bounded(r, which == 0 ? "n" : which == 1 ? "m" : "64", lanes);
    put(r, "]");
    if (lanes > 1) put(r, ":x%d", lanes);
}

static void put_splat(random_ir *r, int lanes, double value) {
    if (lanes > 1)
        put(r, "splat.x%d(%a)", lanes, value);
    else
        put(r, "%a", value);
}

static void put_value(random_ir *r, int lanes, int depth) {
    static const char *const calls[] = {"min", "max"};
    static const char *const unary[] = {"rint", "abs", "neg", "sqrt", "rint", "exp2", "tanh", "log2"};
    static const char infix[] = "+-*/";
    const int kind = depth > 0 ? random_ir_below(r, 7) : 6;
    switch (kind) {
    case 0:
    case 1:
        put(r, "%s(", unary[random_ir_below(r, 8)]);
        put_value(r, lanes, depth - 1);
        put(r, ")");
        return;
    case 2:
        put(r, "(");
        put_value(r, lanes, depth - 1);
        put(r, " %c ", infix[random_ir_below(r, 4)]);
        put_value(r, lanes, depth - 1);
        put(r, ")");
        return;
    case 3:
        put(r, "%s(", calls[random_ir_below(r, 2)]);
        put_value(r, lanes, depth - 1);
        put(r, ", ");
        put_value(r, lanes, depth - 1);
        put(r, ")");
        return;
    case 4:
        put(r, r->fma ? "fma(" : "select(");
        put_value(r, lanes, depth - 1);
        put(r, r->fma ? ", " : " < ");
        put_value(r, lanes, depth - 1);
        put(r, ", ");
        put_value(r, lanes, depth - 1);
        if (!r->fma) {
            put(r, ", ");
            put_value(r, lanes, depth - 1);
        }
        put(r, ")");
        return;
    case 5: put_splat(r, lanes, (double)random_ir_below(r, 1000) / 64 - 7); return;
    default: put_load(r, lanes);
    }
}

/* ---- Statements ---- */

static void put_block(random_ir *r);

static void put_store(random_ir *r) {
    const int lanes = r->arithmetic || !random_ir_below(r, 4) ? 1 << random_ir_below(r, 4) : 1;
    const int which = r->careful == 100 ? 2 : random_ir_below(r, 3);
    put(r, which == 0 ? "x[" : which == 1 ? "y[" : "t[");
    if (which == 1) {
        put_bounded(r, "n", 1);
        put(r, ", ");
    }
    char index[512];
    const size_t before = r->length;
    put_bounded(r, which == 0 ? "n" : which == 1 ? "m" : "64", lanes);
    snprintf(index, sizeof index, "%s", r->text + before);
    put(r, "]");
    if (lanes > 1) put(r, ":x%d", lanes);
    if (lanes > 1 && !random_ir_below(r, 2) && strlen(index) < sizeof index - 1)
        put(r, " ? (ramp.x%d(%s, 1) < splat.x%d(%s))", lanes, index, lanes, which == 0 ? "n" : which == 1 ? "m" : "64");
    put(r, " = ");
    if (r->arithmetic)
        put_value(r, lanes, 3);
    else
        put_splat(r, lanes, 1);
    put(r, "\n");
}

/* A loop of few rounds; `unroll` needs constant ends. */
static void put_loop(random_ir *r) {
    const int vars = r->num_vars, unrolled = r->arithmetic && random_ir_below(r, 2);
    const int lo = random_ir_below(r, 4), step = 1 + random_ir_below(r, 3);
    char name[12];
    snprintf(name, sizeof name, "l%d", r->num_names++);
    put(r, "for %s in ", name);
    if (unrolled || !random_ir_below(r, 3)) {
        put(r, "%d .. %d", lo, lo + random_ir_below(r, 5));
    } else {
        put(r, "%d .. min(12, ", lo);
        put_index(r, 2);
        put(r, ")");
    }
    put(r, " by %d%s {\n", step, unrolled ? " unroll" : "");
    snprintf(r->vars[r->num_vars++], sizeof r->vars[0], "%s", name);
    put_block(r);
    put(r, "}\n");
    r->num_vars = vars;
}

static void put_branch(random_ir *r) {
    const int vars = r->num_vars;
    put(r, "if ");
    put_condition(r, 2);
    put(r, " {\n");
    put_block(r);
    r->num_vars = vars;
    if (random_ir_below(r, 2)) {
        put(r, "} else {\n");
        put_block(r);
        r->num_vars = vars;
    }
    put(r, "}\n");
}

/* A let, which now and then divides by something that is not a constant. */
static void put_let(random_ir *r) {
    char divisor[12] = "";
    if (!random_ir_below(r, 4)) {
        snprintf(divisor, sizeof divisor, "d%d", r->num_names++);
        put(r, "let %s = ", divisor);
        if (chance(r, r->careful))
            put(r, "max(1, ");
        else
            put(r, "(");
        put_index(r, 2);
        put(r, ")\nassume %s != 0\n", divisor);
    }
    const int vars = r->num_vars;
    char name[12];
    snprintf(name, sizeof name, "v%d", r->num_names++);
    if (!*divisor && chance(r, 25)) { /* nothing is known of it but the interval */
        const int end = 1 + random_ir_below(r, 9);
        put(r, "let %s in 0..%d = (", name, end);
        put_index(r, 3);
        put(r, ") %% %d\n", end);
    } else {
        put(r, "let %s = ", name);
        put_index(r, 3);
        if (*divisor) put(r, " %c %s", random_ir_below(r, 2) ? '/' : '%', divisor);
        put(r, "\n");
    }
    snprintf(r->vars[vars], sizeof r->vars[0], "%s", name);
    r->num_vars = vars + 1;
}

/* A register array summed up in an unrolled loop, with lets and an allocation inside it. */
static void put_registers(random_ir *r) {
    const int lanes = 1 << random_ir_below(r, 4), id = r->num_names++;
    char suffix[8] = "";
    if (lanes > 1) snprintf(suffix, sizeof suffix, "x%d", lanes);
    const char *of = lanes > 1 ? ":" : "";
    put(r, "alloc r%d: f32%s[3] reg\n", id, suffix);
    put(r, "for a%d in 0 .. 3 unroll {\nlet w%d = ", id, id);
    put_value(r, lanes, 2);
    put(r, "\nalloc s%d: f32%s[] reg\ns%d[] = w%d\nr%d[2 - a%d] = (s%d[]%s%s + w%d)\n}\n", id, suffix, id, id, id, id,
        id, of, suffix, id);
    put(r, "t[%d]%s%s = ((r%d[0]%s%s - r%d[1]%s%s) * r%d[2]%s%s)\n", random_ir_below(r, 48), of, suffix, id, of, suffix,
        id, of, suffix, id, of, suffix);
}

static void put_block(random_ir *r) {
    const int count = 1 + random_ir_below(r, 3);
    r->depth++;
    for (int i = 0; i < count && r->budget > 0 && r->num_vars < 50; i++) {
        r->budget--;
        const int kind = r->depth > 4 ? 0 : random_ir_below(r, 10);
        if (kind < 4)
            put_store(r);
        else if (kind < 6)
            put_loop(r);
        else if (kind == 6)
            put_branch(r);
        else if (kind == 7 && r->arithmetic)
            put_registers(r);
        else
            put_let(r);
    }
    r->depth--;
}

typedef struct assumption {
    const char *text;
    int n_min, m_min, m_max, p_min, p_max;
    int p_below_n, m_above_n;
} assumption;

static const assumption assumptions[] = {
    {"", 0, 0, 12, -6, 26, 0, 0},
    {"assume n >= 8\n", 8, 0, 12, -6, 26, 0, 0},
    {"assume m == 6\n", 0, 6, 6, -6, 26, 0, 0},
    {"assume (p >= 0) & (p < n)\n", 1, 0, 12, 0, 26, 1, 0},
    {"assume m > n\n", 0, 0, 12, -6, 26, 0, 1},
    {"assume p <= 0\n", 0, 0, 12, -6, 0, 0, 0},
};

void random_ir_arguments(random_ir *r, int64_t arguments[3]) {
    const assumption *a = &assumptions[r->assumption];
    int64_t n = a->n_min + random_ir_below(r, 14);
    int64_t m = a->m_min + random_ir_below(r, a->m_max - a->m_min + 1);
    int64_t p = a->p_min + random_ir_below(r, a->p_max - a->p_min + 1);
    if (a->p_below_n) p %= n;
    if (a->m_above_n) m += n + 1;
    arguments[0] = n;
    arguments[1] = m;
    arguments[2] = p;
}

void random_ir_kernel(random_ir *r) {
    r->length = 0;
    r->num_vars = r->num_names = r->depth = 0;
    r->budget = r->arithmetic ? 14 : 5;
    r->assumption = random_ir_below(r, (int)(sizeof assumptions / sizeof assumptions[0]));
    put(r, "kernel @k (x: f32[n] inout, y: f32[n, m] inout, t: f32[%d] inout, n: idx, m: idx, p: idx) {\n%s",
        RANDOM_IR_T, assumptions[r->assumption].text);
    put(r, "parallel for i in 0 .. n {\n");
    snprintf(r->vars[r->num_vars++], sizeof r->vars[0], "i");
    put_block(r);
    if (r->arithmetic) {
        r->num_vars = 1;
        put_registers(r);
        put_loop(r);
    }
    put(r, "}\n}\n");
}
