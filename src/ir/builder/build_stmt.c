/* Statements. Each is appended to the innermost open block, and phases, loops and branches open a block. A stack of
 * scopes says which is innermost:
 *
 *     phase | for k | then      <- a store is appended here
 *
 * Closing a scope must match its kind, and hides the names that were defined in it. */
#include "ir/builder/build_internal.h"

/* ---- blocks ---- */

const ir_expr ir_open;

static ir_scope *innermost(ir_builder *b) { return b->num_scopes ? &b->scopes[b->num_scopes - 1] : NULL; }

static void open_scope(ir_builder *b, ir_scope_kind kind, ir_block *block, ir_stmt *stmt) {
    if (b->num_scopes == IR_MAX_DEPTH) ir_build_fail(b, "blocks are nested more than %d deep", IR_MAX_DEPTH);
    if (ir_failed(b)) return;
    b->scopes[b->num_scopes++] = (ir_scope){kind, block, stmt, b->symbols.newest};
}

/* Closes the innermost scope if it is of that kind; its statement, or NULL. */
static ir_stmt *close_scope(ir_builder *b, ir_scope_kind kind, const char *what) {
    ir_scope *scope = innermost(b);
    if (!scope || scope->kind != kind) ir_build_fail(b, "%s without the block that it ends", what);
    if (ir_failed(b)) return NULL;
    ir_symbols_close(&b->symbols, scope->symbols);
    b->num_scopes--;
    return scope->stmt;
}

/* A new statement at the end of the innermost block. */
static ir_stmt *append_stmt(ir_builder *b, ir_stmt_kind kind) {
    if (!b->num_scopes) ir_build_fail(b, "a statement stands outside every phase");
    ir_stmt *stmt = ir_build_alloc(b, sizeof *stmt);
    if (!stmt) return NULL;
    stmt->kind = kind;
    ir_block *block = innermost(b)->block;
    if (block->last)
        block->last->next = stmt;
    else
        block->first = stmt;
    block->last = stmt;
    return stmt;
}

/* ---- phases ---- */

void ir_phase_begin(ir_builder *b) {
    if (b->num_scopes) ir_build_fail(b, "a phase cannot stand inside another block");
    ir_phase *phase = ir_build_alloc(b, sizeof *phase);
    if (!phase) return;
    if (b->phase)
        b->phase->next = phase;
    else
        b->kernel->phases = phase;
    b->phase = phase;
    b->kernel->num_phases++;
    open_scope(b, IR_SCOPE_PHASE, &phase->body, NULL);
}

const ir_expr *ir_parallel(ir_builder *b, const char *name, const ir_expr *hi) {
    const bool at_start = b->num_scopes == 1 && !b->phase->body.first;
    if (!at_start)
        ir_build_fail(b, "a parallel loop must come before the first statement of a phase");
    else if (b->phase->num_loops == IR_MAX_LOOPS)
        ir_build_fail(b, "a phase has more than %d loops", IR_MAX_LOOPS);
    if (ir_failed(b) || !ir_check_idx(b, hi, "the end of a parallel loop")) return NULL;
    const ir_var *var = ir_build_var(b, name, ir_type_of(IR_IDX, 1));
    if (!var) return NULL;
    b->phase->loops[b->phase->num_loops].var = var;
    b->phase->loops[b->phase->num_loops++].hi = hi;
    return ir_var_ref(b, var);
}

void ir_phase_end(ir_builder *b) {
    close_scope(b, IR_SCOPE_PHASE, "the end of a phase");
    if (!ir_failed(b) && b->phase->num_loops == 0) ir_build_fail(b, "a phase has no parallel loop");
}

/* ---- loops and branches ---- */

const ir_expr *ir_for_begin(ir_builder *b, const char *name, const ir_expr *lo, const ir_expr *hi, int64_t step,
                            bool unroll) {
    if (!ir_check_idx(b, lo, "the start of a loop") || !ir_check_idx(b, hi, "the end of a loop")) return NULL;
    if (step < 1) ir_build_fail(b, "the step of a loop must be at least 1, not %lld", (long long)step);
    ir_stmt *stmt = append_stmt(b, IR_FOR);
    if (!stmt) return NULL;
    open_scope(b, IR_SCOPE_FOR, &stmt->u.loop.body, stmt);
    stmt->u.loop.var = ir_build_var(b, name, ir_type_of(IR_IDX, 1));
    stmt->u.loop.lo = lo;
    stmt->u.loop.hi = hi;
    stmt->u.loop.step = step;
    stmt->u.loop.unroll = unroll;
    return ir_var_ref(b, stmt->u.loop.var);
}

void ir_for_end(ir_builder *b) { close_scope(b, IR_SCOPE_FOR, "the end of a loop"); }

void ir_if_begin(ir_builder *b, const ir_expr *condition) {
    if (!ir_check_condition(b, condition, "the condition of 'if'")) return;
    ir_stmt *stmt = append_stmt(b, IR_IF);
    if (!stmt) return;
    stmt->u.branch.condition = condition;
    open_scope(b, IR_SCOPE_THEN, &stmt->u.branch.then, stmt);
}

void ir_if_else(ir_builder *b) {
    ir_stmt *stmt = close_scope(b, IR_SCOPE_THEN, "'else'");
    if (stmt) open_scope(b, IR_SCOPE_ELSE, &stmt->u.branch.otherwise, stmt);
}

void ir_else_begin(ir_builder *b) {
    ir_stmt *stmt = ir_failed(b) || !b->num_scopes ? NULL : innermost(b)->block->last;
    if (!stmt || stmt->kind != IR_IF || stmt->u.branch.otherwise.first)
        ir_build_fail(b, "'else' without the block that it ends");
    else
        open_scope(b, IR_SCOPE_ELSE, &stmt->u.branch.otherwise, stmt);
}

void ir_if_end(ir_builder *b) {
    const ir_scope *scope = innermost(b);
    close_scope(b, scope && scope->kind == IR_SCOPE_ELSE ? IR_SCOPE_ELSE : IR_SCOPE_THEN, "the end of an 'if'");
}

/* ---- simple statements ---- */

const ir_expr *ir_build_let(ir_builder *b, const char *name, const ir_expr *value) {
    if (!value) ir_build_fail(b, "'let' has no value");
    ir_stmt *stmt = append_stmt(b, IR_LET);
    if (!stmt) return NULL;
    stmt->u.let.value = value;
    stmt->u.let.var = ir_build_var(b, name, value->type);
    return ir_var_ref(b, stmt->u.let.var);
}

const ir_expr *ir_let(ir_builder *b, const char *name, const ir_expr *value) {
    if (value && (value->op == IR_VAR || value->op == IR_CONST)) return ir_failed(b) ? NULL : value;
    return ir_build_let(b, name, value);
}

const ir_expr *ir_build_let_in(ir_builder *b, const char *name, const ir_expr *lo, const ir_expr *hi,
                               const ir_expr *value) {
    if (!ir_check_idx(b, lo, "the start of an interval") || !ir_check_idx(b, hi, "the end of an interval") ||
        !ir_check_idx(b, value, "a value in an interval"))
        return NULL;
    const ir_expr *var = ir_build_let(b, name, value);
    if (!var) return NULL;
    ir_stmt *stmt = innermost(b)->block->last;
    stmt->u.let.lo = lo;
    stmt->u.let.hi = hi;
    return var;
}

const ir_expr *ir_let_in(ir_builder *b, const char *name, const ir_expr *lo, const ir_expr *hi, const ir_expr *value) {
    if (!value || value->op != IR_CONST) return ir_build_let_in(b, name, lo, hi, value);
    ir_assume(b, ir_le(b, lo, value));
    ir_assume(b, ir_le(b, value, ir_plus(b, hi, -1)));
    return ir_failed(b) ? NULL : value;
}

static bool check_alloc(ir_builder *b, const char *name, ir_space space, ir_type type, int num_dims,
                        const int64_t *dims) {
    if (space != IR_SCRATCH && space != IR_REG && space != IR_TILES)
        ir_build_fail(b, "'%.80s' can only be allocated in scratch, reg or tiles here", name);
    if (space != IR_REG && type.lanes != 1)
        ir_build_fail(b, "'%.80s' holds scalars; only reg holds vectors such as %s", name, ir_type_describe(type).text);
    if (space == IR_TILES && type.elem != IR_F32 && type.elem != IR_BF16)
        ir_build_fail(b, "tiles '%.80s' cannot be of %s, only of f32 and bf16", name, ir_type_describe(type).text);
    size_t bytes = ir_elem_get(type.elem)->bytes * (size_t)type.lanes;
    for (int d = 0; d < num_dims && !ir_failed(b); d++) {
        if (dims[d] < 1)
            ir_build_fail(b, "'%.80s' has a dimension of %lld", name, (long long)dims[d]);
        else if (!at_mul_size(bytes, (size_t)dims[d], &bytes) || bytes > PTRDIFF_MAX)
            ir_build_fail(b, "the size of '%.80s' overflows", name);
    }
    return !ir_failed(b);
}

const ir_buffer *ir_alloc(ir_builder *b, const char *name, ir_space space, ir_type type, int num_dims,
                          const int64_t *dims) {
    if (!check_alloc(b, name, space, type, num_dims, dims)) return NULL;
    ir_stmt *stmt = append_stmt(b, IR_ALLOC);
    ir_buffer *buffer = stmt ? ir_build_buffer(b, name, type, space, num_dims) : NULL;
    if (!buffer) return NULL;
    for (int d = 0; d < num_dims; d++) buffer->dims[d] = ir_idx(b, dims[d]);
    stmt->u.alloc = buffer;
    return ir_failed(b) ? NULL : buffer;
}

const ir_access *ir_mutable(ir_builder *b, const char *name, const ir_expr *value) {
    if (!value) return NULL;
    const ir_access *at = ir_at(b, ir_alloc(b, name, IR_REG, value->type, 0, NULL), value->type.lanes, 0);
    ir_store(b, at, value);
    return at;
}

void ir_store(ir_builder *b, const ir_access *access, const ir_expr *value) {
    if (!access || !value) ir_build_fail(b, "a store has no %s", access ? "value" : "access");
    if (ir_failed(b) || !ir_build_no_tile(b, access)) return;
    const ir_type type = ir_type_of(access->buffer->type.elem, access->lanes);
    if (!ir_type_eq(type, value->type))
        ir_build_fail(b, "a store to '%s' needs %s, not %s", access->buffer->name, ir_type_describe(type).text,
                      ir_type_describe(value->type).text);
    for (int d = 0; d < access->buffer->num_dims; d++)
        if (access->indices[d]->type.lanes > 1)
            ir_build_fail(b, "a store to '%s' cannot have a vector as index", access->buffer->name);
    ir_stmt *stmt = append_stmt(b, IR_STORE);
    if (!stmt) return;
    stmt->u.store.access = access;
    stmt->u.store.value = value;
}

static void append_prefetch(ir_builder *b, const ir_access *access, bool is_far) {
    if (!access)
        ir_build_fail(b, "a prefetch has no access");
    else if (access->buffer->space == IR_REG || access->buffer->space == IR_TILES)
        ir_build_fail(b, "'%s' is in registers and cannot be prefetched", access->buffer->name);
    ir_stmt *stmt = append_stmt(b, IR_PREFETCH);
    if (!stmt) return;
    stmt->u.store.access = access;
    stmt->u.store.is_far = is_far;
}

void ir_prefetch(ir_builder *b, const ir_access *access) { append_prefetch(b, access, false); }

void ir_prefetch_far(ir_builder *b, const ir_access *access) { append_prefetch(b, access, true); }

void ir_assume(ir_builder *b, const ir_expr *condition) {
    if (!ir_check_condition(b, condition, "an assumption")) return;
    ir_stmt *stmt = append_stmt(b, IR_ASSUME);
    if (stmt) stmt->u.assume = condition;
}

/* ---- tiles ---- */

bool ir_build_no_tile(ir_builder *b, const ir_access *access) {
    if (access->buffer->space != IR_TILES) return true;
    ir_build_fail(b, "'%s' holds tiles, which only tile statements read and write", access->buffer->name);
    return false;
}

static bool is_one(const ir_expr *stride) { return !stride || (stride->op == IR_CONST && stride->value.i == 1); }

/* A row of a tile in memory: 64 contiguous bytes. */
static bool check_tile_row(ir_builder *b, const ir_access *row) {
    const ir_buffer *buffer = row->buffer;
    const int last = buffer->num_dims - 1;
    if (buffer->space == IR_REG || buffer->space == IR_TILES || last < 0)
        ir_build_fail(b, "the rows of a tile cannot lie in '%s'", buffer->name);
    else if (row->mask || row->axis != last || !is_one(buffer->strides[last]) ||
             row->lanes * ir_elem_get((ir_elem)buffer->type.elem)->bytes != IR_TILE_ROW_BYTES)
        ir_build_fail(b, "a tile's row in '%s' must be %d bytes side by side, without a mask", buffer->name,
                      IR_TILE_ROW_BYTES);
    for (int d = 0; d <= last && !ir_failed(b); d++)
        if (row->indices[d]->type.lanes > 1) ir_build_fail(b, "a tile cannot be gathered from '%s'", buffer->name);
    return !ir_failed(b);
}

static const ir_access *last_row(ir_builder *b, const ir_access *row) {
    const ir_expr *indices[IR_MAX_DIMS];
    const int num = row->buffer->num_dims, moved = num > 1 ? num - 2 : 0;
    const int64_t distance = (IR_TILE_ROWS - 1) * (int64_t)(num > 1 ? 1 : row->lanes);
    for (int d = 0; d < num; d++) indices[d] = row->indices[d];
    indices[moved] = ir_add(b, indices[moved], ir_idx(b, distance));
    return ir_access_make(b, row->buffer, row->lanes, -1, num, indices, NULL);
}

/* Checks elements: dot2's operands are f32, bf16, bf16; memory has the element of the tile that is loaded or stored. */
static bool check_tile_args(ir_builder *b, ir_tile_op op, const ir_access *const *args) {
    const ir_tile_info *info = ir_tile_get(op);
    for (int i = 0; i < info->num_args && !ir_failed(b); i++) {
        if (!args[i]) {
            ir_build_fail(b, "'%s' lacks an operand", info->text);
        } else if (i == info->memory) {
            check_tile_row(b, args[i]);
        } else if (args[i]->buffer->space != IR_TILES) {
            ir_build_fail(b, "'%s' needs a tile, and '%s' holds none", info->text, args[i]->buffer->name);
        } else if (op == IR_TILE_DOT2 && args[i]->buffer->type.elem != (i ? IR_BF16 : IR_F32)) {
            ir_build_fail(b, "'%s' takes tiles of f32, bf16 and bf16; '%s' is another", info->text,
                          args[i]->buffer->name);
        }
    }
    if (!ir_failed(b) && info->memory >= 0 && args[0]->buffer->type.elem != args[1]->buffer->type.elem)
        ir_build_fail(b, "'%s' goes between '%s' and '%s', which are of different elements", info->text,
                      args[0]->buffer->name, args[1]->buffer->name);
    return !ir_failed(b);
}

void ir_tile(ir_builder *b, ir_tile_op op, const ir_access *x, const ir_access *y, const ir_access *z) {
    const ir_access *const args[] = {x, y, z};
    const ir_tile_info *info = ir_tile_get(op);
    if (ir_failed(b) || !check_tile_args(b, op, args)) return;
    const ir_access *last = info->memory < 0 ? NULL : last_row(b, args[info->memory]);
    ir_stmt *stmt = append_stmt(b, IR_TILE);
    if (!stmt) return;
    stmt->u.tile.op = op;
    for (int i = 0; i < info->num_args; i++) stmt->u.tile.args[i] = args[i];
    stmt->u.tile.last = last;
}

/* ---- trees ---- */

const ir_expr *ir_reduce(ir_builder *b, ir_op op, const ir_expr *x) {
    if (!x) return NULL;
    for (int half = x->type.lanes / 2; half >= 1 && x; half /= 2) {
        uint8_t low[IR_MAX_LANES], high[IR_MAX_LANES];
        for (int l = 0; l < half; l++) {
            low[l] = (uint8_t)l;
            high[l] = (uint8_t)(l + half);
        }
        const ir_expr *v = ir_let(b, "half", x); /* used twice */
        x = ir_apply(b, op, ir_shuffle(b, v, v, half, low), ir_shuffle(b, v, v, half, high), NULL);
    }
    return x;
}
