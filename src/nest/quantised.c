/* Ranges and scales for quantising a row. Lanes run along the columns; maxima and sums are reduced at the end. */
#include "nest/quantised.h"

#include <math.h>

/* Sums 0 * x, which is NaN if some x is NaN or infinite; a maximum may ignore a NaN. */
const ir_expr *mha_row_range(const mha_context *c, const mha_row *row, int64_t columns) {
    ir_builder *b = c->b;
    const int lanes = mha_column_lanes(columns, c->lanes);
    const ir_access *most = ir_at(b, ir_registers(b, "most", c->elem, lanes, 0, NULL), lanes, 0);
    const ir_access *odd = ir_at(b, ir_registers(b, "odd", c->elem, lanes, 0, NULL), lanes, 0);
    const ir_expr *zero = mha_number(c, 0, lanes);
    ir_store(b, most, zero);
    ir_store(b, odd, zero);
    MHA_COLUMNS(c, at, columns, c->lanes) {
        const ir_expr *x = ir_let(b, "x", mha_load(c, mha_row_access(c, row, at.at, lanes)));
        ir_store(b, most, ir_max(b, ir_abs(b, x), ir_load(b, most)));
        ir_store(b, odd, ir_add(b, ir_load(b, odd), ir_mul(b, x, zero)));
    }
    const ir_expr *sum = ir_reduce(b, IR_ADD, ir_let(b, "odd_lanes", ir_load(b, odd)));
    return ir_add(b, ir_reduce(b, IR_MAX, ir_let(b, "most_lanes", ir_load(b, most))), sum);
}

/* Finds the largest and the smallest of the columns and of `first`; returns the sum of 0 * x, as above. */
static const ir_expr *find_extremes(const mha_context *c, const mha_row *row, int64_t columns, const ir_expr *first,
                                    const ir_expr *extremes[2]) {
    ir_builder *b = c->b;
    const int lanes = mha_column_lanes(columns, c->lanes);
    const ir_expr *zero = mha_number(c, 0, lanes);
    if (!first) first = zero;
    const ir_access *most = ir_mutable(b, "most", first), *least = ir_mutable(b, "least", first);
    const ir_access *odd = ir_mutable(b, "odd", zero);
    MHA_COLUMNS(c, at, columns, c->lanes) {
        const ir_expr *x = ir_let(b, "x", mha_load(c, mha_row_access(c, row, at.at, lanes)));
        ir_store(b, most, ir_max(b, x, ir_load(b, most)));
        ir_store(b, least, ir_min(b, x, ir_load(b, least)));
        ir_store(b, odd, ir_add(b, ir_load(b, odd), ir_mul(b, x, zero)));
    }
    const ir_expr *sum = ir_reduce(b, IR_ADD, ir_let(b, "odd_lanes", ir_load(b, odd)));
    extremes[0] = ir_let(b, "top", ir_reduce(b, IR_MAX, ir_let(b, "most_lanes", ir_load(b, most))));
    extremes[1] = ir_let(b, "bottom", ir_reduce(b, IR_MIN, ir_let(b, "least_lanes", ir_load(b, least))));
    return sum;
}

const ir_expr *mha_row_extreme(const mha_context *c, const mha_row *row, int64_t columns) {
    ir_builder *b = c->b;
    const ir_expr *at[2], *sum = find_extremes(c, row, columns, NULL, at);
    return ir_add(b, ir_select(b, ir_ge(b, at[0], ir_neg(b, at[1])), at[0], at[1]), sum);
}

void mha_row_span(const mha_context *c, const mha_row *row, int64_t columns, const ir_expr *span[2]) {
    ir_builder *b = c->b;
    const int lanes = mha_column_lanes(columns, c->lanes);
    const ir_expr *first = ir_let(b, "first", mha_load(c, mha_row_access(c, row, ir_idx(b, 0), lanes)));
    const ir_expr *at[2], *sum = ir_let(b, "odd_sum", find_extremes(c, row, columns, first, at));
    span[0] = ir_let(b, "least", ir_add(b, at[1], sum));
    span[1] = ir_let(b, "span", ir_add(b, ir_sub(b, at[0], at[1]), sum));
}

const ir_expr *mha_is_usable_scale(const mha_context *c, const ir_expr *scale) {
    ir_builder *b = c->b;
    const int lanes = scale ? scale->type.lanes : 1;
    const ir_expr *size = ir_let(b, "scale_size", ir_abs(b, scale));
    return ir_and(b, ir_gt(b, size, mha_number(c, 0, lanes)), ir_lt(b, size, mha_number(c, INFINITY, lanes)));
}

const ir_expr *mha_over_scale(const mha_context *c, const ir_expr *x, const ir_expr *scale, const ir_expr *usable) {
    const int lanes = x ? x->type.lanes : 1;
    x = ir_div(c->b, x, mha_in_lanes(c, scale, lanes));
    return ir_select(c->b, mha_in_lanes(c, usable, lanes), x, mha_number(c, 0, lanes));
}
