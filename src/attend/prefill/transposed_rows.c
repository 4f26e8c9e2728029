/* Transposes between rows in memory and rows in lanes, `lanes` rows and a quarter of as many columns at a time. Callers
 * put it into rolled loops, as the code of a transpose takes milliseconds to compile. */
#include "attend/prefill/layout.h"

/* The columns of a row, or pairs of columns as i32, each times `sign` unless that is NULL. */
static const ir_expr *load_part(q_lanes *c, const ir_access *access, bool is_pairs, const ir_expr *sign) {
    ir_builder *b = c->b;
    if (is_pairs && !sign && access && access->buffer->type.elem == IR_BF16)
        return ir_bitcast(b, IR_I32, ir_load(b, access));
    const ir_expr *part = mha_load(c->m, access);
    if (sign) part = ir_mul(b, part, ir_splat(b, sign, access->lanes));
    return is_pairs ? ir_bitcast(b, IR_I32, ir_cast(b, IR_BF16, part)) : part;
}

void ql_load_transposed(q_lanes *c, const q_lanes_tensor *tensor, const q_lanes_row *rows, const ir_expr *column,
                        const ir_expr *columns[4]) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes, quarter = mha_quarter(c->m->lanes), width = tensor->is_pairs ? 2 : 1;
    const ir_expr *parts[IR_MAX_LANES];
    const ir_expr *first = ir_times(b, column, width);
    for (int i = 0; i < quarter; i++) {
        for (int part = 0; part < lanes / quarter; part++) {
            const q_lanes_row *row = &rows[part * quarter + i];
            const ir_expr *token = ir_add(b, tensor->first_token, row->query);
            const ir_access *at = ir_at(b, tensor->buffer, quarter * width, 4, tensor->batch, row->head, token, first);
            parts[part] = load_part(c, at, tensor->is_pairs, tensor->sign);
        }
        columns[i] = ir_let(b, "part", mha_concat(b, parts, lanes / quarter, quarter));
    }
    mha_transpose_quarters(b, lanes, columns);
}

void ql_store_transposed(q_lanes *c, const q_lanes_tensor *tensor, const q_lanes_row *rows, const ir_expr *column,
                         const ir_expr *columns[4]) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes, quarter = mha_quarter(c->m->lanes), width = tensor->is_pairs ? 2 : 1;
    const ir_expr *first = ir_times(b, column, width);
    mha_transpose_quarters(b, lanes, columns);
    for (int l = 0; l < lanes; l++) {
        const ir_expr *token = ir_add(b, tensor->first_token, rows[l].query);
        const ir_access *at = ir_at(b, tensor->buffer, quarter * width, 4, tensor->batch, rows[l].head, token, first);
        const ir_expr *part = mha_lanes_of(b, columns[l % quarter], l / quarter * quarter, quarter);
        if (tensor->is_pairs)
            ir_store(b, at, ir_bitcast(b, IR_BF16, part));
        else
            mha_store(c->m, at, part);
    }
}

void ql_load_bytes_transposed(q_lanes *c, const ir_buffer *tensor, const ir_expr *batch, const q_lanes_row *rows,
                              const ir_expr *column, const ir_expr *columns[4]) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes, quarter = mha_quarter(c->m->lanes);
    const ir_expr *parts[IR_MAX_LANES] = {NULL};
    uint8_t pick[IR_MAX_LANES];
    for (int l = 0; l < lanes; l++)
        parts[l] = ir_load(b, ir_at(b, tensor, quarter, 4, batch, rows[l].head, rows[l].query, column));
    for (int l = 0; l < lanes * quarter; l++) pick[l] = (uint8_t)(l % lanes * quarter + l / lanes);
    const ir_expr *joined = ir_let(b, "joined", mha_concat(b, parts, lanes, quarter));
    const ir_expr *transposed = ir_let(b, "transposed", ir_shuffle(b, joined, joined, lanes * quarter, pick));
    for (int i = 0; i < quarter; i++) columns[i] = mha_lanes_of(b, transposed, i * lanes, lanes);
}
