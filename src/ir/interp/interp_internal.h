/* The interpreter's resolved form of a kernel, built for each run: scalar params, dims and strides are constants;
 * variables, buffers and intermediate values are addresses; operators are function pointers. Private to this folder. */
#ifndef ATTUNE_IR_INTERP_INTERNAL_H
#define ATTUNE_IR_INTERP_INTERNAL_H

#include "ir/eval.h"
#include "ir/interp.h"

#include <setjmp.h>
#include <string.h>

typedef struct interp interp;
typedef struct interp_value interp_value;
typedef struct interp_action interp_action;
typedef const void *interp_eval_fn(const interp_value *value);
typedef void interp_perform_fn(const interp_action *action);

/* A buffer while the kernel runs. Strides and offsets count units: elements, or whole vectors in IR_REG and tiles. */
typedef struct interp_memory {
    const ir_buffer *buffer;
    char *data;
    uint8_t *shadow;    /* one byte a unit, equal to `generation` once written; NULL for params */
    uint8_t generation; /* never 0; changing it makes the whole buffer unwritten */
    uint8_t shift;      /* log2 of the bytes of a unit */
    bool in_scope;      /* while compiling */
    int64_t count;      /* units; of what has a shadow */
    int64_t dims[IR_MAX_DIMS], strides[IR_MAX_DIMS];
} interp_memory;

/* constant + the scaled sum of two variables + rest, wrapping. Most indices have no rest, and an absent variable
 * points to a zero. The first num_vars of the rest are variables too, the others must be computed. */
typedef struct interp_term {
    const int64_t *var;
    const interp_value *computed;
    int64_t scale;
} interp_term;

typedef struct interp_affine {
    int64_t constant, scales[2];
    const int64_t *vars[2];
    const interp_term *rest;
    uint32_t num_vars, num_rest;
    bool is_constant;
} interp_affine;

/* One dimension of an access. Constant indices in bounds are folded into the access's address instead. */
typedef struct interp_dim {
    interp_affine index;
    const interp_value *lanes; /* of a gather: the indices of all lanes, instead of `index` */
    uint64_t count;            /* index < count, as unsigned, keeps all lanes inside */
    int64_t stride;
    uint32_t number; /* which dimension of the buffer */
} interp_dim;

typedef struct interp_access {
    interp *run;
    const ir_access *source;
    const interp_memory *memory;
    char *data; /* of the unit at index 0 of all dims[] */
    uint8_t *shadow;
    uint32_t num_dims;
    uint8_t shift;
    uint8_t units;            /* touched: lanes, or 1 in IR_REG */
    bool gather;              /* some index has lanes of its own; there is no axis then */
    int64_t lane_stride;      /* from one lane to the next */
    const interp_value *mask; /* or NULL */
    interp_dim dims[];
} interp_access;

/* An expression. Evaluating it returns the address of its lanes: its own `out`, or the memory of a load. */
struct interp_value {
    interp_eval_fn *eval; /* NULL: always in out */
    void *out;
    const interp_value *args[3];
    ir_eval_fn *fn;
    ir_type type;
    bool constant;
    union {
        interp_affine affine;
        const interp_access *access;
        const uint8_t *pick;
        interp *run; /* of checks */
    } u;
};

static inline const void *interp_eval(const interp_value *value) {
    return value->eval ? value->eval(value) : value->out;
}

uint64_t interp_affine_rest(const interp_affine *affine);

static inline int64_t interp_affine_eval(const interp_affine *affine) {
    uint64_t sum = (uint64_t)affine->constant;
    for (int v = 0; v < 2; v++) sum += (uint64_t)affine->scales[v] * (uint64_t)*affine->vars[v];
    return (int64_t)(affine->num_rest ? sum + interp_affine_rest(affine) : sum);
}

/* A statement. */
struct interp_action {
    interp_perform_fn *perform;
    const interp_action *next;
    const interp_action *parent; /* the enclosing loop or branch, for messages */
    const ir_stmt *source;
    interp *run;
    union {
        struct {
            int64_t *var;
            interp_affine lo, hi;
            const interp_action *body;
        } loop;
        struct {
            const interp_value *value;
            void *var;
            uint32_t bytes;
            interp_affine lo, hi; /* of one with an interval */
        } let;
        struct {
            const interp_value *value;
            const interp_access *access;
            uint32_t bytes;
        } store;
        struct {
            const interp_value *condition;
            const interp_action *then, *otherwise;
        } branch;
        interp_memory *alloc;
        const interp_access *prefetch;
        const interp_value *assume;
        struct {
            const interp_access *args[3], *last; /* as in ir_stmt */
            int64_t distance;                    /* of rows in memory, in units */
        } tile;
    } u;
};

typedef struct interp_phase {
    int64_t *vars[IR_MAX_LOOPS], counts[IR_MAX_LOOPS];
    int64_t num_tasks;
    const interp_action *body;
} interp_phase;

/* One run of a kernel. */
struct interp {
    const ir_kernel *kernel;
    const attune_allocator *allocator;
    const int64_t *scalars;
    at_error *err;
    at_arena arena;
    interp_memory *memories; /* by buffer id */
    void **vars;             /* by variable id, while compiling: its address; NULL out of scope */
    bool *var_constant;      /* by variable id: scalar params */
    interp_phase *phases;
    int64_t *order;                        /* of the tasks of the current phase */
    uint32_t depth;                        /* of what is being compiled */
    uint32_t phase;                        /* under way */
    const ir_expr *assumption;             /* of the kernel, being checked before the first phase */
    const interp_action *parent, *current; /* while compiling, while running */
    jmp_buf escape;                        /* receives failures */
};

/* ---- interp.c ---- */

/* Zeroed memory of the run's arena; never NULL. */
void *interp_new(interp *run, size_t bytes);

/* ---- interp_message.c ---- */

/* End the run: fill run->err and jump to run->escape. The message of a failed check names the current statement. */
_Noreturn void interp_fail(interp *run, attune_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void interp_check_failed(interp *run, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- interp_memory.c ---- */

void interp_bind_param(interp *run, const ir_buffer *buffer, void *data);
void interp_allocate(interp *run, const ir_buffer *buffer); /* shared, scratch and reg */
void interp_forget(interp_memory *memory);                  /* makes it all unwritten */
void interp_free_memories(interp *run);
int64_t interp_size(interp *run, const ir_expr *expr); /* of scalar params; fails when it overflows */

/* ---- interp_compile.c, interp_compile_value.c, interp_compile_access.c ---- */

const interp_action *interp_compile_block(interp *run, const ir_block *block);
const interp_value *interp_compile_value(interp *run, const ir_expr *expr);
interp_affine interp_compile_affine(interp *run, const ir_expr *expr);
const interp_access *interp_compile_access(interp *run, const ir_access *source);
uint32_t interp_bytes(ir_type type);

/* ---- interp_exec.c, interp_value.c, interp_access.c: what the function pointers point to ---- */

void interp_run_block(interp *run, const interp_action *first);
interp_perform_fn interp_run_for, interp_run_let, interp_run_let_in, interp_run_if, interp_run_alloc,
    interp_run_prefetch, interp_run_assume, interp_run_tile;

interp_eval_fn interp_eval_unary;
interp_eval_fn interp_eval_binary;
interp_eval_fn interp_eval_ternary;
interp_eval_fn interp_eval_divide; /* of integers */
interp_eval_fn interp_eval_affine;
interp_eval_fn interp_eval_bitcast;
interp_eval_fn interp_eval_parts; /* bitcast of bf16 or i8 to a wider element */
interp_eval_fn interp_eval_ramp;
interp_eval_fn interp_eval_shuffle;
interp_eval_fn interp_eval_truth; /* a bool that came from the caller's memory */

/* The address of the lanes of a plain access, plus `further` units; they are checked for the read, or marked as
 * written. */
char *interp_lanes(const interp_access *access, int64_t further, bool writes);

interp_eval_fn *interp_choose_splat(ir_type type);
interp_eval_fn *interp_choose_load(const interp_access *access);
interp_perform_fn *interp_choose_store(const interp_access *access);

#endif
