/* The builder: its errors, names and scopes, and a kernel's parameters.
 *
 *     ir_param, ir_buffer, …        here                      the kernel's signature
 *     ir_add, ir_load, ir_at, …     build_expr.c              check types, then fold (build_fold.c), then a node
 *     ir_store, ir_for_begin, …     build_stmt.c              append to the innermost open block */
#include "ir/builder/build_internal.h"

#include "base/plain_text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- failure and memory ---- */

bool ir_failed(const ir_builder *b) { return b->error.status != ATTUNE_OK; }

static void leave(ir_builder *b) {
    if (b->escape) longjmp(*b->escape, 1);
}

static void fail_memory(ir_builder *b, size_t bytes) {
    at_fail_memory(&b->error, bytes);
    leave(b);
}

void ir_build_fail(ir_builder *b, const char *format, ...) {
    if (ir_failed(b)) return;
    char message[ATTUNE_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    at_vprint(message, sizeof message, format, args);
    va_end(args);
    at_fail(&b->error, ATTUNE_INVALID_IR, "%s", message);
    leave(b);
}

void *ir_build_alloc(ir_builder *b, size_t bytes) {
    if (ir_failed(b)) return NULL;
    void *memory = at_arena_alloc(b->arena, bytes);
    if (!memory) fail_memory(b, bytes);
    return memory;
}

bool ir_build_append(ir_builder *b, ir_list *list, const void *item, size_t bytes) {
    if (list->count == list->capacity) {
        const uint32_t capacity = list->capacity ? list->capacity * 2 : 8;
        void *items = ir_build_alloc(b, capacity * bytes);
        if (!items) return false;
        if (list->count) memcpy(items, list->items, list->count * bytes);
        list->items = items;
        list->capacity = capacity;
    }
    memcpy((char *)list->items + list->count++ * bytes, item, bytes);
    return true;
}

/* ---- names ---- */

/* "name.N" with the first free N. A suffix that the name has already is replaced, so that names do not grow when passes
 * copy copies. */
static ir_symbol *free_symbol(ir_builder *b, const char *name, size_t length) {
    size_t stem = length;
    while (stem > 1 && name[stem - 1] >= '0' && name[stem - 1] <= '9') stem--;
    stem = stem > 1 && stem < length && name[stem - 1] == '.' ? stem - 1 : length;
    if (stem > IR_MAX_NAME - 12) stem = IR_MAX_NAME - 12;
    ir_symbol *base = ir_symbols_add(&b->symbols, name, stem);
    while (base) {
        char candidate[IR_MAX_NAME + 12];
        const int n = snprintf(candidate, sizeof candidate, "%.*s.%u", (int)stem, name, base->next_suffix++);
        ir_symbol *symbol = ir_symbols_add(&b->symbols, candidate, (size_t)n);
        if (!symbol || !symbol->defined) return symbol;
    }
    return NULL;
}

/* The symbol to define for this name; if the name is taken, one with a suffix, unless strict. */
static ir_symbol *new_symbol(ir_builder *b, const char *name) {
    if (ir_failed(b)) return NULL;
    const size_t length = strlen(name);
    const char *wrong = ir_name_check(name, length);
    if (wrong) {
        ir_build_fail(b, "the name '%.80s' %s", name, wrong);
        return NULL;
    }
    ir_symbol *symbol = ir_symbols_add(&b->symbols, name, length);
    if (symbol && (symbol->defined || symbol->word) && b->strict) {
        ir_build_fail(
            b, symbol->word ? "'%s' is a word of the language and cannot be a name" : "the name '%s' is already taken",
            name);
        return NULL;
    }
    if (symbol && (symbol->defined || symbol->word)) symbol = free_symbol(b, name, length);
    if (!symbol) fail_memory(b, sizeof *symbol);
    return symbol;
}

const ir_var *ir_build_var(ir_builder *b, const char *name, ir_type type) {
    ir_symbol *symbol = new_symbol(b, name);
    ir_var *var = symbol ? ir_build_alloc(b, sizeof *var) : NULL;
    if (!var) return NULL;
    *var = (ir_var){.name = symbol->name, .type = type, .id = b->kernel->num_vars++};
    ir_symbols_define(&b->symbols, symbol, var, NULL);
    return var;
}

ir_buffer *ir_build_buffer(ir_builder *b, const char *name, ir_type type, ir_space space, int num_dims) {
    if (num_dims < 0 || num_dims > IR_MAX_DIMS) {
        ir_build_fail(b, "buffer '%.80s' has %d dimensions, more than %d", name, num_dims, IR_MAX_DIMS);
        return NULL;
    }
    ir_symbol *symbol = new_symbol(b, name);
    ir_buffer *buffer = symbol ? ir_build_alloc(b, sizeof *buffer) : NULL;
    if (!buffer) return NULL;
    *buffer = (ir_buffer){.name = symbol->name,
                          .type = type,
                          .space = space,
                          .num_dims = (uint8_t)num_dims,
                          .id = b->kernel->num_buffers++};
    ir_symbols_define(&b->symbols, symbol, NULL, buffer);
    return buffer;
}

/* ---- a builder's life ---- */

ir_builder *ir_builder_new(at_arena *arena, const char *kernel_name) {
    ir_builder *b = at_arena_alloc(arena, sizeof *b);
    if (!b) return NULL;
    b->arena = arena;
    b->kernel = at_arena_alloc(arena, sizeof *b->kernel);
    const char *name = at_arena_strndup(arena, kernel_name, strlen(kernel_name));
    if (!b->kernel || !name || !ir_symbols_init(&b->symbols, arena)) return NULL;
    *b->kernel = (ir_kernel){.arena = arena, .name = name};
    const char *wrong = ir_name_check(name, strlen(name));
    if (wrong) ir_build_fail(b, "the kernel's name '%.80s' %s", name, wrong);
    return b;
}

ir_builder *ir_builder_like(at_arena *arena, const ir_kernel *old) {
    ir_builder *b = ir_builder_new(arena, old->name);
    if (!b) return NULL;
    for (uint32_t i = 0; i < old->num_params; i++) ir_build_append(b, &b->params, &old->params[i], sizeof(ir_param));
    for (uint32_t i = 0; i < old->num_shared; i++) ir_build_append(b, &b->shared, &old->shared[i], sizeof(ir_buffer *));
    for (uint32_t i = 0; i < old->num_assumes; i++)
        ir_build_append(b, &b->assumes, &old->assumes[i], sizeof(ir_expr *));
    for (uint32_t i = 0; i < old->num_params + old->num_shared && !ir_failed(b); i++) {
        const uint32_t s = i - old->num_params; /* of shared buffers, which come after the parameters */
        const ir_param param = i < old->num_params ? old->params[i] : (ir_param){.buffer = old->shared[s]};
        const char *name = param.var ? param.var->name : param.buffer->name;
        ir_symbol *symbol = ir_symbols_add(&b->symbols, name, strlen(name));
        if (!symbol) {
            at_fail_memory(&b->error, sizeof *symbol);
            break;
        }
        ir_symbols_define(&b->symbols, symbol, param.var, param.buffer);
        if (param.var)
            b->kernel->num_vars++;
        else
            b->kernel->num_buffers++;
    }
    return b;
}

void ir_builder_run(ir_builder *b, void (*build)(void *user), void *user) {
    jmp_buf escape;
    b->escape = &escape;
    if (!ir_failed(b) && !setjmp(escape)) build(user);
    b->escape = NULL;
}

ir_kernel *ir_builder_finish(ir_builder *b, at_error *err) {
    if (b->num_scopes > 0) ir_build_fail(b, "kernel '%s' has a block that was not closed", b->kernel->name);
    if (b->kernel->num_phases == 0) ir_build_fail(b, "kernel '%s' has no phase", b->kernel->name);
    if (ir_failed(b)) {
        at_fail(err, b->error.status, "%s", b->error.message);
        return NULL;
    }
    ir_kernel *kernel = b->kernel;
    kernel->params = b->params.items;
    kernel->shared = b->shared.items;
    kernel->assumes = b->assumes.items;
    kernel->num_params = b->params.count;
    kernel->num_shared = b->shared.count;
    kernel->num_assumes = b->assumes.count;
    return kernel;
}

/* ---- parameters ---- */

static bool before_phases(ir_builder *b, const char *what) {
    if (b->phase) ir_build_fail(b, "%s must come before the first phase", what);
    return !ir_failed(b);
}

const ir_var *ir_build_scalar_declare(ir_builder *b, const char *name, ir_elem elem) {
    if (!before_phases(b, "parameters")) return NULL;
    if (!(ir_elem_get(elem)->class & (IR_CLASS_INT | IR_CLASS_FLOAT))) {
        ir_build_fail(b, "scalar parameter '%.80s' cannot be %s, only idx, i32, i64, f32 or f64", name,
                      ir_elem_get(elem)->name);
        return NULL;
    }
    return ir_build_var(b, name, ir_type_of(elem, 1));
}

void ir_build_scalar_append(ir_builder *b, const ir_var *var) {
    const ir_param param = {.var = var};
    if (var) ir_build_append(b, &b->params, &param, sizeof param);
}

const ir_expr *ir_param_scalar(ir_builder *b, const char *name, ir_elem elem) {
    const ir_var *var = ir_build_scalar_declare(b, name, elem);
    ir_build_scalar_append(b, var);
    return ir_var_ref(b, var);
}

static bool set_dims(ir_builder *b, ir_buffer *buffer, const ir_expr *const *dims, const ir_expr *const *strides) {
    for (int d = 0; d < buffer->num_dims; d++) {
        if (!ir_check_idx(b, dims[d], "a dimension")) return false;
        if (strides && !ir_check_idx(b, strides[d], "a stride")) return false;
        buffer->dims[d] = dims[d];
        buffer->strides[d] = strides ? strides[d] : NULL;
    }
    return true;
}

const ir_buffer *ir_param_buffer(ir_builder *b, const char *name, ir_elem elem, int num_dims,
                                 const ir_expr *const *dims, const ir_expr *const *strides, int access) {
    if (!before_phases(b, "parameters")) return NULL;
    ir_buffer *buffer = ir_build_buffer(b, name, ir_type_of(elem, 1), IR_PARAM, num_dims);
    if (!buffer || !set_dims(b, buffer, dims, strides)) return NULL;
    if (access < IR_IN || access > (IR_IN | IR_OUT)) ir_build_fail(b, "parameter '%s' is neither in nor out", name);
    buffer->access = (uint8_t)access;
    const ir_param param = {.buffer = buffer};
    return ir_build_append(b, &b->params, &param, sizeof param) ? buffer : NULL;
}

void ir_kernel_assume(ir_builder *b, const ir_expr *condition) {
    if (!before_phases(b, "assumptions about parameters")) return;
    if (ir_check_condition(b, condition, "an assumption"))
        ir_build_append(b, &b->assumes, &condition, sizeof condition);
}

const ir_buffer *ir_shared(ir_builder *b, const char *name, ir_elem elem, int num_dims, const ir_expr *const *dims) {
    if (!before_phases(b, "shared buffers")) return NULL;
    ir_buffer *buffer = ir_build_buffer(b, name, ir_type_of(elem, 1), IR_SHARED, num_dims);
    if (!buffer || !set_dims(b, buffer, dims, NULL)) return NULL;
    return ir_build_append(b, &b->shared, &buffer, sizeof buffer) ? buffer : NULL;
}
