/* A register tile of a product: acc[r][v] += x · y for each k, in the order of k.
 *
 * One factor is told by the vectors of the tile: it lies along the lanes. The other is told by its rows: it lies along
 * the lanes too, whose sums then are added up at the end (transpose.h: mha_sum_lanes), or is one number, or pair,
 * repeated in all lanes (mha_load_repeated). A step loads the factors of all vectors, then takes row after row.
 *
 * The builder owns the accumulators and the steps. Where factors come from is said by callbacks; the caller starts the
 * accumulators (mha_product_clear, or by a store of its own) and decides what becomes of them. */
#ifndef ATTUNE_MHA_PRODUCT_H
#define ATTUNE_MHA_PRODUCT_H

#include "nest/pairs.h"

enum { MHA_MAX_VECTORS = 64 };

typedef struct mha_product mha_product;
struct mha_product {
    const mha_context *c;
    mha_kind kind;
    int lanes;                          /* of an accumulator */
    int64_t rows, vectors;              /* of the tile */
    const char *row_name, *vector_name; /* of the factors in the IR; NULL: an expression without a name */
    bool in_registers;                  /* factors of vectors are kept in an array of that name */
    bool vectors_first;                 /* the factor of the vectors is the first one; bits do not depend on it */
    void *user;
    /* What both factors of step k need; NULL: nothing. */
    void (*open)(const mha_product *p, const ir_expr *k);
    /* The factors of step k. */
    const ir_expr *(*vector)(const mha_product *p, const ir_expr *k, int64_t v);
    const ir_expr *(*row)(const mha_product *p, const ir_expr *k, int64_t r);
    /* What a row's factor x is for vector v; NULL: itself. */
    const ir_expr *(*part)(const mha_product *p, const ir_expr *k, int64_t v, const ir_expr *x);
    const ir_buffer *acc; /* registers [rows, vectors]: mha_product_begin */
};

/* Declares the accumulators. */
void mha_product_begin(mha_product *p);
void mha_product_clear(const mha_product *p);
const ir_access *mha_product_at(const mha_product *p, int64_t row, int64_t vector);
const ir_expr *mha_product_sum(const mha_product *p, int64_t row, int64_t vector);

/* Step k; or in two halves, between which something else may be done. */
void mha_product_step(const mha_product *p, const ir_expr *k);
void mha_product_load(const mha_product *p, const ir_expr *k, const ir_expr **vectors);
void mha_product_add(const mha_product *p, const ir_expr *k, const ir_expr *const *vectors);

/* Steps from … to - 1 in a loop of that name, `unroll` in a turn: as many turns as begin before `to`. */
void mha_product_steps(const mha_product *p, const char *name, const ir_expr *from, const ir_expr *to, int64_t unroll);

#endif
