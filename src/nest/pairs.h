/* Factors of products: numbers of c->elem, pairs of bf16, or fours of bytes. Where the target has dot2, a product may
 * have bf16 factors, two to a lane: each step then adds two products. Quantised values have four to a lane, and sums of
 * i32 that are exact (dot4). This is all that the builders know of them. variant.h and attune_problem.integer say which
 * problems have them. */
#ifndef ATTUNE_NEST_PAIRS_H
#define ATTUNE_NEST_PAIRS_H

#include "nest/context.h"

/* How products are computed. The value is how many numbers of a factor share a lane. */
typedef enum mha_kind { MHA_MADD = 1, MHA_DOT2 = 2, MHA_DOT4 = 4 } mha_kind;

static inline mha_kind mha_kind_of(bool by_pairs) { return by_pairs ? MHA_DOT2 : MHA_MADD; }

/* The elements of factors and of sums. */
ir_elem mha_factor_elem(const mha_context *c, mha_kind kind);
ir_elem mha_sum_elem(const mha_context *c, mha_kind kind);

/* acc + x * y; of pairs and fours all products are added. Of fours x is unsigned. */
const ir_expr *mha_accumulate(const mha_context *c, mha_kind kind, const ir_expr *x, const ir_expr *y,
                              const ir_expr *acc);

/* A factor in memory, of any element if the kind is MHA_MADD. */
const ir_expr *mha_load_factor(const mha_context *c, mha_kind kind, const ir_access *access);

/* One lane of a factor in `lanes` lanes. */
const ir_expr *mha_repeat(const mha_context *c, mha_kind kind, const ir_expr *x, int lanes);
const ir_expr *mha_load_repeated(const mha_context *c, mha_kind kind, const ir_access *access, int lanes);

/* A factor with 0 in the place of numbers that are not seen. `seen`: bool, or for pairs the bits that mha_seen_bits
 * makes of two of them. `second` NULL: the pair has no second number. */
const ir_expr *mha_where_seen(const mha_context *c, mha_kind kind, const ir_expr *seen, const ir_expr *x);
const ir_expr *mha_seen_bits(const mha_context *c, const ir_expr *first, const ir_expr *second);

/* `lanes` pairs of zeros. */
const ir_expr *mha_zero_pairs(const mha_context *c, int lanes);

/* Of pairs the numbers of one half, 0 or 1, as c->elem. */
const ir_expr *mha_half_of_pairs(const mha_context *c, const ir_expr *pairs, int half);

/* `lanes` pairs (x[i], y[i]). i runs through the lower (upper: the upper) halves of segments of `segment` lanes. */
const ir_expr *mha_interleave(const mha_context *c, const ir_expr *x, const ir_expr *y, int lanes, int segment,
                              bool upper);

/* bf16 that holds the lanes of x, then those of y, which are f32; rounded as pack2 does, which the target must have. */
const ir_expr *mha_both_rounded(const mha_context *c, const ir_expr *x, const ir_expr *y);
/* The same of x alone. */
const ir_expr *mha_rounded(const mha_context *c, const ir_expr *x);

#endif
