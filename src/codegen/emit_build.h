/* What the emitter's files share: its state, and thin typed helpers over LLVM's builder.
 *
 * From the outside in:
 *
 *     emit_kernel.c    module, phases, the plan
 *     emit_stmt.c      statements and blocks
 *     emit_expr.c      operators; emit_cast.c conversions, emit_int.c integer division, emit_pairs.c pairs of bf16,
 *                      emit_dot4.c dot products of bytes, emit_tiles.c matrix registers
 *     emit_access.c    addresses, loads, stores
 *     emit_index.c     scalar integers: where they are computed, and linear forms of addresses
 *     emit_build.c     the helpers below
 *
 * Failure is sticky in err: helpers continue with poison values, and emit_module checks err at the end. */
#ifndef ATTUNE_CODEGEN_EMIT_BUILD_H
#define ATTUNE_CODEGEN_EMIT_BUILD_H

#include "codegen/cut.h"
#include "codegen/llvm_compat.h"
#include "ir/ir.h"
#include "target/target.h"

/* A scalar integer, and the outermost level at which it is known. */
typedef struct cg_index {
    LLVMValueRef value;
    uint32_t level;
} cg_index;

enum { CG_MAX_LEVELS = IR_MAX_DEPTH + 8, CG_MAX_DERIVED = 4 };

/* A second counter of an innermost loop: a multiple of the counter, computed by addition. */
typedef struct cg_derived {
    LLVMValueRef phi, step;
} cg_derived;

/* A nesting level of the code. Level 0 is the function's prologue, level 1 the body of the task loop, and each nested
 * block adds one. While code of an inner level is emitted, values of an outer level can still be added to it, right
 * before its branch inwards:
 *
 *     level 0   [ prologue        + stride * 4 ]---->
 *     level 1                        [ task     + row pointer ]---->
 *     level 2                                          [ loop body <- current ] */
typedef struct cg_level {
    uint32_t serial;     /* tells apart consecutive blocks of this level */
    LLVMValueRef branch; /* the terminator that enters the next level; unset at the innermost */
    /* Of the body of an innermost loop: */
    LLVMValueRef counter; /* its phi, else NULL */
    LLVMBasicBlockRef before;
    cg_index lo;
    int64_t step;
    cg_derived derived[CG_MAX_DERIVED];
    uint32_t num_derived;
} cg_level;

typedef struct cg_memo cg_memo; /* emitted index arithmetic, see emit_index.c */

typedef struct cg_storage {
    LLVMValueRef base;             /* of buffers in memory: a pointer of level 0; NULL: not looked up yet */
    int64_t offset;                /* bytes from base */
    cg_index strides[IR_MAX_DIMS]; /* in elements */
    LLVMValueRef *elements;        /* of IR_REG: one stack slot for each element, later a register */
    uint32_t first_tile;           /* of IR_TILES: the register that its first element is */
} cg_storage;

typedef struct cg_emit {
    const ir_kernel *kernel;
    const at_target *target;
    const cg_cut *cut;
    at_arena *arena;
    at_error *err;
    LLVMContextRef context;
    LLVMModuleRef module;
    LLVMBuilderRef b;
    LLVMTypeRef i1, i8, i16, i32, i64, f32, f64, pointer;

    /* Of the function being emitted: */
    LLVMValueRef function;
    LLVMBasicBlockRef allocas; /* its first block */
    cg_index *vars;            /* by ir_var.id; vectors and floats have a level too */
    const ir_expr **lets; /* by ir_var.id: scalar integer `let` that may be evaluated anywhere: its value; else NULL */
    cg_storage *storage;  /* by ir_buffer.id */
    const cg_nest *nest;  /* the nest that the function is; NULL: a phase or the plan */
    LLVMValueRef buffers, scalars, scratch; /* its parameters; scratch is the worker's scratch memory */
    uint32_t tiles_used;
    cg_level levels[CG_MAX_LEVELS];
    uint32_t level, next_serial;
    bool is_size; /* what is emitted is a size or a stride, of scalar parameters alone */
    cg_memo *memo;
} cg_emit;

/* ---- Types and constants ---- */

LLVMTypeRef cg_elem_type(cg_emit *e, ir_elem elem);         /* in registers: bool is i1, f16 and bf16 i16 */
LLVMTypeRef cg_type(cg_emit *e, ir_type type);              /* a vector if lanes > 1 */
LLVMTypeRef cg_vector_of(LLVMTypeRef elem, unsigned lanes); /* elem itself if lanes is 1 */
unsigned cg_lanes(LLVMValueRef x);                          /* 1 for scalars */
LLVMTypeRef cg_scalar_of(LLVMValueRef x);                   /* type of one lane */
bool cg_is_float(LLVMValueRef x);
unsigned cg_int_bits(LLVMValueRef x); /* of one lane */
LLVMValueRef cg_i64(cg_emit *e, int64_t value);
LLVMValueRef cg_i32(cg_emit *e, int32_t value);
LLVMValueRef cg_int_like(LLVMValueRef x, int64_t value); /* splatted to x's lanes */
LLVMValueRef cg_float_like(LLVMValueRef x, double value);
LLVMValueRef cg_splat_const(LLVMValueRef scalar, unsigned lanes);

/* ---- Vectors ---- */

LLVMValueRef cg_as_vector(cg_emit *e, LLVMValueRef x); /* one lane, if x is a scalar */
LLVMValueRef cg_splat(cg_emit *e, LLVMValueRef scalar, unsigned lanes);
LLVMValueRef cg_lane(cg_emit *e, LLVMValueRef x, unsigned lane); /* x itself if scalar */
LLVMValueRef cg_set_lane(cg_emit *e, LLVMValueRef x, LLVMValueRef scalar, unsigned lane);
/* Lane l is lane pick[l] of the concatenation of x and y, for any number of lanes, 1 included. */
LLVMValueRef cg_shuffle(cg_emit *e, LLVMValueRef x, LLVMValueRef y, const uint8_t *pick, unsigned lanes);
/* Lanes first … first + lanes - 1 of x; lanes beyond its end are 0. */
LLVMValueRef cg_slice(cg_emit *e, LLVMValueRef x, unsigned first, unsigned lanes);

/* `count` (a power of two) vectors of equal length one after the other; parts[] is overwritten. */
LLVMValueRef cg_concat(cg_emit *e, LLVMValueRef *parts, unsigned count);

/* Applies `fn` to chunks of `lanes` lanes of x and y (which may be NULL) and joins the results. */
typedef LLVMValueRef cg_chunk_fn(cg_emit *e, LLVMValueRef x, LLVMValueRef y);
LLVMValueRef cg_by_chunks(cg_emit *e, LLVMValueRef x, LLVMValueRef y, unsigned lanes, cg_chunk_fn *fn);

/* ---- Calls and choices ---- */

/* An intrinsic by its full name, overloaded on no, one (`overload` or NULL) or several types. */
LLVMValueRef cg_call(cg_emit *e, const char *intrinsic, LLVMTypeRef overload, unsigned count, LLVMValueRef *args);
LLVMValueRef cg_call_types(cg_emit *e, const char *intrinsic, unsigned num_types, LLVMTypeRef *types, unsigned count,
                           LLVMValueRef *args);
LLVMValueRef cg_call_1(cg_emit *e, const char *intrinsic, LLVMTypeRef overload, LLVMValueRef x);
LLVMValueRef cg_select(cg_emit *e, LLVMValueRef condition, LLVMValueRef x, LLVMValueRef y);
LLVMValueRef cg_unsupported(cg_emit *e, LLVMTypeRef type, const char *what); /* reports, gives poison */

/* ---- Blocks ---- */

LLVMBasicBlockRef cg_block(cg_emit *e, const char *name);
LLVMValueRef cg_stack_slot(cg_emit *e, LLVMTypeRef type);
void cg_level_enter(cg_emit *e, LLVMValueRef branch); /* branch: the terminator that has just ended the current block */
void cg_level_leave(cg_emit *e);
/* x + step for the next iteration of a loop, in a form that LLVM's loop strength reduction ignores. That pass would
 * take a third of the compile time to rearrange addresses that are good already. */
LLVMValueRef cg_advance(cg_emit *e, LLVMValueRef x, LLVMValueRef step);

/* ---- emit_index.c ---- */

enum { CG_MAX_TERMS = 24 };

/* constant + sum of factor × value */
typedef struct cg_linear {
    struct {
        cg_index index;
        int64_t factor;
    } terms[CG_MAX_TERMS];
    unsigned count;
    unsigned unfolded; /* lets expanded so far */
    int64_t step;      /* difference between the factors of neighbouring accesses: the bytes of an element */
    int64_t constant;
} cg_linear;

void cg_memo_reset(cg_emit *e);
cg_index cg_index_const(cg_emit *e, int64_t value);
/* A scalar i64/idx/i32 expression, emitted at the outermost level that knows its operands. */
cg_index cg_emit_index(cg_emit *e, const ir_expr *x);
cg_index cg_index_op(cg_emit *e, ir_op op, cg_index x, cg_index y);
void cg_linear_term(cg_emit *e, cg_linear *sum, cg_index x, int64_t factor); /* adds factor × x */
/* Adds factor × x × stride to `sum`. */
void cg_linear_add(cg_emit *e, cg_linear *sum, const ir_expr *x, cg_index stride, int64_t factor);
/* base + sum, added from the outer levels inwards, so that loops share and hoist as much as possible. */
LLVMValueRef cg_pointer(cg_emit *e, LLVMValueRef base, const cg_linear *sum);

/* ---- emit_int.c ---- */

LLVMValueRef cg_floor_div(cg_emit *e, LLVMValueRef x, LLVMValueRef y);
LLVMValueRef cg_floor_mod(cg_emit *e, LLVMValueRef x, LLVMValueRef y);

/* ---- emit_expr.c, emit_cast.c ---- */

LLVMValueRef cg_emit_expr(cg_emit *e, const ir_expr *x);
LLVMValueRef cg_apply(cg_emit *e, ir_op op, LLVMValueRef x, LLVMValueRef y, LLVMValueRef z); /* RESULT is SAME */
LLVMValueRef cg_cast(cg_emit *e, LLVMValueRef x, ir_elem from, ir_elem to);
/* cast i32 (rint x) by one instruction, where there is one. */
bool cg_rounds_to_i32(const cg_emit *e, ir_type from);
LLVMValueRef cg_round_to_i32(cg_emit *e, LLVMValueRef x);

/* ---- emit_pairs.c ---- */

LLVMValueRef cg_dot2(cg_emit *e, const ir_expr *x);
LLVMValueRef cg_dot4(cg_emit *e, const ir_expr *x);
LLVMValueRef cg_pack2(cg_emit *e, const ir_expr *x);

/* ---- emit_access.c ---- */

LLVMValueRef cg_emit_load(cg_emit *e, const ir_access *access);
void cg_emit_store(cg_emit *e, const ir_access *access, const ir_expr *value);
void cg_emit_prefetch(cg_emit *e, const ir_access *access, bool is_far);
LLVMValueRef cg_address(cg_emit *e, const ir_access *access); /* of lane 0, in memory */
/* Which element of an IR_REG or IR_TILES buffer it is. */
uint64_t cg_element_number(cg_emit *e, const ir_access *access);

/* ---- emit_tiles.c ---- */

bool cg_has_tiles(const ir_block *block);
void cg_tiles_begin(cg_emit *e); /* at the start of a phase that has tiles, and at its end */
void cg_tiles_end(cg_emit *e);
void cg_tiles_alloc(cg_emit *e, const ir_buffer *buffer, uint64_t count);
void cg_emit_tile(cg_emit *e, const ir_stmt *stmt);

/* ---- emit_stmt.c ---- */

void cg_emit_block(cg_emit *e, const ir_block *block);
/* Emits a statement, or a call of the nest that begins with it. Returns the next statement. */
const ir_stmt *cg_emit_next(cg_emit *e, const ir_stmt *stmt);

/* ---- emit_kernel.c ---- */

/* The storage of a buffer; pointers of buffers in memory are loaded at the first use. */
const cg_storage *cg_storage_of(cg_emit *e, const ir_buffer *buffer);
void cg_emit_call(cg_emit *e, const cg_nest *nest);

/* Fills `module` with the functions of module `number` of `cut`; the plan is in module 0. LLVM's verifier has not run
 * yet. `err` must be clear. */
attune_status cg_emit_kernel(LLVMModuleRef module, const ir_kernel *kernel, const at_target *target, const cg_cut *cut,
                             uint32_t number, at_arena *arena, at_error *err);
#define CG_PLAN_NAME "plan"

#endif
