/* Between rows in memory and rows in lanes: `lanes` rows and 4 columns at a time, in rolled loops (a transpose costs
 * milliseconds of compile time). */
#include "mha/q_lanes.h"

void ql_load_transposed(q_lanes *c, const ir_buffer *tensor, const ir_expr *batch, const ir_expr *first_token,
                        const q_lanes_row *rows, const ir_expr *column, const ir_expr *columns[4]) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes, quarter = mha_quarter(c->m->lanes);
    const ir_expr *parts[IR_MAX_LANES];
    for (int i = 0; i < quarter; i++) {
        for (int part = 0; part < lanes / quarter; part++) {
            const q_lanes_row *row = &rows[part * quarter + i];
            const ir_expr *token = ir_add(b, first_token, row->query);
            parts[part] = mha_load(c->m, ir_at(b, tensor, quarter, 4, batch, row->head, token, column));
        }
        columns[i] = ir_let(b, "part", mha_join(b, parts, lanes / quarter, quarter));
    }
    mha_transpose_quarters(b, lanes, columns);
}

void ql_store_transposed(q_lanes *c, const ir_buffer *tensor, const ir_expr *batch, const ir_expr *first_token,
                         const q_lanes_row *rows, const ir_expr *column, const ir_expr *columns[4]) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes, quarter = mha_quarter(c->m->lanes);
    mha_transpose_quarters(b, lanes, columns);
    for (int l = 0; l < lanes; l++) {
        const ir_expr *token = ir_add(b, first_token, rows[l].query);
        mha_store(c->m, ir_at(b, tensor, quarter, 4, batch, rows[l].head, token, column),
                  mha_lanes_of(b, columns[l % quarter], l / quarter * quarter, quarter));
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
    const ir_expr *joined = ir_let(b, "joined", mha_join(b, parts, lanes, quarter));
    const ir_expr *turned = ir_let(b, "turned", ir_shuffle(b, joined, joined, lanes * quarter, pick));
    for (int i = 0; i < quarter; i++) columns[i] = mha_lanes_of(b, turned, i * lanes, lanes);
}
