/* The grammar of functions, by recursive descent. docs/functions.md has it. */
#include "expr/parse_internal.h"

#include <math.h>
#include <string.h>

enum { CONDITION = 1, COMPARISON = 4, SUM = 5, PRODUCT = 6 };

static int parse_level(ex_parser *p, int level);

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

/* ---- Calls and tensors ---- */

/* Operands up to the closing sign, which may be more than `most`: *count says how many there are. */
static bool parse_operands(ex_parser *p, const char *close, int *operands, int most, int *count) {
    *count = 0;
    if (take(p, close)) return true;
    do {
        const int node = parse_level(p, CONDITION);
        if (node < 0) return false;
        if (*count < most) operands[*count] = node;
        ++*count;
    } while (take(p, ","));
    return expect(p, close, *close == ')' ? "',' or ')'" : "',' or ']'");
}

/* clamp(x, least, most), in an order that keeps a NaN. */
static int make_clamp(ex_parser *p, int column, const int *operands) {
    const int low = ex_make(p, column, EX_MAX, (int[]){operands[1], operands[0]}, 2);
    return ex_make(p, column, EX_MIN, (int[]){operands[2], low}, 2);
}

static int parse_call(ex_parser *p, const ex_token *name) {
    const bool is_clamp = ex_token_is(name, "clamp");
    const int op = find_call(name), wanted = is_clamp ? 3 : op < 0 ? 0 : ex_op_get((ex_op)op)->arity;
    int operands[3], count;
    if (!wanted)
        return ex_fail(p, name->column,
                       "'%.*s' is not a function; there are select min max clamp abs floor exp log "
                       "exp2 log2 tanh sigmoid sqrt float int",
                       shown_length(name), name->text);
    if (!parse_operands(p, ")", operands, 3, &count)) return -1;
    if (count != wanted)
        return ex_fail(p, name->column, "%.*s takes %d operand%s, and here %s %d%s", name->length, name->text, wanted,
                       wanted > 1 ? "s" : "", count == 1 ? "is" : "are", count,
                       is_clamp && count == 1 ? "; clamp(x) alone is for an index of a tensor" : "");
    return is_clamp ? make_clamp(p, name->column, operands) : ex_make(p, name->column, (ex_op)op, operands, count);
}

static const char *after_blanks(const char *at) { return at + strspn(at, " \t\r\n"); }

/* Whether the token is a clamp of one operand that is a whole index, and not clamp(x, least, most) or a part of a sum.
 * Parsing tells, too, but would have to be done again for each of the clamps within. */
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

/* An index: an integer, or clamp(…) of one, which is moved to the nearest that the tensor has. */
static int parse_index(ex_parser *p, bool *clamped) {
    *clamped = is_index_clamp(p);
    if (!*clamped) return parse_level(p, CONDITION);
    ex_next(p);
    if (!expect(p, "(", "'('")) return -1;
    const int node = parse_level(p, CONDITION);
    return node >= 0 && expect(p, ")", "')'") ? node : -1;
}

static int parse_load(ex_parser *p, const ex_token *name) {
    const int tensor = find_tensor(p, name);
    int indices[EX_MAX_RANK], columns[EX_MAX_RANK], count = 0;
    unsigned clamps = 0;
    if (tensor < 0 && find_var(name) >= 0)
        return ex_fail(p, name->column, "%.*s is one number and has no elements", name->length, name->text);
    if (tensor < 0)
        return ex_fail(p, name->column, "'%.*s' is not a tensor of the problem; declare it, as tensor=\"%.*s:f32[h]\"",
                       shown_length(name), name->text, shown_length(name), name->text);
    const attune_user_tensor *t = &p->program->scope.tensors[tensor];
    do {
        bool clamped;
        const int column = p->token.column, index = parse_index(p, &clamped);
        if (index < 0) return -1;
        if (count < t->rank) {
            indices[count] = index;
            columns[count] = column;
            clamps |= (unsigned)clamped << count;
        }
        count++;
    } while (take(p, ","));
    if (!expect(p, "]", "',' or ']'")) return -1;
    if (count != t->rank)
        return ex_fail(p, name->column, "%s has %d dim%s, and here %s %d", t->name, t->rank, t->rank > 1 ? "s" : "",
                       count > 1 ? "are" : "is", count);
    return ex_make_load(p, name->column, tensor, indices, columns, clamps);
}

static int parse_name(ex_parser *p) {
    const ex_token name = p->token;
    const int var = find_var(&name);
    ex_next(p);
    if (ex_token_is(&name, "true") || ex_token_is(&name, "false"))
        return ex_make_bool(p, name.column, ex_token_is(&name, "true"));
    if (ex_token_is(&name, "inf")) return ex_make_float(p, name.column, INFINITY);
    if (take(p, "(")) return parse_call(p, &name);
    if (take(p, "[")) return parse_load(p, &name);
    if (var >= 0) return ex_make_var(p, name.column, (ex_var)var);
    if (find_tensor(p, &name) >= 0)
        return ex_fail(p, name.column, "%.*s is a tensor; write which element, as %.*s[…]", shown_length(&name),
                       name.text, shown_length(&name), name.text);
    if (ex_token_is(&name, "not")) return ex_fail(p, name.column, "'not' is not known; write !");
    return ex_fail(p, name.column,
                   "'%.*s' is not known; there are %s b h kv_h q kv seq_q seq_kv, functions and "
                   "tensors",
                   shown_length(&name), name.text, ex_var_name(p->operand == EX_V_PROB ? EX_V_PROB : EX_V_SCORE));
}

/* ---- Expressions ---- */

static int parse_primary(ex_parser *p) {
    const ex_token t = p->token;
    if (t.kind == EX_NAME) return parse_name(p);
    if (t.kind == EX_INTEGER || t.kind == EX_REAL) ex_next(p);
    if (t.kind == EX_INTEGER) return ex_make_int(p, t.column, t.value.i);
    if (t.kind == EX_REAL) return ex_make_float(p, t.column, t.value.f);
    if (!take(p, "(")) return unexpected(p, "a number, a name or '('");
    const int node = parse_level(p, CONDITION);
    return node >= 0 && expect(p, ")", "')'") ? node : -1;
}

/* ~x of an integer is -1 - x. */
static int make_complement(ex_parser *p, int column, int x) {
    if (x < 0) return -1;
    if (p->program->nodes[x].type == EX_T_BOOL) return ex_make(p, column, EX_NOT, &x, 1);
    if (p->program->nodes[x].type == EX_T_FLOAT) return ex_fail(p, column, "~ wants a condition or an integer");
    return ex_make(p, column, EX_SUB, (int[]){ex_make_int(p, column, -1), x}, 2);
}

static int parse_unary(ex_parser *p) {
    const ex_token t = p->token;
    int node;
    if (p->status) return -1;
    if (++p->depth > EX_MAX_DEPTH) return ex_fail(p, t.column, "this is nested more than %d deep", EX_MAX_DEPTH);
    if (take(p, "-")) {
        node = parse_unary(p);
        node = node < 0 ? -1 : ex_make(p, t.column, EX_NEG, &node, 1);
    } else if (take(p, "!")) {
        node = parse_unary(p);
        node = node < 0 ? -1 : ex_make(p, t.column, EX_NOT, &node, 1);
    } else if (take(p, "~")) {
        node = make_complement(p, t.column, parse_unary(p));
    } else {
        node = parse_primary(p);
    }
    p->depth--;
    return node;
}

/* The infix operator of a level that comes next; -1: another token. */
static int infix_at(const ex_parser *p, int level) {
    if (p->token.kind != EX_SIGN) return -1;
    for (int i = 0; i < EX_OP_COUNT; i++)
        if (ex_op_get((ex_op)i)->level == level && ex_token_is(&p->token, ex_op_get((ex_op)i)->text)) return i;
    return -1;
}

static int parse_level(ex_parser *p, int level) {
    if (level > PRODUCT) return parse_unary(p);
    int node = parse_level(p, level + 1);
    for (int op; node >= 0 && (op = infix_at(p, level)) >= 0;) {
        const int column = p->token.column;
        ex_next(p);
        const int right = parse_level(p, level + 1);
        if (right < 0) return -1;
        node = ex_make(p, column, (ex_op)op, (int[]){node, right}, 2);
        if (level == COMPARISON && infix_at(p, level) >= 0)
            return ex_fail(p, p->token.column, "comparisons do not chain; join them by &");
    }
    return node;
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
    p->token = (ex_token){.text = p->text};
    ex_next(p);
    const int node = parse_level(p, CONDITION);
    if (node < 0 || p->status) return -1;
    if (p->token.kind == EX_END) return node;
    return ex_fail(p, p->token.column, "'%.*s' stands where an operator or the end is expected%s",
                   shown_length(&p->token), p->token.text, hint_for(&p->token));
}

/* A function whose result takes the place of its operand. */
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
