/* The canonical text of functions: one blank on either side of an infix operator, and parentheses where the order of
 * operators asks for them. */
#define _GNU_SOURCE
#include "expr/expr.h"

#include "base/plain_text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UNARY = 7, PRIMARY = 8 };

typedef struct writer {
    char *text;
    size_t capacity, length;
} writer;

static void put(writer *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(writer *w, const char *format, ...) {
    const size_t room = w->length < w->capacity ? w->capacity - w->length : 0;
    va_list args;
    va_start(args, format);
    const int length = at_vprint(room ? w->text + w->length : NULL, room, format, args);
    va_end(args);
    if (length > 0) w->length += (size_t)length;
}

/* The shortest text that gives the number back. */
static void put_float(writer *w, double value) {
    char digits[40] = "", longer[40];
    for (int precision = 1; precision <= 17; precision++) {
        at_print(longer, sizeof longer, "%.*g", precision, value);
        if (at_read_double(longer, NULL) == value && (!*digits || strlen(longer) < strlen(digits)))
            strcpy(digits, longer);
    }
    put(w, "%s%s", digits, strpbrk(digits, ".en") ? "" : ".0");
}

/* How tightly the node's text holds together. */
static int level_of(const ex_node *node) {
    const int level = ex_op_get(node->op)->level;
    if (node->op == EX_NEG || node->op == EX_NOT) return UNARY;
    if ((node->op == EX_INT && node->value.i < 0) || (node->op == EX_FLOAT && signbit(node->value.f))) return UNARY;
    return level > 0 && level < EX_CALL ? level : PRIMARY;
}

static void put_node(const ex_program *p, writer *w, int number, int least);

static void put_operands(const ex_program *p, writer *w, const ex_node *node) {
    for (int i = 0; i < node->num_args; i++) {
        const bool clamped = node->clamped >> i & 1;
        put(w, "%s%s", i ? ", " : "", clamped ? "clamp(" : "");
        put_node(p, w, node->args[i], 0);
        if (clamped) put(w, ")");
    }
}

static void put_infix(const ex_program *p, writer *w, const ex_node *node, int level) {
    /* Operators group to the left, and comparisons not at all. */
    put_node(p, w, node->args[0], level + (node->op >= EX_EQ && node->op <= EX_GE));
    put(w, " %s ", ex_op_get(node->op)->text);
    put_node(p, w, node->args[1], level + 1);
}

static void put_content(const ex_program *p, writer *w, const ex_node *node) {
    switch (node->op) {
    case EX_INT: put(w, "%lld", (long long)node->value.i); return;
    case EX_FLOAT: put_float(w, node->value.f); return;
    case EX_BOOL: put(w, node->value.i ? "true" : "false"); return;
    case EX_VAR: put(w, "%s", ex_var_name(node->which)); return;
    case EX_NEG:
    case EX_NOT:
        put(w, "%s", ex_op_get(node->op)->text);
        put_node(p, w, node->args[0], PRIMARY);
        return;
    default: break;
    }
    const bool is_load = node->op == EX_LOAD;
    const int level = ex_op_get(node->op)->level;
    if (!is_load && level < EX_CALL) {
        put_infix(p, w, node, level);
        return;
    }
    put(w, "%s%c", is_load ? p->scope.tensors[node->which].name : ex_op_get(node->op)->text, is_load ? '[' : '(');
    put_operands(p, w, node);
    put(w, is_load ? "]" : ")");
}

/* In parentheses if the text holds together less than `least`. */
static void put_node(const ex_program *p, writer *w, int number, int least) {
    const ex_node *node = &p->nodes[number];
    const bool is_looser = level_of(node) < least;
    if (w->length > w->capacity + ATTUNE_FUNCTION_BYTES) return; /* far too long: shared nodes repeat */
    if (is_looser) put(w, "(");
    put_content(p, w, node);
    if (is_looser) put(w, ")");
}

size_t ex_print(const ex_program *program, int root, char *text, size_t capacity) {
    writer w = {text, capacity, 0};
    if (capacity) *text = '\0';
    if (root >= 0) put_node(program, &w, root, 0);
    return w.length;
}
