/* Multiplies queries and keys by the normalised Walsh-Hadamard matrix, head by head (qk_hadamard). It spreads outlier
 * columns over all columns, so that quantising a key loses less (Ashkboos et al., "QuaRot", 2024). The matrix is
 * orthogonal, so the dot products of queries and keys do not change.
 *
 * Rows are multiplied by 1 / sqrt(head_dim) first, which avoids overflow. Then come butterflies of columns 1 apart, 2
 * apart, 4 apart, …:
 *
 *     x[i], x[i + apart]    ->    x[i] + x[i + apart], x[i] - x[i + apart]
 *
 * The order is fixed, and the width of a vector only decides how many are computed at once. So a row has the same bits
 * with every schedule. */
#include "attend/around/around.h"

#include <math.h>

mha_row mha_hadamard_row(mha_context *c) {
    const ir_buffer *scratch = ir_scratch(c->b, "spread", c->elem, 2, (int64_t[]){1, c->p->head_dim});
    return (mha_row){scratch, {ir_idx(c->b, 0)}, NULL};
}

/* The butterflies of lanes `apart` apart within a vector: differences in lanes whose number has the bit `apart`, else
 * sums. */
static const ir_expr *lanes_met(ir_builder *b, const ir_expr *x, int apart) {
    uint8_t other[IR_MAX_LANES], side[IR_MAX_LANES];
    if (!x) return NULL;
    const int lanes = x->type.lanes;
    for (int l = 0; l < lanes; l++) {
        other[l] = (uint8_t)(l ^ apart);
        side[l] = (uint8_t)(l & apart ? lanes + l : l);
    }
    const ir_expr *y = ir_let(b, "other", ir_shuffle(b, x, x, lanes, other));
    const ir_expr *sum = ir_let(b, "sum", ir_add(b, x, y)), *difference = ir_let(b, "difference", ir_sub(b, y, x));
    return ir_let(b, "met", ir_shuffle(b, sum, difference, lanes, side));
}

static void meet_within_vectors(mha_context *c, const mha_row *row, int lanes) {
    ir_builder *b = c->b;
    const double factor = 1 / sqrt((double)c->p->head_dim);
    IR_FOR(b, column, ir_idx(b, 0), ir_idx(b, c->p->head_dim), lanes) {
        const ir_access *at = mha_row_access(c, row, column, lanes);
        const ir_expr *x = ir_let(b, "x", ir_mul(b, ir_load(b, at), mha_number(c, factor, lanes)));
        for (int apart = 1; apart < lanes; apart *= 2) x = lanes_met(b, x, apart);
        ir_store(b, at, x);
    }
}

static void meet_vectors(mha_context *c, const mha_row *row, int lanes, int64_t apart) {
    ir_builder *b = c->b;
    IR_FOR(b, pair, ir_idx(b, 0), ir_idx(b, c->p->head_dim / (2 * apart)), 1)
        IR_FOR(b, column, ir_idx(b, 0), ir_idx(b, apart), lanes) {
            const ir_expr *first = ir_add(b, ir_times(b, pair, 2 * apart), column);
            const ir_access *at[2];
            const ir_expr *x[2];
            for (int i = 0; i < 2; i++) {
                at[i] = mha_row_access(c, row, ir_plus(b, first, i * apart), lanes);
                x[i] = ir_let(b, "x", ir_load(b, at[i]));
            }
            ir_store(b, at[0], ir_add(b, x[0], x[1]));
            ir_store(b, at[1], ir_sub(b, x[0], x[1]));
        }
}

void mha_hadamard(mha_context *c, const mha_row *row, const mha_row *target) {
    const int lanes = mha_column_lanes(c->p->head_dim, c->lanes);
    meet_within_vectors(c, row, lanes);
    for (int64_t apart = lanes; apart < c->p->head_dim; apart *= 2) meet_vectors(c, row, lanes, apart);
    mha_copy_row(c, row, target, 0, c->p->head_dim);
}
