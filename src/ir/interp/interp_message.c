/* How a run ends early: the failure, its place, and the values of the loops around it. */
#include "base/plain_text.h"
#include "ir/interp/interp_internal.h"
#include "ir/text.h"

#include <stdarg.h>
#include <stdio.h>

_Noreturn void interp_fail(interp *run, attune_status status, const char *format, ...) {
    char text[ATTUNE_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    at_vprint(text, sizeof text, format, args);
    va_end(args);
    at_fail(run->err, status, "%s", text);
    longjmp(run->escape, 1);
}

static void print_loops(const interp_action *action, at_string *out) {
    if (!action) return;
    print_loops(action->parent, out);
    if (action->source->kind == IR_FOR)
        at_string_printf(out, ", %s = %lld", action->source->u.loop.var->name, (long long)*action->u.loop.var);
}

static void print_access(const char *before, const ir_access *access, at_string *out) {
    const ir_expr load = {
        .op = IR_LOAD, .type = ir_type_of((ir_elem)access->buffer->type.elem, access->lanes), .value.access = access};
    at_string_puts(out, before);
    ir_print_expr(&load, out);
}

static void print_statement(const ir_stmt *s, at_string *out) {
    switch (s->kind) {
    case IR_FOR: at_string_printf(out, "for %s", s->u.loop.var->name); break;
    case IR_ALLOC: at_string_printf(out, "alloc %s", s->u.alloc->name); break;
    case IR_PREFETCH: print_access(s->u.store.is_far ? "prefetch.far " : "prefetch ", s->u.store.access, out); break;
    case IR_LET:
        at_string_printf(out, "let %s", s->u.let.var->name);
        if (s->u.let.lo) {
            at_string_puts(out, " in ");
            ir_print_expr(s->u.let.lo, out);
            at_string_puts(out, "..");
            ir_print_expr(s->u.let.hi, out);
        }
        at_string_puts(out, " = ");
        ir_print_expr(s->u.let.value, out);
        break;
    case IR_STORE:
        print_access("", s->u.store.access, out);
        at_string_puts(out, " = ");
        ir_print_expr(s->u.store.value, out);
        break;
    case IR_IF:
        at_string_puts(out, "if ");
        ir_print_expr(s->u.branch.condition, out);
        break;
    case IR_TILE:
        at_string_puts(out, ir_tile_get(s->u.tile.op)->text);
        for (int i = 0; i < ir_tile_get(s->u.tile.op)->num_args; i++)
            print_access(i ? ", " : " ", s->u.tile.args[i], out);
        break;
    case IR_ASSUME:
        at_string_puts(out, "assume ");
        ir_print_expr(s->u.assume, out);
        break;
    }
}

/* A statement, or an assumption of the kernel, shortened so that the message stays readable. */
static void print_quoted(const ir_stmt *statement, const ir_expr *assumption, at_string *out) {
    enum { SHOWN = 160 };
    at_string_puts(out, "at `");
    const size_t start = out->length;
    if (statement) {
        print_statement(statement, out);
    } else {
        at_string_puts(out, "assume ");
        ir_print_expr(assumption, out);
    }
    if (out->length > start + SHOWN) {
        out->length = start + SHOWN;
        out->data[out->length] = '\0';
        at_string_puts(out, "…");
    }
    at_string_puts(out, "`");
}

/* "phase 1, i = 3, c = 16, at `o[i, c]:x16 = …`" */
static void print_place(const interp *run, at_string *out) {
    if (!run->current) {
        print_quoted(NULL, run->assumption, out);
        return;
    }
    const ir_phase *phase = run->kernel->phases;
    for (uint32_t p = 0; p < run->phase; p++) phase = phase->next;
    at_string_printf(out, "phase %u", run->phase);
    for (int l = 0; l < phase->num_loops; l++)
        at_string_printf(out, ", %s = %lld", phase->loops[l].var->name, (long long)*run->phases[run->phase].vars[l]);
    print_loops(run->current->parent, out);
    at_string_puts(out, ", ");
    print_quoted(run->current->source, NULL, out);
}

_Noreturn void interp_check_failed(interp *run, const char *format, ...) {
    char text[ATTUNE_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    at_vprint(text, sizeof text, format, args);
    va_end(args);
    at_string place;
    at_string_init(&place, run->allocator);
    print_place(run, &place);
    at_fail(run->err, ATTUNE_CHECK_FAILED, "%s (in @%s, %s)", text, run->kernel->name,
            place.data && !place.failed ? place.data : "at a place there was no memory to print");
    at_string_free(&place);
    longjmp(run->escape, 1);
}
