/* Rows of tensors, for builders that copy or transform data column by column. */
#ifndef ATTUNE_NEST_ROWS_H
#define ATTUNE_NEST_ROWS_H

#include "nest/context.h"

/* Rows, or tokens, in a task of a phase that only moves data. */
enum { MHA_ROWS_IN_A_TASK = 16 };

/* A loop over `count` columns in steps of `lanes`, at most `most`. If the step does not divide the count, the last step
 * overlaps the one before, so a column may be visited twice. */
typedef struct mha_columns {
    const ir_expr *at;
    int lanes;
} mha_columns;
mha_columns mha_columns_begin(const mha_context *c, int64_t count, int most);
#define MHA_COLUMNS(c, columns, count, most)                                                                           \
    for (mha_columns columns = mha_columns_begin(c, count, most), *columns##_is_open = &columns; columns##_is_open;    \
         ir_for_end((c)->b), columns##_is_open = NULL)
int mha_column_lanes(int64_t count, int most);

/* A row of a buffer: its last dimension, from column `first` on unless that is NULL. */
typedef struct mha_row {
    const ir_buffer *buffer;
    const ir_expr *index[3]; /* of the other dimensions */
    const ir_expr *first;
} mha_row;

/* The access of `lanes` columns of a row. */
const ir_access *mha_row_access(const mha_context *c, const mha_row *row, const ir_expr *column, int lanes);

/* Copies columns first … columns - 1 of a row. To a token in a panel, only all columns of the same element type can be
 * copied. */
void mha_copy_row(const mha_context *c, const mha_row *source, const mha_row *target, int64_t first, int64_t columns);

/* Whether f32 is rounded by mha_both_rounded on its way into this row. */
bool mha_rounds_by_pairs(const mha_context *c, const mha_row *target);

/* The number of tasks for `count` rows; and the loop over the rows of a task, which ends before row `rows`. */
const ir_expr *mha_row_tasks(const mha_context *c, const ir_expr *count);
const ir_expr *mha_rows_begin(const mha_context *c, const char *name, const ir_expr *task, const ir_expr *rows);
#define MHA_ROWS(c, row, task, rows) IR_LOOP((c)->b, row, mha_rows_begin(c, #row, task, rows))

#endif
