/* Rows of tensors, column by column, for builders that move data. */
#ifndef ATTUNE_NEST_ROWS_H
#define ATTUNE_NEST_ROWS_H

#include "nest/context.h"

/* Rows, or tokens, that one task of a phase that only moves data takes. */
enum { MHA_ROWS_IN_A_TASK = 16 };

/* A loop over `count` columns in steps of `lanes`, at most `most`. Where the step does not divide the count, the last
 * step overlaps the one before, so a column may be visited twice. */
typedef struct mha_columns {
    const ir_expr *at;
    int lanes;
} mha_columns;
mha_columns mha_columns_begin(const mha_context *c, int64_t count, int most);
#define MHA_COLUMNS(c, columns, count, most)                                                                           \
    for (mha_columns columns = mha_columns_begin(c, count, most), *columns##_is_open = &columns; columns##_is_open;    \
         ir_for_end((c)->b), columns##_is_open = NULL)
int mha_column_lanes(int64_t count, int most);

/* A row of a buffer: its last dimension, from column `first` on if that is not NULL. */
typedef struct mha_row {
    const ir_buffer *buffer;
    const ir_expr *index[3]; /* of the other dimensions */
    const ir_expr *first;
} mha_row;

/* The access of `lanes` columns of a row. */
const ir_access *mha_row_access(const mha_context *c, const mha_row *row, const ir_expr *column, int lanes);

/* Copies columns first … columns - 1 of a row. A row of a panel takes all columns, of its own element. */
void mha_copy_row(const mha_context *c, const mha_row *source, const mha_row *target, int64_t first, int64_t columns);

/* Whether f32 goes into this row by mha_both_rounded. */
bool mha_rounds_by_pairs(const mha_context *c, const mha_row *target);

/* The number of tasks for `count` rows; and the loop over the rows of a task, which ends at row `rows`. */
const ir_expr *mha_row_tasks(const mha_context *c, const ir_expr *count);
const ir_expr *mha_rows_begin(const mha_context *c, const char *name, const ir_expr *task, const ir_expr *rows);
#define MHA_ROWS(c, row, task, rows) IR_LOOP((c)->b, row, mha_rows_begin(c, #row, task, rows))

#endif
