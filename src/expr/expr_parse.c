/* Parses functions by operator precedence; docs/functions.md has the grammar. What is open (a call, an index,
 * parentheses, an operator that waits for its right operand) is on an explicit stack of frames:
 *
 *     a + b * (c    ->    frames: a +  |  b *  |  (          next: the operand c */
#include "expr/expr_parse.h"

#include <math.h>
#include <string.h>

enum { COMPARISON = 4 }; /* a level */

static int shown_length(const ex_token *t) { return t->length > 40 ? 40 : t->length; }

static int unexpected(ex_parser *p, const char *wanted) {
    const ex_token *t = &p->token;
    if (t->kind == EX_END) return ex_fail(p, t->column, "the text ends where %s is expected", wanted);
    return ex_fail(p, t->column, "'%.*s' stands where %s is expected", shown_length(t), t->text, wanted);
}

static bool take(ex_parser *p, const char *sign) {
    if (!ex_token_is(&p->token, sign)) return false;
    ex_next(p);
    return true;
}

static bool expect(ex_parser *p, const char *sign, const char *wanted) {
    if (take(p, sign)) return true;
    unexpected(p, wanted);
    return false;
}

/* ---- Names ---- */

static int find_var(const ex_token *name) {
    for (int i = 0; i < EX_NUM_VARS; i++)
        if (ex_token_is(name, ex_var_name((ex_var)i))) return i;
    return -1;
}

static int find_call(const ex_token *name) {
    for (int i = 0; i < EX_OP_COUNT; i++)
        if (ex_op_get((ex_op)i)->level == EX_CALL && ex_token_is(name, ex_op_get((ex_op)i)->text)) return i;
    return -1;
}

static int find_tensor(const ex_parser *p, const ex_token *name) {
    for (int i = 0; i < p->program->num_tensors; i++)
        if (ex_token_is(name, p->program->scope.tensors[i].name)) return i;
    return -1;
}

/* ---- What is open ---- */

/* The stack is explicit, because the host's may be small. The last frame; NULL: none is open. */
static ex_frame *last(ex_parser *p) { return p->num_frames ? &p->frames[p->num_frames - 1] : NULL; }

static bool is_last(ex_parser *p, ex_frame_kind kind) { return p->num_frames && last(p)->kind == kind; }

static bool open_frame(ex_parser *p, ex_frame frame) {
    if (p->num_frames < EX_MAX_FRAMES) {
        p->frames[p->num_frames++] = frame;
        return true;
    }
    ex_fail(p, frame.column, "this is nested more than %d deep", EX_MAX_DEPTH);
    return false;
}

/* Adds the operand of a call, or the index of a tensor. There may be more than the frame has room for. */
static void take_operand(ex_frame *frame, int node, bool is_clamped) {
    if (frame->count < EX_MAX_RANK) {
        frame->nodes[frame->count] = (int16_t)node;
        frame->clamps |= (uint8_t)(is_clamped << frame->count);
    }
    frame->count++;
}

/* ---- Calls ---- */

enum { CLAMP = EX_OP_COUNT }; /* instead of an ex_op in a frame */

static bool open_call(ex_parser *p, const ex_token *name) {
    const bool is_clamp = ex_token_is(name, "clamp");
    const int op = is_clamp ? CLAMP : find_call(name);
    if (op < 0) {
        ex_fail(p, name->column,
                "'%.*s' is not a function; there are select min max clamp abs floor exp log "
                "exp2 log2 tanh sigmoid sqrt float int",
                shown_length(name), name->text);
        return false;
    }
    return open_frame(p, (ex_frame){.kind = EX_IN_CALL, .which = (uint8_t)op, .column = (int16_t)name->column});
}

/* clamp(x, least, most), in an order in which NaN stays NaN. */
static int make_clamp(ex_parser *p, int column, const int *operands) {
    const int low = ex_make(p, column, EX_MAX, (int[]){operands[1], operands[0]}, 2);
    return ex_make(p, column, EX_MIN, (int[]){operands[2], low}, 2);
}

/* Ends the innermost call, all of whose operands have been read. */
static int close_call(ex_parser *p) {
    const ex_frame call = p->frames[--p->num_frames];
    const bool is_clamp = call.which == CLAMP;
    const int wanted = is_clamp ? 3 : ex_op_get((ex_op)call.which)->arity, count = call.count;
    const int operands[3] = {call.nodes[0], call.nodes[1], call.nodes[2]};
    if (count != wanted)
        return ex_fail(p, call.column, "%s takes %d operand%s, and here %s %d%s",
                       is_clamp ? "clamp" : ex_op_get((ex_op)call.which)->text, wanted, wanted > 1 ? "s" : "",
                       count == 1 ? "is" : "are", count,
                       is_clamp && count == 1 ? "; clamp(x) alone is for an index of a tensor" : "");
    return is_clamp ? make_clamp(p, call.column, operands)
                    : ex_make(p, call.column, (ex_op)call.which, operands, count);
}

/* ---- Tensors ---- */

static const char *after_blanks(const char *at) { return at + strspn(at, " \t\r\n"); }

/* Whether the token begins clamp(x) with one operand, which is a whole index, and not clamp(x, least, most) or a part
 * of a sum. It scans ahead: finding out by parsing would parse nested clamps again and again. */
static bool is_index_clamp(const ex_parser *p) {
    if (!ex_token_is(&p->token, "clamp")) return false;
    const char *at = after_blanks(p->token.text + p->token.length);
    if (*at != '(') return false;
    for (int depth = 0; *at; at++) {
        if (*at == '(' || *at == '[') depth++;
        if (*at == ',' && depth == 1) return false;
        if ((*at == ')' || *at == ']') && --depth == 0) break;
    }
    if (!*at) return false;
    at = after_blanks(at + 1);
    return *at == ',' || *at == ']';
}

/* Adds an index: an integer, or clamp(…) of one, which is clamped to the tensor. */
static bool open_index(ex_parser *p) {
    ex_frame *const load = last(p);
    const int16_t column = (int16_t)p->token.column;
    if (load->count < EX_MAX_RANK) load->columns[load->count] = column;
    if (!is_index_clamp(p)) return true;
    ex_next(p);
    return expect(p, "(", "'('") && open_frame(p, (ex_frame){.kind = EX_IN_CLAMP, .column = column});
}

static bool open_load(ex_parser *p, const ex_token *name) {
    const int tensor = find_tensor(p, name);
    if (tensor >= 0) {
        const ex_frame load = {.kind = EX_IN_LOAD, .which = (uint8_t)tensor, .column = (int16_t)name->column};
        return open_frame(p, load) && open_index(p);
    }
    if (find_var(name) >= 0)
        ex_fail(p, name->column, "%.*s is one number and has no elements", name->length, name->text);
    else
        ex_fail(p, name->column, "'%.*s' is not a tensor of the problem; declare it, as tensors=\"%.*s:f32[h]\"",
                shown_length(name), name->text, shown_length(name), name->text);
    return false;
}

/* Ends the innermost tensor, all of whose indices have been read. */
static int close_load(ex_parser *p) {
    const ex_frame load = p->frames[--p->num_frames];
    const attune_user_tensor *t = &p->program->scope.tensors[load.which];
    int indices[EX_MAX_RANK], columns[EX_MAX_RANK];
    if (load.count != t->rank)
        return ex_fail(p, load.column, "%s has %d dim%s, and here %s %d", t->name, t->rank, t->rank > 1 ? "s" : "",
                       load.count > 1 ? "are" : "is", load.count);
    for (int i = 0; i < t->rank; i++) indices[i] = load.nodes[i], columns[i] = load.columns[i];
    return ex_make_load(p, load.column, load.which, indices, columns, load.clamps);
}

/* ---- Operands ---- */

static int name_without_meaning(ex_parser *p, const ex_token *name) {
    if (find_tensor(p, name) >= 0)
        return ex_fail(p, name->column, "%.*s is a tensor; write which element, as %.*s[…]", shown_length(name),
                       name->text, shown_length(name), name->text);
    if (ex_token_is(name, "not")) return ex_fail(p, name->column, "'not' is not known; write !");
    return ex_fail(p, name->column,
                   "'%.*s' is not known; there are %s b h kv_h q kv seq_q seq_kv, functions and "
                   "tensors",
                   shown_length(name), name->text, ex_var_name(p->operand == EX_V_PROB ? EX_V_PROB : EX_V_SCORE));
}

/* The next three functions read what begins an operand. *node is the operand if it is complete; it stays -1 if a frame
 * was opened. False: an error. */
static bool take_name(ex_parser *p, int *node) {
    const ex_token name = p->token;
    const int var = find_var(&name);
    const bool is_true = ex_token_is(&name, "true");
    ex_next(p);
    if (!is_true && !ex_token_is(&name, "false") && !ex_token_is(&name, "inf")) {
        if (take(p, "(")) {
            if (!open_call(p, &name)) return false;
            if (take(p, ")")) *node = close_call(p);
            return !p->status;
        }
        if (take(p, "[")) return open_load(p, &name);
        *node = var >= 0 ? ex_make_var(p, name.column, (ex_var)var) : name_without_meaning(p, &name);
    } else {
        *node =
            ex_token_is(&name, "inf") ? ex_make_float(p, name.column, INFINITY) : ex_make_bool(p, name.column, is_true);
    }
    return *node >= 0;
}

static bool take_number(ex_parser *p, int *node) {
    const ex_token t = p->token;
    ex_next(p);
    *node = t.kind == EX_INTEGER ? ex_make_int(p, t.column, t.value.i) : ex_make_float(p, t.column, t.value.f);
    return *node >= 0;
}

static bool take_first(ex_parser *p, int *node) {
    static const char *const signs[] = {"-", "!", "~", "("};
    static const ex_frame_kind kinds[] = {EX_AFTER_MINUS, EX_AFTER_NOT, EX_AFTER_TILDE, EX_IN_PARENTHESES};
    const int16_t column = (int16_t)p->token.column;
    *node = -1;
    if (p->status) return false;
    for (int i = 0; i < 4; i++)
        if (take(p, signs[i])) return open_frame(p, (ex_frame){.kind = (uint8_t)kinds[i], .column = column});
    if (p->token.kind == EX_NAME) return take_name(p, node);
    if (p->token.kind == EX_INTEGER || p->token.kind == EX_REAL) return take_number(p, node);
    unexpected(p, "a number, a name or '('");
    return false;
}

/* ---- Operators ---- */

/* ~x of an integer is -1 - x. */
static int make_complement(ex_parser *p, int column, int x) {
    if (p->program->nodes[x].type == EX_T_BOOL) return ex_make(p, column, EX_NOT, &x, 1);
    if (p->program->nodes[x].type == EX_T_FLOAT) return ex_fail(p, column, "~ wants a condition or an integer");
    return ex_make(p, column, EX_SUB, (int[]){ex_make_int(p, column, -1), x}, 2);
}

/* Applies the signs before the operand, from the last to the first. */
static int apply_signs(ex_parser *p, int node) {
    while (node >= 0 && p->num_frames && last(p)->kind <= EX_AFTER_TILDE) {
        const ex_frame sign = p->frames[--p->num_frames];
        if (sign.kind == EX_AFTER_TILDE)
            node = make_complement(p, sign.column, node);
        else
            node = ex_make(p, sign.column, sign.kind == EX_AFTER_MINUS ? EX_NEG : EX_NOT, &node, 1);
    }
    return node;
}

/* The next token if it is an infix operator; else -1. */
static int next_infix(const ex_parser *p) {
    if (p->token.kind != EX_SIGN) return -1;
    for (int i = 0; i < EX_OP_COUNT; i++) {
        const ex_op_info *const op = ex_op_get((ex_op)i);
        if (op->level > 0 && op->level < EX_CALL && ex_token_is(&p->token, op->text)) return i;
    }
    return -1;
}

/* Applies the infix operators before `node` that bind at least as tightly as the next token, from the last to the
 * first. */
static int apply_infix(ex_parser *p, int node) {
    const int next = next_infix(p), level = next < 0 ? 0 : ex_op_get((ex_op)next)->level;
    while (node >= 0 && is_last(p, EX_AFTER_INFIX) && ex_op_get((ex_op)last(p)->which)->level >= level) {
        const ex_frame infix = p->frames[--p->num_frames];
        const int own = ex_op_get((ex_op)infix.which)->level;
        node = ex_make(p, infix.column, (ex_op)infix.which, (int[]){infix.nodes[0], node}, 2);
        if (node >= 0 && own == COMPARISON && level == COMPARISON)
            return ex_fail(p, p->token.column, "comparisons do not chain; join them by &");
    }
    return node;
}

/* ---- Expressions ---- */

/* Handles what follows an operand in the innermost frame, unless it is an operator. *node is -1 if another operand is
 * expected. */
static bool go_on(ex_parser *p, int *node) {
    ex_frame *frame = last(p);
    const bool is_clamped = frame->kind == EX_IN_CLAMP, is_call = frame->kind == EX_IN_CALL;
    if (is_clamped || frame->kind == EX_IN_PARENTHESES) {
        if (!expect(p, ")", "')'")) return false;
        p->num_frames--;
        if (!is_clamped) return true;
        frame = last(p); /* the tensor whose index ends here */
    }
    take_operand(frame, *node, is_clamped);
    *node = -1;
    if (take(p, ",")) return is_call || open_index(p);
    if (!expect(p, is_call ? ")" : "]", is_call ? "',' or ')'" : "',' or ']'")) return false;
    *node = is_call ? close_call(p) : close_load(p);
    return *node >= 0;
}

/* Parses up to where no frame is open and no operator follows. */
static int parse_expression(ex_parser *p) {
    int node = -1;
    for (;;) {
        while (node < 0)
            if (!take_first(p, &node)) return -1;
        node = apply_infix(p, apply_signs(p, node));
        if (node < 0) return -1;
        const int op = next_infix(p);
        const int16_t column = (int16_t)p->token.column;
        if (op >= 0) {
            ex_next(p);
            const ex_frame infix = {
                .kind = EX_AFTER_INFIX, .which = (uint8_t)op, .column = column, .nodes = {(int16_t)node}};
            if (!open_frame(p, infix)) return -1;
            node = -1;
        } else if (!p->num_frames) {
            return node;
        } else if (!go_on(p, &node)) {
            return -1;
        }
    }
}

/* ---- Functions ---- */

void ex_program_init(ex_program *program, const ex_scope *scope) {
    program->scope = *scope;
    program->count = 0;
    program->num_tensors = ex_count_tensors(scope->tensors);
    program->score = program->mask = program->prob = -1;
}

static const char *hint_for(const ex_token *t) {
    if (ex_token_is(t, "&&") || ex_token_is(t, "and")) return "; write &";
    if (ex_token_is(t, "||") || ex_token_is(t, "or")) return "; write |";
    if (ex_token_is(t, "**")) return "; write x * x";
    return "";
}

static int parse_function(ex_parser *p) {
    ex_frame frames[EX_MAX_FRAMES];
    p->frames = frames;
    p->token = (ex_token){.text = p->text};
    ex_next(p);
    const int node = parse_expression(p);
    if (node < 0 || p->status) return -1;
    if (p->token.kind == EX_END) return node;
    return ex_fail(p, p->token.column, "'%.*s' stands where an operator or the end is expected%s",
                   shown_length(&p->token), p->token.text, hint_for(&p->token));
}

/* A function whose result replaces its operand. */
static attune_status parse_number(ex_parser *p, const char *what, int *root) {
    if (!*p->text) return ATTUNE_OK;
    int node = parse_function(p);
    if (node >= 0 && p->program->nodes[node].type == EX_T_BOOL)
        ex_fail(p, 1, "this is a condition; a %s is a number", what);
    else if (node >= 0)
        node = ex_make(p, 1, EX_TO_FLOAT, &node, 1);
    if (!p->status) *root = node;
    return p->status;
}

attune_status ex_parse_score(ex_program *program, const char *text, at_error *err) {
    ex_parser p = {.program = program, .name = "score_mod", .text = text, .operand = EX_V_SCORE, .err = err};
    return parse_number(&p, "score", &program->score);
}

attune_status ex_parse_prob(ex_program *program, const char *text, at_error *err) {
    ex_parser p = {.program = program, .name = "prob_mod", .text = text, .operand = EX_V_PROB, .err = err};
    return parse_number(&p, "probability", &program->prob);
}

attune_status ex_parse_mask(ex_program *program, const char *text, at_error *err) {
    ex_parser p = {.program = program, .name = "mask_mod", .text = text, .operand = EX_NUM_VARS, .err = err};
    if (!*text) return ATTUNE_OK;
    const int node = parse_function(&p);
    if (node >= 0 && program->nodes[node].type != EX_T_BOOL) ex_fail(&p, 1, "this is a number; a mask is a condition");
    if (!p.status) program->mask = node;
    return p.status;
}

bool ex_is_identity(const ex_program *program, int root) {
    if (root < 0) return true;
    const ex_node *node = &program->nodes[root];
    if (node->op == EX_BOOL) return node->value.i != 0;
    return node->op == EX_VAR && (node->which == EX_V_SCORE || node->which == EX_V_PROB);
}

int ex_unused_tensor(const ex_program *program) {
    unsigned used = 0;
    for (int i = 0; i < program->count; i++)
        if (program->nodes[i].op == EX_LOAD) used |= 1U << program->nodes[i].which;
    for (int i = 0; i < program->num_tensors; i++)
        if (!(used >> i & 1)) return i;
    return -1;
}
