/* The parser of the text form: recursive descent, one pass, one token of look-ahead. It has no syntax tree: every form
 * calls the builder as soon as it is read, so the builder checks types, and folds.
 *
 *     parse_kernel  ->  parameters, phases  ->  statements  ->  expressions (parse_expr.c)  ->  ir_builder */
#include "base/plain_text.h"
#include "ir/text/parse_internal.h"
#include "ir/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- failure ---- */

/* Lines and columns (in bytes) are counted only for an error. */
static void locate(const ir_parser *p, const char *where, int *line, int *column) {
    *line = *column = 1;
    for (const char *c = p->text; c < where; c++) {
        if (*c == '\n') {
            ++*line;
            *column = 1;
        } else {
            ++*column;
        }
    }
}

static void stop(ir_parser *p) {
    p->failed = true;
    p->token.kind = IR_TOKEN_END;
}

bool ir_parse_fail(ir_parser *p, const char *where, const char *format, ...) {
    if (p->failed) return false;
    char message[ATTUNE_MESSAGE_BYTES - 32];
    va_list args;
    va_start(args, format);
    at_vprint(message, sizeof message, format, args);
    va_end(args);
    int line, column;
    locate(p, where, &line, &column);
    at_fail(p->err, ATTUNE_INVALID_IR, "%d:%d: %s", line, column, message);
    stop(p);
    return false;
}

bool ir_parse_expected(ir_parser *p, const char *what) {
    const ir_token *t = &p->token;
    if (t->kind == IR_TOKEN_BAD) return ir_parse_fail(p, t->start, "%s", t->problem);
    if (t->kind == IR_TOKEN_END) return ir_parse_fail(p, t->start, "expected %s, found the end of the text", what);
    const int n = t->end - t->start > 60 ? 60 : (int)(t->end - t->start);
    return ir_parse_fail(p, t->start, "expected %s, found '%.*s'", what, n, t->start);
}

bool ir_parse_built(ir_parser *p, const char *where) {
    if (!ir_failed(p->b)) return true;
    if (p->failed) return false;
    if (p->b->error.status == ATTUNE_INVALID_IR) return ir_parse_fail(p, where, "%s", p->b->error.message);
    at_fail(p->err, p->b->error.status, "%s", p->b->error.message);
    stop(p);
    return false;
}

/* ---- tokens ---- */

void ir_parse_next(ir_parser *p) {
    if (!p->failed) ir_lex(&p->lexer, &p->token);
}

bool ir_parse_accept(ir_parser *p, int kind) {
    if (p->token.kind != kind) return false;
    ir_parse_next(p);
    return true;
}

bool ir_parse_expect(ir_parser *p, int kind) {
    if (ir_parse_accept(p, kind)) return true;
    return ir_parse_expected(p, kind == IR_TOKEN_DOTDOT ? "'..'" : (char[]){'\'', (char)kind, '\'', '\0'});
}

static bool at_word(const ir_parser *p, enum ir_word word) {
    return p->token.kind == IR_TOKEN_NAME && p->token.symbol && p->token.symbol->word == word;
}

bool ir_parse_accept_word(ir_parser *p, enum ir_word word) {
    if (!at_word(p, word)) return false;
    ir_parse_next(p);
    return true;
}

bool ir_parse_expect_word(ir_parser *p, enum ir_word word, const char *text) {
    if (ir_parse_accept_word(p, word)) return true;
    char quoted[32];
    snprintf(quoted, sizeof quoted, "'%s'", text);
    return ir_parse_expected(p, quoted);
}

bool ir_parse_int(ir_parser *p, int64_t *value) {
    *value = 0;
    if (p->token.kind != IR_TOKEN_INT) return ir_parse_expected(p, "an integer");
    if (p->token.integer > INT64_MAX) return ir_parse_fail(p, p->token.start, "the integer is out of range");
    *value = (int64_t)p->token.integer;
    ir_parse_next(p);
    return true;
}

int ir_parse_lanes_text(const char *start, const char *end) {
    if (end - start < 2 || end - start > 4 || *start != 'x' || start[1] == '0') return 0;
    int lanes = 0;
    for (const char *c = start + 1; c < end; c++) {
        if (*c < '0' || *c > '9') return 0;
        lanes = lanes * 10 + (*c - '0');
    }
    return lanes;
}

bool ir_parse_type_text(const ir_parser *p, const char *start, const char *end, ir_type *type) {
    const char *x = memchr(start, 'x', (size_t)(end - start));
    /* The x of "idx" does not begin the lanes. */
    if (x && x - start == 2 && start[0] == 'i' && start[1] == 'd') x = memchr(x + 1, 'x', (size_t)(end - x - 1));
    const char *stop_at = x ? x : end;
    const int lanes = x ? ir_parse_lanes_text(x, end) : 1;
    const size_t n = (size_t)(stop_at - start);
    const ir_symbol *symbol = ir_symbols_find(&p->b->symbols, start, n, ir_hash_name(start, n));
    if (!symbol || symbol->word < IR_WORD_ELEM || symbol->word >= IR_WORD_OP) return false;
    if (lanes < 1 || lanes > IR_MAX_LANES || (lanes & (lanes - 1))) return false;
    *type = ir_type_of((ir_elem)(symbol->word - IR_WORD_ELEM), lanes);
    return true;
}

/* The name of something new. */
static bool parse_new_name(ir_parser *p, char name[IR_MAX_NAME]) {
    const ir_token *t = &p->token;
    if (t->kind != IR_TOKEN_NAME || (t->symbol && t->symbol->word)) return ir_parse_expected(p, "a name");
    const size_t n = (size_t)(t->end - t->start);
    if (n >= IR_MAX_NAME) return ir_parse_fail(p, t->start, "a name is longer than %d characters", IR_MAX_NAME - 1);
    memcpy(name, t->start, n);
    name[n] = '\0';
    ir_parse_next(p);
    return true;
}

static bool parse_type(ir_parser *p, ir_type *type) {
    const ir_token *t = &p->token;
    if (t->kind != IR_TOKEN_NAME || !ir_parse_type_text(p, t->start, t->end, type))
        return ir_parse_expected(p, "a type such as f32");
    ir_parse_next(p);
    return true;
}

static bool parse_elem(ir_parser *p, ir_elem *elem) {
    ir_type type;
    const char *where = p->token.start;
    if (!parse_type(p, &type)) return false;
    *elem = (ir_elem)type.elem;
    return type.lanes == 1 || ir_parse_fail(p, where, "only elements of reg buffers can be vectors");
}

/* After a definition: the next token was read before the name existed, and may be that name. */
static void look_up_again(ir_parser *p) {
    if (p->token.kind != IR_TOKEN_NAME || p->token.symbol) return;
    p->lexer.cursor = p->token.start;
    ir_parse_next(p);
}

/* ---- statements ---- */

static void parse_block(ir_parser *p);

static void parse_for(ir_parser *p) {
    char name[IR_MAX_NAME];
    const char *where = p->token.start;
    if (!parse_new_name(p, name) || !ir_parse_expect_word(p, IR_WORD_IN, "in")) return;
    const ir_expr *lo = ir_parse_expr(p);
    if (!ir_parse_expect(p, IR_TOKEN_DOTDOT)) return;
    const ir_expr *hi = ir_parse_expr(p);
    int64_t step = 1;
    if (ir_parse_accept_word(p, IR_WORD_BY) && !ir_parse_int(p, &step)) return;
    const bool unroll = ir_parse_accept_word(p, IR_WORD_UNROLL);
    if (p->failed) return;
    ir_for_begin(p->b, name, lo, hi, step, unroll);
    if (!ir_parse_built(p, where)) return;
    parse_block(p);
    ir_for_end(p->b);
}

static void parse_if(ir_parser *p, const char *where) {
    const ir_expr *condition = ir_parse_expr(p);
    if (p->failed) return;
    ir_if_begin(p->b, condition);
    if (!ir_parse_built(p, where)) return;
    parse_block(p);
    if (!p->failed && ir_parse_accept_word(p, IR_WORD_ELSE)) {
        ir_if_else(p->b);
        parse_block(p);
    }
    ir_if_end(p->b);
}

static void parse_let(ir_parser *p) {
    char name[IR_MAX_NAME];
    const char *where = p->token.start;
    const ir_expr *lo = NULL, *hi = NULL;
    if (!parse_new_name(p, name)) return;
    const bool has_interval = ir_parse_accept_word(p, IR_WORD_IN);
    if (has_interval) {
        lo = ir_parse_expr(p);
        if (!ir_parse_expect(p, IR_TOKEN_DOTDOT)) return;
        hi = ir_parse_expr(p);
    }
    if (!ir_parse_expect(p, '=')) return;
    const ir_expr *value = ir_parse_expr(p);
    if (p->failed) return;
    if (has_interval)
        ir_build_let_in(p->b, name, lo, hi, value);
    else
        ir_build_let(p->b, name, value);
    if (ir_parse_built(p, where)) look_up_again(p);
}

static void parse_alloc(ir_parser *p) {
    char name[IR_MAX_NAME];
    const char *where = p->token.start;
    ir_type type;
    int64_t dims[IR_MAX_DIMS];
    int num = 0;
    if (!parse_new_name(p, name) || !ir_parse_expect(p, ':') || !parse_type(p, &type)) return;
    if (!ir_parse_expect(p, '[')) return;
    while (p->token.kind != ']' && !p->failed) {
        if (num && !ir_parse_expect(p, ',')) return;
        if (num == IR_MAX_DIMS) {
            ir_parse_fail(p, p->token.start, "more than %d dimensions", IR_MAX_DIMS);
            return;
        }
        if (!ir_parse_int(p, &dims[num++])) return;
    }
    if (!ir_parse_expect(p, ']')) return;
    ir_space space = IR_SCRATCH;
    if (ir_parse_accept_word(p, IR_WORD_REG)) {
        space = IR_REG;
    } else if (ir_parse_accept_word(p, IR_WORD_TILES)) {
        space = IR_TILES;
    } else if (!ir_parse_accept_word(p, IR_WORD_SCRATCH)) {
        ir_parse_expected(p, "'scratch', 'reg' or 'tiles'");
        return;
    }
    ir_alloc(p->b, name, space, type, num, dims);
    if (ir_parse_built(p, where)) look_up_again(p);
}

static void parse_store(ir_parser *p) {
    const char *where = p->token.start;
    const ir_symbol *symbol = p->token.kind == IR_TOKEN_NAME ? p->token.symbol : NULL;
    if (p->token.kind != IR_TOKEN_NAME || (symbol && (symbol->word || symbol->var))) {
        ir_parse_expected(p, "a statement or '}'");
        return;
    }
    const ir_access *access = ir_parse_access(p);
    if (!access || !ir_parse_expect(p, '=')) return;
    const ir_expr *value = ir_parse_expr(p);
    if (p->failed) return;
    ir_store(p->b, access, value);
    ir_parse_built(p, where);
}

/* The operation, if a tile statement begins here. */
static bool accept_tile_op(ir_parser *p, ir_tile_op *op) {
    for (int i = 0; i < IR_TILE_OP_COUNT; i++) {
        if (!ir_parse_accept_word(p, (enum ir_word)(IR_WORD_TILE + i))) continue;
        *op = (ir_tile_op)i;
        return true;
    }
    return false;
}

static void parse_tile(ir_parser *p, ir_tile_op op, const char *where) {
    const ir_access *args[3] = {0};
    for (int i = 0; i < ir_tile_get(op)->num_args; i++) {
        if (i && !ir_parse_expect(p, ',')) return;
        args[i] = ir_parse_access(p);
        if (p->failed) return;
    }
    ir_tile(p->b, op, args[0], args[1], args[2]);
    ir_parse_built(p, where);
}

static void parse_stmt(ir_parser *p) {
    const char *where = p->token.start;
    ir_tile_op op;
    if (accept_tile_op(p, &op)) {
        parse_tile(p, op, where);
    } else if (ir_parse_accept_word(p, IR_WORD_LET)) {
        parse_let(p);
    } else if (ir_parse_accept_word(p, IR_WORD_FOR)) {
        parse_for(p);
    } else if (ir_parse_accept_word(p, IR_WORD_IF)) {
        parse_if(p, where);
    } else if (ir_parse_accept_word(p, IR_WORD_ALLOC)) {
        parse_alloc(p);
    } else if (ir_parse_accept_word(p, IR_WORD_PREFETCH)) {
        const ir_access *access = ir_parse_access(p);
        if (!p->failed) ir_prefetch(p->b, access);
        ir_parse_built(p, where);
    } else if (ir_parse_accept_word(p, IR_WORD_PREFETCH_FAR)) {
        const ir_access *access = ir_parse_access(p);
        if (!p->failed) ir_prefetch_far(p->b, access);
        ir_parse_built(p, where);
    } else if (ir_parse_accept_word(p, IR_WORD_ASSUME)) {
        const ir_expr *condition = ir_parse_expr(p);
        if (!p->failed) ir_assume(p->b, condition);
        ir_parse_built(p, where);
    } else {
        parse_store(p);
    }
}

static void parse_block(ir_parser *p) {
    if (!ir_parse_expect(p, '{')) return;
    while (!p->failed && p->token.kind != '}') parse_stmt(p);
    ir_parse_expect(p, '}');
}

/* ---- phases and what stands before them ---- */

static void parse_parallel_loop(ir_parser *p) {
    char name[IR_MAX_NAME];
    const char *where = p->token.start;
    int64_t zero;
    if (!parse_new_name(p, name) || !ir_parse_expect_word(p, IR_WORD_IN, "in")) return;
    const char *start = p->token.start;
    if (!ir_parse_int(p, &zero)) return;
    if (zero != 0) {
        ir_parse_fail(p, start, "a parallel loop begins at 0");
        return;
    }
    if (!ir_parse_expect(p, IR_TOKEN_DOTDOT)) return;
    const ir_expr *hi = ir_parse_expr(p);
    if (p->failed) return;
    ir_parallel(p->b, name, hi);
    ir_parse_built(p, where);
}

static void parse_phase(ir_parser *p) {
    if (!ir_parse_expect_word(p, IR_WORD_PARALLEL, "parallel") || !ir_parse_expect_word(p, IR_WORD_FOR, "for")) return;
    ir_phase_begin(p->b);
    do parse_parallel_loop(p);
    while (ir_parse_accept(p, ','));
    parse_block(p);
    ir_phase_end(p->b);
}

/* Dims or strides in brackets; their number, or -1 when failed. */
static int parse_dims(ir_parser *p, const ir_expr *dims[IR_MAX_DIMS]) {
    int num = 0;
    if (!ir_parse_expect(p, '[')) return -1;
    while (p->token.kind != ']' && !p->failed) {
        if (num && !ir_parse_expect(p, ',')) return -1;
        if (num == IR_MAX_DIMS) {
            ir_parse_fail(p, p->token.start, "more than %d dimensions", IR_MAX_DIMS);
            return -1;
        }
        dims[num++] = ir_parse_expr(p);
    }
    return ir_parse_expect(p, ']') ? num : -1;
}

static void parse_shared(ir_parser *p) {
    char name[IR_MAX_NAME];
    const char *where = p->token.start;
    const ir_expr *dims[IR_MAX_DIMS];
    ir_elem elem;
    if (!parse_new_name(p, name) || !ir_parse_expect(p, ':') || !parse_elem(p, &elem)) return;
    const int num = parse_dims(p, dims);
    if (num < 0 || !ir_parse_expect_word(p, IR_WORD_SHARED, "shared")) return;
    ir_shared(p->b, name, elem, num, dims);
    ir_parse_built(p, where);
}

static void parse_kernel_assume(ir_parser *p, const char *where) {
    const ir_expr *condition = ir_parse_expr(p);
    if (p->failed) return;
    ir_kernel_assume(p->b, condition);
    ir_parse_built(p, where);
}

/* ---- parameters ---- */

/* Declares the scalar parameters in a first scan of the list, because dims may use scalars that come later. It ignores
 * malformed text, which the parser reports afterwards. */
static void declare_scalars(ir_parser *p) {
    const ir_parser saved = *p;
    for (int depth = 0; !p->failed && p->token.kind != IR_TOKEN_END && p->token.kind != IR_TOKEN_BAD;) {
        const ir_token name = p->token;
        if (name.kind == '(' || name.kind == '[') depth++;
        if (name.kind == ')' || name.kind == ']') depth--;
        if (depth < 0) break;
        ir_parse_next(p);
        if (depth > 0 || name.kind != IR_TOKEN_NAME || !ir_parse_accept(p, ':')) continue;
        ir_type type;
        char text[IR_MAX_NAME];
        const size_t n = (size_t)(name.end - name.start);
        const bool typed = p->token.kind == IR_TOKEN_NAME &&
                           ir_parse_type_text(p, p->token.start, p->token.end, &type) && type.lanes == 1;
        if (!typed || n >= sizeof text) continue;
        ir_parse_next(p);
        if (p->token.kind == '[') continue;
        memcpy(text, name.start, n);
        text[n] = '\0';
        ir_build_scalar_declare(p->b, text, (ir_elem)type.elem);
        ir_parse_built(p, name.start);
    }
    if (p->failed) return;
    p->lexer.cursor = saved.token.start;
    ir_parse_next(p);
}

static void parse_buffer_param(ir_parser *p, const char *name, const char *where, ir_elem elem) {
    const ir_expr *dims[IR_MAX_DIMS], *strides[IR_MAX_DIMS];
    const int num = parse_dims(p, dims);
    if (num < 0) return;
    const char *strides_at = p->token.start;
    const bool strided = ir_parse_accept_word(p, IR_WORD_STRIDES);
    const int num_strides = strided ? parse_dims(p, strides) : num;
    if (num_strides < 0) return;
    if (num_strides != num) {
        ir_parse_fail(p, strides_at, "%d strides for %d dimensions", num_strides, num);
        return;
    }
    int access = 0;
    if (ir_parse_accept_word(p, IR_WORD_IN))
        access = IR_IN;
    else if (ir_parse_accept_word(p, IR_WORD_OUT))
        access = IR_OUT;
    else if (ir_parse_accept_word(p, IR_WORD_INOUT))
        access = IR_IN | IR_OUT;
    else
        ir_parse_expected(p, "'in', 'out' or 'inout'");
    if (p->failed) return;
    ir_param_buffer(p->b, name, elem, num, dims, strided ? strides : NULL, access);
    ir_parse_built(p, where);
}

static void parse_param(ir_parser *p) {
    char name[IR_MAX_NAME];
    const ir_token first = p->token;
    ir_elem elem;
    if (!parse_new_name(p, name) || !ir_parse_expect(p, ':') || !parse_elem(p, &elem)) return;
    if (p->token.kind == '[')
        parse_buffer_param(p, name, first.start, elem);
    else if (first.symbol && first.symbol->var)
        ir_build_scalar_append(p->b, first.symbol->var);
    else
        ir_parse_expected(p, "'[', ',' or ')'");
}

static void parse_params(ir_parser *p) {
    if (!ir_parse_expect(p, '(')) return;
    declare_scalars(p);
    if (ir_parse_accept(p, ')')) return;
    do parse_param(p);
    while (ir_parse_accept(p, ','));
    ir_parse_expect(p, ')');
}

/* ---- kernels ---- */

static void parse_body(ir_parser *p) {
    if (!ir_parse_expect(p, '{')) return;
    for (;;) {
        const char *where = p->token.start;
        if (ir_parse_accept_word(p, IR_WORD_ASSUME))
            parse_kernel_assume(p, where);
        else if (ir_parse_accept_word(p, IR_WORD_ALLOC))
            parse_shared(p);
        else
            break;
    }
    do parse_phase(p);
    while (!p->failed && p->token.kind != '}');
    ir_parse_expect(p, '}');
}

/* Kernel names have their own name space: words of the language are allowed. */
static bool parse_kernel_name(ir_parser *p) {
    const ir_token name = p->token;
    const size_t n = (size_t)(name.end - name.start);
    if (name.kind != IR_TOKEN_NAME || n >= IR_MAX_NAME) return ir_parse_expected(p, "the kernel's name");
    p->b->kernel->name = at_arena_strndup(p->b->arena, name.start, n);
    if (!p->b->kernel->name) at_fail_memory(&p->b->error, n);
    ir_parse_next(p);
    return ir_parse_built(p, name.start);
}

static ir_kernel *parse_kernel(ir_parser *p, at_arena *arena) {
    p->b = ir_builder_new(arena, "unnamed"); /* until the name is read, as the lexer needs a table of words */
    if (!p->b) {
        at_fail_memory(p->err, sizeof *p->b);
        return NULL;
    }
    p->b->strict = true;
    p->lexer.symbols = &p->b->symbols;
    ir_parse_next(p);
    if (!ir_parse_expect_word(p, IR_WORD_KERNEL, "kernel") || !ir_parse_expect(p, '@') || !parse_kernel_name(p))
        return NULL;
    parse_params(p);
    parse_body(p);
    if (!p->failed && p->token.kind != IR_TOKEN_END) ir_parse_expected(p, "the end of the text");
    return p->failed ? NULL : ir_builder_finish(p->b, p->err);
}

ir_kernel *ir_parse(at_arena *arena, const char *text, size_t length, at_error *err) {
    ir_parser p = {.lexer = {.cursor = text, .end = text + length}, .text = text, .err = err};
    return parse_kernel(&p, arena);
}
