/* Rows as vectors of columns, where the columns need not fill the last vector. */
#ifndef ATTUNE_NEST_COLUMNS_H
#define ATTUNE_NEST_COLUMNS_H

#include "nest/context.h"

/* c->lanes columns of a row from `column` on, as c->elem. The first `count` are loaded, the others are 0; count may
 * exceed c->lanes. `index` are the buffer's other indices. */
const ir_expr *mha_load_columns(const mha_context *c, const ir_buffer *buffer, const ir_expr *const *index,
                                const ir_expr *column, int64_t count);
/* `lanes` columns without conversion. */
const ir_expr *mha_load_raw_columns(const mha_context *c, const ir_buffer *buffer, const ir_expr *const *index,
                                    const ir_expr *column, int lanes, int64_t count);
/* Stores its first `count` columns. */
void mha_store_columns(const mha_context *c, const ir_buffer *buffer, const ir_expr *const *index,
                       const ir_expr *column, int64_t count, const ir_expr *value);

/* Columns 0 … columns - 1 by vectors of `width`. The C block is built once inside an IR loop over the whole vectors,
 * and once more for the remaining columns. */
typedef struct mha_vectors {
    const ir_expr *at; /* the vector's first column */
    int64_t count;     /* its columns; 0 ends the C loop */
    int64_t columns;   /* while the loop over whole vectors is open: all columns */
} mha_vectors;
mha_vectors mha_vectors_begin(const mha_context *c, int64_t columns, int64_t width);
mha_vectors mha_vectors_next(const mha_context *c, mha_vectors v);
#define MHA_VECTORS(c, v, columns, width)                                                                              \
    for (mha_vectors v = mha_vectors_begin(c, columns, width); v.count; v = mha_vectors_next(c, v))

#endif
