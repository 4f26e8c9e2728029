/* Tiles of sums of products. translate_tile.c finds the products of statements and their operands, translate_shape.c
 * the rows and columns of a tile and loops that are one operation, translate_run.c runs of such statements in other
 * code. */
#ifndef ATTUNE_VM_TRANSLATE_TILE_H
#define ATTUNE_VM_TRANSLATE_TILE_H

#include "vm/translate.h"

enum { MOST_OPERANDS = VM_TILE_POINTERS, MOST_PRODUCTS = 1024, MOST_SUMS = 128, MOST_CHAIN = 16, MOST_TURNS = 64 };

/* A row or a column: an access, or a place in the frame. */
typedef struct vm_operand {
    const ir_access *access; /* NULL: a place */
    int32_t at;              /* the place */
    const ir_var *var;       /* the let whose value it is, or NULL */
    int32_t reg;             /* the place that has it, or VM_NOWHERE */
    bool is_number;          /* 4 bytes that fill a register */
    ir_elem elem;            /* f32, or an element that the access widens */
    vm_op address;           /* in the first turn of the loop */
    int32_t step;            /* the place of its stride from iteration to iteration */
} vm_operand;

typedef struct vm_product {
    int32_t sum;
    uint32_t row, column; /* operands */
    uint32_t part;        /* how many products were added to this sum before it */
} vm_product;

struct vm_tile {
    vm_products kind;
    uint32_t num_operands, num_products;
    vm_operand operands[MOST_OPERANDS];
    vm_product products[MOST_PRODUCTS], ordered[MOST_PRODUCTS];
    uint32_t parts, rows, columns;
    int32_t first_sum, row_distance, column_distance; /* of the sums */
    uint32_t order[MOST_OPERANDS];                    /* for each part its rows, then its columns */
    bool is_number;                                   /* the rows */

    /* Inner loops of few iterations: all of their iterations become one of the outer loop, so that all sums are in
     * registers. */
    const ir_stmt *loop;
    uint32_t depth; /* of loops inside it round what is scanned */
    vm_int lo;
    /* Sums in memory, which are in the frame during the loop. */
    const ir_buffer *sums;
    uint32_t num_borrowed;
    vm_op borrowed[MOST_SUMS];     /* their loads */
    vm_op pointers[MOST_OPERANDS]; /* to operands, used when the operation is emitted */
};

/* The factors of `stmt`, if it is sum = x * y + sum. */
typedef struct vm_factor_pair {
    const ir_expr *x, *y;
} vm_factor_pair;

typedef struct vm_factors {
    vm_products kind;
    const ir_access *sum;
    bool is_memory; /* the sum lies in scratch */
    uint32_t count;
    vm_factor_pair products[MOST_CHAIN];
} vm_factors;

/* ---- translate_tile.c ---- */

/* The translator's tile, emptied; NULL: out of memory. */
struct vm_tile *vm_tile_new(vm_translator *t);
bool vm_factors_of(vm_translator *t, const ir_stmt *stmt, vm_factors *f);
const ir_expr *vm_without_casts_of_bits(const ir_expr *x);
int32_t vm_add_operand(struct vm_tile *tile, vm_operand o);
/* The number of the operand that an expression reads; -1: none. */
int32_t vm_read_operand(vm_translator *t, struct vm_tile *tile, const ir_expr *x);
/* Adds the products of a loop's body; false: it has other statements. */
bool vm_scan_body(vm_translator *t, struct vm_tile *tile, const ir_block *body);

/* ---- translate_shape.c ---- */

typedef struct vm_turns {
    vm_int lo, hi;
    int64_t step;
    int32_t row_step, column_step; /* places */
} vm_turns;

/* Whether the products have a shape: parts, each of which multiplies all rows with all columns. */
bool vm_find_shape(const vm_translator *t, struct vm_tile *tile);
void vm_emit_tile(vm_translator *t, const struct vm_tile *tile, const vm_op *pointers, const vm_turns *loop);

#endif
