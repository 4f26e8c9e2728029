/* Prints the canonical text of functions: a blank on either side of an infix operator, and parentheses where precedence
 * requires them. */
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

/* The shortest text that parses to the same number. */
static void put_float(writer *w, double value) {
    char digits[40] = "", longer[40];
    for (int precision = 1; precision <= 17; precision++) {
        at_print(longer, sizeof longer, "%.*g", precision, value);
        if (at_read_double(longer, NULL) == value && (!*digits || strlen(longer) < strlen(digits)))
            strcpy(digits, longer);
    }
    put(w, "%s%s", digits, strpbrk(digits, ".en") ? "" : ".0");
}

static bool is_sign(const ex_node *node) { return node->op == EX_NEG || node->op == EX_NOT; }

static bool is_infix(const ex_node *node) {
    const int level = ex_op_get(node->op)->level;
    return level > 0 && level < EX_CALL;
}

/* The precedence of the node's text. */
static int level_of(const ex_node *node) {
    const bool is_negative =
        (node->op == EX_INT && node->value.i < 0) || (node->op == EX_FLOAT && signbit(node->value.f));
    if (is_sign(node) || is_negative) return UNARY;
    return is_infix(node) ? ex_op_get(node->op)->level : PRIMARY;
}

static void put_leaf(writer *w, const ex_node *node) {
    switch (node->op) {
    case EX_INT: put(w, "%lld", (long long)node->value.i); break;
    case EX_FLOAT: put_float(w, node->value.f); break;
    case EX_BOOL: put(w, node->value.i ? "true" : "false"); break;
    default: put(w, "%s", ex_var_name(node->which)); break;
    }
}

/* ---- Operators and their operands ---- */

/* The precedence that operand `i` needs to stand without parentheses. Operators are left-associative, comparisons are
 * not associative. */
static int least_of(const ex_node *node, int i) {
    const bool is_comparison = node->op >= EX_EQ && node->op <= EX_GE;
    if (is_sign(node)) return PRIMARY;
    return is_infix(node) ? ex_op_get(node->op)->level + (i || is_comparison) : 0;
}

static void put_before(const ex_program *p, writer *w, const ex_node *node, int i) {
    const bool is_load = node->op == EX_LOAD;
    if (is_sign(node)) {
        put(w, "%s", ex_op_get(node->op)->text);
    } else if (is_infix(node)) {
        if (i) put(w, " %s ", ex_op_get(node->op)->text);
    } else {
        if (!i) put(w, "%s%c", is_load ? p->scope.tensors[node->which].name : ex_op_get(node->op)->text, "(["[is_load]);
        put(w, "%s%s", i ? ", " : "", node->clamped >> i & 1 ? "clamp(" : "");
    }
}

static void put_after(writer *w, const ex_node *node, int i) {
    if (is_sign(node) || is_infix(node)) return;
    if (node->clamped >> i & 1) put(w, ")");
    if (i + 1 == node->num_args) put(w, "%c", ")]"[node->op == EX_LOAD]);
}

/* ---- Nodes ---- */

/* A node that is being written. */
typedef struct frame {
    int16_t number;
    uint8_t next;   /* operand */
    bool is_looser; /* it is in parentheses */
} frame;

static frame begin(const ex_program *p, writer *w, int number, int least) {
    const frame f = {.number = (int16_t)number, .is_looser = level_of(&p->nodes[number]) < least};
    if (f.is_looser) put(w, "(");
    return f;
}

/* With an explicit stack, because the host's may be small. */
static void put_node(const ex_program *p, writer *w, int root) {
    frame frames[EX_MAX_DEPTH + 2];
    int count = 0;
    frames[count++] = begin(p, w, root, 0);
    while (count) {
        frame *const f = &frames[count - 1];
        const ex_node *const node = &p->nodes[f->number];
        if (w->length > w->capacity + ATTUNE_FUNCTION_BYTES)
            return; /* too long, as shared nodes are printed repeatedly */
        if (f->next) put_after(w, node, f->next - 1);
        if (f->next < node->num_args) {
            put_before(p, w, node, f->next);
            frames[count++] = begin(p, w, node->args[f->next], least_of(node, f->next));
            f->next++;
            continue;
        }
        if (!node->num_args) put_leaf(w, node);
        if (f->is_looser) put(w, ")");
        count--;
    }
}

size_t ex_print(const ex_program *program, int root, char *text, size_t capacity) {
    writer w = {text, capacity, 0};
    if (capacity) *text = '\0';
    if (root >= 0) put_node(program, &w, root);
    return w.length;
}
