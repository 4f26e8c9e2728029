#include "ir/verify.h"

#include "ir/bounds.h"
#include "ir/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { TEXT_IN_MESSAGES = 120 };

typedef struct verifier {
    const ir_kernel *kernel;
    ir_level level;
    const at_target *target;
    at_error *err;
    at_arena arena;
    ir_bounds *bounds;
    const ir_var **vars;        /* by id: in scope, or NULL */
    const ir_buffer **buffers;
    uint8_t *seen_vars, *seen_buffers;
    const char **names;         /* open addressing; a power of two of slots */
    uint32_t num_slots;
} verifier;

/* ---- Messages ---- */

static bool fail(verifier *v, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool fail(verifier *v, const char *format, ...) {
    char message[ATTUNE_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    at_fail(v->err, ATTUNE_INVALID_IR, "kernel '%.60s': %s", v->kernel->name, message);
    return false;
}

typedef struct short_text {
    char text[TEXT_IN_MESSAGES];
} short_text;

static short_text expr_text(const verifier *v, const ir_expr *e) {
    short_text out;
    at_string text;
    at_string_init(&text, v->kernel->arena->allocator);
    ir_print_expr(e, &text);
    const bool fits = text.length < sizeof out.text;
    snprintf(out.text, sizeof out.text, "%.*s%s", (int)(fits ? text.length : sizeof out.text - 4),
             text.failed || !text.data ? "?" : text.data, fits ? "" : "...");
    at_string_free(&text);
    return out;
}

/* An access prints as the load of it does. */
static short_text access_text(const verifier *v, const ir_access *access) {
    ir_expr load = {.op = IR_LOAD, .type = ir_type_of(access->buffer->type.elem, access->lanes)};
    load.value.access = access;
    return expr_text(v, &load);
}

/* ---- Names and scopes ---- */

static bool take_name(verifier *v, const char *name) {
    uint32_t hash = 0x811c9dc5u;
    if (!name || !*name) return fail(v, "something has no name");
    for (const char *c = name; *c; c++) hash = (hash ^ (uint8_t)*c) * 0x01000193u;
    uint32_t slot = hash & (v->num_slots - 1);
    for (; v->names[slot]; slot = (slot + 1) & (v->num_slots - 1))
        if (!strcmp(v->names[slot], name)) return fail(v, "the name '%.60s' is given twice", name);
    v->names[slot] = name;
    return true;
}

static bool enter_var(verifier *v, const ir_var *var) {
    if (var->id >= v->kernel->num_vars || v->seen_vars[var->id])
        return fail(v, "variable '%.60s' has the id %u, which is %s", var->name, var->id,
                    var->id >= v->kernel->num_vars ? "too large" : "taken");
    if (!take_name(v, var->name)) return false;
    v->seen_vars[var->id] = 1;
    v->vars[var->id] = var;
    return true;
}

static bool enter_buffer(verifier *v, const ir_buffer *buffer) {
    if (buffer->id >= v->kernel->num_buffers || v->seen_buffers[buffer->id])
        return fail(v, "buffer '%.60s' has the id %u, which is %s", buffer->name, buffer->id,
                    buffer->id >= v->kernel->num_buffers ? "too large" : "taken");
    if (buffer->num_dims > IR_MAX_DIMS) return fail(v, "buffer '%.60s' has too many dimensions", buffer->name);
    if (!take_name(v, buffer->name)) return false;
    v->seen_buffers[buffer->id] = 1;
    v->buffers[buffer->id] = buffer;
    return true;
}

/* ---- Expressions ---- */

static bool check_expr(verifier *v, const ir_expr *e, int depth);

static bool lanes_valid(int lanes) { return lanes >= 1 && lanes <= IR_MAX_LANES && (lanes & (lanes - 1)) == 0; }

static bool is_gather(const ir_access *access) {
    for (int d = 0; d < access->buffer->num_dims; d++)
        if (access->indices[d]->type.lanes > 1) return true;
    return false;
}

static bool check_index(verifier *v, const ir_access *access, const ir_expr *index, int depth) {
    if (!check_expr(v, index, depth)) return false;
    if (index->type.elem != IR_IDX)
        return fail(v, "%s: the index %s is not of type idx", access_text(v, access).text, expr_text(v, index).text);
    if (index->type.lanes != 1 && index->type.lanes != access->lanes)
        return fail(v, "%s: an index has %d lanes, the access %d", access_text(v, access).text, index->type.lanes,
                    access->lanes);
    return true;
}

static bool check_reg_access(verifier *v, const ir_access *access) {
    const ir_buffer *buffer = access->buffer;
    if (access->lanes != buffer->type.lanes || access->mask || is_gather(access))
        return fail(v, "%s: '%s' is in registers, so it is read and written in whole elements of %d lanes, unmasked",
                    access_text(v, access).text, buffer->name, buffer->type.lanes);
    for (int d = 0; d < buffer->num_dims && v->level == IR_LOWERED; d++)
        if (access->indices[d]->op != IR_CONST)
            return fail(v, "%s: an index into registers must be a constant in lowered IR", access_text(v, access).text);
    return true;
}

static bool check_bounds(verifier *v, const ir_access *access) {
    int dim = 0;
    const ir_bounds_verdict verdict = ir_bounds_access(v->bounds, access, &dim);
    if (verdict == IR_BOUNDS_OK) return true;
    const ir_buffer *buffer = access->buffer;
    const bool spread = buffer->space != IR_REG && dim == access->axis && access->lanes > 1 && !is_gather(access);
    const short_text index = expr_text(v, access->indices[dim]), size = expr_text(v, buffer->dims[dim]);
    if (verdict == IR_BOUNDS_BELOW)
        return fail(v, "%s: cannot prove 0 <= %s (dimension %d)", access_text(v, access).text, index.text, dim);
    char reach[16] = "";
    if (spread) snprintf(reach, sizeof reach, " + %d", access->lanes - 1);
    return fail(v, "%s: cannot prove %s%s <= %s - 1 (dimension %d)", access_text(v, access).text, index.text, reach,
                size.text, dim);
}

static bool check_access(verifier *v, const ir_access *access, int use, int depth) {
    const ir_buffer *buffer = access->buffer;
    if (!buffer || buffer->id >= v->kernel->num_buffers || v->buffers[buffer->id] != buffer)
        return fail(v, "buffer '%.60s' is used outside of its scope", buffer ? buffer->name : "?");
    if (!lanes_valid(access->lanes)) return fail(v, "an access to '%s' has %d lanes", buffer->name, access->lanes);
    for (int d = 0; d < buffer->num_dims; d++) {
        if (!access->indices[d]) return fail(v, "an access to '%s' lacks an index", buffer->name);
        if (!check_index(v, access, access->indices[d], depth)) return false;
    }
    if (buffer->space == IR_PARAM && use && !(buffer->access & use))
        return fail(v, "%s: '%s' is %s", access_text(v, access).text, buffer->name,
                    use == IR_IN ? "only written (out), so it cannot be read" : "only read (in), so it cannot be written");
    if (access->mask) {
        if (!check_expr(v, access->mask, depth)) return false;
        if (!ir_type_eq(access->mask->type, ir_type_of(IR_BOOL, access->lanes)))
            return fail(v, "%s: the mask is not bool of %d lanes", access_text(v, access).text, access->lanes);
    }
    if (buffer->space == IR_REG) return check_reg_access(v, access);
    const bool gather = is_gather(access);
    if (gather && use == IR_OUT) return fail(v, "%s: stores cannot scatter", access_text(v, access).text);
    if (!gather && access->lanes > 1 && access->axis >= buffer->num_dims)
        return fail(v, "an access to '%s' runs along dimension %d of %d", buffer->name, access->axis, buffer->num_dims);
    return true;
}

/* Loads and stores. */
static bool check_used_access(verifier *v, const ir_access *access, int use, int depth) {
    return check_access(v, access, use, depth) && check_bounds(v, access);
}

static bool wrong_type(verifier *v, const ir_expr *e) {
    return fail(v, "%s: wrong type of an operand or of the result", expr_text(v, e).text);
}

static bool check_const(verifier *v, const ir_expr *e) {
    const int class = ir_elem_get(e->type.elem)->class;
    if (class == IR_CLASS_STORAGE || e->type.lanes != 1) return wrong_type(v, e);
    if (e->type.elem == IR_BOOL && (e->value.i & ~(int64_t)1)) return fail(v, "a bool constant is neither 0 nor 1");
    if (e->type.elem == IR_I32 && e->value.i != (int32_t)e->value.i)
        return fail(v, "the constant %lld does not fit i32", (long long)e->value.i);
    if (e->type.elem == IR_F32 && e->value.f == e->value.f && (double)(float)e->value.f != e->value.f)
        return fail(v, "the constant %a does not fit f32", e->value.f);
    return true;
}

static bool check_var(verifier *v, const ir_expr *e) {
    const ir_var *var = e->value.var;
    if (!var || var->id >= v->kernel->num_vars || v->vars[var->id] != var)
        return fail(v, "variable '%.60s' is used outside of its scope", var ? var->name : "?");
    return ir_type_eq(e->type, var->type) || wrong_type(v, e);
}

static bool check_load(verifier *v, const ir_expr *e, int depth) {
    const ir_access *access = e->value.access;
    return check_used_access(v, access, IR_IN, depth) &&
           (ir_type_eq(e->type, ir_type_of(access->buffer->type.elem, access->lanes)) || wrong_type(v, e));
}

static bool check_shuffle(verifier *v, const ir_expr *e) {
    const ir_type type = e->args[0]->type;
    if (!ir_type_eq(type, e->args[1]->type) || e->type.elem != type.elem || !e->value.pick) return wrong_type(v, e);
    for (int l = 0; l < e->type.lanes; l++)
        if (e->value.pick[l] >= 2 * type.lanes)
            return fail(v, "%s: pick %d is beyond the %d lanes of the operands", expr_text(v, e).text, e->value.pick[l],
                        2 * type.lanes);
    return true;
}

/* Types of the operators whose rule is their own. */
static bool check_special(verifier *v, const ir_expr *e) {
    const ir_type type = e->type, x = e->args[0]->type;
    bool ok = false;
    switch (e->op) {
    case IR_SELECT:
        ok = ir_type_eq(x, ir_type_of(IR_BOOL, type.lanes)) && ir_type_eq(e->args[1]->type, type) &&
             ir_type_eq(e->args[2]->type, type);
        break;
    case IR_CAST:
        ok = x.lanes == type.lanes;
        break;
    case IR_BITCAST:
        ok = x.lanes == type.lanes && ir_elem_get(x.elem)->bytes == ir_elem_get(type.elem)->bytes &&
             x.elem != IR_BOOL && type.elem != IR_BOOL;
        break;
    case IR_SPLAT:
        ok = x.lanes == 1 && x.elem == type.elem && type.lanes > 1;
        break;
    case IR_RAMP:
        ok = ir_elem_get(x.elem)->class == IR_CLASS_INT && x.lanes == 1 && ir_type_eq(x, e->args[1]->type) &&
             x.elem == type.elem && type.lanes > 1;
        break;
    case IR_SHUFFLE:
        return check_shuffle(v, e);
    case IR_DOT2:
        ok = type.elem == IR_F32 && ir_type_eq(e->args[2]->type, type) && x.elem == IR_BF16 &&
             x.lanes == 2 * type.lanes && ir_type_eq(x, e->args[1]->type);
        break;
    default:
        break;
    }
    return ok || wrong_type(v, e);
}

static bool check_uniform(verifier *v, const ir_expr *e, const ir_op_info *info) {
    const ir_type type = e->args[0]->type;
    for (int i = 1; i < info->arity; i++)
        if (!ir_type_eq(e->args[i]->type, type)) return wrong_type(v, e);
    if (!(ir_elem_get(type.elem)->class & info->accepts))
        return fail(v, "%s: '%s' does not work on %s", expr_text(v, e).text, info->text, ir_elem_get(type.elem)->name);
    const ir_type result = info->result == IR_RESULT_CMP ? ir_type_of(IR_BOOL, type.lanes) : type;
    if (!ir_type_eq(e->type, result)) return wrong_type(v, e);
    if ((e->op == IR_DIV || e->op == IR_MOD) && ir_elem_get(type.elem)->class == IR_CLASS_INT &&
        !ir_bounds_nonzero(v->bounds, e->args[1]))
        return fail(v, "%s: cannot prove that the divisor %s is not zero", expr_text(v, e).text,
                    expr_text(v, e->args[1]).text);
    return true;
}

/* Whether lowered IR may hold the operator. */
static bool check_lowered_op(verifier *v, const ir_expr *e, unsigned traits) {
    static const struct {
        unsigned trait, flag;
        const char *what;
    } needs[] = {
        {IR_TRAIT_NEEDS_FMA, AT_TARGET_FMA, "fused multiply-add"},
        {IR_TRAIT_NEEDS_ROUND, AT_TARGET_ROUND, "rounding to an integer"},
        {IR_TRAIT_NEEDS_SCALEF, AT_TARGET_SCALEF, "scaling by a power of two"},
        {IR_TRAIT_NEEDS_DOT2, AT_TARGET_BF16_DOT, "bf16 dot products"},
    };
    if (traits & IR_TRAIT_HIGH)
        return fail(v, "%s: '%s' must not be left in lowered IR", expr_text(v, e).text, ir_op_get(e->op)->text);
    for (size_t i = 0; i < sizeof needs / sizeof needs[0]; i++)
        if ((traits & needs[i].trait) && !(v->target->flags & needs[i].flag))
            return fail(v, "%s: target %s has no instruction for %s", expr_text(v, e).text, v->target->name,
                        needs[i].what);
    return true;
}

static bool check_expr(verifier *v, const ir_expr *e, int depth) {
    if (!e) return fail(v, "an expression is missing");
    if (depth > IR_MAX_DEPTH) return fail(v, "an expression is nested deeper than %d", IR_MAX_DEPTH);
    if (e->op >= IR_OP_COUNT || e->type.elem >= IR_ELEM_COUNT || !lanes_valid(e->type.lanes))
        return fail(v, "an expression has operator %u, element %u and %u lanes, which is not all valid", e->op,
                    e->type.elem, e->type.lanes);
    const ir_op_info *info = ir_op_get(e->op);
    for (int i = 0; i < info->arity; i++)
        if (!check_expr(v, e->args[i], depth + 1)) return false;
    if (info->traits && v->level == IR_LOWERED && !check_lowered_op(v, e, info->traits)) return false;
    switch (e->op) {
    case IR_CONST: return check_const(v, e);
    case IR_VAR: return check_var(v, e);
    case IR_LOAD: return check_load(v, e, depth + 1);
    default: return info->result == IR_RESULT_SPECIAL ? check_special(v, e) : check_uniform(v, e, info);
    }
}

static bool check_idx(verifier *v, const ir_expr *e, const char *what, const char *name) {
    if (!check_expr(v, e, 0)) return false;
    return ir_type_eq(e->type, ir_type_of(IR_IDX, 1)) || fail(v, "%s of '%.60s' is not a scalar idx", what, name);
}

static bool check_condition(verifier *v, const ir_expr *e, const char *what) {
    if (!check_expr(v, e, 0)) return false;
    return ir_type_eq(e->type, ir_type_of(IR_BOOL, 1)) ||
           fail(v, "%s %s is not a scalar bool", what, expr_text(v, e).text);
}

/* The sizes that the runtime computes before a run, with nothing but the scalars: no memory, no mathematics. */
static bool check_plain(verifier *v, const ir_expr *e, const char *what) {
    const ir_op_info *info = ir_op_get(e->op);
    if (e->op == IR_LOAD || (info->traits & IR_TRAIT_HIGH))
        return fail(v, "%s %s is made of more than constants and scalar parameters", what, expr_text(v, e).text);
    for (int i = 0; i < info->arity; i++)
        if (!check_plain(v, e->args[i], what)) return false;
    return true;
}

/* ---- Statements ---- */

static bool check_block(verifier *v, const ir_block *block, int depth);

static bool check_loop(verifier *v, const ir_stmt *s, int depth) {
    const ir_var *var = s->u.loop.var;
    if (!check_idx(v, s->u.loop.lo, "the start", var->name) || !check_idx(v, s->u.loop.hi, "the end", var->name))
        return false;
    if (s->u.loop.step < 1) return fail(v, "loop '%.60s' has step %lld", var->name, (long long)s->u.loop.step);
    if (s->u.loop.unroll && v->level == IR_LOWERED)
        return fail(v, "loop '%.60s' is still to be unrolled in lowered IR", var->name);
    if (s->u.loop.unroll && !(ir_bounds_is_static(v->bounds, s->u.loop.lo) && ir_bounds_is_static(v->bounds, s->u.loop.hi)))
        return fail(v, "loop '%.60s' is to be unrolled, but its trip count is not a constant", var->name);
    if (!ir_type_eq(var->type, ir_type_of(IR_IDX, 1))) return fail(v, "loop variable '%.60s' is not idx", var->name);
    if (!enter_var(v, var)) return false;
    const uint32_t mark = ir_bounds_mark(v->bounds);
    ir_bounds_loop(v->bounds, var, s->u.loop.lo, s->u.loop.hi, s->u.loop.step, s->u.loop.unroll);
    const bool ok = check_block(v, &s->u.loop.body, depth + 1);
    ir_bounds_release(v->bounds, mark);
    v->vars[var->id] = NULL;
    return ok;
}

static bool check_store(verifier *v, const ir_stmt *s) {
    const ir_access *access = s->u.store.access;
    if (!check_expr(v, s->u.store.value, 0) || !check_used_access(v, access, IR_OUT, 0)) return false;
    return ir_type_eq(s->u.store.value->type, ir_type_of(access->buffer->type.elem, access->lanes)) ||
           fail(v, "store to %s: the value has another type", access_text(v, access).text);
}

static bool check_branch(verifier *v, const ir_stmt *s, int depth) {
    const ir_expr *condition = s->u.branch.condition;
    if (!check_condition(v, condition, "the condition")) return false;
    const uint32_t mark = ir_bounds_mark(v->bounds);
    ir_bounds_fact(v->bounds, condition, true);
    if (!check_block(v, &s->u.branch.then, depth + 1)) return false;
    ir_bounds_release(v->bounds, mark);
    ir_bounds_fact(v->bounds, condition, false);
    if (!check_block(v, &s->u.branch.otherwise, depth + 1)) return false;
    ir_bounds_release(v->bounds, mark);
    return true;
}

static bool check_alloc(verifier *v, const ir_buffer *buffer) {
    if (buffer->space != IR_SCRATCH && buffer->space != IR_REG)
        return fail(v, "'%.60s' is allocated in a block, but is neither scratch nor reg", buffer->name);
    if (!lanes_valid(buffer->type.lanes) || (buffer->type.lanes > 1 && buffer->space != IR_REG))
        return fail(v, "'%.60s' has elements of %d lanes", buffer->name, buffer->type.lanes);
    int64_t size = buffer->type.lanes * ir_elem_get(buffer->type.elem)->bytes;
    for (int d = 0; d < buffer->num_dims; d++) {
        const ir_expr *dim = buffer->dims[d];
        if (!dim || dim->op != IR_CONST || dim->type.elem != IR_IDX || dim->value.i < 1)
            return fail(v, "dimension %d of '%.60s' is not a constant above 0", d, buffer->name);
        if (__builtin_mul_overflow(size, dim->value.i, &size) || size > INT32_MAX)
            return fail(v, "'%.60s' is larger than 2 GiB", buffer->name);
    }
    return enter_buffer(v, buffer);
}

static bool check_let(verifier *v, const ir_stmt *s) {
    const ir_var *var = s->u.let.var;
    if (!check_expr(v, s->u.let.value, 0)) return false;
    if (!ir_type_eq(var->type, s->u.let.value->type)) return fail(v, "let '%.60s' has not its value's type", var->name);
    if (!enter_var(v, var)) return false;
    ir_bounds_let(v->bounds, var, s->u.let.value);
    return true;
}

/* A prefetch may point anywhere: an address outside touches nothing. */
static bool check_prefetch(verifier *v, const ir_access *access) {
    if (!check_access(v, access, 0, 0)) return false;
    return access->buffer->space != IR_REG || fail(v, "'%.60s' is in registers and cannot be prefetched", access->buffer->name);
}

static bool check_stmt(verifier *v, const ir_stmt *s, int depth) {
    switch (s->kind) {
    case IR_FOR: return check_loop(v, s, depth);
    case IR_LET: return check_let(v, s);
    case IR_STORE: return check_store(v, s);
    case IR_IF: return check_branch(v, s, depth);
    case IR_ALLOC: return check_alloc(v, s->u.alloc);
    case IR_PREFETCH: return check_prefetch(v, s->u.store.access);
    case IR_ASSUME:
        if (!check_condition(v, s->u.assume, "the assumption")) return false;
        ir_bounds_fact(v->bounds, s->u.assume, true);
        return true;
    }
    return fail(v, "a statement of kind %d", s->kind);
}

/* What a block brought into scope leaves with it. */
static void leave_block(verifier *v, const ir_block *block) {
    for (const ir_stmt *s = block->first; s; s = s->next) {
        if (s->kind == IR_LET) v->vars[s->u.let.var->id] = NULL;
        if (s->kind == IR_ALLOC) v->buffers[s->u.alloc->id] = NULL;
    }
}

static bool check_block(verifier *v, const ir_block *block, int depth) {
    if (depth > IR_MAX_DEPTH) return fail(v, "blocks are nested deeper than %d", IR_MAX_DEPTH);
    const uint32_t mark = ir_bounds_mark(v->bounds);
    for (const ir_stmt *s = block->first; s; s = s->next)
        if (!check_stmt(v, s, depth)) return false;
    ir_bounds_release(v->bounds, mark);
    leave_block(v, block);
    return true;
}

/* ---- Kernels ---- */

/* Dims and strides of a parameter or shared buffer. */
static bool check_shape(verifier *v, const ir_buffer *buffer) {
    if (!lanes_valid(buffer->type.lanes) || buffer->type.lanes != 1)
        return fail(v, "'%.60s' has elements of %d lanes", buffer->name, buffer->type.lanes);
    for (int d = 0; d < buffer->num_dims; d++) {
        if (!check_idx(v, buffer->dims[d], "a dimension", buffer->name) ||
            !check_plain(v, buffer->dims[d], "the dimension"))
            return false;
        if (buffer->strides[d] && (!check_idx(v, buffer->strides[d], "a stride", buffer->name) ||
                                   !check_plain(v, buffer->strides[d], "the stride")))
            return false;
        if (!buffer->strides[d] != !buffer->strides[0]) return fail(v, "'%.60s' lacks a stride", buffer->name);
        ir_bounds_dim(v->bounds, buffer->dims[d]);
    }
    return true;
}

static bool check_params(verifier *v) {
    const ir_kernel *kernel = v->kernel;
    /* Scalars first: a buffer may be sized by a scalar that comes after it. */
    for (uint32_t i = 0; i < kernel->num_params; i++) {
        const ir_var *var = kernel->params[i].var;
        if (!var == !kernel->params[i].buffer) return fail(v, "parameter %u is not one thing", i);
        if (!var) continue;
        if (var->type.lanes != 1 || !(ir_elem_get(var->type.elem)->class & (IR_CLASS_INT | IR_CLASS_FLOAT)))
            return fail(v, "parameter '%.60s' has a type that scalars cannot have", var->name);
        if (!enter_var(v, var)) return false;
        ir_bounds_param(v->bounds, var);
    }
    for (uint32_t i = 0; i < kernel->num_assumes; i++) {
        if (!check_condition(v, kernel->assumes[i], "the assumption") ||
            !check_plain(v, kernel->assumes[i], "the assumption"))
            return false;
        ir_bounds_kernel_fact(v->bounds, kernel->assumes[i]);
    }
    for (uint32_t i = 0; i < kernel->num_params + kernel->num_shared; i++) {
        const bool shared = i >= kernel->num_params;
        const ir_buffer *buffer = shared ? kernel->shared[i - kernel->num_params] : kernel->params[i].buffer;
        if (!buffer) continue;
        if (buffer->space != (shared ? IR_SHARED : IR_PARAM)) return fail(v, "'%.60s' is in the wrong list", buffer->name);
        if (!shared && (buffer->access < IR_IN || buffer->access > (IR_IN | IR_OUT)))
            return fail(v, "'%.60s' is neither read nor written", buffer->name);
        if (!enter_buffer(v, buffer) || !check_shape(v, buffer)) return false;
    }
    return true;
}

static bool check_phase(verifier *v, const ir_phase *phase) {
    if (phase->num_loops < 1 || phase->num_loops > IR_MAX_LOOPS)
        return fail(v, "a phase has %d parallel loops", phase->num_loops);
    const uint32_t mark = ir_bounds_mark(v->bounds);
    /* All ends before the first variable comes into scope: they are of scalar params only. */
    for (int i = 0; i < phase->num_loops; i++) {
        const ir_expr *hi = phase->loops[i].hi;
        if (!check_idx(v, hi, "the end", phase->loops[i].var->name) || !check_plain(v, hi, "the end")) return false;
    }
    for (int i = 0; i < phase->num_loops; i++) {
        const ir_var *var = phase->loops[i].var;
        if (!ir_type_eq(var->type, ir_type_of(IR_IDX, 1))) return fail(v, "loop variable '%.60s' is not idx", var->name);
        if (!enter_var(v, var)) return false;
        ir_bounds_loop(v->bounds, var, NULL, phase->loops[i].hi, 1, false);
    }
    if (!check_block(v, &phase->body, 0)) return false;
    ir_bounds_release(v->bounds, mark);
    for (int i = 0; i < phase->num_loops; i++) v->vars[phase->loops[i].var->id] = NULL;
    return true;
}

static bool check_kernel(verifier *v) {
    if (!check_params(v)) return false;
    uint32_t count = 0;
    for (const ir_phase *phase = v->kernel->phases; phase; phase = phase->next, count++)
        if (!check_phase(v, phase)) return false;
    if (count == 0 || count != v->kernel->num_phases)
        return fail(v, "it has %u phases and says %u", count, v->kernel->num_phases);
    return true;
}

/* Zeroed tables by id and the name table, half full at most. */
static bool make_tables(verifier *v) {
    const uint32_t vars = v->kernel->num_vars, buffers = v->kernel->num_buffers;
    v->num_slots = 64;
    while (v->num_slots < 2 * (vars + buffers)) v->num_slots *= 2;
    v->vars = at_arena_alloc(&v->arena, (vars + 1) * sizeof *v->vars);
    v->buffers = at_arena_alloc(&v->arena, (buffers + 1) * sizeof *v->buffers);
    v->seen_vars = at_arena_alloc(&v->arena, vars + 1);
    v->seen_buffers = at_arena_alloc(&v->arena, buffers + 1);
    v->names = at_arena_alloc(&v->arena, v->num_slots * sizeof *v->names);
    v->bounds = ir_bounds_new(&v->arena, vars);
    return !v->arena.failed;
}

attune_status ir_verify(const ir_kernel *kernel, ir_level level, const at_target *target, at_error *err) {
    if (level == IR_LOWERED && !target) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "lowered IR needs a target");
    at_error found = {.status = ATTUNE_OK};
    verifier v = {.kernel = kernel, .level = level, .target = target, .err = &found};
    at_arena_init(&v.arena, kernel->arena->allocator);
    if (make_tables(&v)) check_kernel(&v);
    /* Without memory no verdict counts. */
    const attune_status status = v.arena.failed     ? at_fail_memory(err, sizeof(ir_expr))
                                 : found.status     ? at_fail(err, found.status, "%s", found.message)
                                                    : ATTUNE_OK;
    at_arena_free(&v.arena);
    return status;
}
