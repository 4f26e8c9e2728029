/* A register tile of a product: acc[r][v] += x · y, step by step in the order of k.
 *
 * The factor of a vector is a vector along the lanes. The factor of a row is broadcast to all lanes, or is a vector,
 * too; then the sums are reduced over their lanes at the end (mha_sum_lanes). The caller opens the loop over k, and
 * passes the factors of all vectors, and then those of one row after the other:
 *
 *     mha_product_clear(&p);
 *     IR_FOR(b, k, …) {
 *         for (v …) mha_product_vector(&p, "right", v, load of right[k, v]);
 *         for (r …) mha_product_repeat(&p, "left", r, access of left[r, k]);
 *     }
 *     for (r …) for (v …) … mha_product_sum(&p, r, v) … */
#ifndef ATTUNE_NEST_PRODUCT_H
#define ATTUNE_NEST_PRODUCT_H

#include "nest/pairs.h"

enum { MHA_MAX_VECTORS = 64 };

typedef struct mha_product {
    const mha_context *c;
    mha_kind kind;
    int lanes;             /* of an accumulator */
    int64_t rows, vectors; /* of the tile. Rows are keys in scores of prefill, query rows in decoding */
    bool vectors_first;    /* the vectors' factor is the first operand; results do not depend on it, bit for bit */
    const ir_buffer *acc;  /* registers [rows, vectors] */
    const ir_buffer *held; /* the vectors' factors of a step: registers [vectors]; NULL: they are names */
    const ir_expr *vector[MHA_MAX_VECTORS]; /* of a step */
} mha_product;

static inline mha_product mha_product_of(const mha_context *c, mha_kind kind, int64_t rows, int64_t vectors) {
    return (mha_product){.c = c, .kind = kind, .lanes = c->lanes, .rows = rows, .vectors = vectors};
}

/* mha_product_begin declares the accumulators, which the caller initialises; mha_product_clear also sets them to 0. */
void mha_product_begin(mha_product *p);
void mha_product_clear(mha_product *p);
const ir_access *mha_product_at(const mha_product *p, int64_t row, int64_t vector);
const ir_expr *mha_product_sum(const mha_product *p, int64_t row, int64_t vector);

/* Keeps the vectors' factors of the next step in an array in registers. */
void mha_product_hold(mha_product *p, const char *name);
/* Sets the factor of a vector, which gets a name, unless `name` is NULL or factors are in an array. */
void mha_product_vector(mha_product *p, const char *name, int64_t vector, const ir_expr *x);
/* Add all products with the factor of a row: a vector, or an element that is broadcast. */
void mha_product_row(const mha_product *p, const char *name, int64_t row, const ir_expr *x);
void mha_product_repeat(const mha_product *p, const char *name, int64_t row, const ir_access *access);
/* Adds one of these products. */
void mha_product_add(const mha_product *p, int64_t row, int64_t vector, const ir_expr *x);

/* A loop over k = from, …, to - 1 with `unroll` steps in an iteration. The last iteration begins before `to`, and is
 * not cut off. */
#define MHA_STEPS(c, k, from, to, unroll)                                                                              \
    for (const ir_expr *k = mha_steps_begin(c, #k, from, to, unroll), *k##_is_open = &ir_open; k##_is_open;            \
         mha_steps_end(c), k##_is_open = NULL)
const ir_expr *mha_steps_begin(const mha_context *c, const char *name, const ir_expr *from, const ir_expr *to,
                               int64_t unroll);
void mha_steps_end(const mha_context *c);

#endif
