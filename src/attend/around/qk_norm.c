/* RMS norms of queries and keys, head by head (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019):
 *
 *     x * weights / sqrt(mean of x^2 + qk_norm_eps)
 *
 * The squares are summed in LANES lanes, or fewer if these do not divide the row, independent of the schedule's
 * vectors. So a row has the same bits with every schedule, as `reproducible` promises. */
#include "attend/around/around.h"

enum { LANES = 16 };

/* 1 / sqrt(mean of x^2 + eps). */
static const ir_expr *factor_of(const mha_context *c, const mha_row *source) {
    ir_builder *b = c->b;
    const int64_t columns = c->p->head_dim;
    int lanes = LANES;
    while (columns % lanes) lanes /= 2;
    const ir_access *squares = ir_at(b, ir_registers(b, "squares", c->elem, lanes, 0, NULL), lanes, 0);
    ir_store(b, squares, mha_number(c, 0, lanes));
    IR_FOR(b, column, ir_idx(b, 0), ir_idx(b, columns), lanes) {
        const ir_expr *x = ir_let(b, "x", mha_load(c, mha_row_access(c, source, column, lanes)));
        ir_store(b, squares, mha_madd(c, x, x, ir_load(b, squares)));
    }
    const ir_expr *sum = ir_reduce(b, IR_ADD, ir_let(b, "square_lanes", ir_load(b, squares)));
    const ir_expr *mean = ir_div(b, sum, mha_number(c, (double)columns, 1));
    const ir_expr *root = ir_sqrt(b, ir_add(b, mean, mha_number(c, c->p->qk_norm_eps, 1)));
    return ir_let(b, "factor", ir_div(b, mha_number(c, 1, 1), root));
}

mha_normalised mha_normalised_open(mha_context *c, mha_tensor_id norm, const mha_row *source) {
    const ir_buffer *weights = c->params.tensor[norm];
    return (mha_normalised){source, weights, weights ? factor_of(c, source) : NULL};
}

const ir_expr *mha_normalised_load(const mha_context *c, const mha_normalised *row, const ir_expr *column, int lanes) {
    const ir_expr *x = mha_load(c, mha_row_access(c, row->source, column, lanes));
    if (!row->weights) return x;
    const ir_expr *weights = mha_load(c, ir_at(c->b, row->weights, lanes, 1, column));
    return ir_mul(c->b, ir_mul(c->b, x, ir_splat(c->b, row->factor, lanes)), weights);
}

void mha_normalised_copy(const mha_context *c, const mha_normalised *row, const mha_row *target, int64_t first,
                         int64_t columns) {
    if (!row->weights) {
        mha_copy_row(c, row->source, target, first, columns);
        return;
    }
    if (first >= columns) return;
    MHA_COLUMNS(c, at, columns - first, c->lanes) {
        const ir_expr *column = ir_plus(c->b, at.at, first);
        const ir_expr *x = mha_normalised_load(c, row, column, at.lanes);
        mha_store(c, mha_row_access(c, target, column, at.lanes), x);
    }
}
