/* Building a kernel. The same functions serve the parser, the passes and the MHA builders: they check types,
 * fold constants with the interpreter's evaluator (ir/eval.h), and allocate in the kernel's arena.
 *
 * Failure is sticky: the first wrong type or refused allocation is kept in the builder's error, every later call
 * returns NULL and accepts NULL, and ir_builder_finish reports it. So code that builds needs no checks. */
#ifndef ATTUNE_IR_BUILD_H
#define ATTUNE_IR_BUILD_H

#include "ir/ir.h"

typedef struct ir_builder ir_builder;

/* A builder whose kernel lives in `arena`. NULL when the arena refuses. The builder lives in the arena too. */
ir_builder *ir_builder_new(at_arena *arena, const char *kernel_name);

/* Memory of the kernel's arena, for objects too large for a caller's stack. NULL after a failure. */
void *ir_build_alloc(ir_builder *b, size_t bytes);

/* Calls build(user), unless the builder has failed already. The first failure leaves build at once, by longjmp, so its
 * code never gets NULL from the builder, and may dereference every expression. build may own only memory of the arena.
 */
void ir_builder_run(ir_builder *b, void (*build)(void *user), void *user);

/* The kernel, or NULL with *err filled (the sticky error, or an unclosed scope). Also refuses a kernel with no phase.
 */
ir_kernel *ir_builder_finish(ir_builder *b, at_error *err);

bool ir_failed(const ir_builder *b);
/* Makes the builder fail with the caller's message, formatted as by printf. Sticky like all failures. */
void ir_build_fail(ir_builder *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- Parameters, in order; before the first phase ---- */

const ir_expr *ir_param_scalar(ir_builder *b, const char *name, ir_elem elem);
/* strides NULL: row-major. access: IR_IN, IR_OUT or both. */
const ir_buffer *ir_param_buffer(ir_builder *b, const char *name, ir_elem elem, int num_dims,
                                 const ir_expr *const *dims, const ir_expr *const *strides, int access);
void ir_kernel_assume(ir_builder *b, const ir_expr *condition);
const ir_buffer *ir_shared(ir_builder *b, const char *name, ir_elem elem, int num_dims, const ir_expr *const *dims);

/* ---- Expressions ---- */

const ir_expr *ir_idx(ir_builder *b, int64_t value);
const ir_expr *ir_int(ir_builder *b, ir_elem elem, int64_t value);  /* INT or BOOL elements */
const ir_expr *ir_float(ir_builder *b, ir_elem elem, double value); /* FLOAT elements; f32 is rounded */
/* An integer constant of the type of `like`, in all lanes. */
const ir_expr *ir_const_like(ir_builder *b, const ir_expr *like, double value);
const ir_expr *ir_var_ref(ir_builder *b, const ir_var *var);

/* Any operator whose RESULT is SAME or CMP, and SELECT; unused arguments NULL. Folds constants and, of integers, x+0,
 * x*1 and x*0. Never folds where the bits of a float could change. */
const ir_expr *ir_apply(ir_builder *b, ir_op op, const ir_expr *x, const ir_expr *y, const ir_expr *z);

const ir_expr *ir_neg(ir_builder *b, const ir_expr *x);
const ir_expr *ir_add(ir_builder *b, const ir_expr *x, const ir_expr *y);
const ir_expr *ir_sub(ir_builder *b, const ir_expr *x, const ir_expr *y);
const ir_expr *ir_mul(ir_builder *b, const ir_expr *x, const ir_expr *y);
const ir_expr *ir_div(ir_builder *b, const ir_expr *x, const ir_expr *y);
const ir_expr *ir_mod(ir_builder *b, const ir_expr *x, const ir_expr *y);
const ir_expr *ir_min(ir_builder *b, const ir_expr *x, const ir_expr *y);
const ir_expr *ir_max(ir_builder *b, const ir_expr *x, const ir_expr *y);
const ir_expr *ir_fma(ir_builder *b, const ir_expr *x, const ir_expr *y, const ir_expr *z); /* x * y + z */
const ir_expr *ir_select(ir_builder *b, const ir_expr *c, const ir_expr *x, const ir_expr *y);
const ir_expr *ir_cast(ir_builder *b, ir_elem elem, const ir_expr *x);
const ir_expr *ir_bitcast(ir_builder *b, ir_elem elem, const ir_expr *x);
const ir_expr *ir_splat(ir_builder *b, const ir_expr *x, int lanes); /* lanes 1 gives x itself */
const ir_expr *ir_ramp(ir_builder *b, const ir_expr *base, const ir_expr *step, int lanes);
const ir_expr *ir_shuffle(ir_builder *b, const ir_expr *x, const ir_expr *y, int lanes, const uint8_t *pick);
const ir_expr *ir_dot2(ir_builder *b, const ir_expr *x, const ir_expr *y, const ir_expr *acc);
const ir_expr *ir_dot4(ir_builder *b, const ir_expr *x, const ir_expr *y, const ir_expr *acc);
const ir_expr *ir_lookup(ir_builder *b, const ir_expr *low, const ir_expr *high, const ir_expr *index);
const ir_expr *ir_pack2(ir_builder *b, const ir_expr *even, const ir_expr *odd);

static inline const ir_expr *ir_eq(ir_builder *b, const ir_expr *x, const ir_expr *y) {
    return ir_apply(b, IR_EQ, x, y, NULL);
}
static inline const ir_expr *ir_ne(ir_builder *b, const ir_expr *x, const ir_expr *y) {
    return ir_apply(b, IR_NE, x, y, NULL);
}
static inline const ir_expr *ir_lt(ir_builder *b, const ir_expr *x, const ir_expr *y) {
    return ir_apply(b, IR_LT, x, y, NULL);
}
static inline const ir_expr *ir_le(ir_builder *b, const ir_expr *x, const ir_expr *y) {
    return ir_apply(b, IR_LE, x, y, NULL);
}
static inline const ir_expr *ir_gt(ir_builder *b, const ir_expr *x, const ir_expr *y) {
    return ir_apply(b, IR_GT, x, y, NULL);
}
static inline const ir_expr *ir_ge(ir_builder *b, const ir_expr *x, const ir_expr *y) {
    return ir_apply(b, IR_GE, x, y, NULL);
}
static inline const ir_expr *ir_and(ir_builder *b, const ir_expr *x, const ir_expr *y) {
    return ir_apply(b, IR_AND, x, y, NULL);
}
static inline const ir_expr *ir_or(ir_builder *b, const ir_expr *x, const ir_expr *y) {
    return ir_apply(b, IR_OR, x, y, NULL);
}

/* Whether x is a constant, and whether it is this one (of integers). */
static inline bool ir_is_const(const ir_expr *x) { return x && x->op == IR_CONST; }
static inline bool ir_is(const ir_expr *x, int64_t value) { return ir_is_const(x) && x->value.i == value; }

static inline const ir_expr *ir_abs(ir_builder *b, const ir_expr *x) { return ir_apply(b, IR_ABS, x, NULL, NULL); }
static inline const ir_expr *ir_rint(ir_builder *b, const ir_expr *x) { return ir_apply(b, IR_RINT, x, NULL, NULL); }
static inline const ir_expr *ir_sqrt(ir_builder *b, const ir_expr *x) { return ir_apply(b, IR_SQRT, x, NULL, NULL); }

/* Indices: x + y, x * y, and x / y rounded up, y > 0. */
static inline const ir_expr *ir_plus(ir_builder *b, const ir_expr *x, int64_t y) { return ir_add(b, x, ir_idx(b, y)); }
static inline const ir_expr *ir_times(ir_builder *b, const ir_expr *x, int64_t y) { return ir_mul(b, x, ir_idx(b, y)); }
static inline const ir_expr *ir_ceil_div(ir_builder *b, const ir_expr *x, int64_t y) {
    return ir_div(b, ir_plus(b, x, y - 1), ir_idx(b, y));
}

/* Accesses. Index arguments after `num` are const ir_expr *. */
const ir_access *ir_at(ir_builder *b, const ir_buffer *buffer, int lanes, int num, ...); /* along the last dim */
const ir_access *ir_access_make(ir_builder *b, const ir_buffer *buffer, int lanes, int axis, int num,
                                const ir_expr *const *indices, const ir_expr *mask); /* axis -1: the last dim */
const ir_expr *ir_load(ir_builder *b, const ir_access *access);

/* ---- Statements: appended to the innermost open block ---- */

void ir_phase_begin(ir_builder *b);
const ir_expr *ir_parallel(ir_builder *b, const char *name, const ir_expr *hi); /* before the first statement */
void ir_phase_end(ir_builder *b);

const ir_expr *ir_for_begin(ir_builder *b, const char *name, const ir_expr *lo, const ir_expr *hi, int64_t step,
                            bool unroll);
void ir_for_end(ir_builder *b);
void ir_if_begin(ir_builder *b, const ir_expr *condition);
void ir_if_else(ir_builder *b);
void ir_if_end(ir_builder *b);
/* Names need not be unique here: a taken name gets a suffix ".1", ".2", … */
const ir_expr *ir_let(ir_builder *b, const char *name, const ir_expr *value);
/* The same for an idx of which the prover learns nothing but lo <= value < hi, which the author guarantees. It shortens
 * proofs that would otherwise go through a long expression. A constant stays a constant, and the interval is assumed.
 */
const ir_expr *ir_let_in(ir_builder *b, const char *name, const ir_expr *lo, const ir_expr *hi, const ir_expr *value);
/* The same for an index: 0 <= value < size. */
static inline const ir_expr *ir_let_index(ir_builder *b, const char *name, const ir_expr *size, const ir_expr *value) {
    return ir_let_in(b, name, ir_idx(b, 0), size, value);
}
const ir_buffer *ir_alloc(ir_builder *b, const char *name, ir_space space, ir_type type, int num_dims,
                          const int64_t *dims);
/* An array in registers, whose elements are vectors of `lanes`; num_dims 0: one of them. */
static inline const ir_buffer *ir_registers(ir_builder *b, const char *name, ir_elem elem, int lanes, int num_dims,
                                            const int64_t *dims) {
    return ir_alloc(b, name, IR_REG, ir_type_of(elem, lanes), num_dims, dims);
}
static inline const ir_buffer *ir_scratch(ir_builder *b, const char *name, ir_elem elem, int num_dims,
                                          const int64_t *dims) {
    return ir_alloc(b, name, IR_SCRATCH, ir_type_of(elem, 1), num_dims, dims);
}
/* A mutable variable in a register, initialised with `value`. */
const ir_access *ir_mutable(ir_builder *b, const char *name, const ir_expr *value);
void ir_store(ir_builder *b, const ir_access *access, const ir_expr *value);
void ir_prefetch(ir_builder *b, const ir_access *access);
void ir_prefetch_far(ir_builder *b, const ir_access *access);
void ir_assume(ir_builder *b, const ir_expr *condition);
/* The operands in the order of ir_tile_op; NULL for those that the operation does not have. */
void ir_tile(ir_builder *b, ir_tile_op op, const ir_access *x, const ir_access *y, const ir_access *z);

/* As ir_if_else, for the `if` that was closed last. */
void ir_else_begin(ir_builder *b);

/* ---- Blocks of the IR as blocks of C ----
 *
 *     IR_FOR(b, i, ir_idx(b, 0), n, 1) {
 *         IR_IF(b, ir_lt(b, i, m)) { ir_store(…); }
 *         IR_ELSE(b) { … }
 *     }
 *
 * The C block runs once, and what it appends is the block's content. Never leave it by break, goto or return: the IR's
 * block would stay open, which ir_builder_finish reports. */

/* The loop that the expression `begin` opens, by ir_for_begin or a function that calls it; `i` is its variable. */
#define IR_LOOP(b, i, begin)                                                                                           \
    for (const ir_expr *i = (begin), *i##_is_open = &ir_open; i##_is_open; ir_for_end(b), i##_is_open = NULL)
/* i = from, from + step, … while i < to. In the IR the variable has the same name. */
#define IR_FOR(b, i, from, to, step) IR_LOOP(b, i, ir_for_begin(b, #i, from, to, step, false))
/* i = 0 … count - 1, copied out when the kernel is lowered. */
#define IR_UNROLLED(b, i, count) IR_LOOP(b, i, ir_for_begin(b, #i, ir_idx(b, 0), ir_idx(b, count), 1, true))

#define IR_IF(b, condition) IR_BLOCK_(ir_if_begin(b, condition), ir_if_end(b))
/* Directly after IR_IF's block. */
#define IR_ELSE(b)  IR_BLOCK_(ir_else_begin(b), ir_if_end(b))
#define IR_PHASE(b) IR_BLOCK_(ir_phase_begin(b), ir_phase_end(b))
/* IR_IF if `is_needed`, which is known while building; otherwise the content without a condition. */
#define IR_GUARD(b, is_needed, condition)                                                                              \
    IR_BLOCK_((is_needed) ? ir_if_begin(b, condition) : (void)0, (is_needed) ? ir_if_end(b) : (void)0)

#define IR_BLOCK_(begin, end)             IR_BLOCK_AS_(IR_NAME_(ir_is_open_, __LINE__), begin, end)
#define IR_BLOCK_AS_(is_open, begin, end) for (bool is_open = ((begin), true); is_open; (end), is_open = false)
#define IR_NAME_(word, line)              IR_PASTE_(word, line)
#define IR_PASTE_(word, line)             word##line

extern const ir_expr ir_open; /* what the macros' pointers point to while a block is open */

/* ---- Sequences of operators ---- */

/* The arithmetic by which lower_math replaces `op`, one of the HIGH operators, on a target with these flags
 * (AT_TARGET_*). */
const ir_expr *ir_math(ir_builder *b, ir_op op, const ir_expr *x, uint32_t flags);

/* A tree of shuffles in a fixed order, which fixes the bits: the n = x.lanes lanes are reduced to one lane by halving,
 * lane l with lane l + n/2, and so on. */
const ir_expr *ir_reduce(ir_builder *b, ir_op op, const ir_expr *x);

/* ---- For rewriting passes: a new kernel built by walking an old one ---- */

/* A builder for a copy of `old`'s signature (params, shared, assumes); ids and names of those are kept. */
ir_builder *ir_builder_like(at_arena *arena, const ir_kernel *old);

#endif
