/* Emits a module: a function for each of its phases and nests (cut.h), and the plan (target/kernel_abi.h) in module 0.
 * A phase's function runs a range of tasks:
 *
 *     phase0(pointers, scalars, begin, end)
 *         level 0    scalars; loop variables of task `begin`, the digits of its number
 *         level 1    for each task: its body; then the next task's loop variables, by adding 1 with carry */
#include "codegen/asan.h"
#include "codegen/emit_build.h"
#include "target/kernel_abi.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- Functions ---- */

static void add_flag(cg_emit *e, LLVMValueRef function, const char *name) {
    const unsigned kind = LLVMGetEnumAttributeKindForName(name, strlen(name));
    LLVMAddAttributeAtIndex(function, (LLVMAttributeIndex)LLVMAttributeFunctionIndex,
                            LLVMCreateEnumAttribute(e->context, kind, 0));
}

static void add_attribute(cg_emit *e, LLVMValueRef function, const char *name, const char *value) {
    LLVMAttributeRef attribute =
        LLVMCreateStringAttribute(e->context, name, (unsigned)strlen(name), value, (unsigned)strlen(value));
    LLVMAddAttributeAtIndex(function, (LLVMAttributeIndex)LLVMAttributeFunctionIndex, attribute);
}

/* Unwind tables for each instruction, as profilers and debuggers may stop anywhere. */
static void add_unwind_table(cg_emit *e, LLVMValueRef function) {
    enum { ASYNCHRONOUS = 2 };
    const unsigned kind = LLVMGetEnumAttributeKindForName("uwtable", strlen("uwtable"));
    LLVMAddAttributeAtIndex(function, (LLVMAttributeIndex)LLVMAttributeFunctionIndex,
                            LLVMCreateEnumAttribute(e->context, kind, ASYNCHRONOUS));
}

/* Nothing may become a library call, or throw; vectors are as wide as the target's registers. */
static void add_attributes(cg_emit *e, LLVMValueRef function) {
    add_flag(e, function, "nounwind");
    add_unwind_table(e, function);
    if (cg_asan()) add_flag(e, function, "sanitize_address");
    add_attribute(e, function, "no-builtins", "");
    add_attribute(e, function, "target-cpu", e->target->llvm_cpu);
    add_attribute(e, function, "target-features", e->target->llvm_features);
    if (e->target->vector_bytes == 64) {
        add_attribute(e, function, "prefer-vector-width", "512");
        add_attribute(e, function, "min-legal-vector-width", "512");
    }
}

/* The first parameters of every function: pointers to parameters and shared buffers, and the scalars. */
enum { ARG_BUFFERS, ARG_SCALARS };

static bool new_tables(cg_emit *e) {
    const uint32_t num_vars = e->kernel->num_vars, num_buffers = e->kernel->num_buffers;
    e->vars = at_arena_alloc(e->arena, (num_vars + 1) * sizeof *e->vars);
    e->lets = at_arena_alloc(e->arena, (num_vars + 1) * sizeof *e->lets);
    e->storage = at_arena_alloc(e->arena, (num_buffers + 1) * sizeof *e->storage);
    if (e->vars && e->lets && e->storage) return true;
    at_fail_memory(e->err, (num_vars + num_buffers) * sizeof *e->storage);
    return false;
}

static void read_scalars(cg_emit *e) {
    int64_t n = 0;
    for (uint32_t p = 0; p < e->kernel->num_params; p++) {
        const ir_var *var = e->kernel->params[p].var;
        if (!var) continue;
        LLVMValueRef number = cg_i64(e, n++), at = LLVMBuildGEP2(e->b, e->i64, e->scalars, &number, 1, "");
        LLVMTypeRef scalar = cg_type(e, var->type);
        /* The target is little-endian: a narrower scalar is the word's low half. */
        e->vars[var->id] = (cg_index){LLVMBuildLoad2(e->b, scalar, at, var->name), 0};
    }
}

/* Opens a function and its level 0, and loads the scalars. A parameter < 0 does not exist. */
static bool begin_function(cg_emit *e, LLVMValueRef function, int buffers, int scalars, int scratch) {
    e->function = function;
    if (!new_tables(e)) return false;
    e->buffers = buffers < 0 ? NULL : LLVMGetParam(function, (unsigned)buffers);
    e->scalars = LLVMGetParam(function, (unsigned)scalars);
    e->scratch = scratch < 0 ? NULL : LLVMGetParam(function, (unsigned)scratch);
    e->tiles_used = 0;
    e->level = 0;
    e->levels[0] = (cg_level){.serial = e->next_serial++};
    cg_memo_reset(e);

    e->allocas = cg_block(e, "allocas");
    LLVMBasicBlockRef setup = cg_block(e, "setup");
    LLVMPositionBuilderAtEnd(e->b, e->allocas);
    LLVMBuildBr(e->b, setup);
    LLVMPositionBuilderAtEnd(e->b, setup);
    read_scalars(e);
    return true;
}

static LLVMValueRef add_function(cg_emit *e, const char *name, LLVMTypeRef *params, unsigned num_params) {
    LLVMTypeRef type = LLVMFunctionType(LLVMVoidTypeInContext(e->context), params, num_params, false);
    LLVMValueRef function = LLVMAddFunction(e->module, name, type);
    add_attributes(e, function);
    return function;
}

/* ---- Buffers ---- */

/* The access that asks first may be in a branch, and others follow behind it. */
static void find_strides(cg_emit *e, const ir_buffer *buffer) {
    e->is_size = true;
    cg_index *strides = e->storage[buffer->id].strides, packed = cg_index_const(e, 1);
    for (int d = buffer->num_dims - 1; d >= 0; d--) {
        strides[d] = buffer->strides[0] ? cg_emit_index(e, buffer->strides[d]) : packed;
        if (d > 0 && !buffer->strides[0]) packed = cg_index_op(e, IR_MUL, packed, cg_emit_index(e, buffer->dims[d]));
    }
    e->is_size = false;
}

/* The number of the buffer among a function's pointers. */
static int64_t number_of(const ir_kernel *kernel, const ir_buffer *buffer) {
    int64_t n = 0;
    for (uint32_t p = 0; p < kernel->num_params; p++)
        if (kernel->params[p].buffer) {
            if (kernel->params[p].buffer == buffer) return n;
            n++;
        }
    for (uint32_t s = 0; kernel->shared[s] != buffer; s++) n++;
    return n;
}

static LLVMValueRef load_base(cg_emit *e, const ir_buffer *buffer) {
    LLVMBasicBlockRef here = LLVMGetInsertBlock(e->b);
    if (e->level > 0) LLVMPositionBuilderBefore(e->b, e->levels[0].branch);
    LLVMValueRef number = cg_i64(e, number_of(e->kernel, buffer));
    LLVMValueRef at = LLVMBuildGEP2(e->b, e->pointer, e->buffers, &number, 1, "");
    LLVMValueRef base = LLVMBuildLoad2(e->b, e->pointer, at, buffer->name);
    LLVMPositionBuilderAtEnd(e->b, here);
    return base;
}

const cg_storage *cg_storage_of(cg_emit *e, const ir_buffer *buffer) {
    cg_storage *storage = &e->storage[buffer->id];
    if (storage->base || buffer->space == IR_REG || buffer->space == IR_TILES) return storage;
    storage->base = buffer->space == IR_SCRATCH ? e->scratch : load_base(e, buffer);
    storage->offset = buffer->space == IR_SCRATCH ? (int64_t)e->cut->offsets[buffer->id] : 0;
    find_strides(e, buffer);
    return storage;
}

/* ---- Phases ---- */

enum { ARG_BEGIN = ARG_SCALARS + 1, ARG_END, ARG_SCRATCH, NUM_ARGS };

/* The loop variables of the first task: the digits of its number. */
static void first_task(cg_emit *e, const ir_phase *phase, LLVMValueRef *first) {
    LLVMValueRef rest = LLVMGetParam(e->function, ARG_BEGIN);
    for (int k = phase->num_loops - 1; k > 0; k--) {
        LLVMValueRef hi = cg_emit_index(e, phase->loops[k].hi).value;
        first[k] = LLVMBuildURem(e->b, rest, hi, "");
        rest = LLVMBuildUDiv(e->b, rest, hi, "");
    }
    first[0] = rest;
}

/* The loop variables of the next task: one more, with carry. */
static void next_task(cg_emit *e, const ir_phase *phase, LLVMValueRef *next) {
    LLVMValueRef carry = cg_i64(e, 1);
    for (int k = phase->num_loops - 1; k >= 0; k--) {
        LLVMValueRef more = cg_advance(e, e->vars[phase->loops[k].var->id].value, carry);
        next[k] = more;
        if (k == 0) break;
        LLVMValueRef wraps = LLVMBuildICmp(e->b, LLVMIntEQ, more, cg_emit_index(e, phase->loops[k].hi).value, "");
        next[k] = cg_select(e, wraps, cg_i64(e, 0), more);
        carry = LLVMBuildZExt(e->b, wraps, e->i64, "");
    }
}

/* for (task = begin; task < end; task++) body */
static void emit_tasks(cg_emit *e, const ir_phase *phase) {
    LLVMValueRef begin = LLVMGetParam(e->function, ARG_BEGIN), end = LLVMGetParam(e->function, ARG_END);
    LLVMBasicBlockRef enter = cg_block(e, "first"), body = cg_block(e, "task"), done = cg_block(e, "done");
    LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, begin, end, ""), enter, done);

    LLVMValueRef first[IR_MAX_LOOPS], next[IR_MAX_LOOPS], var[IR_MAX_LOOPS];
    LLVMPositionBuilderAtEnd(e->b, enter);
    first_task(e, phase, first);
    cg_level_enter(e, LLVMBuildBr(e->b, body));
    LLVMPositionBuilderAtEnd(e->b, body);
    for (int k = 0; k < phase->num_loops; k++) {
        var[k] = LLVMBuildPhi(e->b, e->i64, phase->loops[k].var->name);
        e->vars[phase->loops[k].var->id] = (cg_index){var[k], e->level};
    }
    LLVMValueRef task = phase->num_loops > 1 ? LLVMBuildPhi(e->b, e->i64, "task") : var[0];
    cg_emit_block(e, &phase->body);

    next_task(e, phase, next);
    LLVMValueRef next_number = phase->num_loops > 1 ? cg_advance(e, task, cg_i64(e, 1)) : next[0];
    LLVMBasicBlockRef last = LLVMGetInsertBlock(e->b);
    LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, next_number, end, ""), body, done);
    LLVMBasicBlockRef sources[] = {enter, last};
    for (int k = 0; k < phase->num_loops; k++) LLVMAddIncoming(var[k], (LLVMValueRef[]){first[k], next[k]}, sources, 2);
    if (phase->num_loops > 1) LLVMAddIncoming(task, (LLVMValueRef[]){begin, next_number}, sources, 2);
    cg_level_leave(e);
    LLVMPositionBuilderAtEnd(e->b, done);
}

static void emit_phase(cg_emit *e, const ir_phase *phase, uint32_t number) {
    char name[CG_NAME_BYTES];
    LLVMTypeRef params[NUM_ARGS] = {e->pointer, e->pointer, e->i64, e->i64, e->pointer};
    cg_phase_name(name, number);
    LLVMValueRef function = add_function(e, name, params, NUM_ARGS);
    if (!begin_function(e, function, ARG_BUFFERS, ARG_SCALARS, ARG_SCRATCH)) return;
    const bool has_tiles = cg_has_tiles(&phase->body);
    if (has_tiles) cg_tiles_begin(e);
    emit_tasks(e, phase);
    if (has_tiles) cg_tiles_end(e);
    LLVMBuildRetVoid(e->b);
}

/* ---- Nests ---- */

/* Parameters of a nest; the values from outside follow them. */
enum { ARG_NEST_SCRATCH = ARG_SCALARS + 1, ARG_CAPTURED };

static LLVMValueRef nest_function(cg_emit *e, const cg_nest *nest) {
    LLVMValueRef known = LLVMGetNamedFunction(e->module, nest->name);
    if (known) return known;
    LLVMTypeRef params[ARG_CAPTURED + CG_MAX_CAPTURED] = {e->pointer, e->pointer, e->pointer};
    for (uint32_t i = 0; i < nest->num_vars; i++) params[ARG_CAPTURED + i] = cg_type(e, nest->vars[i]->type);
    LLVMValueRef function = add_function(e, nest->name, params, ARG_CAPTURED + nest->num_vars);
    LLVMSetVisibility(function, LLVMHiddenVisibility); /* calls get no table of addresses */
    return function;
}

void cg_emit_call(cg_emit *e, const cg_nest *nest) {
    LLVMValueRef function = nest_function(e, nest);
    LLVMValueRef args[ARG_CAPTURED + CG_MAX_CAPTURED] = {e->buffers, e->scalars, e->scratch};
    for (uint32_t i = 0; i < nest->num_vars; i++) args[ARG_CAPTURED + i] = e->vars[nest->vars[i]->id].value;
    LLVMBuildCall2(e->b, LLVMGlobalGetValueType(function), function, args, ARG_CAPTURED + nest->num_vars, "");
}

static void emit_nest(cg_emit *e, const cg_nest *nest) {
    LLVMValueRef function = nest_function(e, nest);
    if (!begin_function(e, function, ARG_BUFFERS, ARG_SCALARS, ARG_NEST_SCRATCH)) return;
    for (uint32_t i = 0; i < nest->num_vars; i++)
        e->vars[nest->vars[i]->id] = (cg_index){LLVMGetParam(function, ARG_CAPTURED + i), 0};
    LLVMBasicBlockRef body = cg_block(e, "nest");
    cg_level_enter(e, LLVMBuildBr(e->b, body));
    LLVMPositionBuilderAtEnd(e->b, body);
    e->nest = nest;
    for (const ir_stmt *stmt = nest->first; stmt != nest->end && e->err->status == ATTUNE_OK;)
        stmt = cg_emit_next(e, stmt);
    e->nest = NULL;
    cg_level_leave(e);
    LLVMBuildRetVoid(e->b);
}

/* ---- The plan ---- */

static void store_size(cg_emit *e, LLVMValueRef out, int64_t position, LLVMValueRef value) {
    LLVMValueRef number = cg_i64(e, position);
    LLVMBuildStore(e->b, value, LLVMBuildGEP2(e->b, e->i64, out, &number, 1, ""));
}

static cg_index at_least_0(cg_emit *e, const ir_expr *x) {
    return cg_index_op(e, IR_MAX, cg_emit_index(e, x), cg_index_const(e, 0));
}

static void emit_plan(cg_emit *e) {
    LLVMTypeRef params[] = {e->pointer, e->pointer};
    LLVMValueRef function = add_function(e, CG_PLAN_NAME, params, 2), out = LLVMGetParam(function, 1);
    if (!begin_function(e, function, -1, 0, -1)) return;
    int64_t position = 0;
    for (const ir_phase *phase = e->kernel->phases; phase; phase = phase->next) {
        cg_index tasks = cg_index_const(e, 1);
        for (int k = 0; k < phase->num_loops; k++)
            tasks = cg_index_op(e, IR_MUL, tasks, at_least_0(e, phase->loops[k].hi));
        store_size(e, out, position++, tasks.value);
    }
    for (uint32_t s = 0; s < e->kernel->num_shared; s++) {
        const ir_buffer *buffer = e->kernel->shared[s];
        cg_index bytes = cg_index_const(e, ir_elem_get((ir_elem)buffer->type.elem)->bytes);
        for (int d = 0; d < buffer->num_dims; d++)
            bytes = cg_index_op(e, IR_MUL, bytes, at_least_0(e, buffer->dims[d]));
        store_size(e, out, position++, bytes.value);
    }
    LLVMBuildRetVoid(e->b);
}

/* ---- The module ---- */

static cg_emit *new_emitter(LLVMModuleRef module, const ir_kernel *kernel, const at_target *target, const cg_cut *cut,
                            at_arena *arena, at_error *err) {
    cg_emit *e = at_arena_alloc(arena, sizeof *e);
    if (!e) {
        at_fail_memory(err, sizeof *e);
        return NULL;
    }
    LLVMContextRef context = LLVMGetModuleContext(module);
    *e = (cg_emit){
        .kernel = kernel,
        .target = target,
        .cut = cut,
        .arena = arena,
        .err = err,
        .context = context,
        .module = module,
        .next_serial = 1,
        .b = LLVMCreateBuilderInContext(context),
        .i1 = LLVMInt1TypeInContext(context),
        .i8 = LLVMInt8TypeInContext(context),
        .i16 = LLVMInt16TypeInContext(context),
        .i32 = LLVMInt32TypeInContext(context),
        .i64 = LLVMInt64TypeInContext(context),
        .f32 = LLVMFloatTypeInContext(context),
        .f64 = LLVMDoubleTypeInContext(context),
        .pointer = LLVMPointerTypeInContext(context, 0),
    };
    return e;
}

attune_status cg_emit_kernel(LLVMModuleRef module, const ir_kernel *kernel, const at_target *target, const cg_cut *cut,
                             uint32_t number, at_arena *arena, at_error *err) {
    cg_emit *e = new_emitter(module, kernel, target, cut, arena, err);
    if (!e) return err->status;
    uint32_t p = 0;
    for (const ir_phase *phase = kernel->phases; phase; phase = phase->next, p++)
        if (cut->phase_module[p] == number) emit_phase(e, phase, p);
    for (uint32_t i = 0; i < cut->num_nests; i++)
        if (cut->nests[i].module == number) emit_nest(e, &cut->nests[i]);
    if (number == 0) emit_plan(e);
    LLVMDisposeBuilder(e->b);
    if (arena->failed) at_fail_memory(err, 0);
    return err->status;
}
