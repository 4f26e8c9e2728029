/* Rows of quantised caches, dequantised: K and V with scales for parts of a row, or with packed int4 values. Rows of
 * all other tensors are read as they are.
 *
 *     i4       of each 32 columns 16 bytes: byte i has column i in its lower half, column i + 16 in its upper one, as
 *              value + 8
 *     inline   of each 32 columns first their scale, an f16
 *     least    values are 0 to 15, above a minimum. That lies after the scale: inline an f16, else an f32 after all
 *              scales of the row */
#ifndef ATTUNE_NEST_CACHED_H
#define ATTUNE_NEST_CACHED_H

#include "nest/rows.h"

/* How a buffer of the caller holds K or V. */
typedef struct mha_format {
    attune_dtype dtype; /* of the quantised values */
    attune_scales scales;
    int64_t group;           /* columns that share a scale; of scales of groups */
    int64_t columns;         /* of a row */
    const ir_buffer *scaled; /* scales of runs of columns or of channels; else NULL */
} mha_format;

/* Whether rows of the buffer are such: it is the caller's K or V, and not what mha_load can read. */
bool mha_has_quantised_rows(const mha_context *c, const ir_buffer *buffer);
mha_format mha_format_of(const mha_context *c, const ir_buffer *buffer);

/* Elements of the IR that a row of `columns` columns is. */
int64_t mha_row_elements(const mha_context *c, const ir_buffer *buffer, int64_t columns);

/* `lanes` columns of a row from `column` on, as c->elem, of any buffer. Where it is quantised, `lanes` divides `column`
 * and head_dim; scales of elements are multiplied with, those of heads and tokens are not. */
const ir_expr *mha_load_row(const mha_context *c, const mha_row *row, const ir_expr *column, int lanes);

/* A block of i4, 32 columns from `column` on, as two vectors of f32, on targets that have tables: the 16 numbers are a
 * table, which the scale is multiplied with, and each code is looked up in it. The bits are those of mha_load_row. */
bool mha_has_nibble_table(const mha_context *c);
const ir_expr *mha_nibble_table(const mha_context *c);
void mha_load_nibbles(const mha_context *c, const mha_row *row, const ir_expr *column, const ir_expr *table,
                      const ir_expr *out[2]);

/* The row, or a copy in scratch as c->elem of one that is quantised, whose columns can be read from anywhere. */
mha_row mha_dequantised_row(const mha_context *c, const mha_row *row);

/* The place of a scale: of scales of groups or channels that of `column`, `lanes` of channels. */
const ir_access *mha_element_scale(const mha_context *c, const mha_format *format, const mha_row *row,
                                   const ir_expr *column, int lanes);
/* That of a minimum, which is no f16 among the values. */
const ir_access *mha_element_least(const mha_context *c, const mha_format *format, const mha_row *row,
                                   const ir_expr *column, int lanes);
/* The bytes of block number `block`, from its byte number `from` on. */
const ir_access *mha_block_bytes(const mha_context *c, const mha_format *format, const mha_row *row,
                                 const ir_expr *block, int64_t from, int bytes);

#endif
