/* Converts f8 values to bf16 or f32, which represent them exactly, a vector of bytes at a time. Tables of the 128
 * magnitudes give the two bytes of the bf16 (lookup). Instructions that interleave bytes work within segments of 16
 * values, so the results are in another order: value i becomes element mha_f8_place(form, i). */
#ifndef ATTUNE_NEST_F8_H
#define ATTUNE_NEST_F8_H

#include "nest/context.h"

/* f8 values in a vector of 64 bytes. */
enum { MHA_F8_CODES = 64 };

/* Whether the target has table look-up, and arithmetic is in vectors of the tables' size. */
bool mha_has_f8_tables(const mha_context *c);

/* The tables, in scratch of the task that is open; and loaded into four vectors, which the caller keeps. */
const ir_buffer *mha_f8_tables(const mha_context *c);
typedef struct mha_f8_table {
    const ir_expr *low[2], *high[2]; /* bytes of the bf16 of the bytes 0 … 63 and 64 … 127 */
} mha_f8_table;
mha_f8_table mha_f8_table_of(const mha_context *c, const ir_buffer *tables);

/* 64 values. bf16: 2 vectors of 32; f32: 4 vectors of 16. */
void mha_f8_as_bf16(const mha_context *c, const mha_f8_table *table, const ir_expr *quantised, const ir_expr *out[2]);
void mha_f8_as_f32(const mha_context *c, const mha_f8_table *table, const ir_expr *quantised, const ir_expr *out[4]);
/* The pairs (x[i], y[i]) as bf16: 4 vectors of 16 pairs. */
void mha_f8_as_pairs(const mha_context *c, const mha_f8_table *table, const ir_expr *x, const ir_expr *y,
                     const ir_expr *out[4]);

/* The number, counted over all result vectors, of the element that value number `code` becomes. */
typedef enum mha_f8_form { MHA_F8_BF16, MHA_F8_F32, MHA_F8_PAIRS } mha_f8_form;
int mha_f8_place(mha_f8_form form, int code);

#endif
