/* Copies rows of tensors by vectors of columns. The last vector may overlap the one before, so copies need no masks. */
#include "nest/pairs.h"
#include "nest/panel_rows.h"

int mha_column_lanes(int64_t count, int most) {
    int lanes = 1;
    while (lanes * 2 <= most && lanes * 2 <= count) lanes *= 2;
    return lanes;
}

mha_columns mha_columns_begin(const mha_context *c, int64_t count, int most) {
    ir_builder *b = c->b;
    const int lanes = mha_column_lanes(count, most);
    const ir_expr *at = ir_for_begin(b, "column", ir_idx(b, 0), ir_idx(b, count), lanes, false);
    if (count % lanes) at = ir_let(b, "d", ir_min(b, at, ir_idx(b, count - lanes)));
    return (mha_columns){at, lanes};
}

const ir_access *mha_row_access(const mha_context *c, const mha_row *row, const ir_expr *column, int lanes) {
    const ir_expr *index[IR_MAX_DIMS];
    if (mha_is_paneled(c, row->buffer)) return mha_panel_access(c, row, column, lanes);
    const int outer = row->buffer ? row->buffer->num_dims - 1 : 0;
    for (int i = 0; i < outer; i++) index[i] = row->index[i];
    index[outer] = row->first ? ir_add(c->b, row->first, column) : column;
    return ir_access_make(c->b, row->buffer, lanes, -1, outer + 1, index, NULL);
}

/* Two vectors are rounded together. */
static void round_row(const mha_context *c, const mha_row *source, const mha_row *target, int64_t first,
                      int64_t columns) {
    ir_builder *b = c->b;
    MHA_COLUMNS(c, at, columns - first, 2 * c->lanes) {
        const ir_expr *column = ir_plus(b, at.at, first), *x[2];
        const int lanes = at.lanes / 2;
        for (int i = 0; i < 2; i++) x[i] = ir_load(b, mha_row_access(c, source, ir_plus(b, column, i * lanes), lanes));
        ir_store(b, mha_row_access(c, target, column, at.lanes), mha_both_rounded(c, x[0], x[1]));
    }
}

enum { UNROLLED = 4 };

/* Whole vectors, some at a time. */
static void move_row(const mha_context *c, const mha_row *source, const mha_row *target, int64_t first, int64_t columns,
                     int lanes) {
    ir_builder *b = c->b;
    IR_FOR(b, column, ir_idx(b, first), ir_idx(b, columns), (int64_t)UNROLLED * lanes)
        for (int i = 0; i < UNROLLED; i++) {
            const ir_expr *at = ir_plus(b, column, (int64_t)i * lanes);
            ir_store(b, mha_row_access(c, target, at, lanes), ir_load(b, mha_row_access(c, source, at, lanes)));
        }
}

void mha_copy_row(const mha_context *c, const mha_row *source, const mha_row *target, int64_t first, int64_t columns) {
    if (first >= columns || !source->buffer || !target->buffer) return;
    if (mha_is_paneled(c, target->buffer)) {
        mha_store_panel_row(c, source, target, columns);
        return;
    }
    if (mha_rounds_by_pairs(c, target) && source->buffer->type.elem == IR_F32 && columns - first > 1) {
        round_row(c, source, target, first, columns);
        return;
    }
    const bool moves = source->buffer->type.elem == target->buffer->type.elem;
    const int vector = c->lanes * ir_elem_get(c->elem)->bytes / ir_elem_get((ir_elem)source->buffer->type.elem)->bytes;
    if (moves && (columns - first) % (UNROLLED * vector) == 0) {
        move_row(c, source, target, first, columns, vector);
        return;
    }
    MHA_COLUMNS(c, at, columns - first, moves ? vector : c->lanes) {
        const ir_expr *column = ir_plus(c->b, at.at, first);
        const ir_access *from = mha_row_access(c, source, column, at.lanes);
        const ir_access *to = mha_row_access(c, target, column, at.lanes);
        if (moves)
            ir_store(c->b, to, ir_load(c->b, from));
        else
            mha_store(c, to, mha_load(c, from));
    }
}

bool mha_rounds_by_pairs(const mha_context *c, const mha_row *target) {
    return (c->variant.by_pairs || c->variant.projects_by_pairs) && target->buffer &&
           target->buffer->type.elem == IR_BF16;
}

const ir_expr *mha_row_tasks(const mha_context *c, const ir_expr *count) {
    return ir_ceil_div(c->b, count, MHA_ROWS_IN_A_TASK);
}

const ir_expr *mha_rows_begin(const mha_context *c, const char *name, const ir_expr *task, const ir_expr *rows) {
    ir_builder *b = c->b;
    const ir_expr *first = ir_times(b, task, MHA_ROWS_IN_A_TASK);
    const ir_expr *end = ir_min(b, ir_plus(b, first, MHA_ROWS_IN_A_TASK), rows);
    return ir_for_begin(b, name, first, end, 1, false);
}
