/* Reads rows of quantised caches, dequantised: K and V with scales for parts of a row, or with packed int4 values. Rows
 * of all other tensors are loaded and converted, as mha_load does (arithmetic.c): also int8 with a scale for a head or
 * a token, which score and probability are multiplied by.
 *
 *     i4       16 bytes for each block of 32 columns: byte i has column i in its lower half and column i + 16 in
 *              its upper half, as value + 8
 *     inline   each block of 32 columns begins with its scale, an f16
 *     least    values are 0 to 15, above a minimum. The minimum comes after the scale: inline as an f16, else as an
 *              f32 after all scales of the row */
#ifndef ATTUNE_NEST_CACHED_H
#define ATTUNE_NEST_CACHED_H

#include "nest/rows.h"

/* The format of K or V in a buffer of the caller. */
typedef struct mha_format {
    attune_dtype dtype; /* of the quantised values */
    attune_scales scales;
    int64_t group;           /* columns that share a scale, if scales are by group */
    int64_t columns;         /* of a row */
    const ir_buffer *scaled; /* scales by group or by channel; else NULL */
} mha_format;

/* Whether rows of the buffer must be read by these functions: it is the caller's K or V, in a format that mha_load
 * cannot read. */
bool mha_needs_row_reader(const mha_context *c, const ir_buffer *buffer);
mha_format mha_format_of(const mha_context *c, const ir_buffer *buffer);

/* IR elements in a row of `columns` columns. */
int64_t mha_row_elements(const mha_context *c, const ir_buffer *buffer, int64_t columns);

/* `lanes` columns of a row from `column` on, as c->elem, of any buffer. If it is quantised, `lanes` must divide
 * `column` and head_dim. Scales by group and by channel are applied; scales by head and by token are not. */
const ir_expr *mha_load_row(const mha_context *c, const mha_row *row, const ir_expr *column, int lanes);

/* A block of int4, 32 columns from `column` on, as two vectors of f32, on targets with table look-up: a table of the 16
 * values is multiplied by the scale, and each quantised value is looked up in it. The bits are those of mha_load_row.
 */
bool mha_has_nibble_table(const mha_context *c);
const ir_expr *mha_nibble_table(const mha_context *c);
void mha_load_nibbles(const mha_context *c, const mha_row *row, const ir_expr *column, const ir_expr *table,
                      const ir_expr *out[2]);

/* The row itself; if it is quantised, a dequantised copy in scratch, whose columns can be read at any alignment. */
mha_row mha_dequantised_row(const mha_context *c, const mha_row *row);

/* The access of a scale: by group, that of `column`; by channel, those of `lanes` columns. */
const ir_access *mha_element_scale(const mha_context *c, const mha_format *format, const mha_row *row,
                                   const ir_expr *column, int lanes);
/* The access of a minimum that is not inline. */
const ir_access *mha_element_least(const mha_context *c, const mha_format *format, const mha_row *row,
                                   const ir_expr *column, int lanes);
/* The bytes of block `block`, from its byte `from` on. */
const ir_access *mha_block_bytes(const mha_context *c, const mha_format *format, const mha_row *row,
                                 const ir_expr *block, int64_t from, int bytes);

#endif
