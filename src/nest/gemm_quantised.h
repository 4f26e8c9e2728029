/* Quantises rows of the left factor A to int8 (x_planes), for products with a quantised B. For each group of columns
 * that share scales:
 *
 *     scale = max |x| / 127
 *     value = rint(x / scale)                                  0 if scale is 0 or not finite
 *     acc   = madd(sum of value * B's value, scale * B's scale, acc)     the sum is exact, then rounded to c->elem
 *
 * dot4's first factor is unsigned. So the sign bits of B's values are flipped, which gives value + 128 (for 4 bits
 * value + 8), and the sums of a row of A begin with -128 (-8) times the sum of its values. */
#ifndef ATTUNE_NEST_GEMM_QUANTISED_H
#define ATTUNE_NEST_GEMM_QUANTISED_H

#include "nest/rows.h"

typedef struct mha_quantised_left {
    const ir_buffer *values; /* [rows, steps * inputs] i8; NULL: the left factor is not quantised */
    const ir_buffer *scales; /* [rows, steps] c->elem */
    const ir_buffer *starts; /* [rows, steps] i32 */
    int64_t steps, inputs;
    int32_t turned; /* what flipping the sign bit adds to a value of B */
} mha_quantised_left;

/* Declares shared memory for `rows` rows. `values`: those in a word of B. */
mha_quantised_left mha_quantised_left_of(const mha_context *c, const ir_expr *rows, int64_t steps, int64_t inputs,
                                         int values);
/* Scratch for some of the rows; and copies a row to it. */
mha_quantised_left mha_left_scratch(const mha_context *c, const mha_quantised_left *all, int64_t rows);
void mha_copy_left(const mha_context *c, const mha_quantised_left *from, const ir_expr *row,
                   const mha_quantised_left *to, const ir_expr *to_row);

/* Quantises row 0 of `from`, of c->elem, to row `row`. */
void mha_encode_left(const mha_context *c, const mha_quantised_left *left, const ir_buffer *from, const ir_expr *row);

const ir_expr *mha_left_start(const mha_context *c, const mha_quantised_left *left, const ir_expr *row,
                              const ir_expr *step);
const ir_expr *mha_left_scale(const mha_context *c, const mha_quantised_left *left, const ir_expr *row,
                              const ir_expr *step);

/* The four values from `input` on of words with `inputs` values each, with their sign bits flipped. */
const ir_expr *mha_unsigned_values(const mha_context *c, const ir_expr *words, int inputs, int input);

#endif
