/* Factors of products, so that builders need not know how many elements share a lane:
 *
 *     kind          elements in a lane    sums       a step adds
 *     MHA_MADD      1 of c->elem          c->elem    1 product
 *     MHA_DOT2      2 of bf16             f32        2 products
 *     MHA_DOT4      4 bytes               i32        4 products, exactly
 *
 * variant.h and attune_problem.integer say which problems use which. */
#ifndef ATTUNE_NEST_PAIRS_H
#define ATTUNE_NEST_PAIRS_H

#include "nest/context.h"

/* How products are computed. The value is the number of elements in a lane of a factor. */
typedef enum mha_kind { MHA_MADD = 1, MHA_DOT2 = 2, MHA_DOT4 = 4 } mha_kind;

static inline mha_kind mha_kind_of(bool by_pairs) { return by_pairs ? MHA_DOT2 : MHA_MADD; }

/* The element types of factors and of sums. */
ir_elem mha_factor_elem(const mha_context *c, mha_kind kind);
ir_elem mha_sum_elem(const mha_context *c, mha_kind kind);

/* acc + x * y; for pairs and fours, acc + the sum of all products in a lane. For fours, x is unsigned. */
const ir_expr *mha_accumulate(const mha_context *c, mha_kind kind, const ir_expr *x, const ir_expr *y,
                              const ir_expr *acc);

/* Loads a factor; of any element type if the kind is MHA_MADD. */
const ir_expr *mha_load_factor(const mha_context *c, mha_kind kind, const ir_access *access);

/* Broadcasts one lane of a factor to `lanes` lanes. */
const ir_expr *mha_repeat(const mha_context *c, mha_kind kind, const ir_expr *x, int lanes);
const ir_expr *mha_load_repeated(const mha_context *c, mha_kind kind, const ir_access *access, int lanes);

/* A factor with its hidden elements replaced by 0. `seen`: bool; for pairs, the bits that mha_seen_bits gives for two
 * of them. `second` NULL: the pair has no second element. */
const ir_expr *mha_where_seen(const mha_context *c, mha_kind kind, const ir_expr *seen, const ir_expr *x);
const ir_expr *mha_seen_bits(const mha_context *c, const ir_expr *first, const ir_expr *second);

/* `lanes` pairs of zeros. */
const ir_expr *mha_zero_pairs(const mha_context *c, int lanes);

/* The elements of one half (0 or 1) of pairs, as c->elem. */
const ir_expr *mha_half_of_pairs(const mha_context *c, const ir_expr *pairs, int half);

/* `lanes` pairs (x[i], y[i]), where i runs over the lower halves (`upper`: the upper halves) of segments of `segment`
 * lanes. */
const ir_expr *mha_interleave(const mha_context *c, const ir_expr *x, const ir_expr *y, int lanes, int segment,
                              bool upper);

/* The f32 lanes of x followed by y, rounded to bf16 as pack2 does, which the target must have. */
const ir_expr *mha_both_rounded(const mha_context *c, const ir_expr *x, const ir_expr *y);
/* The same of x alone. */
const ir_expr *mha_rounded(const mha_context *c, const ir_expr *x);

#endif
