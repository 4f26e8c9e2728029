/* The loop IR: the structs of a kernel. docs/ir.md is its manual.
 *
 * A kernel is a list of parameters and a list of phases. A phase is a nest of parallel loops round a block of
 * statements; between phases there is a barrier. Expressions have no side effects and are immutable once built; they
 * are trees, so a node that is shared is printed, and computed, twice (use `let` for a value that is used twice).
 * Everything lives in the kernel's arena. Names of variables and buffers are unique in a kernel. */
#ifndef ATTUNE_IR_IR_H
#define ATTUNE_IR_IR_H

#include "base/error.h"
#include "base/memory.h"

enum { IR_MAX_LANES = 64, IR_MAX_DIMS = 8, IR_MAX_LOOPS = 8, IR_MAX_NAME = 64, IR_MAX_DEPTH = 200 };

/* ---- Types ---- */

typedef enum ir_elem {
    IR_F64,
    IR_F32,
    IR_F16,
    IR_BF16,
    IR_F8,
    IR_I8,
    IR_I32,
    IR_I64,
    IR_IDX,
    IR_BOOL,
    IR_ELEM_COUNT
} ir_elem;

typedef struct ir_type {
    uint8_t elem;  /* ir_elem */
    uint8_t lanes; /* a power of two, 1 = scalar, at most IR_MAX_LANES */
} ir_type;

/* Element classes, as sets; the ACCEPTS column of ops.def. */
enum { IR_CLASS_FLOAT = 1, IR_CLASS_INT = 2, IR_CLASS_BOOL = 4, IR_CLASS_STORAGE = 8 };

typedef struct ir_elem_info {
    const char *name;
    uint8_t bytes; /* in memory; bool is one byte holding 0 or 1 */
    uint8_t class; /* f64 f32: FLOAT; i32 i64 idx: INT; bool: BOOL; f16 bf16 f8 i8: STORAGE */
} ir_elem_info;

const ir_elem_info *ir_elem_get(ir_elem elem);
static inline ir_type ir_type_of(ir_elem elem, int lanes) { return (ir_type){(uint8_t)elem, (uint8_t)lanes}; }
static inline bool ir_type_eq(ir_type a, ir_type b) { return a.elem == b.elem && a.lanes == b.lanes; }

/* ---- Operators ---- */

typedef enum ir_op {
#define IR_OP(name, text, arity, accepts, result, traits) IR_##name,
#include "ir/ops.def"
#undef IR_OP
    IR_OP_COUNT
} ir_op;

enum { IR_RESULT_SAME, IR_RESULT_CMP, IR_RESULT_SPECIAL };
enum {
    IR_TRAIT_INFIX = 1,
    IR_TRAIT_COMMUTES = 2,
    IR_TRAIT_HIGH = 4,
    IR_TRAIT_NEEDS_FMA = 8,
    IR_TRAIT_NEEDS_ROUND = 16,
    IR_TRAIT_NEEDS_SCALEF = 32,
    IR_TRAIT_NEEDS_DOT2 = 64,
    IR_TRAIT_NEEDS_LOOKUP = 128
};

typedef struct ir_op_info {
    const char *text;
    uint8_t arity, accepts, result;
    uint16_t traits;
} ir_op_info;

const ir_op_info *ir_op_get(ir_op op);

/* ---- Variables and buffers ---- */

typedef struct ir_expr ir_expr;

/* A scalar parameter, a loop variable or a `let`. */
typedef struct ir_var {
    const char *name;
    ir_type type;
    uint32_t id; /* dense within the kernel: 0 … kernel->num_vars-1 */
} ir_var;

typedef enum ir_space {
    IR_PARAM,   /* the caller's memory */
    IR_SHARED,  /* allocated once a run, common to all phases and workers; `alloc` at kernel level */
    IR_SCRATCH, /* one for each worker, 64-byte aligned, not initialised; never on the machine stack */
    IR_REG,     /* a small array of scalars or vectors in registers; indices are constants once lowered */
    IR_TILES    /* the same of tiles: each element is 16 rows of 64 bytes; only tile statements touch it */
} ir_space;

enum { IR_TILE_ROWS = 16, IR_TILE_ROW_BYTES = 64 };

enum { IR_IN = 1, IR_OUT = 2 };

typedef struct ir_buffer {
    const char *name;
    ir_type type; /* lanes > 1 only in IR_REG: what an element is */
    ir_space space;
    uint8_t access;   /* of params: IR_IN, IR_OUT or both */
    uint8_t num_dims; /* 0 is a single element */
    /* idx; constants in scratch, reg and tiles; scalar params and constants elsewhere */
    const ir_expr *dims[IR_MAX_DIMS];
    const ir_expr *strides[IR_MAX_DIMS]; /* of params only, in elements; all NULL: row-major */
    uint32_t id;                         /* dense within the kernel */
} ir_buffer;

/* ---- Expressions ---- */

/* The place of a load, store or prefetch: buffer[indices] : x lanes @ axis ? mask. Lane l touches the element whose
 * index along dimension `axis` is indices[axis] + l (default: the last dimension). If an index is itself a
 * vector of `lanes` idx elements the access is a gather (loads only) and there is no axis. Masked-off lanes load 0,
 * store nothing and touch no memory. An access to IR_REG has lanes == buffer->type.lanes, no axis and no mask. */
typedef struct ir_access {
    const ir_buffer *buffer;
    const ir_expr *indices[IR_MAX_DIMS];
    uint8_t lanes, axis;
    const ir_expr *mask; /* bool x lanes, or NULL */
} ir_access;

/* SPECIAL operators, operands in args[]:
 *   CONST   scalar; value.i for integers and bool, value.f for floats (f32 held exactly)
 *   VAR     var
 *   LOAD    access; type is the buffer's element x access->lanes
 *   SELECT  args[0] bool x n ? args[1] : args[2], n being the operands' lanes
 *   CAST    to type.elem, same lanes. float->int truncates, out of range or NaN gives the smallest integer;
 *           int->float and float->narrower float round to nearest even; idx->i32 wraps; bool->int is 0 or 1
 *   BITCAST same lanes and same element size (f32 <-> i32, f64 <-> i64), or one of these, from the lowest byte on:
 *           bf16 x 2n <-> i32 x n: lane l of the i32 holds lanes 2l and 2l + 1
 *           f8 x 4n or i8 x 4n <-> i32 x n: lane l of the i32 holds lanes 4l … 4l + 3
 *           i8 x 2n <-> f16 x n: lane l of the f16 holds lanes 2l and 2l + 1
 *   SPLAT   scalar to type.lanes
 *   RAMP    args[0] + l * args[1] in lane l; scalar integers
 *   SHUFFLE lane l is lane pick[l] of the concatenation of args[0] and args[1] (same type); type.lanes picks
 *   DOT2    args[0], args[1] bf16 x 2n, args[2] f32 x n
 *   PACK2   f32 x n, f32 x n to bf16 x 2n: lane 2l is args[0][l], lane 2l + 1 is args[1][l]
 *   DOT4    args[0], args[1] i8 x 4n, args[2] i32 x n. The bytes of args[0] count as 0 … 255
 *   LOOKUP  lane l is lane args[2][l] mod 2n of the concatenation of args[0] and args[1]
 *           args[0], args[1], args[2] i8 x n, n of 16 or more
 *           args[0], args[1] f32 x n, args[2] i32 x n, n being 4, 8 or 16 */
enum { IR_LEAST_LOOKUP = 16, IR_LEAST_WORDS = 4, IR_MOST_WORDS = 16 };
/* Whether LOOKUP takes tables and an index of these types. */
static inline bool ir_is_lookup(ir_type table, ir_type index) {
    if (table.lanes != index.lanes) return false;
    if (table.elem == IR_I8) return index.elem == IR_I8 && table.lanes >= IR_LEAST_LOOKUP;
    return table.elem == IR_F32 && index.elem == IR_I32 && table.lanes >= IR_LEAST_WORDS &&
           table.lanes <= IR_MOST_WORDS;
}
struct ir_expr {
    uint8_t op; /* ir_op */
    ir_type type;
    uint8_t depth; /* 1 + that of the deepest operand, index or mask; at most IR_MAX_DEPTH */
    const ir_expr *args[3];
    union {
        int64_t i;
        double f;
        const ir_var *var;
        const ir_access *access;
        const uint8_t *pick;
    } value;
};

/* ---- Statements ---- */

typedef struct ir_stmt ir_stmt;
typedef struct ir_block {
    ir_stmt *first, *last;
} ir_block;

typedef enum ir_stmt_kind { IR_FOR, IR_LET, IR_STORE, IR_IF, IR_ALLOC, IR_PREFETCH, IR_ASSUME, IR_TILE } ir_stmt_kind;

/* Operations on tiles. Operands: `t` is an element of IR_TILES, `m` an access of one row of 64 bytes in memory, the
 * first of 16. Each further row has the next index of the dimension before the last; in a buffer of one dimension, rows
 * are contiguous.
 *
 *   ZERO   t            all 0
 *   LOAD   t, m         from memory of t's element
 *   STORE  m, t
 *   DOT2   t, t, t      f32, bf16, bf16: see docs/ir.md */
typedef enum ir_tile_op { IR_TILE_ZERO, IR_TILE_LOAD, IR_TILE_STORE, IR_TILE_DOT2, IR_TILE_OP_COUNT } ir_tile_op;

typedef struct ir_tile_info {
    const char *text;
    uint8_t num_args;
    int8_t memory; /* which of the operands is in memory; -1: none */
} ir_tile_info;

const ir_tile_info *ir_tile_get(ir_tile_op op);

struct ir_stmt {
    ir_stmt_kind kind;
    ir_stmt *next;
    union {
        struct {
            const ir_var *var;
            const ir_expr *lo, *hi; /* var runs lo, lo+step, … while < hi */
            int64_t step;           /* > 0 */
            bool unroll;            /* only in scheduled IR; the trip count is then a constant */
            ir_block body;
        } loop;
        struct {
            const ir_var *var;
            const ir_expr *value;
            const ir_expr *lo, *hi; /* idx: lo <= var < hi, all that the prover knows of var; NULL in lowered IR */
        } let;
        struct {
            const ir_access *access; /* STORE and PREFETCH */
            const ir_expr *value;    /* STORE; its lanes are access->lanes */
            bool is_far;             /* PREFETCH: into the L2 cache */
        } store;
        struct {
            const ir_expr *condition; /* scalar bool */
            ir_block then, otherwise; /* otherwise may be empty */
        } branch;
        const ir_buffer *alloc; /* IR_SCRATCH or IR_REG; visible to the end of the block; contents unwritten */
        const ir_expr *assume;  /* a scalar bool that the kernel's author guarantees; the interpreter checks it */
        struct {
            ir_tile_op op;
            const ir_access *args[3];
            const ir_access *last; /* the last row in memory, derived from the first; NULL: no memory operand */
        } tile;
    } u;
};

/* ---- Kernels ---- */

typedef struct ir_param {
    const ir_buffer *buffer; /* exactly one of the two */
    const ir_var *var;
} ir_param;

typedef struct ir_phase {
    struct ir_phase *next;
    uint8_t num_loops; /* >= 1; each runs 0 … hi-1; the task number counts them row-major */
    struct {
        const ir_var *var;
        const ir_expr *hi; /* of scalar params and constants */
    } loops[IR_MAX_LOOPS];
    ir_block body;
} ir_phase;

typedef struct ir_kernel {
    at_arena *arena;
    const char *name;
    uint32_t num_params, num_shared, num_assumes, num_phases;
    const ir_param *params;
    const ir_buffer *const *shared;
    const ir_expr *const *assumes; /* about scalar params; the runtime's caller guarantees them */
    ir_phase *phases;
    uint32_t num_vars, num_buffers; /* dense ids below these */
} ir_kernel;

#endif
