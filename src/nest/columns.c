/* Vectors of columns. If the last vector of a row is incomplete, it is loaded, or stored, as narrower vectors, so
 * nothing beyond the row is accessed, and no target needs masks:
 *
 *     13 columns, 8 lanes    [ 8 ] [ 4 | 1 | 0 0 0 ] */
#include "nest/columns.h"
#include "nest/transpose.h"

typedef struct row_ref {
    const mha_context *c;
    const ir_buffer *buffer;
    const ir_expr *const *index;
    bool is_raw;
} row_ref;

static const ir_access *columns_at(const row_ref *row, const ir_expr *column, int lanes) {
    const ir_expr *index[IR_MAX_DIMS];
    const int num = row->buffer ? row->buffer->num_dims : 0;
    for (int i = 0; i < num - 1; i++) index[i] = row->index[i];
    if (num) index[num - 1] = column;
    return ir_access_make(row->c->b, row->buffer, lanes, -1, num, index, NULL);
}

static const ir_expr *zeros(const row_ref *row, int lanes) {
    const ir_elem elem = row->is_raw && row->buffer ? (ir_elem)row->buffer->type.elem : row->c->elem;
    const ir_expr *zero = mha_number(row->c, 0, lanes);
    if (elem == row->c->elem) return zero;
    zero = elem == IR_I8 ? ir_cast(row->c->b, IR_I32, zero) : mha_narrowed(row->c, zero);
    return zero->type.elem == elem ? zero : ir_cast(row->c->b, elem, zero);
}

static const ir_expr *load(const row_ref *row, const ir_expr *column, int lanes, int64_t count) {
    if (count <= 0) return zeros(row, lanes);
    if (count >= lanes) {
        const ir_access *access = columns_at(row, column, lanes);
        return row->is_raw ? ir_load(row->c->b, access) : mha_load(row->c, access);
    }
    const int half = lanes / 2;
    const ir_expr *const halves[2] = {
        load(row, column, half, count),
        load(row, ir_plus(row->c->b, column, half), half, count - half),
    };
    return mha_concat(row->c->b, halves, 2, half);
}

static void store(const row_ref *row, const ir_expr *column, int lanes, int64_t count, const ir_expr *value,
                  int first) {
    if (count <= 0) return;
    if (count >= lanes) {
        const bool whole = !value || value->type.lanes == lanes;
        mha_store(row->c, columns_at(row, column, lanes), whole ? value : mha_lanes_of(row->c->b, value, first, lanes));
        return;
    }
    const int half = lanes / 2;
    store(row, column, half, count, value, first);
    store(row, ir_plus(row->c->b, column, half), half, count - half, value, first + half);
}

const ir_expr *mha_load_columns(const mha_context *c, const ir_buffer *buffer, const ir_expr *const *index,
                                const ir_expr *column, int64_t count) {
    return load(&(row_ref){c, buffer, index, false}, column, c->lanes, count);
}

const ir_expr *mha_load_raw_columns(const mha_context *c, const ir_buffer *buffer, const ir_expr *const *index,
                                    const ir_expr *column, int lanes, int64_t count) {
    return load(&(row_ref){c, buffer, index, true}, column, lanes, count);
}

void mha_store_columns(const mha_context *c, const ir_buffer *buffer, const ir_expr *const *index,
                       const ir_expr *column, int64_t count, const ir_expr *value) {
    store(&(row_ref){c, buffer, index, false}, column, c->lanes, count, value, 0);
}

static mha_vectors rest_of(const mha_context *c, int64_t columns, int64_t width) {
    const int64_t rest = columns % width;
    return (mha_vectors){.at = ir_idx(c->b, columns - rest), .count = rest};
}

mha_vectors mha_vectors_begin(const mha_context *c, int64_t columns, int64_t width) {
    const int64_t whole = columns - columns % width;
    if (!whole) return rest_of(c, columns, width);
    const ir_expr *at = ir_for_begin(c->b, "at", ir_idx(c->b, 0), ir_idx(c->b, whole), width, false);
    return (mha_vectors){.at = at, .count = width, .columns = columns};
}

mha_vectors mha_vectors_next(const mha_context *c, mha_vectors v) {
    if (!v.columns) return (mha_vectors){0};
    ir_for_end(c->b);
    return rest_of(c, v.columns, v.count);
}
