/* The program of a phase: operations on a frame. Private to this folder.
 *
 * A frame is a part of the worker's scratch. A place is a byte offset from its middle:
 *
 *     … -128: constant   -64: constant   |   0: value   64: value   128: value …
 *
 * A value's place is aligned to 64 bytes and has at least 64 bytes, so an operation on a narrow vector may compute a
 * whole register; lanes beyond the type's are unspecified. A scalar of f32, f64 or i32 is broadcast to all lanes of a
 * register, a scalar of bool, and every constant, to 64 bytes, so a splat is free. Scalars of idx and i64 have 8 bytes.
 */
#ifndef ATTUNE_VM_PROGRAM_H
#define ATTUNE_VM_PROGRAM_H

#include "ir/eval.h"
#include "ir/ir.h"
#include "vm/vm.h"

enum { VM_SLOT_BYTES = 64 };

typedef struct vm_op vm_op;

/* Runs an operation and those after it, or only the operation; returns the next one to run, NULL after the last. */
typedef const vm_op *vm_fn(const vm_op *op, char *frame);

/* An operation. Its handler documents what the members mean. */
struct vm_op {
    vm_fn *fn;
    int32_t out, a, b, c;
    union {
        int64_t imm;
        ir_eval_fn *eval;
    } u;
    int32_t d, e;
};

/* The members from `out` to `e` hold so many places. */
enum { VM_PLACES = 8 };
_Static_assert(offsetof(struct vm_op, e) + sizeof(int32_t) == offsetof(struct vm_op, out) + 8 * sizeof(int32_t), "");

/* Threaded code: a handler jumps to the next one, as optimising compilers turn the call in tail position into a jump.
 * Without optimisation, and with sanitizers, which keep stack frames, the loop of at_vm_run calls one handler after the
 * other. */
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define VM_GO(next) return (next)->fn((next), frame)
#else
#define VM_GO(next) return (next)
#endif
#define VM_NEXT VM_GO(op + 1)

#define VM_AT(T, place) (*(T *)(frame + (place)))

/* The address of an access: pointer at a + index at b * d + imm. */
static inline char *vm_address(const vm_op *op, const char *frame) {
    return *(char *const *)(frame + op->a) + *(const int64_t *)(frame + op->b) * op->d + op->u.imm;
}

/* ---- Operations without instruction sets: vm/common.c ---- */

vm_fn vm_exit, vm_loop_begin, vm_loop_next, vm_branch, vm_jump, vm_move;
vm_fn vm_int_move, vm_int_add, vm_int_sub, vm_int_mul, vm_int_eval, vm_int_select, vm_int_multiply_add, vm_int_load;
vm_fn vm_eval, vm_eval_splat1, vm_eval_splat4, vm_eval_splat8, vm_splat, vm_ramp, vm_shuffle;
vm_fn vm_load, vm_load_lanes, vm_store, vm_store_lanes, vm_gather, vm_gather_offset;
vm_fn vm_tile_zero, vm_tile_load, vm_tile_store, vm_tile_dot2;

/* ---- Operations on the registers of an instruction set: vm/handlers.h ---- */

typedef enum vm_kind { VM_F32, VM_F64, VM_I32, VM_NUM_KINDS } vm_kind;

/* Tiles of sums of products, sum[r][c] += row[r] * column[c], with the sums in registers during a loop. vm_tile_rows
 * and vm_tile_columns are the sizes with operations, the largest last. */
typedef enum vm_products {
    VM_MULTIPLY_ADD,
    VM_MULTIPLY_ADD_BF16, /* the columns are widened */
    VM_MULTIPLY_ADD_F16,
    VM_MULTIPLY_ADD_I8,
    VM_MULTIPLY_ADD_F8,
    VM_DOT2,
    VM_DOT4,
    VM_NUM_PRODUCTS
} vm_products;
enum { VM_TILE_ROWS = 5, VM_TILE_COLUMNS = 3, VM_TILE_POINTERS = 256 };
static const uint8_t vm_tile_rows[VM_TILE_ROWS] = {1, 2, 4, 6, 8};
static const uint8_t vm_tile_columns[VM_TILE_COLUMNS] = {1, 2, 4};

/* NULL: there is none. */
typedef struct vm_isa {
    uint32_t vector_bytes;
    vm_fn *by_op[VM_NUM_KINDS][IR_OP_COUNT];   /* out = op(a, b, c), on whole registers */
    vm_fn *cast[IR_ELEM_COUNT][IR_ELEM_COUNT]; /* [to][from]: as many lanes as the wider one has in a register */
    vm_fn *bits[IR_OP_COUNT];                  /* of bool */
    vm_fn *splat1, *splat4, *splat8;           /* all lanes of `out` from the element at a */
    vm_fn *int_to_i32;                         /* of an idx, to all lanes */
    vm_fn *load_splat4, *load_splat8;
    vm_fn *load, *load_half, *load_quarter, *store; /* a register, and its lower parts */
    vm_fn *load_widened[IR_ELEM_COUNT];             /* to a register of f32 */
    vm_fn *load_masked4, *store_masked4;            /* mask at c, e lanes */
    vm_fn *permute_add, *permute_max;               /* of two permutations of a and b */
    vm_fn *permute4;                                /* of the lanes of a and b, by the lane numbers at c */
    vm_fn *dot2, *pack2, *dot4;
    /* [1]: a row is an element of 4 bytes in memory, which is broadcast */
    vm_fn *tile[VM_NUM_PRODUCTS][2][VM_TILE_ROWS][VM_TILE_COLUMNS];
    vm_fn *polynomial;
    vm_fn *leave; /* performed last */
} vm_isa;

extern const vm_isa vm_isa_base;
#if defined(__x86_64__)
extern const vm_isa vm_isa_avx2, vm_isa_avx512;
#endif

/* ---- Programs ---- */

/* The sizes of a kernel as code for a stack machine: an operation pushes a constant or scalar `imm`, or replaces
 * operands by a result. At each depth of an expression, two operands may wait for the third. */
enum { VM_MAX_STACK = 2 * IR_MAX_DEPTH + 4 };
typedef enum vm_size_kind { VM_SIZE_CONST, VM_SIZE_SCALAR, VM_SIZE_APPLY } vm_size_kind;

typedef struct vm_size_op {
    uint8_t kind, arity;
    int64_t imm;
    ir_eval_fn *eval;
} vm_size_op;

typedef struct vm_size {
    uint32_t first, count; /* in size_ops */
} vm_size;

typedef struct vm_scalar {
    int32_t at;
    uint32_t number;
    uint8_t elem;
} vm_scalar;

typedef struct vm_pointer {
    int32_t at;
    uint32_t number;
} vm_pointer;

struct at_vm_phase {
    const vm_isa *isa;
    uint64_t frame_at; /* offset of the middle of the frame in scratch */
    uint64_t scratch_bytes;
    const char *constants;
    uint32_t constant_bytes;
    uint32_t num_scalars, num_pointers;
    const vm_scalar *scalars;
    const vm_pointer *pointers;
    int32_t scratch; /* the place that has the address of scratch */
    const vm_op *entry, *task;
    uint32_t num_loops;
    struct {
        int32_t var, hi;
    } loops[IR_MAX_LOOPS];
};

struct at_vm_program {
    size_t bytes;
    uint32_t num_phases, num_shared;
    const at_vm_phase *phases;
    const vm_size *sizes;        /* the num_loops ends of each phase, then the dims of each shared buffer */
    const uint32_t *num_factors; /* sizes of each phase, then of each shared buffer */
    const uint64_t *units;       /* likewise: 1 for a phase, bytes of an element for a buffer */
    const vm_size_op *size_ops;
};

#endif
