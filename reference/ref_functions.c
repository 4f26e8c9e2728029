/* A recursive descent that computes while it reads: there is no tree, as speed does not matter. */
#include "ref_functions.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum kind { CONDITION, INTEGER, NUMBER } kind;

typedef struct value {
    kind kind;
    int64_t i;
    long double f;
} value;

typedef struct reader {
    const ref_place *place;
    const char *at;
    long double score;
} reader;

static value condition(bool x) { return (value){CONDITION, x, x}; }
static value integer(int64_t x) { return (value){INTEGER, x, (long double)x}; }
static value number(long double x) { return (value){NUMBER, 0, x}; }

static value expression(reader *r, int level);

static void blanks(reader *r) {
    while (*r->at == ' ' || *r->at == '\t' || *r->at == '\r' || *r->at == '\n') r->at++;
}

static bool take(reader *r, const char *sign) {
    blanks(r);
    if (strncmp(r->at, sign, strlen(sign))) return false;
    r->at += strlen(sign);
    return true;
}

/* ---- Operators ---- */

static int64_t floor_div(int64_t x, int64_t y) {
    if (y == 0) return 0;
    if (y == -1) return (int64_t)(0 - (uint64_t)x);
    return x / y - (x % y != 0 && (x < 0) != (y < 0));
}

static value arithmetic(char op, value x, value y) {
    if (op == '/') return number(x.f / y.f);
    if (x.kind != NUMBER && y.kind != NUMBER) {
        const uint64_t a = (uint64_t)x.i, b = (uint64_t)y.i;
        if (op == 'f') return integer(floor_div(x.i, y.i));
        if (op == '%') return integer((int64_t)(a - b * (uint64_t)floor_div(x.i, y.i)));
        return integer((int64_t)(op == '+' ? a + b : op == '-' ? a - b : a * b));
    }
    if (op == 'f') return number(floorl(x.f / y.f));
    if (op == '%') return number(x.f - y.f * floorl(x.f / y.f));
    return number(op == '+' ? x.f + y.f : op == '-' ? x.f - y.f : x.f * y.f);
}

static bool compare(const char *op, value x, value y) {
    const bool whole = x.kind != NUMBER && y.kind != NUMBER;
    const bool less = whole ? x.i < y.i : x.f < y.f, equal = whole ? x.i == y.i : x.f == y.f;
    const bool more = whole ? x.i > y.i : x.f > y.f;
    if (!strcmp(op, "==")) return equal;
    if (!strcmp(op, "!=")) return !equal;
    if (!strcmp(op, "<=")) return less || equal;
    if (!strcmp(op, ">=")) return more || equal;
    return *op == '<' ? less : more;
}

static value bitwise(char op, value x, value y) {
    const int64_t bits = op == '&' ? x.i & y.i : op == '|' ? x.i | y.i : x.i ^ y.i;
    return x.kind == CONDITION && y.kind == CONDITION ? condition(bits != 0) : integer(bits);
}

static value as_number(value x) { return number(x.f); }

static value smaller_or_larger(bool larger, value x, value y) {
    if (x.kind == NUMBER || y.kind == NUMBER) {
        const bool takes_x = larger ? x.f > y.f : x.f < y.f;
        return takes_x ? as_number(x) : as_number(y);
    }
    return integer((larger ? x.i > y.i : x.i < y.i) ? x.i : y.i);
}

static value choose(value c, value x, value y) {
    if (x.kind == NUMBER || y.kind == NUMBER) return as_number(c.i ? x : y);
    if (x.kind == INTEGER || y.kind == INTEGER) return integer(c.i ? x.i : y.i);
    return c.i ? x : y;
}

/* ---- Names ---- */

static value call(const char *name, const value *x) {
    static const struct {
        const char *name;
        long double (*of)(long double);
    } functions[] = {{"exp", expl}, {"log", logl}, {"exp2", exp2l}, {"log2", log2l}, {"tanh", tanhl}, {"sqrt", sqrtl}};
    if (!strcmp(name, "select")) return choose(x[0], x[1], x[2]);
    if (!strcmp(name, "min") || !strcmp(name, "max")) return smaller_or_larger(name[1] == 'a', x[0], x[1]);
    if (!strcmp(name, "clamp")) return smaller_or_larger(false, x[2], smaller_or_larger(true, x[1], x[0]));
    if (!strcmp(name, "abs")) return x->kind == NUMBER ? number(fabsl(x->f)) : integer(x->i < 0 ? -x->i : x->i);
    if (!strcmp(name, "floor")) return x->kind == NUMBER ? number(floorl(x->f)) : integer(x->i);
    if (!strcmp(name, "float")) return as_number(*x);
    if (!strcmp(name, "int")) return integer(x->kind == NUMBER ? (int64_t)x->f : x->i);
    if (!strcmp(name, "sigmoid")) return number(1 / (1 + expl(-x->f)));
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!strcmp(name, functions[i].name)) return number(functions[i].of(x->f));
    return integer(0);
}

static value variable(const reader *r, const char *name) {
    const ref_place *const p = r->place;
    const struct {
        const char *name;
        int64_t value;
    } names[] = {{"b", p->b},   {"h", p->h},         {"kv_h", p->kv_h},    {"q", p->q},
                 {"kv", p->kv}, {"seq_q", p->seq_q}, {"seq_kv", p->seq_kv}};
    if (!strcmp(name, "score") || !strcmp(name, "prob")) return number(r->score);
    if (!strcmp(name, "inf")) return number(INFINITY);
    if (!strcmp(name, "true") || !strcmp(name, "false")) return condition(*name == 't');
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i].name)) return integer(names[i].value);
    return integer(0);
}

/* An index beyond its dim was written as clamp(…). */
static value element(const reader *r, const char *name, const value *index) {
    for (size_t i = 0; i < r->place->call->count; i++) {
        const attune_tensor *const t = &r->place->call->tensors[i];
        const void *data;
        int64_t at = 0;
        if (strcmp(t->name, name)) continue;
        memcpy(&data, (const char *)r->place->call->arguments + t->pointer_offset, sizeof data);
        for (int d = 0; d < t->rank; d++) {
            const int64_t most = t->dims[d] - 1, low = index[d].i < 0 ? 0 : index[d].i;
            at += (low > most ? most : low) * t->strides[d];
        }
        const long double x = ref_load(t->dtype, data, at);
        if (t->dtype == ATTUNE_BOOL) return condition(x != 0);
        return t->dtype == ATTUNE_I32 || t->dtype == ATTUNE_I8 ? integer((int64_t)x) : number(x);
    }
    return integer(0);
}

static bool is_of_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* clamp(x) alone is that of an index, which `element` does. */
static value named(reader *r) {
    char name[64] = "";
    value x[4] = {{0}};
    size_t length = 0;
    while (length < sizeof name - 1 && is_of_name(*r->at)) name[length++] = *r->at++;
    const bool is_call = take(r, "("), is_element = !is_call && take(r, "[");
    if (!is_call && !is_element) return variable(r, name);
    int count = 0;
    do x[count++] = expression(r, 0);
    while (count < 4 && take(r, ","));
    take(r, is_call ? ")" : "]");
    if (is_call && count == 1 && !strcmp(name, "clamp")) return x[0];
    return is_call ? call(name, x) : element(r, name, x);
}

/* ---- Grammar ---- */

static value literal(reader *r) {
    char *end;
    const size_t digits = strspn(r->at, "0123456789");
    const char after = r->at[digits];
    const bool is_real = after == '.' || after == 'e' || after == 'E';
    const value x = is_real ? number(strtod(r->at, &end)) : integer(strtoll(r->at, &end, 10));
    r->at = end;
    return x;
}

static value unary(reader *r) {
    blanks(r);
    if (take(r, "-")) {
        const value x = unary(r);
        return x.kind == NUMBER ? number(-x.f) : integer(-x.i);
    }
    if (take(r, "~") || take(r, "!")) {
        const value x = unary(r);
        return x.kind == CONDITION ? condition(!x.i) : integer(~x.i);
    }
    if (take(r, "(")) {
        const value x = expression(r, 0);
        take(r, ")");
        return x;
    }
    if ((*r->at >= '0' && *r->at <= '9') || *r->at == '.') return literal(r);
    return named(r);
}

/* The infix operator of a level that comes next; "": none. */
static const char *infix(reader *r, int level) {
    static const char *const signs[6][7] = {
        {"|"}, {"^"}, {"&"}, {"==", "!=", "<=", ">=", "<", ">"}, {"+", "-"}, {"//", "*", "/", "%"}};
    for (int i = 0; i < 7 && signs[level][i]; i++)
        if (take(r, signs[level][i])) return signs[level][i];
    return "";
}

static value expression(reader *r, int level) {
    if (level == 6) return unary(r);
    value x = expression(r, level + 1);
    for (const char *op; *(op = infix(r, level));) {
        const value y = expression(r, level + 1);
        if (level < 3)
            x = bitwise(*op, x, y);
        else if (level == 3)
            x = condition(compare(op, x, y));
        else
            x = arithmetic(op[1] ? 'f' : *op, x, y);
    }
    return x;
}

long double ref_modified(const ref_place *place, long double score) {
    reader r = {place, place->call->problem->score_mod, score};
    return *r.at ? expression(&r, 0).f : score;
}

long double ref_modified_prob(const ref_place *place, long double prob) {
    reader r = {place, place->call->problem->prob_mod, prob};
    return *r.at ? expression(&r, 0).f : prob;
}

bool ref_function_sees(const ref_place *place) {
    reader r = {place, place->call->problem->mask_mod, 0};
    return !*r.at || expression(&r, 0).i != 0;
}
