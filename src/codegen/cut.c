/* Divides a kernel among modules. Phases come first: the heaviest remaining one goes into the module that is lightest
 * so far. Then, as long as it makes the heaviest module lighter, a run of its statements becomes a function of another
 * module:
 *
 *     phase0 [ a b c d ]   phase1 [ e ]     ->     module 0: phase0 [ a call d ]     module 1: phase1 [ e ], [ b c ]
 *
 * A run can be a function if it has a loop with enough work, needs few values from outside and no array of registers,
 * and if nothing that it defines is used after it. */
#include "codegen/cut.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A weight estimates compile time: a number of operators, some counted several times. LLVM takes some 15 µs for each.
 */
enum {
    FUNCTION_WEIGHT = 40, /* the fixed cost of a function */
    BRANCH_WEIGHT = 6,    /* blocks, values that come into them, a comparison */
    MIN_NEST = 80,
    MIN_WORK = 6000,  /* operators that each call of a nest runs, at least: a call takes as long as some 50 */
    MIN_MODULE = 250, /* a lighter module is not worth a thread */
    MAX_CANDIDATES = 64
};

/* A position is a statement's number in program order; a statement's blocks come after it. */
typedef struct cutter {
    const ir_kernel *kernel;
    at_error *err;
    cg_cut *cut;
    bool *is_scalar;                    /* by ir_var.id: a parameter of the kernel */
    uint32_t *var_def, *var_last;       /* by ir_var.id: positions of definition and last use */
    uint32_t *buffer_def, *buffer_last; /* by ir_buffer.id, of `alloc` */
    uint32_t position;
    uint64_t scratch_used;
    uint32_t phase;
    bool has_tiles; /* the phase uses tiles, which its function configures and releases */
    cg_nest *candidates;
    uint32_t num_candidates;
    uint32_t load[CG_MAX_MODULES];
} cutter;

/* Facts about a run of statements. */
typedef struct extent {
    uint32_t weight, begin; /* begin: its position */
    uint64_t work;          /* operators that run */
    const ir_var *vars[CG_MAX_CAPTURED];
    uint32_t num_vars;
    bool has_loop, is_closed; /* closed: it can be a function */
} extent;

void cg_phase_name(char name[CG_NAME_BYTES], uint32_t phase) { snprintf(name, CG_NAME_BYTES, "phase%" PRIu32, phase); }

const cg_nest *cg_cut_at(const cg_cut *cut, const ir_stmt *stmt) {
    for (uint32_t i = 0; i < cut->num_nests; i++)
        if (cut->nests[i].first == stmt) return &cut->nests[i];
    return NULL;
}

bool cg_count_elements(const ir_kernel *kernel, const ir_buffer *buffer, uint64_t *count, at_error *err) {
    *count = 1;
    for (int d = 0; d < buffer->num_dims; d++)
        if (__builtin_mul_overflow(*count, (uint64_t)buffer->dims[d]->value.i, count) || *count > AT_MAX_SCRATCH) {
            at_fail(err, ATTUNE_INVALID_IR, "kernel @%s: buffer %s is too large", kernel->name, buffer->name);
            return false;
        }
    return true;
}

/* ---- The first walk: positions and the layout of scratch ---- */

static void survey_block(cutter *c, const ir_block *block);

static void survey_access(cutter *c, const ir_access *access);

static void survey_expr(cutter *c, const ir_expr *x) {
    if (x->op == IR_VAR) c->var_last[x->value.var->id] = c->position;
    if (x->op == IR_LOAD) survey_access(c, x->value.access);
    for (int i = 0; i < 3; i++)
        if (x->args[i]) survey_expr(c, x->args[i]);
}

static void survey_access(cutter *c, const ir_access *access) {
    c->buffer_last[access->buffer->id] = c->position;
    for (int d = 0; d < access->buffer->num_dims; d++) survey_expr(c, access->indices[d]);
    if (access->mask) survey_expr(c, access->mask);
}

/* Scratch is a stack: a block frees its buffers at its end, so consecutive blocks share memory. */
static void place_scratch(cutter *c, const ir_buffer *buffer) {
    uint64_t count;
    if (!cg_count_elements(c->kernel, buffer, &count, c->err)) return;
    const uint64_t bytes = (count * ir_elem_get((ir_elem)buffer->type.elem)->bytes + 63) & ~UINT64_C(63);
    if (c->scratch_used + bytes > AT_MAX_SCRATCH) {
        at_fail(c->err, ATTUNE_INVALID_IR, "kernel @%s: buffer %s: more scratch than can be had", c->kernel->name,
                buffer->name);
        return;
    }
    c->cut->offsets[buffer->id] = c->scratch_used;
    c->scratch_used += bytes;
    if (c->scratch_used > c->cut->scratch_bytes[c->phase]) c->cut->scratch_bytes[c->phase] = c->scratch_used;
}

static void survey_alloc(cutter *c, const ir_buffer *buffer) {
    c->buffer_def[buffer->id] = c->buffer_last[buffer->id] = c->position;
    if (buffer->space == IR_SCRATCH) place_scratch(c, buffer);
    if (buffer->space == IR_TILES) c->has_tiles = true;
}

static void define(cutter *c, const ir_var *var) { c->var_def[var->id] = c->var_last[var->id] = c->position; }

static void survey_stmt(cutter *c, const ir_stmt *stmt) {
    switch (stmt->kind) {
    case IR_FOR:
        survey_expr(c, stmt->u.loop.lo);
        survey_expr(c, stmt->u.loop.hi);
        define(c, stmt->u.loop.var);
        survey_block(c, &stmt->u.loop.body);
        break;
    case IR_LET:
        survey_expr(c, stmt->u.let.value);
        define(c, stmt->u.let.var);
        break;
    case IR_STORE: survey_expr(c, stmt->u.store.value); /* fall through */
    case IR_PREFETCH: survey_access(c, stmt->u.store.access); break;
    case IR_IF:
        survey_expr(c, stmt->u.branch.condition);
        survey_block(c, &stmt->u.branch.then);
        survey_block(c, &stmt->u.branch.otherwise);
        break;
    case IR_ALLOC: survey_alloc(c, stmt->u.alloc); break;
    case IR_TILE:
        for (int i = 0; i < ir_tile_get(stmt->u.tile.op)->num_args; i++) survey_access(c, stmt->u.tile.args[i]);
        break;
    case IR_ASSUME: break;
    }
}

static void survey_block(cutter *c, const ir_block *block) {
    const uint64_t used = c->scratch_used;
    for (const ir_stmt *stmt = block->first; stmt && c->err->status == ATTUNE_OK; stmt = stmt->next) {
        c->position++;
        survey_stmt(c, stmt);
    }
    c->scratch_used = used;
}

/* ---- Facts about a run of statements ---- */

static void measure_block(cutter *c, const ir_block *block, uint64_t times, extent *e);

static void capture(cutter *c, const ir_var *var, extent *e) {
    if (c->is_scalar[var->id] || c->var_def[var->id] >= e->begin) return;
    for (uint32_t i = 0; i < e->num_vars; i++)
        if (e->vars[i] == var) return;
    if (e->num_vars == CG_MAX_CAPTURED)
        e->is_closed = false;
    else
        e->vars[e->num_vars++] = var;
}

static void measure_expr(cutter *c, const ir_expr *x, uint64_t times, extent *e);

static void measure_access(cutter *c, const ir_access *access, uint64_t times, extent *e) {
    const ir_buffer *buffer = access->buffer;
    if (buffer->space == IR_REG && c->buffer_def[buffer->id] < e->begin) e->is_closed = false;
    for (int d = 0; d < buffer->num_dims; d++) measure_expr(c, access->indices[d], times, e);
    if (access->mask) measure_expr(c, access->mask, times, e);
}

static void count(extent *e, uint32_t weight, uint64_t times) {
    e->weight += weight;
    e->work += weight * times;
}

/* The weight of an operator, from measurements of LLVM's compile time. */
static uint32_t weight_of(const ir_expr *x) {
    switch (x->op) {
    case IR_CONST:
    case IR_VAR: return 0;
    case IR_LOAD: return x->value.access->buffer->space != IR_REG;
    case IR_SHUFFLE: return 3;
    case IR_FMA:
    case IR_DOT2:
    case IR_DOT4:
    case IR_LOOKUP: return 2;
    default: return 1;
    }
}

static void measure_expr(cutter *c, const ir_expr *x, uint64_t times, extent *e) {
    count(e, weight_of(x), times);
    if (x->op == IR_VAR) capture(c, x->value.var, e);
    if (x->op == IR_LOAD) measure_access(c, x->value.access, times, e);
    for (int i = 0; i < 3; i++)
        if (x->args[i]) measure_expr(c, x->args[i], times, e);
}

static uint64_t trips(const ir_stmt *loop) {
    enum { UNKNOWN = 8, MOST = 1 << 16 };
    const ir_expr *lo = loop->u.loop.lo, *hi = loop->u.loop.hi;
    if (lo->op != IR_CONST || hi->op != IR_CONST) return UNKNOWN;
    if (hi->value.i <= lo->value.i) return 0;
    const uint64_t turns = ((uint64_t)hi->value.i - (uint64_t)lo->value.i - 1) / (uint64_t)loop->u.loop.step + 1;
    return turns < MOST ? turns : MOST;
}

static void measure_loop(cutter *c, const ir_stmt *loop, uint64_t times, extent *e) {
    enum { MOST = 1 << 24 };
    measure_expr(c, loop->u.loop.lo, times, e);
    measure_expr(c, loop->u.loop.hi, times, e);
    e->has_loop = true;
    e->weight += BRANCH_WEIGHT;
    times *= trips(loop);
    measure_block(c, &loop->u.loop.body, times < MOST ? times : MOST, e);
}

static void measure_stmt(cutter *c, const ir_stmt *stmt, uint64_t times, extent *e) {
    switch (stmt->kind) {
    case IR_FOR: measure_loop(c, stmt, times, e); break;
    case IR_LET: measure_expr(c, stmt->u.let.value, times, e); break;
    case IR_STORE:
        measure_expr(c, stmt->u.store.value, times, e);
        if (stmt->u.store.access->buffer->space != IR_REG) count(e, 1, times);
        measure_access(c, stmt->u.store.access, times, e);
        break;
    case IR_PREFETCH:
        count(e, 1, times);
        measure_access(c, stmt->u.store.access, times, e);
        break;
    case IR_IF:
        e->weight += BRANCH_WEIGHT;
        measure_expr(c, stmt->u.branch.condition, times, e);
        measure_block(c, &stmt->u.branch.then, times, e);
        measure_block(c, &stmt->u.branch.otherwise, times, e);
        break;
    case IR_TILE:
        count(e, 1, times);
        for (int i = 0; i < ir_tile_get(stmt->u.tile.op)->num_args; i++)
            measure_access(c, stmt->u.tile.args[i], times, e);
        break;
    case IR_ALLOC:
    case IR_ASSUME: break;
    }
}

static void measure_block(cutter *c, const ir_block *block, uint64_t times, extent *e) {
    for (const ir_stmt *stmt = block->first; stmt; stmt = stmt->next) measure_stmt(c, stmt, times, e);
}

static uint32_t positions_of_block(const ir_block *block);

/* How many positions a statement and its blocks have. */
static uint32_t positions_of(const ir_stmt *stmt) {
    if (stmt->kind == IR_FOR) return 1 + positions_of_block(&stmt->u.loop.body);
    if (stmt->kind == IR_IF)
        return 1 + positions_of_block(&stmt->u.branch.then) + positions_of_block(&stmt->u.branch.otherwise);
    return 1;
}

static uint32_t positions_of_block(const ir_block *block) {
    uint32_t sum = 0;
    for (const ir_stmt *stmt = block->first; stmt; stmt = stmt->next) sum += positions_of(stmt);
    return sum;
}

/* ---- Cutting ---- */

static bool is_reg(const ir_stmt *stmt) { return stmt->kind == IR_ALLOC && stmt->u.alloc->space == IR_REG; }

/* The last use of the definition at `stmt`, whose position is `position`. */
static uint32_t last_use(const cutter *c, const ir_stmt *stmt, uint32_t position) {
    if (stmt->kind == IR_LET) return c->var_last[stmt->u.let.var->id];
    if (is_reg(stmt)) return c->buffer_last[stmt->u.alloc->id];
    return position; /* a scratch buffer has the same address in all functions */
}

/* The shortest run from `first` on whose definitions are not used after it. */
static const ir_stmt *end_of_run(const cutter *c, const ir_stmt *first, uint32_t position, uint32_t *after) {
    uint32_t needed = position;
    const ir_stmt *stmt = first;
    for (; stmt && position <= needed; stmt = stmt->next) {
        const uint32_t last = last_use(c, stmt, position);
        if (last > needed) needed = last;
        position += positions_of(stmt);
    }
    *after = position;
    return stmt;
}

static extent measure_run(cutter *c, const ir_stmt *first, const ir_stmt *end, uint32_t position) {
    extent e = {.begin = position, .is_closed = true};
    for (const ir_stmt *stmt = first; stmt != end; stmt = stmt->next) measure_stmt(c, stmt, 1, &e);
    return e;
}

static void add_candidate(cutter *c, const ir_stmt *first, const ir_stmt *end, const extent *e, uint32_t after) {
    if (c->num_candidates == MAX_CANDIDATES) return;
    cg_nest *nest = &c->candidates[c->num_candidates++];
    *nest = (cg_nest){.first = first, .end = end, .phase = c->phase, .weight = e->weight, .num_vars = e->num_vars};
    nest->begin = e->begin;
    nest->after = after;
    memcpy(nest->vars, e->vars, sizeof nest->vars);
}

static void find_candidates(cutter *c, const ir_block *block, uint32_t position);

static void find_inside(cutter *c, const ir_stmt *stmt, uint32_t position) {
    if (stmt->kind == IR_FOR) find_candidates(c, &stmt->u.loop.body, position + 1);
    if (stmt->kind != IR_IF) return;
    find_candidates(c, &stmt->u.branch.then, position + 1);
    find_candidates(c, &stmt->u.branch.otherwise, position + 1 + positions_of_block(&stmt->u.branch.then));
}

static bool starts_run(const ir_stmt *stmt) { return stmt->kind == IR_FOR || stmt->kind == IR_IF || is_reg(stmt); }

/* Collects all runs of the block that can be functions, outer ones before inner ones. */
static void find_candidates(cutter *c, const ir_block *block, uint32_t position) {
    for (const ir_stmt *stmt = block->first; stmt; position += positions_of(stmt), stmt = stmt->next) {
        if (!starts_run(stmt)) continue;
        uint32_t after;
        const ir_stmt *end = end_of_run(c, stmt, position, &after);
        const extent e = measure_run(c, stmt, end, position);
        if (e.weight < MIN_NEST) continue;
        if (e.is_closed && e.has_loop && e.work >= MIN_WORK) add_candidate(c, stmt, end, &e, after);
        find_inside(c, stmt, position);
    }
}

/* ---- Modules ---- */

static uint32_t larger(uint32_t x, uint32_t y) { return x > y ? x : y; }

static uint32_t lightest(const cutter *c) {
    uint32_t found = 0;
    for (uint32_t m = 1; m < c->cut->num_modules; m++)
        if (c->load[m] < c->load[found]) found = m;
    return found;
}

static uint32_t heaviest(const cutter *c) {
    uint32_t found = 0;
    for (uint32_t m = 1; m < c->cut->num_modules; m++)
        if (c->load[m] > c->load[found]) found = m;
    return found;
}

/* Assigns phases, the heaviest first, each to the module that is lightest so far. */
static void assign_phases(cutter *c, uint32_t *weights) {
    for (uint32_t turn = 0; turn < c->kernel->num_phases; turn++) {
        const uint32_t to = lightest(c);
        uint32_t phase = 0;
        for (uint32_t p = 1; p < c->kernel->num_phases; p++)
            if (weights[p] > weights[phase]) phase = p;
        c->load[to] += weights[phase];
        weights[phase] = 0;
        c->cut->phase_module[phase] = to;
    }
}

static bool is_free(const cutter *c, const cg_nest *nest) {
    for (uint32_t i = 0; i < c->cut->num_nests; i++)
        if (nest->begin < c->cut->nests[i].after && c->cut->nests[i].begin < nest->after) return false;
    return true;
}

/* Moves one nest from the heaviest module to the lightest; false if that would not help. */
static bool move_nest(cutter *c) {
    cg_cut *cut = c->cut;
    const uint32_t from = heaviest(c), to = lightest(c);
    const cg_nest *best = NULL;
    uint32_t least = c->load[from] - FUNCTION_WEIGHT / 2;
    for (uint32_t i = 0; i < c->num_candidates; i++) {
        const cg_nest *nest = &c->candidates[i];
        if (cut->phase_module[nest->phase] != from || !is_free(c, nest)) continue;
        const uint32_t result = larger(c->load[from] - nest->weight, c->load[to] + nest->weight + FUNCTION_WEIGHT);
        if (result >= least) continue;
        least = result;
        best = nest;
    }
    if (!best || cut->num_nests == CG_MAX_NESTS) return false;
    cg_nest *nest = &cut->nests[cut->num_nests];
    *nest = *best;
    nest->module = to;
    snprintf(nest->name, sizeof nest->name, "phase%" PRIu32 ".%" PRIu32, nest->phase, cut->num_nests++);
    c->load[from] -= nest->weight;
    c->load[to] += nest->weight + FUNCTION_WEIGHT;
    return true;
}

static void balance(cutter *c, uint32_t *weights) {
    uint32_t total = 0;
    for (uint32_t p = 0; p < c->kernel->num_phases; p++) total += weights[p];
    c->cut->num_modules = total / MIN_MODULE < CG_MAX_MODULES ? total / MIN_MODULE : CG_MAX_MODULES;
    if (!c->cut->num_modules) c->cut->num_modules = 1;
    assign_phases(c, weights);
    while (c->cut->num_modules > 1 && move_nest(c)) {
    }
    while (c->cut->num_modules > 1 && !c->load[c->cut->num_modules - 1]) c->cut->num_modules--;
}

static void survey_phase(cutter *c, const ir_phase *phase, uint32_t *weight) {
    c->scratch_used = 0;
    c->has_tiles = false;
    for (int k = 0; k < phase->num_loops; k++) define(c, phase->loops[k].var);
    const uint32_t begin = c->position + 1;
    survey_block(c, &phase->body);
    if (c->err->status) return;
    *weight = FUNCTION_WEIGHT + measure_run(c, phase->body.first, NULL, begin).weight;
    if (!c->has_tiles) find_candidates(c, &phase->body, begin);
}

static bool make_tables(cutter *c, at_arena *arena) {
    const uint32_t num_vars = c->kernel->num_vars, num_buffers = c->kernel->num_buffers;
    c->cut = at_arena_alloc(arena, sizeof *c->cut);
    c->candidates = at_arena_alloc(arena, MAX_CANDIDATES * sizeof *c->candidates);
    c->is_scalar = at_arena_alloc(arena, num_vars + 1);
    c->var_def = at_arena_alloc(arena, (num_vars + 1) * sizeof *c->var_def);
    c->var_last = at_arena_alloc(arena, (num_vars + 1) * sizeof *c->var_last);
    c->buffer_def = at_arena_alloc(arena, (num_buffers + 1) * sizeof *c->buffer_def);
    c->buffer_last = at_arena_alloc(arena, (num_buffers + 1) * sizeof *c->buffer_last);
    if (c->cut) c->cut->offsets = at_arena_alloc(arena, (num_buffers + 1) * sizeof *c->cut->offsets);
    return !arena->failed;
}

attune_status cg_cut_kernel(const ir_kernel *kernel, at_arena *arena, cg_cut **cut, at_error *err) {
    if (kernel->num_phases > AT_MAX_PHASES || kernel->num_shared > AT_MAX_SHARED)
        return at_fail(err, ATTUNE_UNSUPPORTED, "kernel @%s has more than %d phases or shared buffers", kernel->name,
                       AT_MAX_PHASES);
    cutter c = {.kernel = kernel, .err = err};
    uint32_t weights[AT_MAX_PHASES] = {0};
    if (!make_tables(&c, arena)) return at_fail_memory(err, kernel->num_vars * sizeof *c.var_def);
    for (uint32_t p = 0; p < kernel->num_params; p++)
        if (kernel->params[p].var) c.is_scalar[kernel->params[p].var->id] = true;
    for (const ir_phase *phase = kernel->phases; phase && !err->status; phase = phase->next, c.phase++)
        survey_phase(&c, phase, &weights[c.phase]);
    if (!err->status) balance(&c, weights);
    *cut = c.cut;
    return err->status;
}

void cg_cut_join(cg_cut *cut) {
    cut->num_modules = 1;
    memset(cut->phase_module, 0, sizeof cut->phase_module);
    for (uint32_t i = 0; i < cut->num_nests; i++) cut->nests[i].module = 0;
}
