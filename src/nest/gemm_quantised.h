/* Rows of the left factor of a product quantised to int8 (x_planes), for right factors that are quantised. Of each
 * group of columns that share scales:
 *
 *     scale = max |x| / 127
 *     value = rint(x / scale)                                  0 if scale is 0 or not finite
 *     acc   = madd(sum of value * B's value, scale * B's scale, acc)     the sum exact, then rounded to c->elem
 *
 * dot4's first factor is unsigned: B's values come with their sign bit turned, value + 128 (of 4 bits: + 8), and the
 * sums of a row begin with -128 (-8) times the sum of its values. */
#ifndef ATTUNE_NEST_GEMM_QUANTISED_H
#define ATTUNE_NEST_GEMM_QUANTISED_H

#include "nest/rows.h"

typedef struct mha_quantised_left {
    const ir_buffer *codes;  /* [rows, steps * inputs] i8; NULL: the left factor is not quantised */
    const ir_buffer *scales; /* [rows, steps] c->elem */
    const ir_buffer *starts; /* [rows, steps] i32 */
    int64_t steps, inputs;
    int32_t turned; /* what the turned sign bit adds to a value of B */
} mha_quantised_left;

/* Shared memory for so many rows. `codes`: values in a word of B. */
mha_quantised_left mha_quantised_left_of(const mha_context *c, const ir_expr *rows, int64_t steps, int64_t inputs,
                                         int codes);
/* Scratch for some of them, and a row copied there. */
mha_quantised_left mha_left_scratch(const mha_context *c, const mha_quantised_left *all, int64_t rows);
void mha_copy_left(const mha_context *c, const mha_quantised_left *from, const ir_expr *row,
                   const mha_quantised_left *to, const ir_expr *to_row);

/* Row 0 of `from`, numbers of c->elem, becomes row `row`. */
void mha_encode_left(const mha_context *c, const mha_quantised_left *left, const ir_buffer *from, const ir_expr *row);

const ir_expr *mha_left_start(const mha_context *c, const mha_quantised_left *left, const ir_expr *row,
                              const ir_expr *step);
const ir_expr *mha_left_scale(const mha_context *c, const mha_quantised_left *left, const ir_expr *row,
                              const ir_expr *step);

/* Of words with `inputs` values each, the four from `input` on, their sign bits turned. */
const ir_expr *mha_unsigned_values(const mha_context *c, const ir_expr *words, int inputs, int input);

#endif
