/* From lowered IR to operations. Private to translate*.c. */
#ifndef ATTUNE_VM_TRANSLATE_H
#define ATTUNE_VM_TRANSLATE_H

#include "vm/program.h"

enum { VM_MAX_LEVELS = 2 * IR_MAX_DEPTH + 4, VM_MAX_TERMS = 16, VM_NOWHERE = INT32_MIN };

typedef struct vm_code {
    vm_op *ops;
    uint32_t count, capacity;
} vm_code;

/* The open levels: 0 is the phase, 1 a task, and then the loops and branches around the statement that is being
 * translated. Code can be added to all of them, so a computation of outer values is added to the outermost level that
 * knows its operands. */
typedef struct vm_level {
    vm_code code;
    uint32_t serial; /* tells apart consecutive levels of the same depth */
} vm_level;

/* A scalar of idx or i64. */
typedef struct vm_int {
    int32_t at;
    uint32_t level; /* the outermost level that knows it */
    bool is_const;
    int64_t value;
} vm_int;

/* A value of another type. */
typedef struct vm_place {
    int32_t at;
    bool is_own; /* whoever uses it, frees it */
} vm_place;

typedef struct vm_var {
    vm_int number;     /* of idx and i64; for other types only `at` is used */
    uint32_t uses;     /* that are still to come */
    uint32_t level;    /* of a let: where it ends */
    bool is_own;       /* its place is its own */
    bool is_put_off;   /* a let without a place, because products may load its value themselves */
    const ir_expr *as; /* a let of index arithmetic: its value, which is computed when it is needed */
    bool is_computed;  /* `number` is the value of `as` */
} vm_var;

typedef struct vm_storage {
    int32_t base;   /* params, shared and scratch: the place with its address; reg and tiles: the place of the first
                       element */
    int64_t offset; /* in scratch, bytes */
    bool is_known;
    uint32_t stores;             /* how many statements write a register of idx */
    uint32_t block;              /* the block that allocates such a register */
    const ir_expr *forward;      /* the only value that it has there, if it is index arithmetic; or NULL */
    vm_int strides[IR_MAX_DIMS]; /* in elements */
} vm_storage;

typedef struct vm_memo vm_memo;
struct vm_tile;

typedef struct vm_translator {
    const ir_kernel *kernel;
    const at_target *target;
    const vm_isa *isa;
    at_arena *arena;
    at_error *err;
    vm_var *vars;
    vm_storage *storage;
    vm_level levels[VM_MAX_LEVELS];
    uint32_t level, next_serial, block, next_block; /* block: the serial of the current block */
    vm_memo *memo;
    int32_t borrowed;                 /* places for sums that are in memory otherwise, or 0 */
    int32_t loaded[VM_TILE_POINTERS]; /* places for operands that must be loaded separately, or 0 */
    struct vm_tile *tile;             /* see translate_tile.h */
    struct vm_tile *single;           /* a tile of one product, and the run: see translate_run.c */
    struct vm_run *run;

    char *constants; /* the one at place -64 last */
    uint32_t num_constants, room_for_constants;
    int32_t *constant_table; /* by hash: number of the constant + 1 */
    uint32_t table_size;

    int32_t top;            /* of the frame */
    int32_t ints, ints_end; /* room for scalars of 8 bytes */
    int32_t *spare;         /* free places of 64 bytes */
    uint32_t num_spare, room_for_spare;
    bool keeps_places; /* places that become free are not reused yet, as their values are still to be read */
    uint32_t num_kept; /* the last ones of `spare` */
    vm_var **lets;     /* lets whose places are freed at the end of their levels, the last ones first */
    uint32_t num_lets, room_for_lets;

    uint64_t scratch, most_scratch; /* bytes */
    vm_pointer *pointers;
    uint32_t num_pointers;
    int32_t scratch_at;
} vm_translator;

/* ---- translate_code.c: code, places and constants ---- */

void *vm_grow(vm_translator *t, void *array, uint32_t count, uint32_t *room, size_t size);
vm_op *vm_emit_at(vm_translator *t, uint32_t level, vm_op op);
static inline vm_op *vm_emit(vm_translator *t, vm_op op) { return vm_emit_at(t, t->level, op); }
void vm_append(vm_translator *t, const vm_code *code); /* to the level that is open */
bool vm_open(vm_translator *t);
vm_code vm_close(vm_translator *t);

int32_t vm_new_place(vm_translator *t, size_t bytes);
int32_t vm_new_int(vm_translator *t);
void vm_free_place(vm_translator *t, int32_t at);
static inline void vm_free(vm_translator *t, vm_place place) {
    if (place.is_own) vm_free_place(t, place.at);
}
int32_t vm_constant(vm_translator *t, const void *bytes);                    /* VM_SLOT_BYTES */
int32_t vm_constant_of(vm_translator *t, const void *element, size_t bytes); /* repeated */

/* ---- translate_int.c ---- */

vm_int vm_int_const(vm_translator *t, int64_t value);
vm_int vm_int_op2(vm_translator *t, ir_op op, vm_int x, vm_int y);
vm_int vm_int_of(vm_translator *t, const ir_expr *x);

/* A sum of terms, in bytes. */
typedef struct vm_sum {
    int64_t constant;
    uint32_t count, unfolded;
    struct {
        vm_int index;
        int64_t factor;
    } terms[VM_MAX_TERMS];
    const ir_var *counter; /* a loop's counter, whose terms are separate; or NULL */
    uint32_t num_counts;
    bool is_wrong; /* the sum is not linear in the counter */
    struct {
        vm_int stride;
        int64_t factor;
    } counts[VM_MAX_TERMS];
} vm_sum;
void vm_sum_term(vm_translator *t, vm_sum *sum, vm_int index, int64_t factor);
void vm_sum_add(vm_translator *t, vm_sum *sum, const ir_expr *x, vm_int stride, int64_t factor);
/* Sets a, b, d and imm of an access. */
void vm_sum_address(vm_translator *t, int32_t base, const vm_sum *sum, vm_op *op);

/* ---- translate_access.c ---- */

const vm_storage *vm_storage_of(vm_translator *t, const ir_buffer *buffer);
vm_place vm_load_of(vm_translator *t, const ir_expr *load, int32_t want);
void vm_store_to(vm_translator *t, const ir_access *access, const ir_expr *value);
/* An access of contiguous elements without a mask. */
bool vm_is_plain(vm_translator *t, const ir_access *access);
int32_t vm_register_of(vm_translator *t, const ir_access *access); /* in IR_REG or IR_TILES */
void vm_address_of(vm_translator *t, const ir_access *access, vm_op *op);

/* ---- translate_expr.c ---- */

static inline uint32_t vm_bytes(ir_type type) { return (uint32_t)ir_elem_get((ir_elem)type.elem)->bytes * type.lanes; }
static inline bool vm_is_int(ir_type type) { return type.lanes == 1 && (type.elem == IR_IDX || type.elem == IR_I64); }

/* The value, in place `want` if that costs nothing (VM_NOWHERE: anywhere). */
vm_place vm_value_of(vm_translator *t, const ir_expr *x, int32_t want);
/* The same, for a value that must survive while others are computed: a variable's place cannot be reused before
 * vm_hold_no_more. */
vm_place vm_hold(vm_translator *t, const ir_expr *x, vm_var **lender);
void vm_hold_no_more(vm_translator *t, vm_place *place, vm_var *lender);
/* The value in `to`. */
void vm_value_to(vm_translator *t, const ir_expr *x, int32_t to);
void vm_copy(vm_translator *t, int32_t from, int32_t to, size_t bytes); /* whole places */
void vm_copy_int(vm_translator *t, int32_t from, int32_t to);
/* Broadcasts the first lane of a scalar to its place. */
void vm_spread(vm_translator *t, int32_t at, ir_elem elem);

/* ---- translate_stmt.c ---- */

void vm_block(vm_translator *t, const ir_block *block);
void vm_count_uses(vm_translator *t, const ir_block *block);
void vm_stmt(vm_translator *t, const ir_stmt *stmt);
void vm_alloc(vm_translator *t, const ir_buffer *buffer);

/* Index arithmetic gets no code before it is needed. False: the value is not index arithmetic. */
bool vm_define_index(vm_translator *t, const ir_var *var, const ir_expr *value);
bool vm_forward_index(vm_translator *t, const ir_access *access, const ir_expr *value);

/* ---- translate_tile.h: sums of products ---- */

/* Translates a loop that only adds products to sums; false: it is no such loop. */
bool vm_tile_loop(vm_translator *t, const ir_stmt *stmt, vm_int lo, vm_int hi);
/* Translates the sums of products from `stmt` on, and the lets between them; *after is the statement after them, which
 * may be NULL. False: there are none. */
bool vm_tile_run(vm_translator *t, const ir_stmt *stmt, const ir_stmt **after);

/* ---- sizes.c ---- */

typedef struct vm_size_list {
    vm_size_op *ops;
    uint32_t count, room;
} vm_size_list;
vm_size vm_size_of(vm_translator *t, vm_size_list *list, const ir_expr *x);

#endif
