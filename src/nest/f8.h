/* f8 values, a vector of bytes at a time, as bf16 or f32, which hold them exactly: the two bytes of the bf16 come
 * from tables of the 128 magnitudes (lookup). Instructions that put bytes side by side work within segments of 16
 * values, so the results are in another order: a value's place in it is that of the element with its number in
 * mha_f8_place. */
#ifndef ATTUNE_NEST_F8_H
#define ATTUNE_NEST_F8_H

#include "nest/context.h"

/* f8 values in a vector: as many as it has bytes. */
enum { MHA_F8_CODES = 64 };

/* Whether the target has such tables, and arithmetic is in the vectors that they are for. */
bool mha_has_f8_tables(const mha_context *c);

/* The tables, in scratch of the task that is open. They come as four vectors, which the caller keeps. */
const ir_buffer *mha_f8_tables(const mha_context *c);
typedef struct mha_f8_table {
    const ir_expr *low[2], *high[2]; /* bytes of the bf16 of the bytes 0 … 63 and 64 … 127 */
} mha_f8_table;
mha_f8_table mha_f8_table_of(const mha_context *c, const ir_buffer *tables);

/* 64 values. bf16: 2 vectors of 32; f32: 4 vectors of 16. */
void mha_f8_as_bf16(const mha_context *c, const mha_f8_table *table, const ir_expr *codes, const ir_expr *out[2]);
void mha_f8_as_f32(const mha_context *c, const mha_f8_table *table, const ir_expr *codes, const ir_expr *out[4]);
/* The pairs (x[i], y[i]) as bf16: 4 vectors of 16 pairs. */
void mha_f8_as_pairs(const mha_context *c, const mha_f8_table *table, const ir_expr *x, const ir_expr *y,
                     const ir_expr *out[4]);

/* Number of the element, counted through all vectors, that code number `code` becomes. */
typedef enum mha_f8_form { MHA_F8_BF16, MHA_F8_F32, MHA_F8_PAIRS } mha_f8_form;
int mha_f8_place(mha_f8_form form, int code);

#endif
